//! Load: which commands of other threads are pipelined with the commands of a test.

use libtest_mimic::Trial;
use setnx_lock::{Error, Locker, LockerBuilder};

use super::load_threads::{self, LoadThreads, Tolerance};
use super::{Outcome, trial};

/// Which commands are pipelined together with those of a test's locker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// Those that the test sends at the same time. In most tests there are none: a few threads have a connection each.
    #[default]
    Any,
    /// Those of [`LoadThreads`], which use the same connection.
    Contended,
}

/// The tests that do not run under some loads: the loads, the reason, the tests.
const EXCLUDED: &[(&[Load], &str, &[&str])] = &[
    (
        &[Load::Contended],
        "it is about single connections",
        &["faults::a_connection_that_is_given_up_sends_nothing_more"],
    ),
    (
        &[Load::Contended],
        "the server does not reply, so the load threads keep every connection busy",
        &["faults::a_server_that_accepts_and_never_replies"],
    ),
];

impl Load {
    pub(crate) const ALL: [Self; 2] = [Self::Any, Self::Contended];

    /// The name within a test's name; none for [`Load::Any`].
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Any => None,
            Self::Contended => Some("under_load"),
        }
    }

    /// Whether a test runs under this load.
    pub(crate) fn suits(self, part: &str, test: &str) -> bool {
        let is_it = |name: &&str| name.split_once("::") == Some((part, test));
        let excludes = |loads: &[Self], names: &[&str]| loads.contains(&self) && names.iter().any(is_it);
        !EXCLUDED.iter().any(|(loads, _, names)| excludes(loads, names))
    }

    /// Opens a locker, and returns it with its load threads, if it needs them.
    pub(crate) fn open(
        self,
        builder: LockerBuilder,
        tolerance: Tolerance,
    ) -> Result<(Locker, Option<LoadThreads>), Error> {
        let builder =
            if self == Self::Contended { builder.pool_size(load_threads::CONNECTIONS) } else { builder };
        Ok(self.join(builder.build()?, tolerance))
    }

    /// The same for a locker that is open. To be contended, it must have few connections.
    pub(crate) fn join(self, locker: Locker, tolerance: Tolerance) -> (Locker, Option<LoadThreads>) {
        let load_threads = (self == Self::Contended).then(|| LoadThreads::around(&locker, tolerance));
        (locker, load_threads)
    }
}

pub(crate) type Test = fn(Load) -> Outcome;

/// Names the functions of one part of the suite, under every load that suits them.
pub(crate) fn trials<N, T>(part: &str, tests: &[(N, T)]) -> Vec<Trial>
where
    N: AsRef<str>,
    T: Fn(Load) -> Outcome + Copy + Send + 'static,
{
    let mut trials = Vec::new();
    for load in Load::ALL {
        let part_and_load = load.name().map_or(part.to_owned(), |load| format!("{part}::{load}"));
        for (name, test) in tests.iter().filter(|(name, _)| load.suits(part, name.as_ref())) {
            let test = *test;
            let name = format!("{part_and_load}::{}", name.as_ref());
            trials.push(trial(name, move || test(load)));
        }
    }
    trials
}

/// The test that the tests which are excluded from some loads exist.
pub(crate) fn exclusions_name_tests(trials: &[Trial]) -> Trial {
    let exists = |name: &&str| {
        let Some((part, test)) = name.split_once("::") else { return false };
        let is_it = |trial: &Trial| {
            trial.name().starts_with(&format!("{part}::")) && trial.name().ends_with(&format!("::{test}"))
        };
        trials.iter().any(is_it)
    };
    let names = EXCLUDED.iter().flat_map(|(_, _, names)| *names).copied();
    let unknown: Vec<&str> = names.filter(|name| !exists(name)).collect();
    Trial::test("load::exclusions_name_tests", move || {
        assert!(unknown.is_empty(), "excluded from a load, and no test: {unknown:?}");
        Ok(())
    })
}

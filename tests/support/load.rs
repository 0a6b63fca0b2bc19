//! Company: with whom the commands of a test travel to the server.

use libtest_mimic::Trial;
use setnx_lock::{Error, Locker, LockerBuilder};

use super::Outcome;
use super::load_threads::{self, LoadThreads, Tolerance};

/// With whom the commands of a locker travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Load {
    /// Whoever is there. In most tests nobody is: so few threads have a connection each.
    #[default]
    Any,
    /// Nobody, however many there are.
    Apart,
    /// [`Companions`].
    Contended,
}

/// Tests that are left out, of which company, and why.
const LEFT_OUT: &[(&[Load], &str, &[&str])] = &[
    (
        &[Load::Apart, Load::Contended],
        "it waits for five seconds, in which nothing is sent that others do not send",
        &["contract::waiting_for_ever_outlasts_the_default_timeout"],
    ),
    (
        &[Load::Apart, Load::Contended],
        "it is about a pool's other work",
        &["faults::a_late_reply_to_other_work_reaches_no_other_command"],
    ),
    (
        &[Load::Contended],
        "it has lockers of its own: several, or with a crowd of its own",
        &[
            "contract::separate_pools_lose_no_update",
            "contract::eight_threads_on_a_pool_of_one_lose_no_update",
        ],
    ),
    (
        &[Load::Contended],
        "it looks at what becomes of single connections",
        &[
            "faults::a_connection_that_is_given_up_sends_nothing_more",
            "transaction_faults::a_server_without_room_for_a_client_is_waited_for",
            "handoff_faults::classic::the_lease_passes_in_a_wait_for_a_connection",
            "handoff_faults::watched::the_lease_passes_in_a_wait_for_a_connection",
            "handoff_faults::ttl::the_lease_passes_in_a_wait_for_a_connection",
        ],
    ),
    (
        &[Load::Contended],
        "nothing is answered, so a crowd leaves no connection to be told so on",
        &["faults::a_server_that_accepts_and_never_replies", "faults::a_server_that_freezes_and_thaws"],
    ),
];

impl Load {
    pub(crate) const ALL: [Self; 3] = [Self::Any, Self::Apart, Self::Contended];

    /// Nothing where it is as it comes.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Any => None,
            Self::Apart => Some("apart"),
            Self::Contended => Some("in_a_crowd"),
        }
    }

    /// Whether a test makes sense in it.
    pub(crate) fn suits(self, part: &str, test: &str) -> bool {
        let is_it = |name: &&str| name.split_once("::") == Some((part, test));
        let left_out =
            |companies: &[Self], names: &[&str]| companies.contains(&self) && names.iter().any(is_it);
        !LEFT_OUT.iter().any(|(companies, _, names)| left_out(companies, names))
    }

    /// Opens a locker, and returns it with the crowd if there has to be one.
    pub(crate) fn open(
        self,
        settings: LockerBuilder,
        temper: Tolerance,
    ) -> Result<(Locker, Option<LoadThreads>), Error> {
        let settings =
            if self == Self::Contended { settings.pool_size(load_threads::CONNECTIONS) } else { settings };
        Ok(self.join(settings.build()?, temper))
    }

    /// The same for a locker that is open. One that is to be in a crowd must have few connections.
    pub(crate) fn join(self, locker: Locker, temper: Tolerance) -> (Locker, Option<LoadThreads>) {
        let locker = self.pipelining(locker);
        let load_threads = (self == Self::Contended).then(|| LoadThreads::around(&locker, temper));
        (locker, load_threads)
    }

    /// The locker, with combining off if that is what is wanted.
    pub(crate) fn pipelining(self, locker: Locker) -> Locker {
        locker.pipelining(self != Self::Apart)
    }
}

pub(crate) type Test = fn(Load) -> Outcome;

/// Names the functions of one part of the suite, in all company that suits them.
pub(crate) fn trials<N, T>(part: &str, tests: &[(N, T)]) -> Vec<Trial>
where
    N: AsRef<str>,
    T: Fn(Load) -> Outcome + Copy + Send + 'static,
{
    let mut trials = Vec::new();
    for load in Load::ALL {
        let part_and_company = load.name().map_or(part.to_owned(), |load| format!("{part}::{load}"));
        for (name, test) in tests.iter().filter(|(name, _)| load.suits(part, name.as_ref())) {
            let test = *test;
            let name = format!("{part_and_company}::{}", name.as_ref());
            trials.push(Trial::test(name, move || test(load)));
        }
    }
    trials
}

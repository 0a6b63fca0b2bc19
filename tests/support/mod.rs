//! Support for the tests: servers, keys of a test's own, scenarios with faults, load.

pub(crate) mod load;
pub(crate) mod load_threads;
pub(crate) mod log_capture;
pub(crate) mod notified;
pub(crate) mod part;
pub(crate) mod processes;
pub(crate) mod record;
pub(crate) mod releases;
pub(crate) mod rounds;
pub(crate) mod sample;
pub(crate) mod scenario;
pub(crate) mod second_run;
pub(crate) mod stranger;
pub(crate) mod target;
pub(crate) mod tool;
pub(crate) mod variant;

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use setnx_lock::{Error, LockOptions, Locker, LockerBuilder};
use setnx_lock_testing::{ServerVersion, TestServer};

pub(crate) use load::Load;
pub(crate) use releases::{
    HANDED_OVER, Release, attempts, extend, leave_to_expire, release, release_all, waited,
};
pub(crate) use second_run::trial;
pub(crate) use target::{AnyServer, PAST, Target, TestKey, name_of_holder, shown_later};
pub(crate) use testkit::{LONG, RedisServer, asleep, ruby, sent};
pub(crate) use variant::Variant;

/// What a test returns: nothing, or why it failed. Failed assertions panic.
pub(crate) type Outcome = Result<(), Failed>;

pub(crate) type Test = fn() -> Outcome;

/// Starts a server of this version in this process.
pub(crate) fn server_of(version: ServerVersion) -> TestServer {
    TestServer::builder().version(version.name()).start()
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Options with a lease that no test outlives by accident, and a timeout that no pause of a busy machine exceeds.
pub(crate) fn expiring() -> LockOptions {
    LockOptions::expiring_after(LONG).timeout(LONG)
}

/// Names the functions of one part of the suite. The compiler reports a forgotten one as dead code.
pub(crate) fn trials(part: &str, tests: &[(&str, Test)]) -> Vec<Trial> {
    tests.iter().map(|(name, test)| trial(format!("{part}::{name}"), *test)).collect()
}

/// Whose connections a locker uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Connections {
    Own,
    /// A pool of the program's, which lends them.
    Lent,
}

impl Connections {
    /// Returns the builder of a locker with at most so many of them.
    pub(crate) fn to(self, url: &str, size: u32) -> LockerBuilder {
        match self {
            Connections::Own => Locker::builder(url).unwrap().pool_size(size),
            Connections::Lent => {
                let pool = r2d2::Pool::builder().max_size(size).min_idle(Some(0)).test_on_check_out(false);
                Locker::with_pool(pool.build_unchecked(redis::Client::open(url).unwrap()))
            }
        }
    }
}

type TestOnBoth = fn(Connections) -> Outcome;

/// One test for each kind of connections.
pub(crate) fn trials_on_both(part: &str, tests: &[(&str, TestOnBoth)]) -> Vec<Trial> {
    let each = |connections: Connections| {
        let kind = format!("{connections:?}").to_lowercase();
        let one = move |(name, test): &(&str, TestOnBoth)| {
            let test = *test;
            trial(format!("{part}::{kind}::{name}"), move || test(connections))
        };
        tests.iter().map(one).collect::<Vec<_>>()
    };
    [Connections::Own, Connections::Lent].into_iter().flat_map(each).collect()
}

/// Lists test functions with their names.
macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}
pub(crate) use tests;

/// Makes the function that returns the trials of a file: the part that its names begin with, and its test functions.
macro_rules! trials_of {
    ($part:literal; $($name:ident),* $(,)?) => {
        pub(crate) fn trials() -> Vec<libtest_mimic::Trial> {
            crate::support::trials($part, crate::support::tests![$($name),*])
        }
    };
}
pub(crate) use trials_of;

/// Asserts that an error names the key, and that its text contains these words.
#[track_caller]
pub(crate) fn assert_says(error: &Error, key: &TestKey, words: &[&str]) {
    let text = chain(error);
    assert_eq!(error.key(), Some(&key.key));
    assert!(text.contains(&key.key.to_string()), "the key is not in: {text}");
    for words in words {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
}

/// An error's text with those of its sources, as anyhow's `{:#}` prints them.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(Some(error), |error| (*error).source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

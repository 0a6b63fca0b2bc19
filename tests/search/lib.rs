//! Random searches over the rules of the library: simulated clients take steps in a random order
//! on a simulated server, and after each step laws are checked. Each search has conditions under
//! which no law may be broken, and others, or planted mistakes, under which one must be:
//! otherwise it would prove nothing. proptest shortens what breaks a law to the fewest steps.
//!
//! | search | what it runs |
//! |---|---|
//! | `lock` | clients and gems on one key: they acquire, extend, hand over, count, release, crash |
//! | `quorum` | clients that want a majority of servers |
//! | `fencing` | clients that take tokens over failovers that lose numbers |
//!
//! `SETNX_LOCK_SEARCH_RUNS=10` makes ten times as many runs where no law may be broken.

#[allow(missing_docs, clippy::must_use_candidate, reason = "the tests of the rules use them")]
pub mod simulated;

mod fencing;
mod lock;
mod quorum;

use std::cell::Cell;
use std::env;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use setnx_lock_proto::acquire::{Attempt, Params, acquire};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::task::{Io, Task};
use setnx_lock_proto::values::Now;
use setnx_lock_proto::{Cue, Step};
use simulated::Server;

/// Searches with their names.
type Searches = [(&'static str, fn())];

/// Returns the searches with their names.
#[must_use]
pub fn searches() -> Vec<(String, fn())> {
    let parts = [("lock", lock::SEARCHES), ("quorum", quorum::SEARCHES), ("fencing", fencing::SEARCHES)];
    let named = |(part, searches): (&str, &Searches)| {
        let name = |(name, search): &(&str, fn())| (format!("{part}::{name}"), *search);
        searches.iter().map(name).collect::<Vec<_>>()
    };
    parts.into_iter().flat_map(named).collect()
}

/// Searches this many runs of steps for one that breaks a law, and
/// returns the shortest that was found: the law, and how it came about.
fn search<S: Strategy>(
    step: S,
    most: usize,
    runs: u32,
    run: impl Fn(&[S::Value]) -> Result<(), &'static str>,
    describe: impl Fn(&[S::Value]) -> String,
) -> Result<(), String> {
    let config =
        Config { cases: runs, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    // What follows the first that is found looks for a shorter one.
    let (count, is_found) = (Cell::new(0), Cell::new(false));
    let searched = TestRunner::new(config).run(&prop::collection::vec(step, 1..most), |steps| {
        count.set(count.get() + u32::from(!is_found.get()));
        run(&steps).map_err(|law| {
            is_found.set(true);
            TestCaseError::fail(law)
        })
    });
    searched.map_err(|error| match error {
        TestError::Fail(law, steps) => {
            format!("{law}, in run {}, after {steps:?}:\n{}", count.get(), describe(&steps))
        }
        TestError::Abort(reason) => reason.to_string(),
    })
}

/// Draws the pause before a step, in milliseconds. Of `none + 4` steps `none` have no
/// pause, three have one shorter than `little`, and one has one as long as a lease.
/// One number decides, since choosing among strategies takes longer than the step.
fn pause(none: u64, little: u64) -> impl Strategy<Value = u64> {
    const SHARE: u64 = 3000;
    let lease: Range<u64> = 1000..SHARE;
    (0..(none + 4) * SHARE).prop_map(move |drawn| match drawn / SHARE {
        share if share < none => 0,
        share if share < none + 3 => drawn % little,
        _ => lease.start + drawn % (lease.end - lease.start),
    })
}

/// A server whose key holds this.
fn holding(value: Option<Vec<u8>>) -> Server {
    let mut server = Server::default();
    server.set(value);
    server
}

/// Leases that an attempt owes when it has ended.
type Owed = Arc<Mutex<Vec<Lease>>>;

/// Begins an attempt to acquire a lock. Returns also what it owes when it has ended.
fn owing(params: Params, cue: Cue, now: Now) -> (Task<Lease>, Step<Lease>, Owed) {
    let owed = Owed::default();
    let all = Arc::clone(&owed);
    let attempt = async move |io: &Io| {
        let mut attempt = Attempt::new(params);
        let ended = acquire(io, &mut attempt, cue).await;
        let left = attempt.into_unresolved().into_owed();
        all.lock().unwrap_or_else(PoisonError::into_inner).extend(left);
        ended
    };
    let (attempt, step) = Task::begin(now, attempt);
    (attempt, step, owed)
}

/// Returns how many runs a search makes in which no law may be broken.
fn runs(usual: u32) -> u32 {
    let factor = env::var("SETNX_LOCK_SEARCH_RUNS").map_or(1, |factor| {
        factor.parse().unwrap_or_else(|_| panic!("SETNX_LOCK_SEARCH_RUNS={factor} is not a number"))
    });
    usual * factor
}

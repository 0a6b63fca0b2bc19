//! What a locker holds, and how a program ends its use.

use std::time::Duration;

use proto::values::{Key, Protocol};

use super::Locker;
use crate::report::error::Error;
use crate::run::OpenDebt;
use crate::system::clock;

/// A lock that a locker holds, as [`Locker::held`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldKey {
    /// The lock's key. For a permit it is `NAME:0`, `NAME:1` and so on.
    pub key: Key,
    /// For how long it has been held.
    pub held: Duration,
    /// For how much longer it can be relied on, zero if it is lost; `None` without an expiration.
    pub remaining: Option<Duration>,
    /// The protocol of this hold, never [`Protocol::Auto`].
    pub protocol: Protocol,
}

/// How the use of a locker has ended: see [`Locker::drain`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Drained {
    /// The locks that are still held, in the order of their keys.
    pub still_held: Vec<HeldKey>,
    /// How long the call has waited for them, and for what is to be released in the background.
    pub waited: Duration,
    /// The locks that may still be held although the program has given them up, each once, in the order of their keys.
    pub unsettled: Vec<Unsettled>,
}

/// A lock that may still be held although the program has given it up, as [`Locker::drain`] leaves it: its release has
/// failed or is not answered yet, or a command that may have acquired it had no reply and the key could not be read
/// since. It frees itself when its lease has passed; without an expiration look at the key, and clear it if it is still
/// there.
///
/// Not among them are locks that were left to expire on purpose, the value of a GETSET without a reply, and a lock
/// without an expiration whose acquisition was in doubt: the error of that call names it. Of locks without an
/// expiration the last 1,000 are listed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unsettled {
    /// The lock's key.
    pub key: Key,
    /// For how much longer the lock can be held; `None` without an expiration.
    pub remaining: Option<Duration>,
    /// Why it could last not be released, or its key not be read; `None` if that has not failed so far.
    pub why: Option<Error>,
}

impl Locker {
    /// Returns the locks that this locker and its clones hold, in the order of their keys. Does not contact the server.
    ///
    /// For metrics and logs: a lock may end a moment later. Lists all whose guard lives, also a lost one and one
    /// without an expiration; those of [several keys](crate::MultiLock), permits and a [`Quorum`](crate::Quorum) as
    /// well, of the latter this server's. Those that are released [later](crate::LockGuard::release_later) are not among
    /// them.
    #[must_use]
    pub fn held(&self) -> Vec<HeldKey> {
        if !self.engine.identity.is_this_process() {
            return Vec::new();
        }
        let now = clock::now();
        let holds = self.engine.held().into_iter();
        let listed = holds.map(|hold| HeldKey {
            key: hold.key.clone(),
            held: now.uptime.since(hold.acquired.uptime),
            remaining: hold.remaining(now),
            protocol: hold.protocol,
        });
        listed.collect()
    }

    /// Ends all waits as [`shut_down`](Self::shut_down) does, then waits until no
    /// call acquires a lock and each guard of this locker and its clones is dropped
    /// and released, for at most `at_most`. Returns the locks that are still held.
    ///
    /// Call it when the program is told to end, then end the program. It never releases a lock under running work: what
    /// is still held is released when its guard is dropped, or frees itself after its lease. Until `at_most` it also
    /// waits for what is released in the background: [later](crate::LockGuard::release_later), after a failure, or after
    /// a command without a reply that has acquired it. It does not wait for a command that the key does not show, and
    /// which may still be on its way. What is left is tried once more, **for at most one command timeout more**, and
    /// returned as [`unsettled`](Drained::unsettled). What the library's threads have noticed is reported.
    ///
    /// It covers this locker alone. For a [`Quorum`](crate::Quorum) call it on each locker, from a thread of its own.
    ///
    /// A thread that holds a lock must not call it, since it would wait for
    /// itself. A process that [leads](crate::Lock::lead) cancels that first: its
    /// work does not see the drain. The example `worker` is a complete program.
    #[must_use = "it says which locks are still held"]
    pub fn drain(&self, at_most: Duration) -> Drained {
        let began = clock::uptime();
        let mut drained = Drained { still_held: Vec::new(), waited: Duration::ZERO, unsettled: Vec::new() };
        // I10: a forked child has no threads that wait, and may find the queue in the middle of a change.
        if self.engine.identity.is_this_process() {
            let until = began.after(at_most);
            self.engine.queue.close();
            self.lines.close();
            self.engine.drain(until);
            // A quorum's guards have ended before its thread has released their locks.
            self.jobs.finish(until.since(clock::uptime()));
            self.end_of_use.wait_for_releases(until.since(clock::uptime()));
            drained.waited = clock::uptime().since(began);
            self.end_of_use.finish();
            drained.still_held = self.held();
            let now = clock::now();
            let unsettled = |(key, OpenDebt { end, why })| Unsettled {
                key,
                remaining: end.map(|end| end.remaining(now)),
                why,
            };
            drained.unsettled = self.engine.open_debts().into_iter().map(unsettled).collect();
        }
        drained
    }
}

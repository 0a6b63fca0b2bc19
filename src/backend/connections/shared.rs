//! An r2d2 pool, which other users may share, as a source of connections. Whose turn it is there is left to r2d2.

use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, mem, thread};

use super::dialing::Dialing;
use super::lock_connection::LockConnection;
use super::manager::Manager;
use super::opener;
use super::source::{Checkout, Source};
use crate::backend::errors::{Failure, NoConnection, without_arguments};
use crate::backend::limits::{Incident, Limits};
use crate::clock::{self, Now, Uptime};
use crate::key::Cut;

/// How long r2d2 is waited for at a time.
const TURN: Duration = Duration::from_millis(50);
/// The same while it has to open connections of another manager: each time that it is asked while there are none, it opens one more.
const FOREIGN_TURN: Duration = Duration::from_secs(1);

pub(crate) struct SharedPool<M: r2d2::ManageConnection> {
    pool: r2d2::Pool<M>,
    dialing: Dialing,
    /// When and why r2d2 could not open a connection of another manager.
    foreign_failure: Mutex<Option<(Uptime, NoConnection)>>,
    /// The library's own manager, if the pool has one.
    manager: Option<Manager>,
    /// How many connections could not be closed since that was last reported.
    stuck: Arc<AtomicUsize>,
}

impl<M: r2d2::ManageConnection> SharedPool<M>
where
    M::Connection: LockConnection,
{
    pub(in crate::backend) fn new(pool: r2d2::Pool<M>, manager: Option<Manager>) -> Self {
        let (dialing, foreign_failure) = (Dialing::default(), Mutex::default());
        Self { pool, dialing, foreign_failure, manager, stuck: Arc::default() }
    }

    fn report_stuck(&self, limits: &Limits<'_>) {
        if limits.report.is_wanted() {
            let stuck = self.stuck.swap(0, Ordering::Relaxed);
            (0..stuck).for_each(|_| limits.report.incident(Incident::ConnectionStuck));
        }
    }

    /// Waits some time for r2d2 to make a connection, or for another user to return one.
    fn wait(&self, limits: &Limits<'_>) -> Option<Lent<M>> {
        let foreign = self.manager.is_none();
        let turn = if foreign && self.pool.state().connections == 0 { FOREIGN_TURN } else { TURN };
        let left = limits.connected_by.since(clock::uptime());
        match self.pool.get_timeout(left.min(turn)) {
            Ok(connection) => return Some(self.connected_or_any(connection)),
            Err(error) if foreign => self.note_foreign_failure(&error.to_string(), limits.waits_since),
            Err(_) => {}
        }
        None
    }

    /// Returns another that is connected if this one is not.
    fn connected_or_any(&self, first: r2d2::PooledConnection<M>) -> Lent<M> {
        let lent = |connection| Lent { connection: Some(connection), stuck: Arc::clone(&self.stuck) };
        let mut last = lent(first);
        // Held meanwhile, so that r2d2 does not return them again.
        let mut others = Vec::new();
        while !last.is_connected()
            && let Some(other) = self.pool.try_get()
        {
            others.push(mem::replace(&mut last, lent(other)));
        }
        last
    }

    /// Opens a connection that has yet to open itself, on this thread, or waits until that may be tried. Returns it if it is open.
    fn open(&self, mut lent: Lent<M>, limits: &Limits<'_>) -> Option<Lent<M>> {
        let now = clock::uptime();
        if now >= limits.connected_by || limits.stop.0() {
            return None;
        }
        if !self.dialing.begin(now) {
            drop(lent);
            thread::sleep(self.dialing.next_attempt().since(now).min(TURN));
            return None;
        }
        // It may call a user's code, which may panic.
        let opened = catch_unwind(AssertUnwindSafe(|| lent.connect()));
        match opened.unwrap_or_else(|panic| Err(opener::panicked(panic.as_ref()))) {
            Ok(()) => self.dialing.succeeded(),
            Err(error) => {
                self.dialing.failed(clock::uptime(), error);
                return None;
            }
        }
        if !lent.is_connected() {
            lent.invalidate();
            thread::sleep(TURN);
            return None;
        }
        Some(lent)
    }

    /// r2d2 reports a cause once, after its own words and a colon, and then its own words only.
    fn note_foreign_failure(&self, words: &str, waits_since: Uptime) {
        let mut failure = self.foreign_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::uptime();
        match &mut *failure {
            Some((when, _)) if *when >= waits_since && !words.contains(": ") => *when = now,
            failure => {
                let words = Cut(without_arguments(words).as_bytes()).to_string();
                *failure = Some((now, NoConnection::Pool(words)));
            }
        }
    }

    /// Returns why the wait is over, if it is.
    fn given_up(&self, limits: &Limits<'_>) -> Option<Failure> {
        let now = clock::uptime();
        let failure = self.foreign_failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, cause)) = failure.filter(|(when, _)| *when >= limits.waits_since) {
            let over = now >= limits.connected_by || limits.stop.0();
            if over || !self.is_connected() && now >= limits.reachable_by {
                return Some(Failure::NoConnection { cause, waited: now.since(limits.waits_since) });
            }
        }
        self.dialing.given_up(limits, self.is_connected(), || self.address())
    }
}

impl<M: r2d2::ManageConnection> Source for SharedPool<M>
where
    M::Connection: LockConnection,
{
    type Checkout = Lent<M>;

    fn checkout(&self, limits: &Limits<'_>) -> Result<(Lent<M>, Now), Failure> {
        loop {
            self.report_stuck(limits);
            let lent = match self.wait(limits) {
                Some(lent) if lent.is_suspect() => {
                    lent.invalidate();
                    None
                }
                Some(lent) if !lent.is_connected() => self.open(lent, limits),
                lent => lent,
            };
            if let Some(lent) = lent {
                self.dialing.found_open();
                return Ok((lent, clock::now()));
            }
            if let Some(failure) = self.given_up(limits) {
                return Err(failure);
            }
        }
    }

    fn is_own(&self) -> bool {
        false
    }

    fn is_connected(&self) -> bool {
        match &self.manager {
            Some(manager) => manager.health().open() > 0,
            // r2d2 counts connections that have yet to open themselves, too.
            None => self.pool.state().connections > 0 && !self.dialing.last_failed(),
        }
    }

    fn found_no_room(&self) {
        self.dialing.leave_alone(clock::uptime());
    }

    fn wake_waiting(&self) {}

    fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }
}

/// A connection of the pool.
pub(crate) struct Lent<M: r2d2::ManageConnection> {
    /// Until it is dropped.
    connection: Option<r2d2::PooledConnection<M>>,
    stuck: Arc<AtomicUsize>,
}

const HERE: &str = "it is here until it is dropped";

impl<M: r2d2::ManageConnection> Checkout for Lent<M>
where
    M::Connection: LockConnection,
{
    fn invalidate(mut self) {
        if !LockConnection::invalidate(&mut *self) {
            mem::forget(self.connection.take());
            self.stuck.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<M: r2d2::ManageConnection> Deref for Lent<M> {
    type Target = M::Connection;

    fn deref(&self) -> &M::Connection {
        match &self.connection {
            Some(connection) => connection,
            None => unreachable!("{HERE}"),
        }
    }
}

impl<M: r2d2::ManageConnection> DerefMut for Lent<M> {
    fn deref_mut(&mut self) -> &mut M::Connection {
        match &mut self.connection {
            Some(connection) => connection,
            None => unreachable!("{HERE}"),
        }
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for SharedPool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPool").field("pool", &self.pool.state()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::backend::connections::fake::FakeConnection;
    use crate::backend::limits::{Budget, Report};

    #[test]
    fn a_suspect_connection_that_cannot_be_closed_is_reported_and_never_returned() {
        let mut stuck = FakeConnection::answering(|_| (Vec::new(), None));
        stuck.is_stuck = true;
        let builder = r2d2::Pool::builder().max_size(2).test_on_check_out(false);
        let pool = SharedPool::new(builder.build(stuck).unwrap(), None);
        let reported = Cell::new(0);
        let report = |incident: Incident<'_>| {
            assert!(matches!(incident, Incident::ConnectionStuck));
            reported.set(reported.get() + 1);
        };
        let now = clock::now();
        let command_timeout = Duration::from_millis(100);
        let deadline = Some(now.uptime);
        let budget = Budget { deadline, retry_for: Duration::ZERO, command_timeout };
        let limits = Limits { report: Report(Some(&report)), ..Limits::within(budget, now) };
        assert!(matches!(pool.checkout(&limits), Err(Failure::NoConnection { .. })));
        assert_eq!(reported.get(), 2, "it has no connection left");
    }
}

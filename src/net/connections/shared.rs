//! An r2d2 pool, which other users may share, as a source of connections. Whose turn it is there is left to r2d2.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, mem};

use super::lock_connection::LockConnection;
use super::opener::Opener;
use super::source::{Checkout, Source};
use crate::net::errors::{Failure, NoConnection, without_arguments};
use crate::net::limits::{Incident, Limits};
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Cut;

/// How long r2d2 is waited for at a time.
const TURN: Duration = Duration::from_millis(50);
/// The same while it has to open connections: each time that it is asked while there are none, it opens one more.
const OPENING_TURN: Duration = Duration::from_secs(1);

pub(crate) struct SharedPool<M: r2d2::ManageConnection> {
    pool: r2d2::Pool<M>,
    /// When and why r2d2 could not open a connection.
    failure: Mutex<Option<(Uptime, String)>>,
    /// How many connections could not be closed since that was last reported.
    stuck: Arc<AtomicUsize>,
}

impl<M: r2d2::ManageConnection> SharedPool<M>
where
    M::Connection: LockConnection,
{
    pub(in crate::net) fn new(pool: r2d2::Pool<M>) -> Self {
        Self { pool, failure: Mutex::default(), stuck: Arc::default() }
    }

    fn report_stuck(&self, limits: &Limits<'_>) {
        if limits.report.is_wanted() {
            let stuck = self.stuck.swap(0, Ordering::Relaxed);
            (0..stuck).for_each(|_| limits.report.incident(Incident::ConnectionStuck));
        }
    }

    /// Waits some time for r2d2 to make a connection, or for another user to return one.
    fn wait(&self, limits: &Limits<'_>) -> Option<Lent<M>> {
        let turn = if self.is_connected() { TURN } else { OPENING_TURN };
        let left = limits.connected_by.since(clock::uptime());
        match self.pool.get_timeout(left.min(turn)) {
            Ok(connection) => Some(Lent { connection: Some(connection), stuck: Arc::clone(&self.stuck) }),
            Err(error) => {
                self.note_failure(&error.to_string(), limits.waits_since);
                None
            }
        }
    }

    /// r2d2 reports a cause once, after its own words and a colon, and then its own words only.
    fn note_failure(&self, words: &str, waits_since: Uptime) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::uptime();
        if words.contains(": ") {
            *failure = Some((now, Cut(without_arguments(words).as_bytes()).to_string()));
        } else if let Some((when, _)) = &mut *failure
            && *when >= waits_since
        {
            *when = now;
        }
    }

    /// Returns why the wait is over, if it is.
    fn given_up(&self, limits: &Limits<'_>) -> Option<Failure> {
        let now = clock::uptime();
        let over = now >= limits.connected_by || limits.stop.0();
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let cause = match failure.filter(|(when, _)| *when >= limits.waits_since) {
            Some((_, words)) if over || !self.is_connected() && now >= limits.reachable_by => {
                NoConnection::Pool(words)
            }
            None if over && self.is_connected() => NoConnection::PoolExhausted,
            None if over => NoConnection::Connecting { address: self.address() },
            _ => return None,
        };
        Some(Failure::NoConnection { cause, waited: now.since(limits.waits_since) })
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
            if let Some(lent) = self.wait(limits) {
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
        self.pool.state().connections > 0
    }

    fn found_no_room(&self) {}

    fn wake_waiting(&self) {}

    fn opener(&self) -> Option<&Opener> {
        None
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::net::connections::fake::FakeConnection;
    use crate::net::limits::{Budget, Report};

    #[test]
    fn a_connection_that_cannot_be_closed_is_reported_and_never_returned() {
        let mut stuck = FakeConnection::answering(|_| (Vec::new(), None));
        stuck.is_stuck = true;
        let builder = r2d2::Pool::builder().max_size(1).test_on_check_out(false);
        let pool = SharedPool::new(builder.build(stuck).unwrap());
        let reported = AtomicUsize::new(0);
        let report = |incident: Incident<'_>| {
            assert!(matches!(incident, Incident::ConnectionStuck));
            reported.fetch_add(1, Ordering::Relaxed);
        };
        let now = clock::now();
        let command_timeout = Duration::from_millis(100);
        let deadline = Some(now.uptime);
        let budget = Budget { deadline, retry_for: Duration::ZERO, command_timeout };
        let limits = Limits { report: Report(Some(&report)), ..Limits::within(budget, now) };
        let (lent, _) = pool.checkout(&limits).unwrap();
        lent.invalidate();
        assert!(matches!(pool.checkout(&limits), Err(Failure::NoConnection { .. })));
        assert_eq!(reported.load(Ordering::Relaxed), 1, "it has no connection left");
    }
}

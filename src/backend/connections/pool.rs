//! The pool: whose turn it is to use a connection, opening connections while threads wait for one, and taking those out of use that
//! cannot be used again.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::dialing::Dialing;
use super::lock_connection::LockConnection;
use super::manager::Manager;
use super::opener;
use super::permits::{Class, Permit, Permits};
use super::store::{Store, Stuck, Taken};
use crate::backend::errors::{ConnectError, Failure, NoConnection, TransportError, without_arguments};
use crate::backend::limits::{Incident, Limits};
use crate::clock::{self, Now, Uptime};
use crate::contained::contained;
use crate::key::Cut;

/// How long r2d2 is waited for at a time, where other users of the pool have its connections.
const TURN: Duration = Duration::from_millis(50);
/// How often a thread looks for a connection that has a permit and may not open one.
const LOOK: Duration = Duration::from_millis(50);
/// How long r2d2 is waited for where another manager opens connections: each time that r2d2 is asked while there are none, it opens one
/// more. It wakes no waiter when one turns out to be closed.
const FOREIGN_TURN: Duration = Duration::from_secs(1);

/// A pool of connections to one server.
pub(in crate::backend) struct Pool<M: r2d2::ManageConnection> {
    store: Store<M>,
    max_size: u32,
    permits: Arc<Permits>,
    dialing: Arc<Dialing>,
    /// When and why r2d2 could not open a connection of another manager.
    foreign_failure: Mutex<Option<(Uptime, NoConnection)>>,
    /// The library's own manager, where the pool has one: for the server's health, and for a connection beside the pool.
    pub(in crate::backend) manager: Option<Manager>,
}

impl Pool<Manager> {
    /// A pool of the library's own.
    pub(in crate::backend) fn own(manager: Manager, max_size: u32) -> Self {
        Self::over(Store::own(manager.clone()), max_size, Some(manager))
    }

    /// An r2d2 pool of this manager, which other users may share.
    pub(in crate::backend) fn managed(pool: r2d2::Pool<Manager>, manager: Manager) -> Self {
        let max_size = pool.max_size();
        Self::over(Store::Shared(pool), max_size, Some(manager))
    }
}

impl<M: r2d2::ManageConnection> Pool<M> {
    /// An r2d2 pool of any manager.
    pub(in crate::backend) fn shared(pool: r2d2::Pool<M>) -> Self {
        let max_size = pool.max_size();
        Self::over(Store::Shared(pool), max_size, None)
    }

    fn over(store: Store<M>, max_size: u32, manager: Option<Manager>) -> Self {
        let permits = Permits::new(usize::try_from(max_size).unwrap_or(usize::MAX));
        Self { store, max_size, permits, dialing: Arc::default(), foreign_failure: Mutex::default(), manager }
    }

    /// Whether its connections are used by this library alone, each for the time of a command.
    pub(in crate::backend) fn is_own(&self) -> bool {
        matches!(self.store, Store::Own(_))
    }

    /// Whether the server has connections of this pool open.
    pub(in crate::backend) fn is_connected(&self) -> bool {
        match (&self.manager, &self.store) {
            (Some(manager), _) => manager.health().open() > 0,
            // r2d2 counts connections that have yet to open themselves, too.
            (None, Store::Shared(pool)) => pool.state().connections > 0 && !self.dialing.last_failed(),
            (None, Store::Own(_)) => unreachable!("the library's own pool has its own manager"),
        }
    }

    /// Notes that the server has refused a connection for lack of room after it was opened, so that not all threads open the next at once.
    pub(in crate::backend) fn found_no_room(&self) {
        self.dialing.leave_alone(clock::uptime());
    }

    /// Whether threads wait for a connection.
    pub(in crate::backend) fn others_wait(&self) -> bool {
        self.permits.has_waiters()
    }

    /// Wakes the threads that wait for a connection, so that each looks whether its wait has been ended.
    pub(in crate::backend) fn wake_waiting(&self) {
        self.permits.wake_all();
    }
}

impl<M: r2d2::ManageConnection> Pool<M>
where
    M::Connection: LockConnection,
{
    /// Returns a connection, first come, first served, and the time when it was there.
    pub(in crate::backend) fn checkout(&self, limits: &Limits<'_>) -> Result<(Checkout<M>, Now), Failure> {
        let stuck = if limits.report.is_wanted() { self.permits.newly_retired() } else { 0 };
        (0..stuck).for_each(|_| limits.report.incident(Incident::ConnectionStuck));
        let Some(held) = self.permits.try_acquire() else { return self.wait(None, limits) };
        match self.store.take() {
            Ok(Some(taken)) if taken.is_connected() => {
                self.dialing.found_open();
                // No time has passed since the command was decided on, unless r2d2 has tested the connection, or an observer was called.
                let took_time = self.tests_connections() || stuck > 0;
                let now = if took_time { clock::now() } else { limits.decided_at };
                Ok((Checkout { taken, permit: held }, now))
            }
            Ok(unconnected) => {
                // Kept, it would be missing from the store during the wait.
                drop(unconnected);
                self.wait(Some(held), limits)
            }
            Err(Stuck) => {
                held.retire();
                self.wait(None, limits)
            }
        }
    }

    /// Returns why a thread with these limits would wait no longer for a connection, if so.
    pub(in crate::backend) fn failure(&self, limits: &Limits<'_>) -> Option<Failure> {
        Wait { pool: self, limits, attempt: None, spare: None, waited_since: clock::uptime() }.failure()
    }

    fn tests_connections(&self) -> bool {
        matches!(&self.store, Store::Shared(pool) if pool.test_on_check_out())
    }

    /// Waits for a connection, and has one opened where that is possible. A thread that has done so waits ahead of others, for that
    /// connection or for one that is returned.
    fn wait(&self, mut permit: Option<Permit>, limits: &Limits<'_>) -> Result<(Checkout<M>, Now), Failure> {
        let mut wait = Wait { pool: self, limits, attempt: None, spare: None, waited_since: clock::uptime() };
        let class = if limits.held_until.is_some() { Class::Releases } else { Class::Other };
        // How many permits were returned when this thread looked for a connection in vain.
        let mut looked = None;
        loop {
            wait.waited_since = clock::uptime();
            let granted = match (permit.take(), looked) {
                (Some(permit), _) => Some(permit),
                (None, None) => self.permits.acquire(class, || wait.park()),
                (None, Some(returned)) => self.permits.next_returned(returned, || wait.park()),
            };
            let held = match granted {
                Some(permit) => permit,
                None => match (wait.failure(), wait.spare.take()) {
                    (Some(failure), _) => return Err(failure),
                    (None, Some(spare)) => spare,
                    (None, None) => continue,
                },
            };
            // Of two permits without a connection, one is for a thread that has none.
            if let Some(spare) = wait.spare.take() {
                spare.give_away();
            }
            looked = Some(self.permits.returned());
            let may_connect = !wait.is_connecting();
            let taken = match self.store.take() {
                Ok(None) => wait.for_r2d2()?,
                taken => taken,
            };
            let taken = match taken {
                Ok(Some(taken)) => taken,
                Ok(None) => {
                    permit = Some(held);
                    continue;
                }
                Err(Stuck) => {
                    held.retire();
                    looked = None;
                    continue;
                }
            };
            if taken.is_connected() {
                self.dialing.found_open();
                return Ok((Checkout { taken, permit: held }, clock::now()));
            }
            if let Some(failure) = wait.failure() {
                return Err(failure);
            }
            if may_connect && self.dialing.begin(clock::uptime()) {
                wait.attempt = Some(self.connect(Checkout { taken, permit: held }));
            } else {
                wait.spare = Some(held);
            }
        }
    }

    /// Host and port of the server, where they are known.
    pub(in crate::backend) fn address(&self) -> String {
        self.manager.as_ref().map_or_else(|| "the pool's server".into(), Manager::address)
    }

    /// Opens a connection on a thread of its own: the one that waits may have less time, and be cancelled. The permit goes to the first
    /// waiter then.
    fn connect(&self, mut connection: Checkout<M>) -> Attempt {
        let (dialing, permits) = (Arc::clone(&self.dialing), Arc::clone(&self.permits));
        let (attempt, owner) = (Attempt::default(), thread::current());
        let end = Arc::clone(&attempt);
        let connect = move || {
            // Both may call a user's code, which may panic.
            let connected = catch_unwind(AssertUnwindSafe(|| connection.connect()))
                .unwrap_or_else(|panic| Err(opener::panicked(panic.as_ref())));
            let failed = connected.is_err();
            match connected {
                Ok(()) => dialing.succeeded(),
                Err(error) => dialing.failed(clock::uptime(), error),
            }
            // A thread that finds the attempt ended finds the connection, unless another has taken it.
            contained(|| drop(connection));
            end.store(true, Ordering::Release);
            owner.unpark();
            if failed {
                permits.wake_all();
            }
        };
        if let Err(error) = thread::Builder::new().name("setnx-lock-connect".into()).spawn(connect) {
            let text = format!("no thread could be started to connect: {error}");
            let error = ConnectError::Failed(TransportError::new(error.kind(), &text));
            self.dialing.failed(clock::uptime(), error);
            attempt.store(true, Ordering::Release);
            self.permits.wake_all();
        }
        attempt
    }
}

/// An attempt to connect: whether it has ended.
type Attempt = Arc<AtomicBool>;

/// The wait of one thread for a connection.
struct Wait<'a, M: r2d2::ManageConnection> {
    pool: &'a Pool<M>,
    limits: &'a Limits<'a>,
    /// The last attempt to connect that this thread has begun.
    attempt: Option<Attempt>,
    /// A permit without a connection, as long as none may be opened.
    spare: Option<Permit>,
    /// When it was last queued.
    waited_since: Uptime,
}

impl<M: r2d2::ManageConnection> Wait<'_, M>
where
    M::Connection: LockConnection,
{
    /// Spends some time, and returns whether to go on waiting: not where the thread may begin the next attempt to connect.
    fn park(&self) -> bool {
        let now = clock::uptime();
        let look = match (&self.spare, self.is_connecting()) {
            (None, _) => Uptime::MAX,
            // Another user of the pool may have returned a connection, or taken the one that was opened.
            (Some(_), true) => self.waited_since.after(LOOK),
            (Some(_), false) => self.pool.dialing.next_attempt().max(self.waited_since.after(LOOK)),
        };
        let left = look.min(self.limits.connected_by).min(self.given_up_at()).since(now);
        if left.is_zero() || self.failure().is_some() {
            return false;
        }
        thread::park_timeout(left);
        true
    }

    /// Returns when the last failure ends the wait, unless a connection is opened before.
    fn given_up_at(&self) -> Uptime {
        if self.pool.is_connected() {
            return Uptime::MAX;
        }
        let failed = self.pool.dialing.failure_since(self.limits.waits_since, false);
        let foreign = self.foreign_failure().map(|_| self.limits.reachable_by);
        failed.map(|error| self.limits.waits_until(&error)).or(foreign).unwrap_or(Uptime::MAX)
    }

    /// Returns why r2d2 has opened no connection of another manager since this thread waits.
    fn foreign_failure(&self) -> Option<NoConnection> {
        let failure = self.pool.foreign_failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().filter(|(when, _)| *when >= self.limits.waits_since).map(|(_, cause)| cause.clone())
    }

    fn is_connecting(&self) -> bool {
        self.attempt.as_ref().is_some_and(|ended| !ended.load(Ordering::Acquire))
    }

    /// Returns why the wait is over, if it is.
    fn failure(&self) -> Option<Failure> {
        let now = clock::uptime();
        let over = now >= self.limits.connected_by || self.limits.stop.0();
        let waited = now.since(self.limits.waits_since);
        // While there are connections, a failure to open one more says nothing about the server.
        let connected = self.pool.is_connected();
        if let Some(cause) = self.foreign_failure()
            && (over || !connected && now >= self.limits.reachable_by)
        {
            return Some(Failure::NoConnection { cause, waited });
        }
        match self.pool.dialing.failure_since(self.limits.waits_since, over).filter(|_| !connected) {
            Some(error) if over || now >= self.limits.waits_until(&error) => {
                Some(Failure::of_connecting(error, waited))
            }
            None if over => {
                let connecting = !connected && self.pool.dialing.is_in_progress();
                let address = connecting.then(|| self.pool.address());
                let cause = address
                    .map_or(NoConnection::PoolExhausted, |address| NoConnection::Connecting { address });
                Some(Failure::NoConnection { cause, waited })
            }
            _ => None,
        }
    }

    /// Lets r2d2 make a connection, or waits some time until another user of the pool returns one.
    fn for_r2d2(&self) -> Result<Result<Option<Taken<M>>, Stuck>, Failure> {
        let Store::Shared(pool) = &self.pool.store else { return Ok(Ok(None)) };
        let foreign = self.pool.manager.is_none();
        let left = self.limits.connected_by.since(clock::uptime());
        // Where there are connections, the wait may be ended from outside sooner.
        let turn = if foreign && pool.state().connections == 0 { FOREIGN_TURN } else { TURN };
        match pool.get_timeout(left.min(turn)) {
            Ok(connection) => return Ok(Taken::Shared(connection).unless_suspect()),
            Err(error) if foreign => self.note_foreign_failure(&error.to_string()),
            Err(_) => {}
        }
        self.failure().map_or(Ok(Ok(None)), Err)
    }

    /// r2d2 reports a cause once, after its own words and a colon, and then its own words only.
    fn note_foreign_failure(&self, words: &str) {
        let mut failure = self.pool.foreign_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock::uptime();
        match &mut *failure {
            Some((when, _)) if *when >= self.limits.waits_since && !words.contains(": ") => *when = now,
            failure => {
                let words = Cut(without_arguments(words).as_bytes()).to_string();
                *failure = Some((now, NoConnection::Pool(words)));
            }
        }
    }
}

/// A connection and the permit to use it. Dropped, both return, the connection first.
pub(in crate::backend) struct Checkout<M: r2d2::ManageConnection>
where
    M::Connection: LockConnection,
{
    taken: Taken<M>,
    permit: Permit,
}

impl<M: r2d2::ManageConnection> Checkout<M>
where
    M::Connection: LockConnection,
{
    /// Takes the connection out of use (I8).
    pub(in crate::backend) fn invalidate(self) {
        if !self.taken.invalidate() {
            self.permit.retire();
        }
    }
}

impl<M: r2d2::ManageConnection> Deref for Checkout<M>
where
    M::Connection: LockConnection,
{
    type Target = M::Connection;

    fn deref(&self) -> &M::Connection {
        &self.taken
    }
}

impl<M: r2d2::ManageConnection> DerefMut for Checkout<M>
where
    M::Connection: LockConnection,
{
    fn deref_mut(&mut self) -> &mut M::Connection {
        &mut self.taken
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for Pool<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("max_size", &self.max_size)
            .field("store", &self.store)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

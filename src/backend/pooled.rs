//! The backend over a source of connections: has a command sent with those of other threads where the source does that, or borrows a connection.

use std::time::Duration;
use std::{fmt, thread};

use redis::cmd;

use super::connections::{Checkout as _, LockConnection, Opener, SharedPool, Source, ask};
use super::errors::{ConnectError, Failure};
use super::item::{self, Item};
use super::limits::Limits;
use super::transactions::Transactions;
use super::watch::PooledWatch;
use super::{Answers, Backend, Changed, Heard, KeyRequest, Next, WatchedAll, WatchedConnection};
use crate::clock::{self, Now};
use crate::key::Key;
use crate::protocol::{Change, Command, Reply, Request};
use crate::version::Version;

/// How long a server that takes no more clients is left alone.
const TOO_MANY_CLIENTS_PAUSE: Duration = Duration::from_millis(50);

/// A backend that borrows a connection for each trip, or from WATCH to EXEC.
pub(crate) struct PooledBackend<S> {
    pub(super) pool: S,
    transactions: Transactions,
    pub(super) command_timeout: Duration,
    retry_for: Duration,
}

impl<M: r2d2::ManageConnection> PooledBackend<SharedPool<M>>
where
    M::Connection: LockConnection,
{
    /// A backend on an r2d2 pool that others may use as well.
    pub(crate) fn shared(pool: r2d2::Pool<M>, command_timeout: Duration, retry_for: Duration) -> Self {
        Self::over(SharedPool::new(pool), command_timeout, retry_for)
    }
}

impl<S: Source> PooledBackend<S> {
    pub(super) fn over(pool: S, command_timeout: Duration, retry_for: Duration) -> Self {
        Self { pool, transactions: Transactions::default(), command_timeout, retry_for }
    }

    /// Sends one command and the one behind it on a connection of the pool. Returns the answers, and the connection if that is in good order
    /// and is to be kept; otherwise the connection is back in its pool (I9).
    fn send(
        &self,
        key: &Key,
        request: &Request,
        next: Option<&Next>,
        limits: &Limits<'_>,
        keeps: bool,
    ) -> Result<(Answers, Option<S::Checkout>), Failure> {
        let mut own = Item::new(key, request, limits.needs);
        let mut behind = Item::next(key, next);
        let mut limits = self.limits(limits);
        loop {
            let (mut connection, now) = self.connection(&mut limits)?;
            let limit = limits.answered_by.since(now.uptime).min(self.command_timeout);
            let server = connection.server_version();
            if !item::send_both(&mut own, &mut behind, server, now) {
                return Err(Failure::TooLate);
            }
            let left = item::trip(&mut *connection, &mut [&mut own, &mut behind], limit);
            self.pool.note_role(&left);
            if let Some(refusal) = own.found_no_room().cloned() {
                connection.invalidate();
                if self.wait_for_room(&mut limits) {
                    continue;
                }
                return Err(Failure::Refused(refusal));
            }
            let answers = Answers::of(&mut own, &request.command, &mut behind, next);
            // One whose WATCH was refused may be watching.
            let in_order = !left.out_of_order && (!keeps || answers.own.is_ok());
            if in_order && keeps {
                return Ok((answers, Some(connection)));
            }
            if !in_order {
                connection.invalidate();
            }
            return Ok((answers, None));
        }
    }

    /// Returns the limits as they are with the connections of this pool.
    pub(super) fn limits<'a>(&self, limits: &Limits<'a>) -> Limits<'a> {
        if self.pool.is_own() { limits.for_own_connections(self.command_timeout) } else { *limits }
    }

    /// Waits a moment before commands are sent again that the server has not read, since it had no room for the connection: their outcome is
    /// known, so that does not break I6. Returns whether there is time.
    pub(super) fn wait_for_room(&self, limits: &mut Limits<'_>) -> bool {
        let waits_until = if self.pool.is_connected() { limits.connected_by } else { limits.accepted_by };
        self.pool.found_no_room();
        if clock::uptime().after(TOO_MANY_CLIENTS_PAUSE) >= waits_until || limits.stop.0() {
            return false;
        }
        thread::sleep(TOO_MANY_CLIENTS_PAUSE);
        limits.decided_at = clock::now();
        true
    }

    /// Returns a connection to a server that is not too old.
    pub(super) fn connection(&self, limits: &mut Limits<'_>) -> Result<(S::Checkout, Now), Failure> {
        loop {
            let began = limits.decided_at.uptime;
            let (mut connection, now) = self.pool.checkout(limits)?;
            let version = connection.server_version().filter(|version| *version < limits.needs.min_version());
            let Some(version) = version else { return Ok((connection, now)) };
            // The version when this connection was opened. The server may have been upgraded since, and the connection be closed.
            let limit = limits.answered_by.since(now.uptime).min(self.command_timeout);
            let Err(error) = ask(&mut *connection, &cmd("PING"), limit) else {
                return Err(Failure::TooOld(version));
            };
            connection.invalidate();
            limits.decided_at = clock::now();
            if limits.decided_at.uptime >= limits.answered_by {
                let waited = limits.decided_at.uptime.since(began);
                return Err(Failure::of_connecting(ConnectError::Failed(error), waited));
            }
        }
    }

    /// Fails if transactions are needed, and do not reach the server.
    pub(super) fn ensure_transactions(&self, key: &Key, limits: &Limits<'_>) -> Result<(), Failure> {
        self.transactions.ensure(key, limits, |limits| self.connection(limits))
    }
}

impl<S: Source> Backend for PooledBackend<S> {
    fn call(&self, key: &Key, request: &Request, next: Option<&Next>, limits: &Limits<'_>) -> Answers {
        if let Err(failure) = self.ensure_transactions(key, limits) {
            return Err(failure).into();
        }
        let mut limits = self.limits(limits);
        if let Some(answers) = self.pool.share(key, request, next, &limits) {
            return answers;
        }
        limits.decided_at = clock::now();
        let limits = &limits;
        // Behind a proxy that spreads keys over several servers, two commands on one key may go together as well.
        let answers = self.send(key, request, next, limits, false).map(|(answers, _)| answers);
        answers.unwrap_or_else(|failure| Err(failure).into())
    }

    fn call_all(&self, requests: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers> {
        // As for one: no lock is acquired that could not be released.
        if let Err(failure) = self.ensure_transactions(&requests[0].key, limits) {
            return requests.iter().map(|_| Err(failure.clone()).into()).collect();
        }
        self.send_all(requests, self.limits(limits))
    }

    fn watch_all(&self, keys: &[Key], limits: &Limits<'_>) -> Result<WatchedAll, Failure> {
        self.watch_each(keys, self.limits(limits))
    }

    fn watch(
        &self,
        key: &Key,
        command: &Command,
        limits: &Limits<'_>,
    ) -> Result<(Reply, Box<dyn WatchedConnection>), Failure> {
        let request = Request::at_any_time(command.clone());
        let (answers, connection) = self.send(key, &request, None, limits, true)?;
        let reply = answers.own?;
        let Some(connection) = connection else { unreachable!("it has its reply, and is kept") };
        Ok((reply, Box::new(PooledWatch::on(connection))))
    }

    fn change(
        &self,
        key: &Key,
        own: &[u8],
        change: &Change,
        next: Option<&Next>,
        limits: &Limits<'_>,
    ) -> Result<(Reply, Changed), Failure> {
        let mut limits = self.limits(limits);
        if let Some(changed) = self.pool.share_change(key, own, change, next, &limits) {
            return changed;
        }
        limits.decided_at = clock::now();
        let (reply, watched) = self.watch(key, &Command::WatchGet, &limits)?;
        let changed = match &reply {
            Reply::Bulk(Some(found)) if found == own => {
                Changed::Sent(watched.exec(key, &Command::Exec(change.clone()), next, &limits))
            }
            _ => Changed::Watched(watched),
        };
        Ok((reply, changed))
    }

    fn wake_waiting(&self) {
        self.pool.wake_waiting();
    }

    fn server_version(&self) -> Option<Version> {
        self.pool.opener()?.health.server_version()
    }

    fn address(&self) -> Option<String> {
        self.pool.opener().map(Opener::address)
    }

    fn can_listen(&self) -> bool {
        self.pool.opener().is_some()
    }

    fn listen(&self, channel: &[u8], heard: &mut dyn FnMut(Heard<'_>) -> bool) -> Result<(), Failure> {
        let Some(opener) = self.pool.opener() else { unreachable!("a pool of the user's does not listen") };
        opener.listen(channel, heard)
    }

    fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    fn retry_for(&self) -> Duration {
        self.retry_for
    }
}

impl<S: Source> fmt::Debug for PooledBackend<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledBackend")
            .field("pool", &self.pool)
            .field("command_timeout", &self.command_timeout)
            .field("retry_for", &self.retry_for)
            .finish_non_exhaustive()
    }
}

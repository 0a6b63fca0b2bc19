//! One command through a pool: waits for a connection, sends, and gives the connection back.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fmt, mem, thread};

use super::burst::{self, Watching};
use super::carrier::Carrier;
use super::form::{self, Answer};
use super::manager::{self, ConnectError, Manager};
use super::refusal::RefusalKind;
use super::report::survey::Survey;
use super::token::{self, Listener};
use super::{Burst, Ear, Failure, Limits, Server, Window, failure_of, refusal_in, refused};
use redis::Value;

use crate::clock::{self, Now, Uptime};
use crate::error::NoConnection;
use crate::key::Key;
use crate::protocol::{Command, Reply, Request};

/// How long r2d2 is left to open the first connection before we look whether that has failed, which it does not tell.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// How often we look then. r2d2 is not asked again so soon, since it opens one more connection each time it is asked.
const LOOK: Duration = Duration::from_millis(5);
/// How long r2d2 is left to itself while there are connections, and how often it is asked to open one while there are none.
const TURN: Duration = Duration::from_secs(1);
/// How often we look whether the connections of a pool that is full are still there. Asking r2d2 is free then.
const FULL_LOOK: Duration = Duration::from_millis(50);
/// How long we leave a server alone that takes no more clients.
const CROWDED_PAUSE: Duration = Duration::from_millis(50);
/// For how long a failure to connect says something about the server. r2d2 tries again sooner.
const FRESH: Duration = Duration::from_secs(1);

/// A window through a pool.
pub(crate) struct Pooled<M: r2d2::ManageConnection> {
    pool: r2d2::Pool<M>,
    command_timeout: Duration,
    patience: Duration,
    /// Where it is ours, for what it knows about the server, and for a connection beside the pool.
    manager: Option<Manager>,
    /// Whether the server has accepted a MULTI.
    multi_is_known: Arc<AtomicBool>,
}

impl Pooled<Manager> {
    /// Looks through a pool of this manager.
    pub(crate) fn managed(pool: r2d2::Pool<Manager>, manager: &Manager, patience: Duration) -> Self {
        let [_, command_timeout] = manager.limits();
        let manager = Some(manager.clone());
        Self { pool, command_timeout, patience, manager, multi_is_known: Arc::default() }
    }
}

impl<M: r2d2::ManageConnection> Pooled<M>
where
    M::Connection: Carrier,
{
    /// Looks through a pool of somebody else's.
    pub(crate) fn new(pool: r2d2::Pool<M>) -> Self {
        let patience = pool.connection_timeout();
        let command_timeout = manager::DEFAULT_COMMAND_TIMEOUT;
        Self { pool, command_timeout, patience, manager: None, multi_is_known: Arc::default() }
    }

    /// Returns a connection, and the time when it was there.
    fn checkout(&self, limits: &Limits<'_>) -> Result<(r2d2::PooledConnection<M>, Now), Failure> {
        if let Some(connection) = self.pool.try_get().and_then(usable) {
            // At hand, so it is still the time at which the command was decided on; unless r2d2 has tested it first.
            let now = if self.pool.test_on_check_out() { clock::now() } else { limits.asked };
            return Ok((connection, now));
        }
        let began = clock::uptime();
        let mut opening_since = None;
        let mut said = None;
        loop {
            let left = limits.connected_by.since(clock::uptime());
            let missing = match self.wait_for_one(left, &mut opening_since) {
                Ok(connection) => match usable(connection) {
                    Some(connection) => return Ok((connection, clock::now())),
                    None => continue,
                },
                Err(missing) => missing,
            };
            let now = clock::uptime();
            let over = now >= limits.connected_by || limits.over.0();
            let cause = match self.connect_failure(began, over) {
                Some(ConnectError::Refused(refusal))
                    if over || now >= limits.reachable_by || !refusal.may_pass() =>
                {
                    return Err(Failure::Refused(refusal));
                }
                Some(ConnectError::Replica { of }) => NoConnection::Replica { of },
                Some(ConnectError::Panicked(text)) => NoConnection::Panicked(text),
                Some(ConnectError::Failed(error)) if over || now >= limits.reachable_by => {
                    NoConnection::Failed(error)
                }
                None if over => said.unwrap_or(missing),
                _ => {
                    // r2d2 tells a cause once, and forgets it.
                    said = said.or(Some(missing).filter(NoConnection::has_a_cause));
                    continue;
                }
            };
            return Err(Failure::NoConnection { cause, waited: now.since(began) });
        }
    }

    /// Waits for a connection for some time, at most `left`.
    fn wait_for_one(
        &self,
        left: Duration,
        opening_since: &mut Option<Uptime>,
    ) -> Result<r2d2::PooledConnection<M>, NoConnection> {
        let now = clock::uptime();
        let open = self.pool.state().connections;
        let turn = if self.manager.is_none() {
            TURN
        } else if open == 0 {
            if opening_since.is_some_and(|since| now.since(since) < TURN) {
                thread::sleep(left.min(LOOK));
                return self.pool.try_get().ok_or(NoConnection::StillConnecting);
            }
            *opening_since = Some(now);
            FIRST_LOOK
        } else if open == self.pool.max_size() {
            // r2d2 wakes nobody when the last connection turns out to be dead.
            FULL_LOOK
        } else {
            TURN
        };
        self.pool.get_timeout(left.min(turn)).map_err(|error| match self.manager {
            Some(_) if open == 0 => NoConnection::StillConnecting,
            Some(_) => NoConnection::PoolExhausted,
            None => NoConnection::Said(error.to_string()),
        })
    }

    /// Returns how connecting has failed, if it counts. While there are connections, one more that could not be opened says
    /// nothing about the server; and an old failure says little, unless there is no time to wait for another.
    fn connect_failure(&self, began: Uptime, over: bool) -> Option<ConnectError> {
        let (when, error) = self.manager.as_ref()?.health().last_connect_failure()?;
        let fresh = match error {
            ConnectError::Panicked(_) => manager::PANIC_PAUSE,
            // It may have become a master since.
            ConnectError::Replica { .. } => Duration::ZERO,
            _ => FRESH,
        };
        let counts = (over || when.after(fresh) >= began) && self.pool.state().connections == 0;
        counts.then_some(error)
    }
}

/// Leaves out a connection that has been idle for long, or was opened before the server was seen to close others: it is likely
/// dead, and a command sent on it would have an unknown outcome for nothing.
fn usable<M: r2d2::ManageConnection>(
    connection: r2d2::PooledConnection<M>,
) -> Option<r2d2::PooledConnection<M>>
where
    M::Connection: Carrier,
{
    if connection.is_doubtful() {
        retire(connection);
        return None;
    }
    Some(connection)
}

/// Whether there is a server at the other end, whatever it says.
fn answers(connection: &mut impl Carrier, limit: Duration) -> Result<(), redis::RedisError> {
    match connection.exchange(&redis::cmd("PING").get_packed_command(), 1, limit) {
        Err(error) if refusal_in(&error).is_none() => Err(error),
        _ => Ok(()),
    }
}

/// Gives a connection back that its pool will not use again (I8).
pub(super) fn retire<M: r2d2::ManageConnection>(mut connection: r2d2::PooledConnection<M>)
where
    M::Connection: Carrier,
{
    if !connection.retire() {
        mem::forget(connection);
    }
}

impl<M: r2d2::ManageConnection> Pooled<M>
where
    M::Connection: Carrier,
{
    /// Sends one command on a connection of the pool, and returns that with its reply, in good order.
    fn send(
        &self,
        key: &Key,
        request: &Request,
        limits: &Limits<'_>,
    ) -> Result<(Reply, r2d2::PooledConnection<M>), Failure> {
        let Request { command, before } = request;
        let (packed, replies) = form::packed(key, command);
        let mut limits = *limits;
        loop {
            let began = limits.asked.uptime;
            let (mut connection, now) = self.checkout(&limits)?;
            let version = connection.server_version().filter(|version| *version < limits.needs.needs());
            if let Some(version) = version {
                // What it was when this connection was opened. It may have been upgraded since, and the connection be closed.
                let limit = limits.answered_by.since(now.uptime);
                let Err(error) = answers(&mut *connection, limit) else {
                    return Err(Failure::TooOld(version));
                };
                retire(connection);
                limits.asked = clock::now();
                if limits.asked.uptime < limits.answered_by {
                    continue;
                }
                let (cause, waited) = (NoConnection::Failed(error), limits.asked.uptime.since(began));
                return Err(Failure::NoConnection { cause, waited });
            }
            if before.is_some_and(|end| end.has_passed(now)) {
                return Err(Failure::TooLate);
            }
            let limit = limits.answered_by.since(now.uptime);
            let answer =
                connection.exchange(&packed, replies, limit).and_then(|replies| form::read(command, replies));
            let error = match answer {
                Ok(Answer::Reply(reply)) => return Ok((reply, connection)),
                Ok(Answer::Error(error)) => error,
                Err(error) if refusal_in(&error).is_some() => error,
                Err(error) => {
                    retire(connection);
                    return Err(failure_of(error));
                }
            };
            let Failure::Refused(refusal) = refused(&error) else { unreachable!("it was just made") };
            if !refusal.ends_the_connection() {
                let demoted = refusal.kind() == RefusalKind::ReadOnly;
                if demoted && let Some(manager) = &self.manager {
                    // Its master has become a replica: where the address leads to now is found out by connecting anew.
                    manager.health().found_closed();
                }
                if demoted || replies > 1 {
                    // In the second case it may be watching.
                    retire(connection);
                }
                return Err(Failure::Refused(refusal));
            }
            // The server has no room for this connection, and has not read the command: its outcome is known, so sending it
            // on one of the others is no breach of I6.
            retire(connection);
            let others = self.manager.is_some() && self.pool.state().connections > 0;
            if !others || clock::uptime().after(CROWDED_PAUSE) >= limits.connected_by {
                return Err(Failure::Refused(refusal));
            }
            thread::sleep(CROWDED_PAUSE);
            limits.asked = clock::now();
        }
    }
}

impl<M: r2d2::ManageConnection> Window for Pooled<M>
where
    M::Connection: Carrier,
{
    fn call(&self, key: &Key, request: &Request, limits: &Limits<'_>) -> Result<Reply, Failure> {
        self.send(key, request, limits).map(|(reply, _)| reply)
    }

    fn watch(&self, key: &Key, limits: &Limits<'_>) -> Result<(Reply, Box<dyn Burst>), Failure> {
        let (reply, connection) = self.send(key, &Request::at_any_time(Command::WatchGet), limits)?;
        Ok((reply, Box::new(Watching::on(connection, Arc::clone(&self.multi_is_known)))))
    }

    fn survey(&self, probe: &Key, limits: &Limits<'_>) -> Result<Server, Failure> {
        let mut asked_before = false;
        loop {
            let (mut connection, _) = self.checkout(limits)?;
            let answer = Survey::over(&mut *connection, self.command_timeout, probe).ask();
            // Whatever was refused, or not answered: the next one is not to find a transaction open, or something watched.
            retire(connection);
            match answer {
                // One that was closed while it was idle. Asking again changes nothing.
                Err(error) if error.is_connection_dropped() && !asked_before => asked_before = true,
                Err(error) => {
                    // It may have been left behind. If it cannot be removed either, that is all that could be done.
                    let _ = self.call(probe, &Request::at_any_time(Command::Del), limits);
                    return Err(failure_of(error));
                }
                Ok(answer) => return answer.map_err(Failure::Refused),
            }
        }
    }

    fn leave_token(&self, list: &[u8], limits: &Limits<'_>) -> Result<(), Failure> {
        let (mut connection, _) = self.checkout(limits)?;
        if connection.server_version().is_some_and(|version| version < token::NEEDS) {
            return Ok(());
        }
        let (packed, replies) = token::packed(list);
        match burst::transact(&mut *connection, &self.multi_is_known, &packed, replies, limits) {
            Ok(replies) => {
                // Unless EXEC was carried out, a transaction may be open on it.
                if !matches!(replies.last(), Some(Value::Array(_))) {
                    retire(connection);
                }
                token::objection(replies).map_or(Ok(()), |refusal| Err(Failure::Refused(refusal)))
            }
            Err(error) => {
                retire(connection);
                Err(refusal_in(&error).map_or_else(|| failure_of(error), Failure::Refused))
            }
        }
    }

    fn can_listen(&self) -> bool {
        self.manager.is_some()
    }

    fn listen(&self) -> Result<Box<dyn Ear>, Failure> {
        let Some(manager) = &self.manager else { unreachable!("a pool of somebody else's is not asked to") };
        Ok(Box::new(Listener::on(manager.connect_to_listen()?)?))
    }

    fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for Pooled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled")
            .field("pool", &self.pool.state())
            .field("max_size", &self.pool.max_size())
            .field("command_timeout", &self.command_timeout)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

//! Connections of a pool: waits for one that can be used, and takes those out of use that cannot.

use std::time::Duration;
use std::{mem, thread};

use super::carrier::Carrier;
use super::manager::{self, ConnectError, Manager};
use super::{Failure, Limits};
use crate::clock::{self, Now, Uptime};
use crate::error::NoConnection;

/// How long r2d2 is left to open the first connection before we look whether that has failed, which it does not tell.
const FIRST_LOOK: Duration = Duration::from_millis(20);
/// How often we look then. r2d2 is not asked again so soon, since it opens one more connection each time it is asked.
const LOOK: Duration = Duration::from_millis(5);
/// How long r2d2 is left to itself while there are connections, and how often it is asked to open one while there are none.
const TURN: Duration = Duration::from_secs(1);
/// How often we look whether the connections of a pool that is full are still there. Asking r2d2 is free then.
const FULL_LOOK: Duration = Duration::from_millis(50);
/// For how long a failure to connect says something about the server. r2d2 tries again sooner.
const FRESH: Duration = Duration::from_secs(1);

/// A pool of connections to one server.
pub(super) struct Pool<M: r2d2::ManageConnection> {
    pub(super) pool: r2d2::Pool<M>,
    /// Where it is ours, for what it knows about the server, and for a connection beside the pool.
    pub(super) manager: Option<Manager>,
}

impl<M: r2d2::ManageConnection> Pool<M>
where
    M::Connection: Carrier,
{
    /// Returns a connection, and the time when it was there.
    pub(super) fn checkout(&self, limits: &Limits<'_>) -> Result<(r2d2::PooledConnection<M>, Now), Failure> {
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

/// Gives a connection back that its pool will not use again (I8).
pub(super) fn retire<M: r2d2::ManageConnection>(mut connection: r2d2::PooledConnection<M>)
where
    M::Connection: Carrier,
{
    if !connection.retire() {
        mem::forget(connection);
    }
}

//! The pool: waits for a connection that can be used, and takes those out of use that cannot.

use std::time::Duration;
use std::{mem, thread};

use super::lock_connection::LockConnection;
use super::manager::{self, Manager};
use crate::backend::errors::{ConnectError, Failure, NoConnection, without_arguments};
use crate::backend::limits::Limits;
use crate::clock::{self, Now, Uptime};
use crate::key::Cut;

/// How long r2d2 is left to open the first connection before we look whether that has failed, which it does not report, and how often
/// we look then, at first and later. r2d2 is not asked again so soon, since it opens one more connection each time it is asked.
const LOOK: Duration = Duration::from_millis(2);
const LATER_LOOK: Duration = Duration::from_millis(10);
/// How long looking often lasts: as long as connecting usually takes.
const LOOKS_OFTEN: Duration = Duration::from_millis(20);
/// How long r2d2 is left to itself while there are connections, and how often it is asked to open one while there are none.
const TURN: Duration = Duration::from_secs(1);
/// How often we look whether the connections of a full pool are still open. Asking r2d2 is free then.
const FULL_LOOK: Duration = Duration::from_millis(50);
/// How long a failure to connect counts as the server's state. r2d2 tries again sooner.
const FRESH: Duration = Duration::from_secs(1);

/// A pool of connections to one server.
pub(in crate::backend) struct Pool<M: r2d2::ManageConnection> {
    pub(in crate::backend) pool: r2d2::Pool<M>,
    /// The library's own manager, where the pool has one: for the server's health, and for a connection beside the pool.
    pub(in crate::backend) manager: Option<Manager>,
}

impl<M: r2d2::ManageConnection> Pool<M>
where
    M::Connection: LockConnection,
{
    /// Returns a connection, and the time when it was there.
    pub(in crate::backend) fn checkout(
        &self,
        limits: &Limits<'_>,
    ) -> Result<(r2d2::PooledConnection<M>, Now), Failure> {
        if let Some(connection) = self.pool.try_get().and_then(usable) {
            // No time has passed since the command was decided on, unless r2d2 has tested the connection.
            let now = if self.pool.test_on_check_out() { clock::now() } else { limits.decided_at };
            return Ok((connection, now));
        }
        let began = clock::uptime();
        let mut opening_since = None;
        let mut reported = None;
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
            let over = now >= limits.connected_by || limits.stop.0();
            let waited = now.since(began);
            match self.connect_failure(began, over) {
                Some(error) if over || now >= waits_until(&error, limits) => {
                    return Err(Failure::of_connecting(error, waited));
                }
                None if over || self.is_unreachable() && now >= limits.reachable_by => {
                    return Err(Failure::NoConnection { cause: reported.unwrap_or(missing), waited });
                }
                // r2d2 reports a cause once, and forgets it: its own words, and a colon before the cause if there is one.
                _ => match missing {
                    NoConnection::Pool(text) if text.contains(": ") => {
                        reported = reported.or(Some(NoConnection::Pool(text)));
                    }
                    _ => {}
                },
            }
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
            if let Some(opening) = opening_since.map(|since| now.since(since))
                && opening < TURN
            {
                thread::sleep(left.min(if opening < LOOKS_OFTEN { LOOK } else { LATER_LOOK }));
                return self.pool.try_get().ok_or(NoConnection::Connecting);
            }
            *opening_since = Some(now);
            LOOK
        } else if open == self.pool.max_size() {
            // r2d2 wakes no waiter when the last connection turns out to be closed.
            FULL_LOOK
        } else {
            TURN
        };
        self.pool.get_timeout(left.min(turn)).map_err(|error| match self.manager {
            Some(_) if open == 0 => NoConnection::Connecting,
            Some(_) => NoConnection::PoolExhausted,
            None => {
                let text = error.to_string();
                NoConnection::Pool(Cut(without_arguments(&text).as_bytes()).to_string())
            }
        })
    }

    /// Whether the pool of another manager, which does not report why, has no connection at all.
    fn is_unreachable(&self) -> bool {
        self.manager.is_none() && self.pool.state().connections == 0
    }

    /// Returns how connecting has failed, if that counts. While there are connections, a failure to open one more says nothing
    /// about the server. An old failure counts only when there is no time to wait for another.
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

/// Returns until when a connection is waited for after this error.
fn waits_until(error: &ConnectError, limits: &Limits<'_>) -> Uptime {
    match error {
        ConnectError::Failed(_) => limits.reachable_by,
        ConnectError::Refused(refusal) if refusal.passes_by_waiting() => limits.accepted_by,
        ConnectError::Refused(_) | ConnectError::Replica { .. } | ConnectError::Panicked(_) => {
            Uptime(Duration::ZERO)
        }
    }
}

/// Leaves out a suspect connection: one that has been idle for long, or was opened before the server was seen to close others. A
/// command on a closed connection would have an unknown outcome.
fn usable<M: r2d2::ManageConnection>(
    connection: r2d2::PooledConnection<M>,
) -> Option<r2d2::PooledConnection<M>>
where
    M::Connection: LockConnection,
{
    if connection.is_suspect() {
        invalidate(connection);
        return None;
    }
    Some(connection)
}

/// Returns a connection that its pool will not use again (I8).
pub(in crate::backend) fn invalidate<M: r2d2::ManageConnection>(mut connection: r2d2::PooledConnection<M>)
where
    M::Connection: LockConnection,
{
    if !connection.invalidate() {
        mem::forget(connection);
    }
}

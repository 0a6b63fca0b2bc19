//! The window to the server: a command goes in, a reply comes out, and nobody above knows which connection carried it.
//! Takes a connection for one command and gives it back before the reply is looked at (I9).

mod carrier;
mod health;
mod manager;
pub(crate) mod refusal;

use std::time::Duration;
use std::{fmt, io};

use redis::{ConnectionLike as _, Value};

use crate::clock::{self, Uptime};
use crate::error::NoConnection;
use crate::key::Key;
use crate::protocol::lease::End;
use crate::protocol::{Command, Reply};
pub use carrier::Carrier;
use health::Health;
pub use manager::{ConnectError, Connection, Manager};
use refusal::Refusal;
use std::sync::Arc;

/// How long a checkout sleeps before it looks whether connecting has failed meanwhile, which r2d2 does not tell.
const LOOK_FOR_FAILURES: Duration = Duration::from_millis(20);

/// Until when a command may take what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A connection that cannot be opened is waited for until here.
    pub(crate) reachable_by: Uptime,
    /// A connection that is in use, or is being opened, is waited for until here.
    pub(crate) connected_by: Uptime,
    /// The answer is waited for until here, where the connection knows time-outs.
    pub(crate) answered_by: Uptime,
    /// With this end passed, nothing is sent (I5).
    pub(crate) before: Option<End>,
}

/// Why a command has no reply for the rules to judge.
#[derive(Debug)]
pub(crate) enum Failure {
    NoConnection { cause: NoConnection, waited: Duration },
    TooLate,
    Refused(Refusal),
    Lost(redis::RedisError),
}

/// What the engine needs of a server.
pub(crate) trait Window: Send + Sync + fmt::Debug {
    /// Sends one command, once, and returns its reply: an integer or a bulk, as the command has it.
    fn call(&self, key: &Key, command: &Command, limits: &Limits) -> Result<Reply, Failure>;

    /// The longest that one command takes.
    fn command_timeout(&self) -> Duration;

    /// How long a connection is waited for when the caller sets no limit.
    fn patience(&self) -> Duration;
}

/// A window through a pool.
pub(crate) struct Pooled<M: r2d2::ManageConnection> {
    pool: r2d2::Pool<M>,
    command_timeout: Duration,
    /// What the manager knows about the server, where it is ours.
    health: Option<Arc<Health>>,
}

impl<M: r2d2::ManageConnection> Pooled<M>
where
    M::Connection: Carrier,
{
    /// Looks through a pool of somebody else's.
    pub(crate) fn new(pool: r2d2::Pool<M>) -> Self {
        Self { pool, command_timeout: manager::DEFAULT_COMMAND_TIMEOUT, health: None }
    }

    fn checkout(&self, limits: &Limits) -> Result<r2d2::PooledConnection<M>, Failure> {
        if let Some(connection) = self.pool.try_get().and_then(usable) {
            return Ok(connection);
        }
        let began = clock::now().uptime;
        loop {
            let left = limits.connected_by.since(clock::now().uptime);
            let nap = if self.health.is_some() { left.min(LOOK_FOR_FAILURES) } else { left };
            let error = match self.pool.get_timeout(nap) {
                Ok(connection) => match usable(connection) {
                    Some(connection) => return Ok(connection),
                    None => continue,
                },
                Err(error) => error,
            };
            let now = clock::now().uptime;
            let over = now >= limits.connected_by;
            let cause = match &self.health {
                Some(health) => match health.last_connect_failure() {
                    Some((_, ConnectError::Panicked(text))) => NoConnection::Panicked(text),
                    // One from before this call says little about the server now, until there is no time left.
                    Some((when, _)) if when < began && !over => continue,
                    Some((_, ConnectError::Refused(refusal))) => return Err(Failure::Refused(refusal)),
                    Some((_, ConnectError::Failed(error))) if over || now >= limits.reachable_by => {
                        NoConnection::Failed(error)
                    }
                    None if over => NoConnection::PoolExhausted,
                    _ => continue,
                },
                None if over => NoConnection::Said(error.to_string()),
                None => continue,
            };
            return Err(Failure::NoConnection { cause, waited: now.since(began) });
        }
    }
}

impl Pooled<Manager> {
    /// Looks through a pool of our own making.
    pub(crate) fn open(pool: r2d2::Pool<Manager>, manager: &Manager) -> Self {
        Self { pool, command_timeout: manager.limits()[1], health: Some(manager.health()) }
    }
}

/// Leaves out a connection that was opened before the server was seen to close others: it is likely dead, and a command sent
/// on it would have an unknown outcome for nothing.
fn usable<M: r2d2::ManageConnection>(
    mut connection: r2d2::PooledConnection<M>,
) -> Option<r2d2::PooledConnection<M>>
where
    M::Connection: Carrier,
{
    if connection.is_doubtful() {
        connection.retire();
        return None;
    }
    Some(connection)
}

impl<M: r2d2::ManageConnection> Window for Pooled<M>
where
    M::Connection: Carrier,
{
    fn call(&self, key: &Key, command: &Command, limits: &Limits) -> Result<Reply, Failure> {
        let packed = packed(key, command);
        let mut connection = self.checkout(limits)?;
        let now = clock::now();
        if limits.before.is_some_and(|end| end.has_passed(now)) {
            return Err(Failure::TooLate);
        }
        connection.answer_within(limits.answered_by.since(now.uptime));
        let answer = connection.req_packed_command(&packed).and_then(Value::extract_error);
        let error = match answer {
            Ok(value) => match shaped(command, value) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            },
            Err(error) => error,
        };
        match refusal_in(&error) {
            Some(refusal) => {
                if refusal.ends_the_connection() {
                    connection.retire();
                }
                Err(Failure::Refused(refusal))
            }
            None => {
                connection.retire(); // I8
                let understood = error.is_io_error();
                Err(Failure::Lost(if understood { error } else { not_understood(&error, "the server") }))
            }
        }
    }

    fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    fn patience(&self) -> Duration {
        self.pool.connection_timeout()
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for Pooled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled")
            .field("pool", &self.pool.state())
            .field("max_size", &self.pool.max_size())
            .field("command_timeout", &self.command_timeout)
            .finish_non_exhaustive()
    }
}

fn packed(key: &Key, command: &Command) -> Vec<u8> {
    let mut cmd = redis::cmd(command.name());
    cmd.arg(key.as_bytes());
    if let Command::SetNx(value) | Command::GetSet(value) = command {
        cmd.arg(value.as_slice());
    }
    cmd.get_packed_command()
}

/// Holds a reply against the form that the command has. Another form means that it is no answer to this command.
fn shaped(command: &Command, value: Value) -> Result<Reply, redis::RedisError> {
    match (command, value) {
        (Command::SetNx(_) | Command::Del, Value::Int(n)) => Ok(Reply::Integer(n)),
        (Command::Get | Command::GetSet(_), Value::BulkString(bytes)) => Ok(Reply::Bulk(Some(bytes))),
        (Command::Get | Command::GetSet(_), Value::Nil) => Ok(Reply::Bulk(None)),
        (command, other) => Err((
            redis::ErrorKind::UnexpectedReturnType,
            "the reply does not have the form of this command's replies",
            format!("{}: {other:?}", command.name()),
        )
            .into()),
    }
}

/// Returns the refusal in an error, if it is the server's own word and not a failure to understand it.
pub(crate) fn refusal_in(error: &redis::RedisError) -> Option<Refusal> {
    match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => {
            let code = error.code().unwrap_or("ERR");
            Some(Refusal::new(match error.detail() {
                Some(detail) => format!("{code} {detail}"),
                None => code.to_owned(),
            }))
        }
        _ => None,
    }
}

/// An answer that is none, on one line: the parser's words go over several.
fn not_understood(error: &redis::RedisError, who: &str) -> redis::RedisError {
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{who} does not answer as a Redis server does: {text}"),
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_packed_as_the_gem_s_client_packs_them() {
        let key = Key::from("k");
        assert_eq!(
            packed(&key, &Command::SetNx(b"1".to_vec())),
            b"*3\r\n$5\r\nSETNX\r\n$1\r\nk\r\n$1\r\n1\r\n"
        );
        assert_eq!(packed(&key, &Command::Get), b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n");
        assert_eq!(
            packed(&key, &Command::GetSet(b"2".to_vec())),
            b"*3\r\n$6\r\nGETSET\r\n$1\r\nk\r\n$1\r\n2\r\n"
        );
        assert_eq!(packed(&key, &Command::Del), b"*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n");
    }

    #[test]
    fn a_reply_of_another_form_is_none() {
        assert!(shaped(&Command::Get, Value::Int(1)).is_err());
        assert!(shaped(&Command::SetNx(vec![]), Value::BulkString(b"1".to_vec())).is_err());
        assert!(shaped(&Command::Del, Value::Okay).is_err());
        assert_eq!(shaped(&Command::GetSet(vec![]), Value::Nil).unwrap(), Reply::Bulk(None));
    }
}

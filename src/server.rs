//! The window to the server: a command goes in, a reply comes out, and nobody above knows which connection carried it.
//! Takes a connection for one command and gives it back before the reply is looked at (I9).

mod carrier;
mod connection;
mod health;
mod manager;
mod pooled;
pub(crate) mod refusal;

use std::time::Duration;
use std::{fmt, io};

use redis::Value;

use crate::clock::{Now, Uptime};
use crate::error::NoConnection;
use crate::key::Key;
use crate::protocol::{Command, Reply, Request};
pub use carrier::Carrier;
pub use connection::Connection;
pub use manager::{ConnectError, Manager};
pub(crate) use pooled::Pooled;
use refusal::Refusal;

/// Until when what is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// When the command was decided on.
    pub(crate) asked: Now,
    /// A connection that cannot be opened is waited for until here.
    pub(crate) reachable_by: Uptime,
    /// A connection that is in use, or is being opened, is waited for until here.
    pub(crate) connected_by: Uptime,
    /// The answer is waited for until here, where the connection knows time-outs.
    pub(crate) answered_by: Uptime,
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
    /// Sends one command and returns its reply: an integer or a bulk, as the command has it. Once, but for a command that the
    /// server refused unread because it has no room for the connection.
    fn call(&self, key: &Key, request: &Request, limits: &Limits) -> Result<Reply, Failure>;

    /// The longest that one command takes.
    fn command_timeout(&self) -> Duration;

    /// How long a connection is waited for when the caller sets no limit.
    fn patience(&self) -> Duration;
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

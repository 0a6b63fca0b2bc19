//! Keys and values as locks and other programs write them.

use std::time::{Duration, SystemTime};

use redis::ToRedisArgs;

use crate::support::AnyServer;
use crate::support::notified::connection;

/// The value of a lock whose lease ends in this time.
pub(super) fn ending_in(time: Duration) -> String {
    let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() + time;
    format!("{}.{:06}3374650192", end.as_secs(), end.subsec_micros())
}

/// Writes a key.
pub(super) fn set(server: &impl AnyServer, key: impl ToRedisArgs, value: impl ToRedisArgs) {
    let () = redis::cmd("SET").arg(key).arg(value).query(&mut connection(server)).unwrap();
}

/// Writes a key with the name of its holder, which has held the lock since November 2026.
pub(super) fn set_named(server: &impl AnyServer, key: &str, value: &str, holder: &str) {
    set(server, key, format!("{value}:1793000000:{holder}"));
}

/// Reads a key.
pub(super) fn get(server: &impl AnyServer, key: &str) -> Option<String> {
    redis::cmd("GET").arg(key).query(&mut connection(server)).unwrap()
}

/// Sends a command, of words with blanks between them.
pub(super) fn send(server: &impl AnyServer, command: &str) {
    let (name, arguments) = command.split_once(' ').unwrap_or((command, ""));
    let arguments: Vec<_> = arguments.split(' ').filter(|word| !word.is_empty()).collect();
    redis::cmd(name).arg(arguments).exec(&mut connection(server)).unwrap();
}

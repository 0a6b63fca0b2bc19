//! The commands that old versions of Redis knew, and the words of their refusals.
//!
//! Versions are those of "Available since" and of the history of each command in the Redis command reference. Where a line says
//! *measured* or *read*, it was run on a server of that age or read in its source, and the reference differs or is silent.

use std::ops::RangeInclusive;

use super::resp::text;

use Emulated::{V1_2, V2_0, V2_2, V2_4, V2_6};

/// A version that the proxy can emulate, by its last release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Emulated {
    V1_2,
    V2_0,
    V2_2,
    V2_4,
    V2_6,
}

/// At least so many arguments.
const fn from(least: usize) -> RangeInclusive<usize> {
    least..=usize::MAX
}

/// The command, the version in which it appeared, and how many arguments it takes in 2.6. Other commands are refused.
#[rustfmt::skip]
const COMMANDS: &[(&str, &str, RangeInclusive<usize>)] = &[
    // Connection and server.
    ("AUTH",         "1.0.0",  1..=1),
    ("ECHO",         "1.0.0",  1..=1),
    ("PING",         "1.0.0",  0..=0),
    ("QUIT",         "1.0.0",  from(0)),
    ("SELECT",       "1.0.0",  1..=1),
    ("INFO",         "1.0.0",  0..=1), // argument: "2.6.0"
    ("DBSIZE",       "1.0.0",  0..=0),
    ("FLUSHALL",     "1.0.0",  0..=0),
    ("FLUSHDB",      "1.0.0",  0..=0),
    ("SAVE",         "1.0.0",  0..=0),
    ("BGSAVE",       "1.0.0",  0..=0),
    ("LASTSAVE",     "1.0.0",  0..=0),
    ("SHUTDOWN",     "1.0.0",  0..=1),
    ("SLAVEOF",      "1.0.0",  2..=2),
    ("MONITOR",      "1.0.0",  0..=0),
    ("DEBUG",        "1.0.0",  from(1)),
    ("CONFIG",       "2.0.0",  from(1)),
    ("SLOWLOG",      "2.2.12", from(1)),
    ("CLIENT",       "2.4.0",  from(1)),
    ("TIME",         "2.6.0",  0..=0),
    ("COMMAND",      "2.8.13", from(0)),
    ("ROLE",         "2.8.12", 0..=0),
    ("WAIT",         "3.0.0",  2..=2),
    ("HELLO",        "6.0.0",  from(0)),
    ("ACL",          "6.0.0",  from(1)),
    // Keys.
    ("DEL",          "1.0.0",  from(1)),
    ("EXISTS",       "1.0.0",  1..=1),
    ("EXPIRE",       "1.0.0",  2..=2),
    ("EXPIREAT",     "1.2.0",  2..=2), // measured: there in 1.1.94
    ("KEYS",         "1.0.0",  1..=1),
    ("MOVE",         "1.0.0",  2..=2),
    ("RANDOMKEY",    "1.0.0",  0..=0),
    ("RENAME",       "1.0.0",  2..=2),
    ("RENAMENX",     "1.0.0",  2..=2),
    ("SORT",         "1.0.0",  from(1)),
    ("TTL",          "1.0.0",  1..=1),
    ("TYPE",         "1.0.0",  1..=1),
    ("PERSIST",      "2.2.0",  1..=1),
    ("OBJECT",       "2.2.3",  from(1)),
    ("PEXPIRE",      "2.6.0",  2..=2),
    ("PEXPIREAT",    "2.6.0",  2..=2),
    ("PTTL",         "2.6.0",  1..=1),
    ("SCAN",         "2.8.0",  from(1)),
    ("UNLINK",       "4.0.0",  from(1)),
    // Strings.
    ("GET",          "1.0.0",  1..=1),
    ("GETSET",       "1.0.0",  2..=2),
    ("SET",          "1.0.0",  from(2)), // options: "2.6.12"
    ("SETNX",        "1.0.0",  2..=2),
    ("INCR",         "1.0.0",  1..=1),
    ("DECR",         "1.0.0",  1..=1),
    ("INCRBY",       "1.0.0",  2..=2),
    ("DECRBY",       "1.0.0",  2..=2),
    ("MGET",         "1.0.0",  from(1)),
    ("MSET",         "1.0.1",  from(2)),
    ("MSETNX",       "1.0.1",  from(2)),
    ("APPEND",       "2.0.0",  2..=2),
    ("SETEX",        "2.0.0",  3..=3),
    ("STRLEN",       "2.2.0",  1..=1),
    ("GETRANGE",     "2.4.0",  3..=3),
    ("PSETEX",       "2.6.0",  3..=3),
    // Lists.
    ("LINDEX",       "1.0.0",  2..=2),
    ("LLEN",         "1.0.0",  1..=1),
    ("LPOP",         "1.0.0",  1..=1),
    ("LPUSH",        "1.0.0",  from(2)), // several values: "2.4.0"
    ("LRANGE",       "1.0.0",  3..=3),
    ("LREM",         "1.0.0",  3..=3),
    ("LSET",         "1.0.0",  3..=3),
    ("LTRIM",        "1.0.0",  3..=3),
    ("RPOP",         "1.0.0",  1..=1),
    ("RPUSH",        "1.0.0",  from(2)), // several values: "2.4.0"
    ("RPOPLPUSH",    "1.2.0",  2..=2),
    ("LPUSHX",       "2.2.0",  2..=2),
    ("RPUSHX",       "2.2.0",  2..=2),
    // Sets and hashes.
    ("SADD",         "1.0.0",  from(2)), // several members: "2.4.0"
    ("SREM",         "1.0.0",  from(2)), // several members: "2.4.0"
    ("SCARD",        "1.0.0",  1..=1),
    ("SISMEMBER",    "1.0.0",  2..=2),
    ("SMEMBERS",     "1.0.0",  1..=1),
    ("HSET",         "2.0.0",  3..=3),
    ("HGET",         "2.0.0",  2..=2),
    ("HGETALL",      "2.0.0",  1..=1),
    // Transactions. The reference says 1.2.0 of MULTI and EXEC; measured: not in 1.1.94, there in 1.3.6.
    ("MULTI",        "1.3.6",  0..=0),
    ("EXEC",         "1.3.6",  0..=0),
    ("DISCARD",      "2.0.0",  0..=0),
    ("WATCH",        "2.2.0",  from(1)),
    ("UNWATCH",      "2.2.0",  0..=0),
    // Publishing and subscribing.
    ("PUBLISH",      "2.0.0",  2..=2),
    ("SUBSCRIBE",    "2.0.0",  from(1)),
    ("PSUBSCRIBE",   "2.0.0",  from(1)),
    ("UNSUBSCRIBE",  "2.0.0",  from(0)),
    ("PUNSUBSCRIBE", "2.0.0",  from(0)),
    ("PUBSUB",       "2.8.0",  from(1)),
    // Scripts.
    ("EVAL",         "2.6.0",  from(2)),
    ("EVALSHA",      "2.6.0",  from(2)),
    ("SCRIPT",       "2.6.0",  from(1)),
];

/// The command, the version from which the arguments of the table above apply, and those before.
const ARGUMENTS_BEFORE: &[(&str, &str, RangeInclusive<usize>)] = &[
    ("INFO", "2.6.0", 0..=0),
    ("SET", "2.6.12", 2..=2),
    ("LPUSH", "2.4.0", 2..=2),
    ("RPUSH", "2.4.0", 2..=2),
    ("SADD", "2.4.0", 2..=2),
    ("SREM", "2.4.0", 2..=2),
    ("SHUTDOWN", "2.6.0", 0..=0), // read: without SAVE or NOSAVE in 2.4
];

/// The commands that add data, which a server over its `maxmemory` refuses. Up to 2.4 EXEC is among them, with any content
/// (read: its flag in the source of 2.1, and of the time between 2.2 and 2.4).
#[rustfmt::skip]
const ADDING: &[&str] = &[
    "SET", "SETNX", "GETSET", "SETEX", "INCR", "DECR", "INCRBY", "DECRBY", "MSET", "MSETNX", "APPEND",
    "PSETEX", "LPUSH", "RPUSH", "LPUSHX", "RPUSHX", "LSET", "RPOPLPUSH", "SADD", "HSET", "SORT",
    "EXEC",
];

pub(super) const OVER_MEMORY: &str = "ERR command not allowed when used memory > 'maxmemory'";
pub(super) const NOT_PERMITTED: &str = "ERR operation not permitted";
pub(super) const WRONG_PASSWORD: &str = "ERR invalid password";
pub(super) const NO_PASSWORD_SET: &str = "ERR Client sent AUTH, but no password is set";

/// How a current server's refusal begins, the last version with another one, and that other one.
const WORDED_BEFORE: &[(&str, Emulated, &str)] = &[
    ("WRONGTYPE ", V2_6, "ERR Operation against a key holding the wrong kind of value"), // measured
    ("OOM command not allowed", V2_4, OVER_MEMORY),
    ("NOAUTH ", V2_6, NOT_PERMITTED),
    ("WRONGPASS ", V2_6, WRONG_PASSWORD),
    ("ERR AUTH <password> called without", V2_6, NO_PASSWORD_SET),
    ("ERR DB index is out of range", V2_6, "ERR invalid DB index"),
];

impl Emulated {
    pub const ALL: [Self; 5] = [V1_2, V2_0, Self::V2_2, V2_4, V2_6];

    /// The number that the server reports.
    pub fn number(self) -> &'static str {
        match self {
            Self::V1_2 => "1.2.6",
            Self::V2_0 => "2.0.5",
            Self::V2_2 => "2.2.15",
            Self::V2_4 => "2.4.18",
            Self::V2_6 => "2.6.17",
        }
    }

    /// The usual short name.
    pub fn name(self) -> &'static str {
        &self.number()[..3]
    }

    fn has(self, since: &str) -> bool {
        let parts =
            |number: &str| -> Vec<u32> { number.split('.').map(|part| part.parse().unwrap()).collect() };
        parts(self.number()) >= parts(since)
    }

    /// Returns the refusal of a command that this version does not know, or not with so many arguments.
    pub(super) fn refuses(self, words: &[Vec<u8>]) -> Option<String> {
        let name = text(&words[0]).to_uppercase();
        let listed = COMMANDS.iter().find(|(command, since, _)| *command == name && self.has(since));
        let Some((_, _, now)) = listed else { return Some(unknown(&text(&words[0]))) };
        let before = ARGUMENTS_BEFORE.iter().find(|(command, since, _)| *command == name && !self.has(since));
        let takes = before.map_or(now, |(_, _, before)| before);
        (!takes.contains(&(words.len() - 1))).then(|| wrong_number(&name))
    }

    /// Returns the refusal of options and subcommands that this version does not know. It comes when the command is executed, and so
    /// not while it is queued.
    pub(super) fn refuses_within(self, words: &[Vec<u8>]) -> Option<String> {
        let words: Vec<String> = words.iter().map(|word| text(word).to_uppercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["SET", _, _, ref options @ ..] if !are_options_of_2_6(options) => {
                Some("ERR syntax error".into())
            }
            // GETNAME and SETNAME: "2.6.9".
            ["CLIENT", "LIST" | "KILL", ..] => None,
            ["CLIENT", "GETNAME" | "SETNAME", ..] if self >= V2_6 => None,
            ["CLIENT", ..] if self >= V2_6 => Some(
                "ERR Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)"
                    .into(),
            ),
            ["CLIENT", ..] => Some("ERR Syntax error, try CLIENT (LIST | KILL ip:port)".into()),
            ["CONFIG", "GET" | "SET" | "RESETSTAT", ..] => None,
            ["CONFIG", ..] => Some("ERR CONFIG subcommand must be one of GET, SET, RESETSTAT".into()),
            _ => None,
        }
    }

    /// Returns this version's words for a current server's refusal, if they differ.
    pub(super) fn reworded(self, current: &str) -> Option<String> {
        let line = WORDED_BEFORE.iter().find(|(now, until, _)| current.starts_with(now) && self <= *until);
        line.map(|(_, _, before)| (*before).to_owned())
    }

    /// Whether this version refuses the command over its `maxmemory` in a way that a current server does not.
    pub(super) fn is_refused_over_memory(self, name: &str) -> bool {
        self <= V2_4 && ADDING.contains(&name)
    }

    /// Whether this version queues or executes the command of a transaction over its `maxmemory`, where a current server refuses it:
    /// that one queues nothing then. Measured for DEL, LTRIM and EXPIRE on 2.0.5 to 2.6.17; EXEC itself is refused up to 2.4.
    pub(super) fn proceeds_over_memory(self, name: &str) -> bool {
        if name == "EXEC" { self >= V2_6 } else { !ADDING.contains(&name) }
    }

    /// Whether this version accepts any password where none is set. Measured on 2.2.15 and 2.4.18.
    pub(super) fn accepts_any_password(self) -> bool {
        self <= V2_2
    }
}

/// Measured on 1.1.94; 1.3.4 and all later ones name it as it was typed as well.
fn unknown(typed: &str) -> String {
    format!("ERR unknown command '{typed}'")
}

fn wrong_number(name: &str) -> String {
    format!("ERR wrong number of arguments for '{}' command", name.to_lowercase())
}

fn are_options_of_2_6(options: &[&str]) -> bool {
    match options {
        [] => true,
        ["NX" | "XX", rest @ ..] | ["EX" | "PX", _, rest @ ..] => are_options_of_2_6(rest),
        _ => false,
    }
}

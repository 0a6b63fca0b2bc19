//! What twemproxy forwards, as far as locks send it.
//!
//! Measured on 0.5.0: it answers PING and COMMAND itself, forwards these, and closes the connection on INFO, WATCH,
//! UNWATCH, MULTI, EXEC, DISCARD, SCAN, KEYS, MSETNX, PUBLISH, SUBSCRIBE, TIME, SELECT, HELLO, CLIENT and CONFIG,
//! without a reply to what came before in one piece.

/// The commands on which the connection stays open.
#[rustfmt::skip]
pub(super) const FORWARDED: &[&str] = &[
    "AUTH", "COMMAND", "PING",
    "DEL", "EXISTS", "EXPIRE", "EXPIREAT", "PEXPIRE", "PTTL", "TTL", "TYPE",
    "GET", "GETRANGE", "GETSET", "INCR", "MGET", "SET", "SETEX", "SETNX", "STRLEN",
    "LLEN", "LPOP", "LPUSH", "LRANGE", "LREM", "RPUSH",
];

//! The commands of newer servers that compare a key and change it: scripts on the real server do it for them.

use std::io;

use super::real::Real;
use super::resp::{self, Request, text};

/// A newer server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparing {
    /// Redis 8.4: DELEX, and SET with IFEQ.
    Redis,
    /// Valkey 9: DELIFEQ, and SET with IFEQ.
    Valkey,
}

const DELETE: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('DEL', KEYS[1])";

const SET: &str = "
    if redis.call('GET', KEYS[1]) ~= ARGV[1] then return false end
    return redis.call('SET', KEYS[1], unpack(ARGV, 2))";

impl Comparing {
    pub(super) fn answer(self, request: &Request, real: &mut Real) -> io::Result<Vec<u8>> {
        let words: Vec<&[u8]> = request.words.iter().map(Vec::as_slice).collect();
        match (request.name().as_str(), &words[1..]) {
            ("DELEX", [key, condition, value]) if self == Self::Redis && *condition == b"IFEQ" => {
                real.ask(&Request::of(&[b"EVAL", DELETE.as_bytes(), b"1", key, value]))
            }
            ("DELIFEQ", [key, value]) if self == Self::Valkey => {
                real.ask(&Request::of(&[b"EVAL", DELETE.as_bytes(), b"1", key, value]))
            }
            ("SET", [key, value, options @ ..]) if options.contains(&&b"IFEQ"[..]) => {
                let at = options.iter().position(|option| *option == b"IFEQ").unwrap_or_default();
                let Some(expected) = options.get(at + 1) else {
                    return Ok(resp::error("ERR syntax error"));
                };
                let script: [&[u8]; 6] = [b"EVAL", SET.as_bytes(), b"1", key, expected, value];
                real.ask(&Request::of(&[&script[..], &options[..at], &options[at + 2..]].concat()))
            }
            ("INFO", _) => Ok(self.info(&real.ask(request)?)),
            _ => real.ask(request),
        }
    }

    fn info(self, reply: &[u8]) -> Vec<u8> {
        let told = text(reply);
        let lines = told.lines().skip(1).map(|line| match (self, line.split_once(':')) {
            (Self::Redis, Some(("redis_version", _))) => "redis_version:8.4.0\r\n".to_owned(),
            (Self::Valkey, Some(("redis_version", _))) => {
                "redis_version:7.2.4\r\nvalkey_version:9.0.0\r\n".to_owned()
            }
            _ => format!("{line}\r\n"),
        });
        resp::bulk(lines.collect::<String>().as_bytes())
    }
}

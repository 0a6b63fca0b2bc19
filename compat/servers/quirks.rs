//! What an old version does otherwise than a current one.
//!
//! Where a command works on keys, the difference is a script that the real server runs in its place. So it is atomic, it can
//! be queued in a transaction as the command itself, and its answer is of the same kind.

use std::io;
use std::net::SocketAddr;

use super::info::Info;
use super::real::Real;
use super::resp::{self, Request, text};
use super::versions::{OVER_MEMORY, Played};

/// What deletes its key first if that has a time to live, before 2.2. Measured for SETNX; for the rest read in the sources of
/// 1.0, where they all look their key up in the same way, and told in the reference of EXPIRE.
const DELETING_FIRST: &[&str] = &[
    "SETNX",
    "INCR",
    "DECR",
    "INCRBY",
    "DECRBY",
    "APPEND",
    "LPUSH",
    "RPUSH",
    "LPOP",
    "RPOP",
    "LSET",
    "LREM",
    "LTRIM",
    "RPOPLPUSH",
    "SADD",
    "SREM",
    "HSET",
];

const DELETE_FIRST: &str = "
    if redis.call('PTTL', KEYS[1]) >= 0 then redis.call('DEL', KEYS[1]) end
    return redis.pcall(unpack(ARGV))";

/// A time to live that is there already stays, and the answer is 0. A time that has passed deletes the key nevertheless.
const EXPIRE_ONCE: &str = "
    local left = tonumber(ARGV[3])
    if left and string.upper(ARGV[1]) == 'EXPIREAT' then left = left - redis.call('TIME')[1] end
    if left and left > 0 and redis.call('PTTL', KEYS[1]) >= 0 then return 0 end
    return redis.pcall(unpack(ARGV))";

/// Whole seconds that the clock, whole seconds as well, still has to go.
const TTL_ROUNDED_UP: &str = "
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 then return -1 end
    return math.ceil(left / 1000)";

/// -1 for a missing key: -2 came with 2.8.
const LEFT_OR_MINUS_ONE: &str = "return math.max(-1, redis.call(ARGV[1], KEYS[1]))";

/// One connection to a server that plays an old version.
#[derive(Debug)]
pub(super) struct Player {
    version: Played,
    address: SocketAddr,
    in_multi: bool,
    /// Something was not queued since MULTI.
    spoiled: bool,
    /// For looking at the memory while the connection itself may be in a transaction.
    aside: Option<Real>,
}

impl Player {
    pub(super) fn new(version: Played, address: SocketAddr) -> Self {
        Self { version, address, in_multi: false, spoiled: false, aside: None }
    }

    /// Has a command carried out, if this version has it, as this version did. `limited` says that there is a `maxmemory`.
    pub(super) fn answer(
        &mut self,
        request: &Request,
        real: &mut Real,
        limited: bool,
    ) -> io::Result<Vec<u8>> {
        let name = request.name();
        if let Some(words) = self.refusal(&name, request, limited)? {
            self.spoiled |= self.in_multi;
            return Ok(resp::error(&words));
        }
        // From 2.6.5 on; before, EXEC carries out the rest.
        if name == "EXEC" && self.spoiled && self.version >= Played::V2_6 {
            real.ask(&Request::of(&[b"DISCARD"]))?;
            (self.in_multi, self.spoiled) = (false, false);
            return Ok(resp::error("EXECABORT Transaction discarded because of previous errors."));
        }
        let version = self.version;
        let script = script(version, &name).map(|script| {
            let words = request.words.iter().map(Vec::as_slice);
            Request::of(
                &[b"EVAL", script.as_bytes(), b"1", &request.words[1]]
                    .into_iter()
                    .chain(words)
                    .collect::<Vec<_>>(),
            )
        });
        let reply = real.ask_reworded(script.as_ref().unwrap_or(request), &|said| version.reworded(said))?;
        if name == "INFO" && reply.starts_with(b"$") {
            let section = request.words.get(1).map_or(String::new(), |word| text(word));
            let info = Info::parse(&real.ask(&Request::of(&[b"INFO", b"everything"]))?);
            return Ok(info.written_by(version, &section));
        }
        match name.as_str() {
            "MULTI" if reply.starts_with(b"+") => self.in_multi = true,
            "EXEC" | "DISCARD" => (self.in_multi, self.spoiled) = (false, false),
            _ => {}
        }
        Ok(reply)
    }

    /// Whether it comes to anything at all.
    pub(super) fn takes(&self, request: &Request) -> bool {
        self.version.refuses(&request.words).is_none()
    }

    fn refusal(&mut self, name: &str, request: &Request, limited: bool) -> io::Result<Option<String>> {
        if let Some(words) = self.version.refuses(&request.words) {
            return Ok(Some(words));
        }
        // Before it is queued, and for EXEC as well: the transaction is then as open as before.
        if limited && self.version.minds_memory(name) && self.is_over_memory()? {
            return Ok(Some(OVER_MEMORY.into()));
        }
        Ok(if self.in_multi { None } else { self.version.refuses_within(&request.words) })
    }

    fn is_over_memory(&mut self) -> io::Result<bool> {
        let aside = match &mut self.aside {
            Some(aside) => aside,
            none => none.insert(Real::connect(self.address)?),
        };
        Ok(Memory::of(aside)?.is_over())
    }
}

fn script(version: Played, name: &str) -> Option<&'static str> {
    match name {
        "TTL" if version < Played::V2_6 => Some(TTL_ROUNDED_UP),
        "TTL" | "PTTL" => Some(LEFT_OR_MINUS_ONE),
        "EXPIRE" | "EXPIREAT" if version < Played::V2_2 => Some(EXPIRE_ONCE),
        _ if version < Played::V2_2 && DELETING_FIRST.contains(&name) => Some(DELETE_FIRST),
        _ => None,
    }
}

/// How much memory the real server may use, and does. Nothing of both where it tells nothing without a password.
#[derive(Debug)]
pub(super) struct Memory {
    limit: u64,
    used: u64,
}

impl Memory {
    pub(super) fn of(real: &mut Real) -> io::Result<Self> {
        let info = Info::parse(&real.ask(&Request::of(&[b"INFO", b"memory"]))?);
        let number = |name| info.number(name).unwrap_or(0);
        let used = number("used_memory").saturating_sub(number("mem_not_counted_for_evict"));
        Ok(Self { limit: number("maxmemory"), used })
    }

    pub(super) fn is_limited(&self) -> bool {
        self.limit > 0
    }

    fn is_over(&self) -> bool {
        self.is_limited() && self.used > self.limit
    }
}

//! What an old version does differently from a current one.
//!
//! Where a command works on keys, the difference is a script that the real server runs in its place. So it is atomic, it can
//! be queued in a transaction like the command itself, and its reply is of the same kind.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};

use super::info::Info;
use super::real::Real;
use super::resp::{self, Request, text};
use super::versions::{Emulated, NO_PASSWORD_SET, NOT_PERMITTED, OVER_MEMORY, WRONG_PASSWORD};

/// The commands that, before 2.2, first delete a key with a time to live. Measured for SETNX; for the rest read in the source of
/// 1.0, where all of them look their key up in the same way, and in the reference of EXPIRE.
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

/// The same, and a text is counted from the number that it begins with, or from 0. Measured on 1.1.94 and 1.3.6.
const COUNT_A_TEXT: &str = "
    if redis.call('PTTL', KEYS[1]) >= 0 then redis.call('DEL', KEYS[1]) end
    if redis.call('TYPE', KEYS[1]).ok == 'string' then
        redis.call('SET', KEYS[1], string.match(redis.call('GET', KEYS[1]), '^%s*([+-]?%d+)') or 0)
    end
    return redis.pcall(unpack(ARGV))";

/// An existing time to live stays, and the reply is 0. A time that has passed deletes the key all the same; `passed` is the
/// condition on the seconds that are left.
macro_rules! expire_once {
    ($passed:literal) => {
        concat!(
            "
    local left = tonumber(ARGV[3])
    if left and string.upper(ARGV[1]) == 'EXPIREAT' then left = left - redis.call('TIME')[1] end
    if left and not (left ",
            $passed,
            ") and redis.call('PTTL', KEYS[1]) >= 0 then return 0 end
    return redis.pcall(unpack(ARGV))"
        )
    };
}

/// Measured on 1.1.94: with a second EXPIRE of 0 the key stays as well.
const EXPIRE_ONCE_1_2: &str = expire_once!("< 0");
const EXPIRE_ONCE_2_0: &str = expire_once!("<= 0");

/// A value of another type is refused and overwritten all the same. Measured on 1.1.94.
const GETSET_OF_ANY_TYPE: &str = "
    local kind = redis.call('TYPE', KEYS[1]).ok
    if kind == 'string' or kind == 'none' then return redis.pcall(unpack(ARGV)) end
    redis.call('SET', KEYS[1], ARGV[3])
    return redis.error_reply('WRONGTYPE Operation against a key holding the wrong kind of value')";

/// A MULTI that is queued: its reply, and nothing else.
const NESTED_MULTI: &str = "return redis.status_reply('OK')";

/// The time to live in whole seconds, rounded up: those servers' clocks had whole seconds as well.
const TTL_ROUNDED_UP: &str = "
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 then return -1 end
    return math.ceil(left / 1000)";

/// -1 for a missing key: -2 came with 2.8.
const LEFT_OR_MINUS_ONE: &str = "return math.max(-1, redis.call(ARGV[1], KEYS[1]))";

/// One connection to a server that emulates an old version.
#[derive(Debug)]
pub(super) struct EmulatedServer {
    version: Emulated,
    address: SocketAddr,
    in_multi: bool,
    /// A command was refused since MULTI.
    spoiled: bool,
    /// A wrong password has taken away what a right one had permitted.
    forgotten: bool,
    /// Taken for writing while the real server's memory limit is lifted.
    limit: Arc<RwLock<()>>,
    /// Asks for the memory while the connection itself may be in a transaction.
    aside: Option<Real>,
}

impl EmulatedServer {
    /// `limit` is the same for all connections to the server.
    pub(super) fn new(version: Emulated, address: SocketAddr, limit: &Arc<RwLock<()>>) -> Self {
        Self {
            version,
            address,
            in_multi: false,
            spoiled: false,
            forgotten: false,
            limit: Arc::clone(limit),
            aside: None,
        }
    }

    /// Executes a command as this version did, or refuses it. `limited`: the server has a `maxmemory`.
    pub(super) fn answer(
        &mut self,
        request: &Request,
        real: &mut Real,
        limited: bool,
    ) -> io::Result<Vec<u8>> {
        let name = request.name();
        if !limited {
            return self.execute(&name, request, real, limited);
        }
        let limit = Arc::clone(&self.limit);
        if !(self.in_multi && self.version.proceeds_over_memory(&name)) {
            let _not_lifted = limit.read().unwrap();
            return self.execute(&name, request, real, limited);
        }
        let _alone = limit.write().unwrap();
        let memory = self.memory()?;
        if !memory.is_over() {
            return self.execute(&name, request, real, limited);
        }
        self.set_limit(0)?;
        let reply = self.execute(&name, request, real, limited);
        self.set_limit(memory.limit)?;
        reply
    }

    fn execute(
        &mut self,
        name: &str,
        request: &Request,
        real: &mut Real,
        limited: bool,
    ) -> io::Result<Vec<u8>> {
        if let Some(words) = self.refusal(name, request, limited)? {
            self.spoiled |= self.in_multi;
            return Ok(resp::error(&words));
        }
        // From 2.6.5 on; before, EXEC executes the rest.
        if name == "EXEC" && self.spoiled && self.version >= Emulated::V2_6 {
            real.ask(&Request::of(&[b"DISCARD"]))?;
            self.transaction_ends();
            return Ok(resp::error("EXECABORT Transaction discarded because of previous errors."));
        }
        let version = self.version;
        let script = script(version, name).map(|script| {
            let words = request.words.iter().map(Vec::as_slice);
            Request::of(
                &[b"EVAL", script.as_bytes(), b"1", &request.words[1]]
                    .into_iter()
                    .chain(words)
                    .collect::<Vec<_>>(),
            )
        });
        let nested = name == "MULTI" && self.in_multi && version < Emulated::V2_2;
        let script = script.or(nested.then(|| Request::of(&[b"EVAL", NESTED_MULTI.as_bytes(), b"0"])));
        let reply =
            real.ask_reworded(script.as_ref().unwrap_or(request), &|refusal| version.reworded(refusal))?;
        if name == "INFO" && reply.starts_with(b"$") {
            let section = request.words.get(1).map_or(String::new(), |word| text(word));
            let info = Info::parse(&real.ask(&Request::of(&[b"INFO", b"everything"]))?);
            return Ok(info.written_by(version, &section));
        }
        let queued = self.in_multi && reply == b"+QUEUED\r\n";
        match name {
            _ if queued => {}
            "MULTI" if reply.starts_with(b"+") => self.in_multi = true,
            "EXEC" | "DISCARD" => self.transaction_ends(),
            _ => {}
        }
        Ok(if queued { reply } else { self.old_form(name, reply) })
    }

    /// The reply to a command that was executed, as this version wrote it.
    fn old_form(&mut self, name: &str, reply: Vec<u8>) -> Vec<u8> {
        match name {
            "AUTH" if reply == resp::error(NO_PASSWORD_SET) && self.version.accepts_any_password() => {
                b"+OK\r\n".to_vec()
            }
            "AUTH" => {
                self.forgotten = reply == resp::error(WRONG_PASSWORD);
                reply
            }
            // Measured on 1.1.94, these two.
            "LPUSH" | "RPUSH" if self.version < Emulated::V2_0 && reply.starts_with(b":") => {
                b"+OK\r\n".to_vec()
            }
            "RANDOMKEY" if self.version < Emulated::V2_0 => resp::bulk_as_status(reply),
            _ => reply,
        }
    }

    fn transaction_ends(&mut self) {
        (self.in_multi, self.spoiled) = (false, false);
    }

    /// Whether this version has the command, with so many arguments.
    pub(super) fn accepts(&self, request: &Request) -> bool {
        self.version.refuses(&request.words).is_none()
    }

    fn refusal(&mut self, name: &str, request: &Request, limited: bool) -> io::Result<Option<String>> {
        if let Some(words) = self.version.refuses(&request.words) {
            return Ok(Some(words));
        }
        if self.forgotten && !["AUTH", "QUIT"].contains(&name) {
            return Ok(Some(NOT_PERMITTED.into()));
        }
        // Before it is queued, and for EXEC as well: the transaction then stays open.
        if limited && self.version.is_refused_over_memory(name) && self.memory()?.is_over() {
            return Ok(Some(OVER_MEMORY.into()));
        }
        Ok(if self.in_multi { None } else { self.version.refuses_within(&request.words) })
    }

    fn memory(&mut self) -> io::Result<Memory> {
        Memory::of(self.aside()?)
    }

    /// Sets the real server's `maxmemory`. If it refuses, it refuses as well what a higher limit would permit.
    fn set_limit(&mut self, bytes: u64) -> io::Result<()> {
        let bytes = bytes.to_string();
        self.aside()?.ask(&Request::of(&[b"CONFIG", b"SET", b"maxmemory", bytes.as_bytes()])).map(drop)
    }

    fn aside(&mut self) -> io::Result<&mut Real> {
        Ok(match &mut self.aside {
            Some(aside) => aside,
            none => none.insert(Real::connect(self.address)?),
        })
    }
}

fn script(version: Emulated, name: &str) -> Option<&'static str> {
    match name {
        "TTL" if version < Emulated::V2_6 => Some(TTL_ROUNDED_UP),
        "TTL" | "PTTL" => Some(LEFT_OR_MINUS_ONE),
        "EXPIRE" | "EXPIREAT" if version < Emulated::V2_0 => Some(EXPIRE_ONCE_1_2),
        "EXPIRE" | "EXPIREAT" if version < Emulated::V2_2 => Some(EXPIRE_ONCE_2_0),
        "GETSET" if version < Emulated::V2_0 => Some(GETSET_OF_ANY_TYPE),
        "INCR" | "DECR" | "INCRBY" | "DECRBY" if version < Emulated::V2_0 => Some(COUNT_A_TEXT),
        _ if version < Emulated::V2_2 && DELETING_FIRST.contains(&name) => Some(DELETE_FIRST),
        _ => None,
    }
}

/// How much memory the real server may use, and uses. Both are 0 if it reports nothing without a password.
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

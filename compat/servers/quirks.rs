//! What an old version does differently from a current one.
//!
//! Where a command works on keys, the difference is a script that the real server runs in its place. So it is atomic, it can
//! be queued in a transaction like the command itself, and its reply is of the same kind.

use std::io;
use std::net::SocketAddr;

use super::info::Info;
use super::lists::{self, Queued};
use super::real::Real;
use super::resp::{self, Request, text};
use super::versions::{OVER_MEMORY, Played};

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

/// An existing time to live stays, and the reply is 0. A time that has passed deletes the key all the same.
const EXPIRE_ONCE: &str = "
    local left = tonumber(ARGV[3])
    if left and string.upper(ARGV[1]) == 'EXPIREAT' then left = left - redis.call('TIME')[1] end
    if left and left > 0 and redis.call('PTTL', KEYS[1]) >= 0 then return 0 end
    return redis.pcall(unpack(ARGV))";

/// The time to live in whole seconds, rounded up: those servers' clocks had whole seconds as well.
const TTL_ROUNDED_UP: &str = "
    local left = redis.call('PTTL', KEYS[1])
    if left < 0 then return -1 end
    return math.ceil(left / 1000)";

/// -1 for a missing key: -2 came with 2.8.
const LEFT_OR_MINUS_ONE: &str = "return math.max(-1, redis.call(ARGV[1], KEYS[1]))";

/// One connection to a server that plays an old version.
#[derive(Debug)]
pub(super) struct PlayedServer {
    version: Played,
    address: SocketAddr,
    in_multi: bool,
    /// A command was refused since MULTI.
    spoiled: bool,
    queued: Queued,
    /// Asks for the memory while the connection itself may be in a transaction.
    aside: Option<Real>,
}

impl PlayedServer {
    pub(super) fn new(version: Played, address: SocketAddr) -> Self {
        Self { version, address, in_multi: false, spoiled: false, queued: Queued::default(), aside: None }
    }

    /// Executes a command as this version did, or refuses it. `limited`: the server has a `maxmemory`.
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
        // From 2.6.5 on; before, EXEC executes the rest.
        if name == "EXEC" && self.spoiled && self.version >= Played::V2_6 {
            real.ask(&Request::of(&[b"DISCARD"]))?;
            self.transaction_ends();
            return Ok(resp::error("EXECABORT Transaction discarded because of previous errors."));
        }
        let version = self.version;
        if name == "EXEC" && version < Played::V2_6 {
            return self.exec(request, real);
        }
        let script = script(version, &name).map(|script| {
            let words = request.words.iter().map(Vec::as_slice);
            Request::of(
                &[b"EVAL", script.as_bytes(), b"1", &request.words[1]]
                    .into_iter()
                    .chain(words)
                    .collect::<Vec<_>>(),
            )
        });
        let reply = if version < Played::V2_2 && lists::is_blocking(&name) {
            self.block(request, real)?
        } else {
            real.ask_reworded(script.as_ref().unwrap_or(request), &|refusal| version.reworded(refusal))?
        };
        if name == "INFO" && reply.starts_with(b"$") {
            let section = request.words.get(1).map_or(String::new(), |word| text(word));
            let info = Info::parse(&real.ask(&Request::of(&[b"INFO", b"everything"]))?);
            return Ok(info.written_by(version, &section));
        }
        match name.as_str() {
            "MULTI" if reply.starts_with(b"+") => self.in_multi = true,
            "EXEC" | "DISCARD" => self.transaction_ends(),
            _ if self.in_multi && reply == b"+QUEUED\r\n" => self.queued.add(request),
            _ => {}
        }
        Ok(reply)
    }

    /// EXEC before 2.6: a pushed item went to a blocked client at the push, and not after the transaction.
    fn exec(&mut self, request: &Request, real: &mut Real) -> io::Result<Vec<u8>> {
        let expiring = self.queued.expiring_after_a_push();
        let exist = expiring.iter().map(|(_, key)| Request::of(&[b"EXISTS", key]));
        let requests: Vec<Request> = [Request::of(&[&request.words[0]])].into_iter().chain(exist).collect();
        let mut replies =
            real.ask_together(&requests, &|refusal| self.version.reworded(refusal))?.into_iter();
        let done = replies.next().unwrap_or_default();
        let reply = lists::without_a_list(done, &expiring, replies.as_slice())?;
        self.transaction_ends();
        Ok(reply)
    }

    /// BLPOP and BRPOP before 2.2.
    fn block(&self, request: &Request, real: &mut Real) -> io::Result<Vec<u8>> {
        let mut requests = vec![lists::with_whole_timeout(request)];
        if !self.in_multi {
            requests.insert(0, lists::deleting_before(request));
        }
        let mut replies = real.ask_together(&requests, &|refusal| self.version.reworded(refusal))?;
        Ok(replies.pop().unwrap_or_default())
    }

    fn transaction_ends(&mut self) {
        (self.in_multi, self.spoiled) = (false, false);
        self.queued.clear();
    }

    /// Whether this version has the command, with so many arguments.
    pub(super) fn accepts(&self, request: &Request) -> bool {
        self.version.refuses(&request.words).is_none()
    }

    fn refusal(&mut self, name: &str, request: &Request, limited: bool) -> io::Result<Option<String>> {
        if let Some(words) = self.version.refuses(&request.words) {
            return Ok(Some(words));
        }
        // Before it is queued, and for EXEC as well: the transaction then stays open.
        if limited && self.version.is_refused_over_memory(name) && self.is_over_memory()? {
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

//! What a server has, and its user may use, beyond the commands of Classic: transactions, and PTTL. A probe finds it out before the first lock
//! that needs them, on the key of that lock, by a transaction without a change: no lock is acquired that could not be released. Some proxies
//! close the connection on WATCH.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Value, cmd};

use super::connections::Connection;
use super::errors::{Refusal, RefusalKind, TransportError};
use super::resp::{Form, Packed};
use crate::values::clock;
use crate::values::key::Key;
use crate::values::options::Protocol;
use crate::values::version::Version;

/// How long after a probe has found something lacking the next follows.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// What is known of a server.
#[derive(Default)]
pub(super) struct Abilities {
    /// The strength of the strongest protocol that was probed, and of the strongest that works, in four bits each.
    known: AtomicU8,
    /// Until when no probe follows one that has found something lacking, in microseconds of uptime; 0 if nothing is.
    lacking_until: AtomicU64,
    /// True if it hangs up on WATCH.
    hangs_up: AtomicBool,
}

/// How much a protocol needs of a server.
fn strength(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Auto | Protocol::Classic => 0,
        Protocol::Watched => 1,
        Protocol::Ttl => 2,
    }
}

impl Abilities {
    /// Returns true if a lock of this protocol may be acquired without a probe. `version`: as the server reported it.
    pub(super) fn know(&self, protocol: Protocol, version: Option<Version>) -> bool {
        let [tried, works] = self.known();
        match protocol {
            Protocol::Auto => tried >= strength(protocol.on(version, true)) && !self.may_have_changed(),
            protocol => works >= strength(protocol),
        }
    }

    /// Returns what Auto means for locks that expire on a server of this version, as far as is known.
    pub(super) fn best(&self, version: Option<Version>) -> Protocol {
        let [tried, works] = self.known();
        let lacks = |protocol| (works + 1..=tried).contains(&strength(protocol)) && !self.may_have_changed();
        match Protocol::Auto.on(version, true) {
            _ if lacks(Protocol::Watched) => Protocol::Classic,
            Protocol::Ttl if lacks(Protocol::Ttl) => Protocol::Watched,
            best => best,
        }
    }

    /// Returns what was tried, and what works.
    fn known(&self) -> [u8; 2] {
        let known = self.known.load(Ordering::Acquire);
        [known >> 4, known & 15]
    }

    /// Returns true if something was found to be lacking, a while ago. There may be another proxy now, or the user have the right.
    fn may_have_changed(&self) -> bool {
        let until = self.lacking_until.load(Ordering::Relaxed);
        until > 0 && until <= clock::uptime().micros()
    }

    /// Returns true if it was found to hang up on WATCH, not long ago.
    pub(super) fn hangs_up(&self) -> bool {
        self.hangs_up.load(Ordering::Relaxed) && !self.may_have_changed()
    }

    /// Notes that the commands of a protocol work.
    pub(super) fn note_works(&self, protocol: Protocol) {
        let new = strength(protocol);
        self.update(|tried, works| [tried.max(new), works.max(new)]);
        let [tried, works] = self.known();
        if works >= tried {
            self.hangs_up.store(false, Ordering::Relaxed);
            self.lacking_until.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that those of a protocol were tried, and that those of another work alone.
    pub(super) fn note_lacking(&self, tried: Protocol, works: Protocol, hangs_up: bool) {
        self.hangs_up.store(hangs_up, Ordering::Relaxed);
        self.lacking_until.store(clock::uptime().after(LEFT_ALONE).micros(), Ordering::Relaxed);
        self.update(|before, _| [before.max(strength(tried)), strength(works)]);
    }

    fn update(&self, change: impl Fn(u8, u8) -> [u8; 2]) {
        let change = |known: u8| {
            let [tried, works] = change(known >> 4, known & 15);
            Some(tried << 4 | works)
        };
        let _ = self.known.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }
}

/// What came of a probe.
pub(super) enum Probed {
    Works,
    /// A command is lacking, or not for this user. Those of this protocol work.
    Lacks(Protocol, Refusal),
    /// All are refused, for another reason.
    Refused(Refusal),
}

/// On which command the connection ended.
pub(super) enum Closed {
    OnGet(TransportError),
    OnWatch(TransportError),
}

/// Probes what a protocol needs, after a GET where the connection has to prove that it works.
pub(super) fn probe_once(
    connection: &mut Connection,
    key: &Key,
    protocol: Protocol,
    reads_first: bool,
    limit: Duration,
) -> Result<Probed, Closed> {
    if reads_first {
        let get = cmd("GET").arg(key.as_bytes()).clone();
        // Any answer will do.
        connection.ask(&get, limit).map_err(Closed::OnGet)?.ok();
    }
    let mut packed = Packed::default();
    packed.command(Form::Okay, &[b"WATCH", key.as_bytes()]);
    packed.command(Form::Okay, &[b"MULTI"]);
    packed.command(Form::Okay, &[b"DISCARD"]);
    let transaction = packed.forms.len();
    if protocol == Protocol::Ttl {
        packed.command(Form::Integer, &[b"PTTL", key.as_bytes()]);
    }
    let mut replies = Vec::new();
    let ended = connection.exchange(&packed.bytes, packed.forms.len(), limit, &mut replies);
    let refused = replies.into_iter().enumerate().filter_map(|(at, reply)| match reply {
        Value::ServerError(error) => Some((at, Refusal::from(error))),
        _ => None,
    });
    let mut refused: Vec<(usize, Refusal)> = refused.collect();
    // One of a command says more than those of the key, or of what follows from the first.
    let lacks = |refusal: &Refusal| match refusal.kind() {
        RefusalKind::UnknownCommand => true,
        RefusalKind::NotPermitted => !refusal.is_about_a_key(),
        // A proxy's words. Without all replies it is not known to what they belong.
        RefusalKind::Other => ended.is_none() && !refusal.text().ends_with("without MULTI"),
        _ => false,
    };
    if let Some(at) = refused.iter().position(|(_, refusal)| lacks(refusal)) {
        let (at, refusal) = refused.swap_remove(at);
        let works = if at < transaction { Protocol::Classic } else { Protocol::Watched };
        return Ok(Probed::Lacks(works, refusal));
    }
    match (ended, refused.into_iter().next()) {
        (Some(error), _) => Err(Closed::OnWatch(error)),
        (None, Some((_, refusal))) => Ok(Probed::Refused(refusal)),
        (None, None) => Ok(Probed::Works),
    }
}

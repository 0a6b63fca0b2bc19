//! The probe: what a server has and its user may use beyond Classic is found out before the first lock that needs it,
//! on the key of that lock, by transactions without a change: no lock is acquired that could not be released. Some
//! proxies close the connection on WATCH.

use std::mem;

use proto::values::{Key, Protocol, Uptime};
use redis::Value;

use super::{OneServer, pause};
use crate::net::Backend;
use crate::net::connections::HANG_UPS;
use crate::net::errors::{Failure, Refusal, RefusalKind, TooOld, TransportError};
use crate::net::jobs::RawReplies;
use crate::net::limits::Limits;
use crate::net::packed::{Form, Packed};
use crate::system::clock;

impl OneServer {
    /// Probes what the protocol needs beyond Classic. Fails if it does not reach the server
    /// or is refused, unless the protocol is Auto; or if there is no connection. Waits for
    /// a server that is unreachable or refuses for now, as a call for a lock does.
    pub(super) fn probe_now(
        &self,
        key: &Key,
        protocol: Protocol,
        mut limits: Limits<'_>,
    ) -> Result<(), Failure> {
        let (began, abilities) = (clock::uptime(), &self.abilities);
        let lacks =
            |refusal| if protocol == Protocol::Auto { Ok(()) } else { Err(Failure::Refused(refusal)) };
        let (mut closed, mut was_too_old) = (0, false);
        loop {
            // Which commands there are to probe depends on the server, so that a connection is needed first.
            let known = self.ask(key, ("", &Packed::default(), 0), &limits)?.version;
            if let Some(version) = known.filter(|version| *version < limits.needs.min_version()) {
                // Of several servers behind one address some may be older.
                if mem::replace(&mut was_too_old, true) || self.is_too_old(key, &mut limits)? {
                    return Err(Failure::Refused(Refusal::too_old(limits.needs, TooOld::Reported(version))));
                }
                continue;
            }
            let version = known.or_else(|| self.server_version());
            let tried = protocol.on(version);
            // Another thread may have found it out meanwhile.
            if tried == Protocol::Classic || abilities.know(protocol, version) {
                return Ok(());
            }
            if abilities.hangs_up() {
                return lacks(Refusal::too_old(tried, TooOld::HangsUp));
            }
            let outcome = self.probe_once(key, tried, closed > 0, &limits)?;
            limits.decided_at = clock::now();
            let ended = match outcome {
                Ok(Probed::Works) => {
                    abilities.note_works(tried);
                    return Ok(());
                }
                Ok(Probed::Lacks(works, refusal)) => {
                    abilities.note_lacking(tried, works);
                    let is_unknown = refusal.kind() == RefusalKind::UnknownCommand;
                    let too_old = || Refusal::too_old(tried, TooOld::Refuses(&refusal));
                    return lacks(if is_unknown { too_old() } else { refusal });
                }
                Ok(Probed::LacksAll(refusal)) => return Err(Failure::Refused(refusal)),
                Ok(Probed::Refused(refusal)) => match after_refusal(refusal, &mut limits) {
                    Some(outcome) => return outcome,
                    None => continue,
                },
                Err(ended) => ended,
            };
            let (Closed::OnGet(error) | Closed::OnWatch(error)) = &ended;
            let is_closed = matches!(ended, Closed::OnWatch(_)) && error.is_disconnect();
            closed += u32::from(is_closed);
            if closed >= HANG_UPS {
                // Each time the server had just answered GET.
                abilities.note_hang_up(tried);
                return lacks(Refusal::too_old(tried, TooOld::HangsUp));
            }
            // Nothing was changed, so it is tried again as an unreachable server is.
            let has_time = || limits.decided_at.uptime < limits.reachable_by;
            if !(is_closed || has_time() && pause(&mut limits, Uptime::MAX)) {
                let waited = clock::uptime().since(began);
                return Err(Failure::unreachable(error.clone()).after(waited));
            }
        }
    }
}

/// Returns what follows from a refusal that is about no command; `None` if it has passed perhaps.
fn after_refusal(refusal: Refusal, limits: &mut Limits<'_>) -> Option<Result<(), Failure>> {
    if refusal.is_transient() {
        let is_replica = refusal.kind() == RefusalKind::ReadOnly;
        let until = if is_replica { limits.reachable_by } else { limits.accepted_by };
        return (!pause(limits, until)).then_some(Err(Failure::Refused(refusal)));
    }
    // Otherwise it is about the key, so that the next is tried.
    Some(if refusal.is_of_login() { Err(Failure::Refused(refusal)) } else { Ok(()) })
}

/// What came of a probe.
enum Probed {
    Works,
    /// A command is lacking, or not for this user. Those of this protocol work.
    Lacks(Protocol, Refusal),
    /// A command is lacking that every protocol needs.
    LacksAll(Refusal),
    /// All are refused, for another reason.
    Refused(Refusal),
}

/// On which command the connection ended.
enum Closed {
    OnGet(TransportError),
    OnWatch(TransportError),
}

impl OneServer {
    /// Probes what a protocol needs, after a GET where the server has to prove that it answers. Fails if there is no
    /// connection.
    fn probe_once(
        &self,
        key: &Key,
        protocol: Protocol,
        reads_first: bool,
        limits: &Limits<'_>,
    ) -> Result<Result<Probed, Closed>, Failure> {
        if reads_first {
            let mut get = Packed::default();
            get.awaits(Form::Any).words(&[b"GET", key.as_bytes()]);
            // Any answer will do.
            if let Some(error) = self.ask(key, ("GET", &get, 0), limits)?.missing {
                return Ok(Err(Closed::OnGet(error)));
            }
        }
        let mut packed = Packed::default();
        for words in [&[b"WATCH".as_slice(), key.as_bytes()] as &[&[u8]], &[b"GET", key.as_bytes()]] {
            packed.awaits(Form::Any).words(words);
        }
        packed.awaits(Form::Any).words(&[b"MULTI"]);
        packed.awaits(Form::Any).words(&[b"EXEC"]);
        // Both are refused, by other words where they are unknown: one has no transaction, and one no key.
        packed.awaits(Form::Any).words(&[b"DISCARD"]);
        packed.awaits(Form::Any).words(&[b"DEL"]);
        if protocol == Protocol::Ttl {
            packed.awaits(Form::Any).words(&[b"PTTL", key.as_bytes()]);
        }
        // If one of those in front is refused, it may be watching.
        Ok(read_probe(self.ask(key, ("WATCH", &packed, DISCARD), limits)?))
    }
}

/// The places of commands of a probe.
const GET: usize = 1;
const DISCARD: usize = 4;
const DEL: usize = 5;

/// Reads what came of a probe.
fn read_probe(RawReplies { replies, missing: ended, .. }: RawReplies) -> Result<Probed, Closed> {
    let refused = replies.into_iter().enumerate().filter_map(|(at, reply)| match reply {
        Value::ServerError(error) => Some((at, Refusal::from(error))),
        _ => None,
    });
    let mut refused: Vec<(usize, Refusal)> = refused.collect();
    let is_missing = |refusal: &Refusal| match refusal.kind() {
        RefusalKind::UnknownCommand => true,
        RefusalKind::NotPermitted => !refusal.is_about_a_key(),
        _ => false,
    };
    if let Some(at) = refused.iter().position(|(at, refusal)| [GET, DEL].contains(at) && is_missing(refusal))
    {
        return Ok(Probed::LacksAll(refused.swap_remove(at).1));
    }
    refused.retain(|(at, refusal)| {
        // Up to 2.4 a full server refuses EXEC, and so has it.
        let has_it = refusal.kind() == RefusalKind::OverMemory || refusal.text().ends_with("without MULTI");
        *at != DEL && !has_it
    });
    // One of a command says more than those of the key, or of what follows from the first. A proxy has words of its
    // own: without all replies it is not known to what they belong.
    let lacks =
        |refusal: &Refusal| is_missing(refusal) || refusal.kind() == RefusalKind::Other && ended.is_none();
    if let Some(at) = refused.iter().position(|(_, refusal)| lacks(refusal)) {
        let (at, refusal) = refused.swap_remove(at);
        let works = if at < DEL { Protocol::Classic } else { Protocol::Watched };
        return Ok(Probed::Lacks(works, refusal));
    }
    match (ended, refused.into_iter().next()) {
        (Some(error), _) => Err(Closed::OnWatch(error)),
        (None, Some((_, refusal))) => Ok(Probed::Refused(refusal)),
        (None, None) => Ok(Probed::Works),
    }
}

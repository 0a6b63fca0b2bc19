//! What a server has, and its user may, beyond the commands of Classic: transactions, and to ask for a time to live. It is found out before the
//! first lock is acquired that needs them, on the key of that lock, by a transaction without a change: a lock is not acquired that could not
//! be released. Some proxies close the connection on WATCH.

use std::ops::DerefMut;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Value, cmd};

use super::connections::Connection;
use super::errors::{Failure, Refusal, RefusalKind, TooOld, TransportError};
use super::limits::Limits;
use super::resp::{Form, Packed};
use crate::values::clock::{self, Now};
use crate::values::key::Key;
use crate::values::options::Protocol;
use crate::values::version::Version;

/// How long a server is left alone after connections were closed on WATCH. There may be another proxy then.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// What is known of a server.
#[derive(Default)]
pub(super) struct Abilities {
    /// The protocol whose commands were tried last.
    tried: Strongest,
    /// The strongest protocol whose commands it has, as far as they were tried.
    works: Strongest,
    /// Until when transactions are not tried again, in microseconds of uptime.
    lacking_until: AtomicU64,
}

/// A protocol, by how much it needs of a server.
#[derive(Default)]
struct Strongest(AtomicU8);

impl Strongest {
    fn set(&self, protocol: Protocol) {
        self.0.store(strength(protocol), Ordering::Release);
    }

    fn reaches(&self, protocol: Protocol) -> bool {
        self.0.load(Ordering::Acquire) >= strength(protocol)
    }
}

fn strength(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Auto | Protocol::Classic => 0,
        Protocol::Watched => 1,
        Protocol::Ttl => 2,
    }
}

impl Abilities {
    /// Returns true if nothing is to be found out before a lock of this protocol is acquired. `version`: as the server reported it.
    pub(super) fn know(&self, protocol: Protocol, version: Option<Version>) -> bool {
        match protocol {
            Protocol::Auto => self.tried.reaches(protocol.on(version, true)) && !self.may_have_changed(),
            protocol => self.works.reaches(protocol),
        }
    }

    /// Returns what Auto means for locks that expire on a server of this version, as far as is known.
    pub(super) fn best(&self, version: Option<Version>) -> Protocol {
        let lacks = |protocol| self.tried.reaches(protocol) && !self.works.reaches(protocol);
        match Protocol::Auto.on(version, true) {
            _ if lacks(Protocol::Watched) => Protocol::Classic,
            Protocol::Ttl if lacks(Protocol::Ttl) => Protocol::Watched,
            best => best,
        }
    }

    /// Returns true if connections were closed on WATCH, a while ago.
    fn may_have_changed(&self) -> bool {
        let until = self.lacking_until.load(Ordering::Relaxed);
        until > 0 && until <= clock::uptime().micros()
    }

    fn hangs_up(&self) -> bool {
        self.lacking_until.load(Ordering::Relaxed) > clock::uptime().micros()
    }

    /// Tries what the protocol needs beyond Classic, on a connection of `connect`. Fails if it does not reach the server or is refused, unless
    /// the protocol is Auto, or if there is no connection. `trusts`: Auto believes the version of servers that have all.
    pub(super) fn find_out<'a, C: DerefMut<Target = Connection>>(
        &self,
        key: &Key,
        protocol: Protocol,
        trusts: bool,
        limits: &mut Limits<'a>,
        connect: impl Fn(&mut Limits<'a>) -> Result<(C, Now), Failure>,
    ) -> Result<(), Failure> {
        let began = clock::uptime();
        let mut was_closed = false;
        loop {
            let (mut connection, now) = connect(limits)?;
            let tried = protocol.on(connection.server().version, true);
            let is_trusted = trusts && protocol == Protocol::Auto && tried == Protocol::Ttl;
            if tried == Protocol::Classic || is_trusted {
                self.note(tried, tried);
                return Ok(());
            }
            let failed =
                |refusal| if protocol == Protocol::Auto { Ok(()) } else { Err(Failure::Refused(refusal)) };
            if self.hangs_up() {
                return failed(Refusal::too_old(tried, TooOld::HangsUp));
            }
            let limit = limits.answered_by.since(now.uptime);
            let outcome = try_one(&mut connection, key, tried, was_closed, limit);
            limits.decided_at = clock::now();
            let ended = match outcome {
                Ok(None) => {
                    self.note(tried, tried);
                    return Ok(());
                }
                Ok(Some((works, refusal))) => {
                    // It may be watching.
                    connection.invalidate();
                    return match refusal.kind() {
                        RefusalKind::UnknownCommand => {
                            self.note(tried, works);
                            failed(Refusal::too_old(tried, TooOld::Refuses(&refusal)))
                        }
                        RefusalKind::NotPermitted | RefusalKind::Other if !refusal.is_about_a_key() => {
                            self.note(tried, works);
                            failed(refusal)
                        }
                        // It passes.
                        _ if refusal.is_transient() => Ok(()),
                        // It is about the key.
                        _ => {
                            self.note(tried, tried);
                            Ok(())
                        }
                    };
                }
                Err(ended) => ended,
            };
            connection.invalidate();
            let (Closed::OnGet(error) | Closed::OnWatch(error)) = &ended;
            let closed = matches!(ended, Closed::OnWatch(_)) && error.is_disconnect();
            if closed && was_closed {
                // The connection had just answered GET.
                self.note(tried, Protocol::Classic);
                let until = limits.decided_at.uptime.after(LEFT_ALONE);
                self.lacking_until.store(until.micros(), Ordering::Relaxed);
                return failed(Refusal::too_old(tried, TooOld::HangsUp));
            }
            // Nothing was changed, so it is tried again as an unreachable server is.
            if !closed && limits.decided_at.uptime >= limits.reachable_by {
                let waited = limits.decided_at.uptime.since(began);
                return Err(Failure::unreachable(error.clone()).after(waited));
            }
            was_closed |= closed;
        }
    }

    fn note(&self, tried: Protocol, works: Protocol) {
        self.lacking_until.store(0, Ordering::Relaxed);
        self.works.set(works);
        self.tried.set(tried);
    }
}

/// On which command the connection ended.
enum Closed {
    OnGet(TransportError),
    OnWatch(TransportError),
}

/// Tries what a protocol needs, after a GET where the connection has to prove that it works. Returns the first refusal, if there is one, and the
/// protocol whose commands were not refused.
fn try_one(
    connection: &mut Connection,
    key: &Key,
    protocol: Protocol,
    reads_first: bool,
    limit: Duration,
) -> Result<Option<(Protocol, Refusal)>, Closed> {
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
    let refusal = replies.into_iter().enumerate().find_map(|(at, reply)| match reply {
        Value::ServerError(error) => {
            let works = if at < transaction { Protocol::Classic } else { Protocol::Watched };
            Some((works, Refusal::from(error)))
        }
        _ => None,
    });
    let is_of_watch = |(_, refusal): &(Protocol, Refusal)| {
        matches!(refusal.kind(), RefusalKind::UnknownCommand | RefusalKind::NotPermitted)
    };
    match ended {
        // Without all replies it is not known to what the others belong.
        Some(error) if !refusal.as_ref().is_some_and(is_of_watch) => Err(Closed::OnWatch(error)),
        _ => Ok(refusal),
    }
}

//! What a server has, and its user may, beyond the commands of Classic: transactions, and to ask for a time to live. It is found out before the
//! first lock is acquired that needs them, on the key of that lock, by a transaction without a change: a lock is not acquired that could not
//! be released. Some proxies close the connection on WATCH.

use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Value, cmd};

use super::connections::Connection;
use super::errors::{Failure, Refusal, RefusalKind, TooOld, TransportError};
use super::limits::Limits;
use super::resp::{Form, Packed};
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Key;
use crate::values::options::Protocol;
use crate::values::version::Version;

/// How long what is lacking is not tried again.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// What is known of a server.
#[derive(Default)]
pub(super) struct Abilities {
    /// The strongest protocol whose commands were tried, and the strongest that works as far as they were, each by its strength.
    known: AtomicU8,
    /// Until when what is lacking is not tried again, in microseconds of uptime; 0 if nothing is.
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
    /// Returns true if nothing is to be found out before a lock of this protocol is acquired. `version`: as the server reported it.
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

    fn hangs_up(&self) -> bool {
        self.hangs_up.load(Ordering::Relaxed) && !self.may_have_changed()
    }

    /// Notes that the commands of a protocol work.
    fn note_works(&self, protocol: Protocol) {
        let new = strength(protocol);
        self.update(|tried, works| [tried.max(new), works.max(new)]);
        let [tried, works] = self.known();
        if works >= tried {
            self.hangs_up.store(false, Ordering::Relaxed);
            self.lacking_until.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that those of a protocol were tried, and that those of another work alone.
    fn note_lacking(&self, tried: Protocol, works: Protocol, hangs_up: bool) {
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

    /// Tries what the protocol needs beyond Classic, on a connection of `connect`. Fails if it does not reach the server or is refused, unless
    /// the protocol is Auto, or if there is no connection. Waits out a refusal that passes, as a call for a lock does. `reported`: the server's
    /// version, if a connection without it was opened. `trusts`: Auto believes the version of servers that have all.
    pub(super) fn find_out<'a, C: DerefMut<Target = Connection>>(
        &self,
        key: &Key,
        protocol: Protocol,
        trusts: bool,
        reported: impl Fn() -> Option<Version>,
        limits: &mut Limits<'a>,
        connect: impl Fn(&mut Limits<'a>) -> Result<(C, Now), Failure>,
    ) -> Result<(), Failure> {
        let began = clock::uptime();
        let mut was_closed = false;
        loop {
            let (mut connection, now) = connect(limits)?;
            let version = connection.server().version.or_else(&reported);
            let tried = protocol.on(version, true);
            let is_trusted = trusts && protocol == Protocol::Auto && tried == Protocol::Ttl;
            if is_trusted {
                self.note_works(tried);
            }
            // Another thread may have found it out meanwhile.
            if tried == Protocol::Classic || is_trusted || self.know(protocol, version) {
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
                Ok(Tried::Works) => {
                    self.note_works(tried);
                    return Ok(());
                }
                Ok(refused) => {
                    // It may be watching.
                    connection.invalidate();
                    drop(connection);
                    match refused {
                        Tried::Lacks(works, refusal) => {
                            self.note_lacking(tried, works, false);
                            return failed(match refusal.kind() {
                                RefusalKind::UnknownCommand => {
                                    Refusal::too_old(tried, TooOld::Refuses(&refusal))
                                }
                                _ => refusal,
                            });
                        }
                        Tried::Refused(refusal) if refusal.is_transient() => {
                            let is_replica = refusal.kind() == RefusalKind::ReadOnly;
                            let until = if is_replica { limits.reachable_by } else { limits.accepted_by };
                            if !limits.pause(until) {
                                return Err(Failure::Refused(refusal));
                            }
                            continue;
                        }
                        Tried::Refused(refusal) if refusal.is_of_login() => {
                            return Err(Failure::Refused(refusal));
                        }
                        // It is about the key, so that the next is tried.
                        _ => return Ok(()),
                    }
                }
                Err(ended) => ended,
            };
            connection.invalidate();
            drop(connection);
            let (Closed::OnGet(error) | Closed::OnWatch(error)) = &ended;
            let closed = matches!(ended, Closed::OnWatch(_)) && error.is_disconnect();
            if closed && was_closed {
                // The connection had just answered GET.
                self.note_lacking(tried, Protocol::Classic, true);
                return failed(Refusal::too_old(tried, TooOld::HangsUp));
            }
            // Nothing was changed, so it is tried again as an unreachable server is.
            let goes_on =
                closed || limits.decided_at.uptime < limits.reachable_by && limits.pause(Uptime::MAX);
            if !goes_on {
                let waited = limits.decided_at.uptime.since(began);
                return Err(Failure::unreachable(error.clone()).after(waited));
            }
            was_closed |= closed;
        }
    }
}

/// What came of trying.
enum Tried {
    Works,
    /// A command is lacking, or not for this user. Those of this protocol work.
    Lacks(Protocol, Refusal),
    /// All are refused, for another reason.
    Refused(Refusal),
}

/// On which command the connection ended.
enum Closed {
    OnGet(TransportError),
    OnWatch(TransportError),
}

/// Tries what a protocol needs, after a GET where the connection has to prove that it works.
fn try_one(
    connection: &mut Connection,
    key: &Key,
    protocol: Protocol,
    reads_first: bool,
    limit: Duration,
) -> Result<Tried, Closed> {
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
        return Ok(Tried::Lacks(works, refusal));
    }
    match (ended, refused.into_iter().next()) {
        (Some(error), _) => Err(Closed::OnWatch(error)),
        (None, Some((_, refusal))) => Ok(Tried::Refused(refusal)),
        (None, None) => Ok(Tried::Works),
    }
}

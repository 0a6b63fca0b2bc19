//! Whether transactions reach the server. A server that reported its version has them or not; of another one it is tried before the first
//! lock of Watched or Ttl is acquired, which could not be released without them. Some proxies close the connection on WATCH.

use std::ops::DerefMut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{Value, cmd};

use super::codec;
use super::connections::Connection;
use super::errors::{Failure, Refusal, RefusalKind, TooOld, TransportError};
use super::limits::Limits;
use super::resp::{Form, Packed};
use crate::values::clock::{self, Now};
use crate::values::key::Key;
use crate::values::options::Protocol;

/// How long a server is left alone after connections were closed on WATCH. There may be another proxy then.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// What is known of a server.
#[derive(Default)]
pub(super) struct Transactions {
    work: AtomicBool,
    /// Until when they are not tried, in microseconds of uptime.
    lacking_until: AtomicU64,
}

impl Transactions {
    fn are_lacking(&self) -> bool {
        self.lacking_until.load(Ordering::Relaxed) > clock::uptime().micros()
    }

    fn note_lacking(&self) {
        self.lacking_until.store(clock::uptime().after(LEFT_ALONE).micros(), Ordering::Relaxed);
    }

    /// Tries a transaction without a change on a connection of `connect`, unless it is known whether they work. Fails if they do not, or if
    /// there is no connection.
    pub(super) fn ensure<'a, C: DerefMut<Target = Connection>>(
        &self,
        key: &Key,
        limits: &mut Limits<'a>,
        connect: impl Fn(&mut Limits<'a>) -> Result<(C, Now), Failure>,
    ) -> Result<(), Failure> {
        let needed = limits.needs.min_version() >= Protocol::Watched.min_version();
        if !needed || self.work.load(Ordering::Relaxed) {
            return Ok(());
        }
        let needs = limits.needs;
        let lacking = |known_by: TooOld<'_>| Failure::Refused(Refusal::too_old(needs, known_by));
        if self.are_lacking() {
            return Err(lacking(TooOld::HangsUp));
        }
        let began = clock::uptime();
        let mut was_closed = false;
        loop {
            let (mut connection, now) = connect(limits)?;
            let left = limits.answered_by.since(now.uptime);
            let tried = match connection.server().version {
                Some(_) => Ok(Ok(())),
                None => try_one(&mut connection, key, was_closed, left),
            };
            let ended = match tried {
                Ok(Ok(())) => {
                    self.work.store(true, Ordering::Relaxed);
                    limits.decided_at = clock::now();
                    return Ok(());
                }
                Ok(Err(refusal)) => {
                    // It may be watching.
                    connection.invalidate();
                    return match refusal.kind() {
                        RefusalKind::UnknownCommand => Err(lacking(TooOld::Refuses(&refusal))),
                        RefusalKind::NotPermitted => Err(Failure::Refused(refusal)),
                        // It concerns the key, or passes.
                        _ => {
                            limits.decided_at = clock::now();
                            Ok(())
                        }
                    };
                }
                Err(ended) => ended,
            };
            connection.invalidate();
            match ended {
                // The connection had just answered GET, and another was closed before.
                Closed::OnWatch(error) if error.is_disconnect() && was_closed => {
                    self.note_lacking();
                    return Err(lacking(TooOld::HangsUp));
                }
                Closed::OnWatch(error) if error.is_disconnect() => was_closed = true,
                Closed::OnWatch(error) | Closed::OnGet(error) => {
                    let waited = clock::uptime().since(began);
                    return Err(Failure::unreachable(error).after(waited));
                }
            }
            limits.decided_at = clock::now();
        }
    }
}

/// On which command the connection ended.
enum Closed {
    OnGet(TransportError),
    OnWatch(TransportError),
}

/// Tries a transaction, after a GET where the connection has to prove that it works. The inner error is the first refusal.
fn try_one(
    connection: &mut Connection,
    key: &Key,
    reads_first: bool,
    limit: Duration,
) -> Result<Result<(), Refusal>, Closed> {
    if reads_first {
        let get = cmd("GET").arg(key.as_bytes()).clone();
        // Any answer will do.
        connection.ask(&get, limit).map_err(Closed::OnGet)?.ok();
    }
    let mut packed = Packed::default();
    codec::pack_look(&mut packed, key.as_bytes(), false);
    packed.command(Form::Okay, &[b"MULTI"]);
    packed.command(Form::Okay, &[b"DISCARD"]);
    let mut replies = Vec::new();
    let ended = connection.exchange(&packed.bytes, packed.forms.len(), limit, &mut replies);
    let refusal = replies.into_iter().find_map(|reply| match reply {
        Value::ServerError(error) => Some(Refusal::from(error)),
        _ => None,
    });
    match (refusal, ended) {
        (Some(refusal), _) => Ok(Err(refusal)),
        (None, None) => Ok(Ok(())),
        (None, Some(error)) => Err(Closed::OnWatch(error)),
    }
}

//! A lock that goes to another process: a token names the value in the key, and who replaces it by one of its own has
//! the lock. So a token works once.

use core::time::Duration;

use super::extend::{Counter, Extension, replace, replace_by_protocol};
use super::{LOOKS, Replaced, Seen, by_what_it_has, look, note_overwritten, read, release};
use crate::acquire::GETSET_TIME_LIMIT;
use crate::lease::{End, Lease};
use crate::ownership::{Loss, Ownership};
use crate::task::Io;
use crate::values::{Nonce, Now};
use crate::{Command, GiveUp, Reply, Trip};

/// Reads the key before a token is made of a lease that an extension without a reply
/// may have replaced. The outcome is the lease with the value that the key holds. A
/// token names one value: by a second one another process could go on as well.
///
/// # Errors
///
/// Why the key could not be read, or written again.
pub async fn settle(io: &Io, own: &Lease, nonce: Nonce) -> Result<Extension, GiveUp> {
    let found = look(io).await?;
    Ok(match own.judge(found.as_deref(), io.now()) {
        whose @ (Ownership::Ours | Ownership::Unproven) if !own.by_transaction() => {
            let proven = own.proven && whose == Ownership::Ours;
            Extension::Extended(own.settled(found.as_deref().unwrap_or_default(), proven))
        }
        Ownership::Lost(reason) => Extension::Lost(own.loss(reason, io.now())),
        // Our value is written again, as by a look. A transaction of the extension that is still on its way changes
        // nothing then.
        whose => {
            let again = own.written_again(nonce, io.now());
            let seen = Seen { bytes: found.unwrap_or_default(), whose };
            match replace(io, own, again, Some(seen), None).await? {
                Extension::Extended(lease) => Extension::Extended(lease.settled(&lease.value, lease.proven)),
                other => other,
            }
        }
    })
}

/// Replaces the value of `given`, a token's lease, by that of a lease that `new` makes: by a transaction, or in Classic
/// by GETSET, within the token's lease and right after a look. `counter`: as of an extension. If it is gone, the next
/// holder may get its number.
///
/// In Classic, another process with the same token may overwrite our new value, as the loser of a takeover does. Our
/// lease begins with that value, so such a process is recognized as a loser.
///
/// # Errors
///
/// Why the lock is not known to be resumed. With [`GiveUp::Unknown`] the token may be used up.
pub async fn resume(
    io: &Io,
    given: &Lease,
    new: impl Fn(Now) -> Lease,
    counter: Option<Duration>,
) -> Result<Extension, GiveUp> {
    by_what_it_has(given, async |given, older| {
        resume_by_protocol(io, given, |now| new(now).on(older), counter).await
    })
    .await
}

/// The same by the protocol of the lease.
async fn resume_by_protocol(
    io: &Io,
    given: &Lease,
    new: impl Fn(Now) -> Lease,
    counter: Option<Duration>,
) -> Result<Extension, GiveUp> {
    let first = new(io.now());
    let counter = Counter::of(given, &first, counter, io.now());
    if given.by_transaction() {
        let counter = counter.map(|counter| Counter { must_exist: true, ..counter });
        return Ok(match replace_by_protocol(io, given, first, None, counter).await? {
            // The key would be held until it expires.
            Extension::Extended(late) if late.has_passed(io.now()) => {
                let _ = release(io, &late).await;
                Extension::Lost(Loss::Expired)
            }
            resumed => resumed,
        });
    }
    let mut to_keep = counter;
    for _ in 0..LOOKS {
        let found = look(io).await?;
        let Some(end) = given.end.filter(|end| !end.has_passed(io.now())) else {
            return Ok(Extension::Lost(Loss::Expired));
        };
        if let Ownership::Lost(reason) = given.judge(found.as_deref(), io.now()) {
            return Ok(Extension::Lost(reason));
        }
        let soon = end.min(End::of(io.now(), GETSET_TIME_LIMIT));
        if let Some(counter) = to_keep {
            match counter.keep(io, Some(soon)).await {
                Ok(true) => to_keep = None,
                Ok(false) => return Ok(Extension::Lost(Loss::Expired)),
                Err(Reply::TooLate) => continue,
                Err(failed) => return Err(failed.gives_up()),
            }
        }
        let mut lease = new(io.now());
        if counter.is_some() {
            // The counter is kept for a lease that began before.
            lease.end = first.end;
        }
        let swap = Trip { before: Some(soon), ..Trip::of(Command::GetSet(lease.value.clone())) };
        match io.send(swap).await.plain() {
            Reply::Bulk(replaced) => return Ok(replaced_by(io, given, lease, replaced.as_deref()).await),
            Reply::TooLate => {}
            failed @ (Reply::Refused(_) | Reply::Unsent) => return Err(failed.gives_up()),
            // Our value in the key proves nothing: it may have replaced
            // that of another process which has resumed the lock (I6).
            _ => {
                let holds = read(io).await?;
                return match given.judge(holds.as_deref(), io.now()) {
                    Ownership::Lost(reason) if holds.is_some_and(|holds| lease.value != *holds) => {
                        Ok(Extension::Lost(reason))
                    }
                    _ => Err(GiveUp::Unknown),
                };
            }
        }
    }
    Err(GiveUp::Unsent)
}

/// Judges what GETSET has replaced.
async fn replaced_by(io: &Io, given: &Lease, lease: Lease, replaced: Option<&[u8]>) -> Extension {
    let whose = given.judge(replaced, io.now());
    note_overwritten(io, &whose);
    match whose {
        Ownership::Lost(reason) => {
            // It was resumed and released since, or cleared. A token works once, so our value must not stay.
            if reason == Loss::Gone && release(io, &lease).await.is_err() {
                return Extension::Unknown { lease, proves: false };
            }
            Extension::Lost(reason)
        }
        _ => given.extended(lease, Replaced::OurValue),
    }
}

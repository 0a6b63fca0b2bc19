//! Takes a fencing token: a number of the key's counter.

use alloc::string::ToString;
use core::time::Duration;

use super::watched::{Changed, Replaced, change_watched};
use super::{LOOKS, by_what_it_has};
use crate::fencing::{Epoch, Number, Unusable};
use crate::lease::Lease;
use crate::ownership::Loss;
use crate::task::Io;
use crate::{Command, Expected, GiveUp, Replies, Reply, Trip};

/// The outcome of taking a fencing token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A number that no earlier holder had, and later ones exceed.
    Token(u64),
    /// What the counter gives is no token.
    Unusable(Unusable),
    /// The lock is not held any more.
    Lost(Loss),
}

/// How often the counter is increased at most for one token. It is raised in between.
const ROUNDS: u32 = 2 * LOOKS;

/// Takes a number from the key's counter. It counts only if this holder had the lock when
/// the counter was increased, so a later holder's is greater. A number whose reply was
/// lost is left out. `forget_after`: how long after this one the counter is forgotten.
///
/// A number below the epoch of the server is none: then the counter is raised, and increased once more.
///
/// # Errors
///
/// Why no number was taken.
pub async fn count(io: &Io, own: &Lease, forget_after: Option<Duration>) -> Result<Counted, GiveUp> {
    by_what_it_has(own, async |own, _| count_by_protocol(io, own, forget_after).await).await
}

async fn count_by_protocol(io: &Io, own: &Lease, forget_after: Option<Duration>) -> Result<Counted, GiveUp> {
    let forget_after = own.kept_for(forget_after, io.now());
    // EXPIRE may shorten another holder's time. Otherwise the clocks decide.
    if forget_after.is_some()
        && !own.by_transaction()
        && let Some(reason) = own.lost_since(io).await?
    {
        return Ok(Counted::Lost(reason));
    }
    for _ in 0..ROUNDS {
        let Increased { number, epoch, counts } = match increase(io, own, forget_after).await? {
            Ok(increased) => increased,
            Err(reason) => return Ok(Counted::Lost(reason)),
        };
        match Number::of(number, epoch) {
            Number::Token(token) if counts => return Ok(Counted::Token(token)),
            Number::Unusable(why) if counts => return Ok(Counted::Unusable(why)),
            Number::Token(_) | Number::Unusable(_) => return Ok(Counted::Lost(Loss::Expired)),
            Number::Low { by, epoch } => raise(io, number, by, epoch).await?,
        }
    }
    Ok(Counted::Unusable(Unusable::Changing))
}

/// A counter that was increased.
struct Increased {
    number: i64,
    /// That of the server, if it is known.
    epoch: Option<Epoch>,
    /// True if this holder had the lock then.
    counts: bool,
}

/// Increases the counter, again if the reply is lost.
async fn increase(
    io: &Io,
    own: &Lease,
    forget_after: Option<Duration>,
) -> Result<Result<Increased, Loss>, GiveUp> {
    let (count, mut asked_again) = (Command::Count { forget_after }, false);
    while own.by_transaction() {
        match change_watched(io, own, count.clone(), None, &mut None).await? {
            Changed::Done { replaced, count, epoch } => {
                // After the lease the counter may be forgotten, and count
                // anew; and a failover may have brought our bytes back.
                let proves = replaced == Replaced::OurValue && forget_after.is_none() && epoch.is_none();
                let counts = proves || !own.has_passed(io.now());
                return Ok(Ok(Increased { number: count, epoch, counts }));
            }
            Changed::NotOurs(reason) => return Ok(Err(own.loss(reason, io.now()))),
            Changed::Unanswered { .. } if asked_again => return Err(GiveUp::Io),
            Changed::Unanswered { .. } => asked_again = true,
        }
    }
    loop {
        if own.has_passed(io.now()) {
            return Ok(Err(Loss::Expired));
        }
        let Replies { reply, epoch, .. } = io.send(own.within_lease(count.clone())).await;
        match reply.unwrap_or(Reply::TooLate) {
            Reply::Integer(number) => {
                return Ok(Ok(Increased { number, epoch, counts: !own.has_passed(io.now()) }));
            }
            Reply::TooLate if own.has_passed(io.now()) => return Ok(Err(Loss::Expired)),
            failed @ (Reply::Refused(_) | Reply::Unsent) => return Err(failed.gives_up()),
            _ if asked_again => return Err(GiveUp::Io),
            _ => asked_again = true,
        }
    }
}

/// Raises the counter by this if it still holds the number, over a connection of the same epoch: by a transaction,
/// since two lockers that add what is missing would reach the next epoch. Whatever comes of it, the next increment
/// shows where the counter is (I6).
async fn raise(io: &Io, number: i64, by: u64, epoch: Epoch) -> Result<(), GiveUp> {
    let if_holds = Some(Expected { bytes: number.to_string().into_bytes(), without_ttl: false });
    let Replies { found, reply, .. } =
        io.send(Trip { if_holds, ..Trip::of(Command::Raise { by, epoch }) }).await;
    match reply.or(found) {
        Some(failed @ (Reply::Refused(_) | Reply::Unsent)) => Err(failed.gives_up()),
        _ => Ok(()),
    }
}

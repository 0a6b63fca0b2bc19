//! The end of holds: the locks are released, or left to expire.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::drive::Job;
use super::engine::Engine;
use super::held::{Delivery, HeldLock};
use super::outbox::Outbox;
use super::release::{Later, Releasing};
use crate::report::error::Error;
use crate::report::event::Event;
use crate::rules::GiveUp;
use crate::rules::lease::Lease;
use crate::rules::owned::{self, Extension, HandedOver, Release};
use crate::rules::ownership::LossReason;
use crate::rules::task::Task;
use crate::run::hold::Hold;
use crate::values::clock::{self, Now};
use crate::wait::HolderTicket;

/// How a holder ends its hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    Release,
    /// The key expires by itself.
    Keep,
}

/// How a hold has ended without a loss.
#[derive(Clone, Copy)]
pub(crate) struct Ended {
    /// How long the lock was held.
    pub(crate) held: Duration,
    /// True if the server has proven that no other client had the lock.
    pub(crate) certified: bool,
    pub(crate) left_to_expire: bool,
    /// True if the lease had passed before.
    pub(crate) outlived_lease: bool,
}

/// What came of the commands of a hold's end; `None` if the key is left to expire.
type Left = Option<Release>;

/// What becomes of a hold's key.
#[allow(clippy::large_enum_variant, reason = "the large one is the usual one")]
enum Way<'a> {
    /// Nothing, with this outcome.
    Over(Left),
    /// It expires after a while. Threads that wait learn of it then.
    Expire(Option<HolderTicket<Delivery>>, Job<'a, Extension>),
    Release(Releasing<'a>),
}

/// A hold that ends.
struct EndingHold<'a, 'b> {
    hold: &'a Hold,
    way: Way<'b>,
    now: Now,
    /// What came of it.
    left: Result<Left, Error>,
}

impl<'a> Way<'a> {
    fn extension(&mut self) -> Option<&mut Job<'a, Extension>> {
        match self {
            Way::Expire(_, job) => Some(job),
            Way::Over(_) | Way::Release(_) => None,
        }
    }

    fn release(&mut self) -> Option<&mut Job<'a, HandedOver>> {
        match self {
            Way::Release(releasing) => Some(&mut releasing.job),
            Way::Over(_) | Way::Expire(..) => None,
        }
    }
}

impl Engine {
    /// Ends holds that began together, given in reverse: releases the locks, or leaves them to expire. Waits for commands of theirs that are on
    /// their way.
    pub(crate) fn end<'a>(
        self: &Arc<Self>,
        holds: impl Iterator<Item = (&'a Hold, HolderTicket<Delivery>)>,
        leaving: Leaving,
    ) -> Vec<(&'a Hold, Result<Ended, Error>)> {
        let (outbox, mut taken, mut later) = (Outbox::default(), Vec::new(), Later::default());
        let begin = |(hold, holder): (&'a Hold, _)| {
            let lock = HeldLock::new(&hold.key, &hold.options, self.over(hold), holder);
            let now = clock::now();
            let way = self.way(hold, lock, leaving, &mut taken, &outbox, now);
            EndingHold { hold, way, now, left: Ok(None) }
        };
        let mut endings: Vec<EndingHold<'a, '_>> = holds.map(begin).collect();
        let Some(EndingHold { now, .. }) = endings.last() else { return Vec::new() };
        let now = *now;
        self.drive(&mut endings, |ending| ending.way.extension(), now);
        self.drive(&mut endings, |ending| ending.way.release(), now);
        // First each next thread gets its lock, then the program learns of it all.
        for EndingHold { way, now, left, .. } in &mut endings {
            *left = match way {
                Way::Over(left) => Ok(left.take()),
                Way::Expire(holder, job) => {
                    drop(holder.take());
                    left_to_expire(job, &outbox)
                }
                Way::Release(releasing) => self.end_release(releasing, &mut later, now.uptime).map(Some),
            };
        }
        outbox.flush(&self.observer);
        self.after_release(later);
        let note = |EndingHold { hold, now, left, .. }: &mut EndingHold<'a, '_>| {
            (*hold, self.noted(hold, mem::replace(left, Ok(None)), *now))
        };
        let mut ended: Vec<_> = endings.iter_mut().map(note).collect();
        ended.reverse();
        ended
    }

    /// Begins what becomes of the key of a hold that ends.
    fn way<'b>(
        &'b self,
        hold: &'b Hold,
        lock: HeldLock<'b>,
        leaving: Leaving,
        taken: &mut Vec<u64>,
        outbox: &'b Outbox,
        now: Now,
    ) -> Way<'b> {
        let lease = &lock.lease;
        let kept = || Way::Over(lease.has_passed(now).then_some(Release::Lost(LossReason::Expired)));
        let rest = match (hold.noticed_loss(), leaving) {
            // The server has shown that it is not ours: there is nothing to delete.
            (Some(reason @ (LossReason::Gone | LossReason::Taken(_))), _) => {
                return Way::Over(Some(Release::Lost(reason)));
            }
            (_, Leaving::Keep) => return kept(),
            (_, Leaving::Release) => time_left_to_hold(hold, lease, now),
        };
        match rest {
            Some(rest) if lease.end.is_none_or(|end| end.remaining(now) <= rest) => kept(),
            Some(rest) => {
                let (own, new) = (lease.clone(), self.next_lease(hold, lease, rest, now));
                let task = Task::begin(now, async move |io| owned::extend(io, &own, new).await);
                Way::Expire(Some(lock.holder), Job::new(&hold.key, task, self.session(hold, now, outbox)))
            }
            None => Way::Release(self.begin_release(lock, taken, now)),
        }
    }

    /// Has the server asked nothing more for a hold, and takes its lease.
    fn over(&self, hold: &Hold) -> Lease {
        let mut own = hold.own();
        own.over = true;
        self.forget(hold);
        mem::take(&mut own.lease)
    }

    /// Notes how a hold has ended. It is lost too if its lease was over before and the server has not proven that it was held all the time.
    fn noted(&self, hold: &Hold, ended: Result<Left, Error>, began: Now) -> Result<Ended, Error> {
        let outlived_lease = hold.end().is_some_and(|end| end.has_passed(began));
        let loss = match &ended {
            Ok(Some(Release::Lost(reason))) => Some(reason.clone()),
            Ok(Some(Release::Released { certified: true }) | None) => None,
            Ok(Some(Release::Released { certified: false })) | Err(_) => {
                outlived_lease.then_some(LossReason::Expired)
            }
        };
        if let Some(reason) = loss {
            if let Err(error) = &ended {
                self.observer.notify(&Event::ReleaseFailed { key: &hold.key, error });
            }
            let error = Self::lose(hold, reason);
            hold.report();
            return Err(error);
        }
        if hold.finish() {
            hold.report();
        }
        let left = ended?;
        let certified = matches!(left, Some(Release::Released { certified: true }));
        let time = began.uptime.since(hold.acquired.uptime);
        Ok(Ended { held: time, certified, left_to_expire: left.is_none(), outlived_lease })
    }
}

fn left_to_expire(job: &mut Job<'_, Extension>, outbox: &Outbox) -> Result<Left, Error> {
    let reason = match job.outcome(outbox) {
        Ok(Extension::Extended(_)) => return Ok(None),
        Ok(Extension::Lost(reason)) => return Ok(Some(Release::Lost(reason))),
        Ok(Extension::Unknown { .. }) => GiveUp::Unknown,
        Err(reason) => reason,
    };
    let advice = "it frees itself when its lease has passed, which may be later";
    Err(job.session.take_release_error(reason, advice, advice))
}

/// Returns for how much longer the options have the lock held, if it is to be released before.
fn time_left_to_hold(hold: &Hold, lease: &Lease, now: Now) -> Option<Duration> {
    // By the monotonic clock: the wall clock may have been set since.
    let left = hold.acquired.uptime.after(hold.options.hold_at_least).since(now.uptime);
    (!lease.has_passed(now) && !left.is_zero()).then_some(left)
}

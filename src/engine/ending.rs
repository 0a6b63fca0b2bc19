//! The end of holds: the locks are released, or left to expire.

use std::mem;
use std::time::Duration;

use super::drive::Job;
use super::outbox::{Outbox, Report};
use super::release::HeldLock;
use super::{Delivery, Engine};
use crate::clock::{self, Now};
use crate::error::Error;
use crate::event::Event;
use crate::hold::Hold;
use crate::protocol::GiveUp;
use crate::protocol::lease::Lease;
use crate::protocol::owned::{self, Extension, Release};
use crate::protocol::ownership::LossReason;
use crate::protocol::task::Task;
use crate::queue::HolderTicket;

/// How a holder ends its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    Release,
    /// The key expires by itself.
    Keep,
}

/// How a hold has ended without a loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Whether the server has proven that no other client had the lock.
    pub(crate) certified: bool,
    pub(crate) left_to_expire: bool,
    /// Whether the lease had passed before.
    pub(crate) outlived_lease: bool,
}

/// What came of the commands of a hold's end; `None` if the key is left to expire.
type Left = Option<Release>;

/// What a hold's end does with its key.
enum Way {
    /// Nothing, with this outcome.
    Over(Left),
    /// Has it expire after this time.
    ExpireAfter(Duration),
    Delete,
}

impl Engine {
    /// Ends holds that began together: releases the locks, or leaves them to expire. Waits for commands of theirs that are on their way.
    pub(crate) fn end(
        &self,
        holds: Vec<(&Hold, HolderTicket<Delivery>)>,
        leaving: Leaving,
    ) -> Vec<Result<Ended, Error>> {
        let over = |(hold, holder)| (hold, holder, self.over(hold));
        let holds: Vec<(&Hold, HolderTicket<Delivery>, Lease)> = holds.into_iter().map(over).collect();
        let now = clock::now();
        // `None` where the lock is to be released.
        let mut ended = Vec::with_capacity(holds.len());
        let (mut to_release, mut to_leave) = (Vec::with_capacity(holds.len()), Vec::new());
        for (hold, holder, lease) in holds {
            let left = match way(hold, &lease, leaving, now) {
                Way::Over(left) => Some(Ok(left)),
                Way::ExpireAfter(rest) => {
                    to_leave.push((ended.len(), hold, holder, lease, rest));
                    None
                }
                Way::Delete => {
                    let Hold { key, options, protocol, .. } = hold;
                    to_release.push(HeldLock { key, options, protocol: *protocol, lease, holder });
                    None
                }
            };
            ended.push((hold, left));
        }
        for (at, left) in self.leave_to_expire(to_leave, now) {
            ended[at].1 = Some(left);
        }
        let mut released = self.release_all(to_release, now).into_iter().map(|released| released.map(Some));
        let outcome = |(hold, left): (&Hold, Option<_>)| match left.or_else(|| released.next()) {
            Some(ended) => self.noted(hold, ended, now),
            None => unreachable!("what is not left is released"),
        };
        ended.into_iter().map(outcome).collect()
    }

    /// Has the server asked nothing more for a hold, and takes its lease.
    fn over(&self, hold: &Hold) -> Lease {
        let mut own = hold.own();
        own.over = true;
        self.forget(hold);
        mem::replace(&mut own.lease, Lease::none())
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
        Ok(Ended { certified, left_to_expire: left.is_none(), outlived_lease })
    }

    /// Has each key expire when the given time has passed, and no sooner; all together. Threads that wait learn of it then.
    fn leave_to_expire(
        &self,
        locks: Vec<(usize, &Hold, HolderTicket<Delivery>, Lease, Duration)>,
        now: Now,
    ) -> Vec<(usize, Result<Left, Error>)> {
        let outbox = Outbox::default();
        let begin = |(at, hold, holder, lease, rest): (usize, _, _, Lease, Duration)| {
            let (own, new) = self.next_lease(hold, &lease, rest, now);
            let task = Task::begin(now, |io| owned::extend(io, own, new, rest));
            (at, holder, Job::new(&hold.key, task, self.call(hold, now, &outbox)))
        };
        let mut jobs: Vec<(usize, HolderTicket<Delivery>, Job<'_, Extension>)> =
            locks.into_iter().map(begin).collect();
        self.drive(&mut jobs, |(.., job)| Some(job), now);
        let left = jobs.into_iter().map(|(at, _, job)| (at, left(job, &outbox))).collect();
        outbox.flush(&self.observer);
        left
    }
}

fn left(job: Job<'_, Extension>, outbox: &Outbox) -> Result<Left, Error> {
    let key = job.key;
    let (outcome, mut call) = job.end();
    let reason = match outcome {
        Ok(Extension::Extended { .. }) => return Ok(None),
        Ok(Extension::Lost { reason, overwrote }) => {
            if let Some(winner) = overwrote {
                outbox.push(Report::Overwritten(key.clone(), winner));
            }
            return Ok(Some(Release::Lost(reason)));
        }
        Ok(Extension::Unknown { .. }) => GiveUp::Unknown,
        Err(reason) => reason,
    };
    let advice = "it frees itself when its lease has passed, which may be later";
    Err(call.take_release_error(reason, advice, advice))
}

/// What becomes of the key of a hold that ends.
fn way(hold: &Hold, lease: &Lease, leaving: Leaving, now: Now) -> Way {
    match (hold.noticed_loss(), leaving) {
        // The server has shown that it is not ours: there is nothing to delete.
        (Some(reason @ (LossReason::Gone | LossReason::Taken(_))), _) => {
            Way::Over(Some(Release::Lost(reason)))
        }
        (_, Leaving::Keep) => kept(lease, now),
        (_, Leaving::Release) => match time_left_to_hold(hold, lease, now) {
            Some(rest) if lease.end.is_none_or(|end| end.remaining(now) <= rest) => kept(lease, now),
            Some(rest) => Way::ExpireAfter(rest),
            None => Way::Delete,
        },
    }
}

/// Returns for how much longer the options have the lock held, if it is to be released before.
fn time_left_to_hold(hold: &Hold, lease: &Lease, now: Now) -> Option<Duration> {
    // By the monotonic clock: the wall clock may have been set since.
    let left = hold.acquired.uptime.after(hold.options.hold_at_least).since(now.uptime);
    (!lease.has_passed(now) && !left.is_zero()).then_some(left)
}

/// The end of a hold whose key is left as it is.
fn kept(lease: &Lease, now: Now) -> Way {
    Way::Over(lease.has_passed(now).then_some(Release::Lost(LossReason::Expired)))
}

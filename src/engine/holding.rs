//! What a holder does with its lock: extends it, asks for it, takes a fencing token, and ends it. Events are reported when nothing of the
//! hold is locked any more: an observer may use or drop the guard.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::call::{Call, LateReports};
use super::release::HeldLock;
use super::together::Run;
use super::{Delivery, Engine};
use crate::clock::{self, Now};
use crate::error::Error;
use crate::event::Event;
use crate::hold::{Hold, OnLoss, Own};
use crate::protocol::lease::{End, Lease};
use crate::protocol::owned::{self, Counted, Extension, Owned, Release, Verification};
use crate::protocol::ownership::LossReason;
use crate::protocol::task::Task;
use crate::protocol::{GiveUp, Step};
use crate::queue::HolderTicket;
use crate::value::LockState;

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

/// What came of an extension, to be reported.
#[derive(Debug)]
pub(super) struct Extended {
    /// Whether it is proven that no other client had the lock meanwhile.
    pub(super) result: Result<bool, Error>,
    overwrote: Option<LockState>,
    late_reports: LateReports,
}

impl Engine {
    /// Extends the lease to one of `expiration` that begins now.
    pub(crate) fn extend(self: &Arc<Self>, hold: &Arc<Hold>, expiration: Duration) -> Result<(), Error> {
        self.refuse_after_fork(&hold.key)?;
        let mut own = hold.own();
        Self::check_held(hold)?;
        let now = clock::now();
        let (mut task, step) = self.begin_extension(hold, &own.lease, expiration, now);
        let mut call = self.call(hold, now);
        let outcome = call.run(&mut task, step, now);
        let extended = Self::end_extension(hold, &mut own, outcome, call);
        let (unnamed, late_reports) = match &extended.result {
            Ok(_) => self.write_name(hold, &own.lease.value, Some(expiration), clock::now()),
            Err(_) => (None, LateReports::new()),
        };
        self.reschedule(hold, &own);
        drop(own);
        self.report_extension(hold, &extended);
        self.report_late(&hold.key, &late_reports);
        self.report_unnamed(hold, unnamed.as_ref());
        hold.report();
        extended.result.map(drop)
    }

    /// The commands of a holder.
    pub(super) fn call<'a>(&'a self, hold: &'a Hold, now: Now) -> Call<'a> {
        Call::new(self, &hold.key, hold.options.protocol, Some(now.uptime)).reported_later()
    }

    /// Begins an extension. Until its outcome is known, the lease counts that ends first.
    pub(super) fn begin_extension(
        &self,
        hold: &Hold,
        lease: &Lease,
        expiration: Duration,
        now: Now,
    ) -> (Task<Extension>, Step<Extension>) {
        let (own, new) = self.next_lease(hold, lease, expiration, now);
        Task::begin(now, |io| owned::extend(io, own, new, expiration))
    }

    /// Returns the lock of a hold, and the lease that replaces its own if an extension succeeds.
    pub(super) fn next_lease(
        &self,
        hold: &Hold,
        lease: &Lease,
        expiration: Duration,
        now: Now,
    ) -> (Owned, Lease) {
        let own = owned(hold, lease);
        let new = own.next_lease(expiration, self.identity.next_nonce(), now);
        let ends = lease.end.zip(new.end);
        hold.rely_until(ends.map(|(old, new)| old.min(new)));
        (own, new)
    }

    /// Notes what came of an extension.
    pub(super) fn end_extension(
        hold: &Hold,
        own: &mut Own,
        outcome: Result<Extension, GiveUp>,
        mut call: Call<'_>,
    ) -> Extended {
        let now = clock::now();
        let late_reports = call.take_late_reports();
        let (result, overwrote) = match outcome {
            Ok(Extension::Extended { lease, began }) => {
                own.lease = lease;
                (own.began, own.asked, own.failed) = (began, now.uptime, None);
                let certified = own.lease.proven;
                hold.rely_until(own.lease.end);
                // I3: the reply may have come after the new lease.
                let lost = hold.lost(now).map(|reason| Self::lost(hold, reason, now));
                (lost.map_or(Ok(certified), Err), None)
            }
            Ok(Extension::Lost { reason, overwrote }) => (Err(Self::lose(hold, reason)), overwrote),
            Ok(Extension::Unknown { lease, proves }) => {
                own.lease.may_have_become(&lease, proves, now);
                (Err(Self::extension_failed(hold, own, GiveUp::Unknown, call)), None)
            }
            Err(reason) => (Err(Self::extension_failed(hold, own, reason, call)), None),
        };
        Extended { result, overwrote, late_reports }
    }

    fn extension_failed(hold: &Hold, own: &mut Own, reason: GiveUp, call: Call<'_>) -> Error {
        own.failed = Some(clock::uptime());
        hold.rely_until(own.lease.end);
        call.error(reason, "the lease goes on until it ends; extend it again, or stop in time")
    }

    pub(super) fn report_extension(&self, hold: &Hold, extended: &Extended) {
        let (key, Extended { result, overwrote, late_reports }) = (&hold.key, extended);
        self.report_late(key, late_reports);
        self.report_overwritten(hold, overwrote.as_ref());
        match result {
            Ok(certified) => self.observer.notify(&Event::Extended { key, certified: *certified }),
            // These are reported as a loss.
            Err(error) if error.is_lost() => {}
            Err(error) => self.observer.notify(&Event::ExtendFailed { key, error }),
        }
    }

    fn report_overwritten(&self, hold: &Hold, winner: Option<&LockState>) {
        if let Some(winner) = winner {
            self.observer.value_overwritten(&hold.key, winner);
        }
    }

    /// Asks the server whether the lock is still held.
    pub(crate) fn verify(&self, hold: &Arc<Hold>) -> Result<(), Error> {
        self.refuse_after_fork(&hold.key)?;
        let mut own = hold.own();
        let now = clock::now();
        let mut call = self.call(hold, now);
        let (mut task, step) = begin_verification(hold, &own.lease, now);
        let outcome = call.run(&mut task, step, now);
        let late_reports = call.take_late_reports();
        let verification = Self::end_verification(hold, &mut own, outcome, call);
        drop(own);
        self.report_late(&hold.key, &late_reports);
        hold.report();
        verification
    }

    /// Notes what came of a look.
    pub(super) fn end_verification(
        hold: &Hold,
        own: &mut Own,
        outcome: Result<Verification, GiveUp>,
        call: Call<'_>,
    ) -> Result<(), Error> {
        let now = clock::uptime();
        match outcome {
            Ok(verification) => {
                (own.asked, own.failed) = (now, None);
                match verification {
                    Verification::Held { .. } | Verification::Overwritten => Ok(()),
                    Verification::Lost(reason) => Err(Self::lose(hold, reason)),
                }
            }
            Err(reason) => {
                own.failed = Some(now);
                Err(call.error(reason, "ask again"))
            }
        }
    }

    /// Takes a fencing token, or returns the one that this hold has.
    pub(crate) fn fencing_token(&self, hold: &Hold) -> Result<u64, Error> {
        self.refuse_after_fork(&hold.key)?;
        let mut own = hold.own();
        if let Some(token) = own.token {
            return Ok(token);
        }
        Self::check_held(hold)?;
        let now = clock::now();
        let mut call = self.call(hold, now);
        let (mut task, step) = begin_counting(hold, &own.lease, now);
        let outcome = call.run(&mut task, step, now);
        let late_reports = call.take_late_reports();
        let token = Self::end_fencing(hold, &mut own, outcome, call);
        drop(own);
        self.report_late(&hold.key, &late_reports);
        hold.report();
        token
    }

    /// Notes what came of taking a fencing token.
    pub(super) fn end_fencing(
        hold: &Hold,
        own: &mut Own,
        outcome: Result<Counted, GiveUp>,
        call: Call<'_>,
    ) -> Result<u64, Error> {
        match outcome {
            Ok(Counted::Token(found)) => {
                own.token = owned::usable(found);
                own.token.ok_or_else(|| Self::no_token(hold, found))
            }
            Ok(Counted::Lost(reason)) => Err(Self::lose(hold, reason)),
            Err(reason) => Err(call.error(reason, "ask again")),
        }
    }

    fn no_token(hold: &Hold, found: i64) -> Error {
        let problem = format!(
            "its fencing counter is at {found}, which is no token; set it to the greatest token that the storage has seen"
        );
        Error::invalid(hold.key.clone(), problem)
    }

    /// Does this when the lock is lost: also if only the clocks notice it.
    pub(crate) fn on_loss(self: &Arc<Self>, hold: &Arc<Hold>, act: OnLoss) {
        hold.on_loss(act);
        hold.report();
        self.watch(hold);
    }

    /// Has the keeper look at a lock, since the program wants to know of a loss.
    pub(crate) fn watch(self: &Arc<Self>, hold: &Arc<Hold>) {
        if self.identity.is_this_process() && hold.end().is_some() {
            self.keep_from_now_on(hold);
        }
    }

    /// Fails if a loss of the lock has been noticed; that a lease has passed is no loss that the server has shown.
    pub(super) fn check_held(hold: &Hold) -> Result<(), Error> {
        match hold.noticed_loss() {
            Some(reason) => Err(Self::lost(hold, reason, clock::now())),
            None => Ok(()),
        }
    }

    /// Returns the error of a hold whose loss has been noticed.
    pub(super) fn loss_of(hold: &Hold) -> Error {
        Self::lost(hold, hold.noticed_loss().unwrap_or(LossReason::Expired), clock::now())
    }

    /// The extension of a hold whose loss has been noticed.
    pub(super) fn not_extended(hold: &Hold) -> Extended {
        Extended { result: Err(Self::loss_of(hold)), overwrote: None, late_reports: LateReports::new() }
    }

    /// Notes that a lock is lost, and returns the error.
    fn lose(hold: &Hold, reason: LossReason) -> Error {
        hold.lose(&reason);
        Self::lost(hold, hold.noticed_loss().unwrap_or(reason), clock::now())
    }

    /// Returns the error of a lock that is lost.
    pub(crate) fn lost(hold: &Hold, reason: LossReason, now: Now) -> Error {
        let ended = hold.end().filter(|_| reason == LossReason::Expired);
        let late = ended.map(|End { wall, uptime }| now.uptime.since(uptime).max(now.wall.since(wall)));
        Error::Lost { key: hold.key.clone(), reason, late }
    }

    /// Ends holds that began together: releases the locks, or leaves them to expire. Waits for commands of theirs that are on their way.
    pub(crate) fn end(
        &self,
        holds: Vec<(&Hold, HolderTicket<Delivery>)>,
        leaving: Leaving,
    ) -> Vec<Result<Ended, Error>> {
        let over = |hold: &Hold| {
            let mut own = hold.own();
            own.over = true;
            self.forget(hold);
            mem::replace(&mut own.lease, Lease::none())
        };
        let leases: Vec<Lease> = holds.iter().map(|(hold, _)| over(hold)).collect();
        let now = clock::now();
        let way = |((hold, _), lease): (&(&Hold, _), &Lease)| match (hold.noticed_loss(), leaving) {
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
        };
        let ways: Vec<Way> = holds.iter().zip(&leases).map(way).collect();
        let to_leave =
            holds.iter().zip(&leases).zip(&ways).filter_map(|(((hold, _), lease), way)| match way {
                Way::ExpireAfter(rest) => Some((*hold, lease, *rest)),
                Way::Over(..) | Way::Delete => None,
            });
        let mut all_left = self.leave_to_expire(to_leave, now).into_iter();
        let mut to_release = Vec::with_capacity(holds.len());
        // `None` where the lock is to be released.
        let mut ended = Vec::with_capacity(holds.len());
        for (((hold, holder), lease), way) in holds.into_iter().zip(leases).zip(ways) {
            let left = match way {
                Way::Over(left) => Some(Ok(left)),
                Way::ExpireAfter(_) => all_left.next(),
                Way::Delete => None,
            };
            if left.is_some() {
                drop(holder);
            } else {
                let Hold { key, options, protocol, .. } = hold;
                to_release.push(HeldLock { key, options, protocol: *protocol, lease, holder });
            }
            ended.push((hold, left));
        }
        let mut released = self.release_all(to_release, now).into_iter();
        let outcome = |(hold, left): (&Hold, Option<_>)| match left {
            Some(ended) => self.noted(hold, ended, now),
            None => match released.next() {
                Some(released) => self.noted(hold, released.map(Some), now),
                None => unreachable!("what is not left is released"),
            },
        };
        ended.into_iter().map(outcome).collect()
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

    /// Has each key expire when the given time has passed, and no sooner; all together.
    fn leave_to_expire<'a>(
        &'a self,
        locks: impl Iterator<Item = (&'a Hold, &'a Lease, Duration)>,
        now: Now,
    ) -> Vec<Result<Left, Error>> {
        let begin = |(hold, lease, rest): (&'a Hold, &Lease, Duration)| {
            let call = Call::new(self, &hold.key, hold.options.protocol, Some(now.uptime));
            (hold, Run::new(&hold.key, self.begin_extension(hold, lease, rest, now), call))
        };
        let mut runs: Vec<(&Hold, Run<'_, Extension>)> = locks.map(begin).collect();
        self.run_together(runs.iter_mut().map(|(_, run)| run).collect());
        self.finish_each(runs.iter_mut().map(|(_, run)| run));
        runs.into_iter().map(|(hold, run)| self.end_leaving(hold, run)).collect()
    }

    fn end_leaving(&self, hold: &Hold, run: Run<'_, Extension>) -> Result<Left, Error> {
        let (outcome, mut call) = run.end();
        match outcome {
            Ok(Extension::Extended { .. }) => Ok(None),
            Ok(Extension::Lost { reason, overwrote }) => {
                self.report_overwritten(hold, overwrote.as_ref());
                Ok(Some(Release::Lost(reason)))
            }
            Ok(Extension::Unknown { .. }) => Err(not_left(&mut call, GiveUp::Unknown)),
            Err(reason) => Err(not_left(&mut call, reason)),
        }
    }
}

fn not_left(call: &mut Call<'_>, reason: GiveUp) -> Error {
    let advice = "it frees itself when its lease has passed, which may be later";
    call.take_release_error(reason, advice, advice)
}

/// Returns the lock of a hold, as its rules know it.
pub(super) fn owned(hold: &Hold, lease: &Lease) -> Owned {
    Owned { lease: lease.clone(), protocol: hold.protocol, asked: hold.options.protocol }
}

pub(super) fn begin_verification(
    hold: &Hold,
    lease: &Lease,
    now: Now,
) -> (Task<Verification>, Step<Verification>) {
    let own = owned(hold, lease);
    Task::begin(now, |io| owned::verify(io, own))
}

pub(super) fn begin_counting(hold: &Hold, lease: &Lease, now: Now) -> (Task<Counted>, Step<Counted>) {
    let own = owned(hold, lease);
    Task::begin(now, |io| owned::count(io, own))
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

//! What a holder does with its lock: extends it, asks for it, takes a fencing token, and ends it.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::call::Call;
use super::release::HeldLock;
use super::{Answer, Engine};
use crate::clock::{self, Now};
use crate::error::Error;
use crate::event::Event;
use crate::hold::{Hold, OnLoss, Own};
use crate::key::Key;
use crate::protocol::extend::{Extending, Extension};
use crate::protocol::fence::{self, Fenced, Fencing};
use crate::protocol::lease::End;
use crate::protocol::ownership::LossReason;
use crate::protocol::release::Release;
use crate::protocol::verify::{Verification, Verifying};
use crate::protocol::{GiveUp, Step};
use crate::queue::{Ending, Hint, HolderTicket};
use crate::value::LockState;

/// How a holder ends its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    Release,
    /// The key expires by itself.
    Keep,
}

impl Engine {
    /// Extends the lease to one of `expiration` that begins now. Returns whether the server has proven that no other client had the lock
    /// meanwhile.
    pub(crate) fn extend(self: &Arc<Self>, hold: &Arc<Hold>, expiration: Duration) -> Result<bool, Error> {
        let extended = self.extend_owned(hold, expiration);
        hold.act_on_loss();
        extended
    }

    fn extend_owned(self: &Arc<Self>, hold: &Arc<Hold>, expiration: Duration) -> Result<bool, Error> {
        self.refuse_after_fork(&hold.key)?;
        let mut own = hold.own();
        let now = clock::now();
        Self::check_held(hold)?;
        let (mut extending, step) = self.begin_extension(hold, &own, expiration, now);
        let mut call = Call::new(self, &hold.key, hold.options.protocol, Some(now.uptime));
        let outcome = call.run(&mut extending, step, now);
        let extended = self.end_extension(hold, &mut own, &extending, outcome, call);
        if extended.is_ok() {
            let value = &own.lease.value;
            self.write_name(hold, value, Some(expiration), clock::now());
        }
        self.reschedule(hold, &own);
        extended
    }

    /// Begins an extension. Until its outcome is known, the lease counts that ends first.
    pub(super) fn begin_extension(
        &self,
        hold: &Hold,
        own: &Own,
        expiration: Duration,
        now: Now,
    ) -> (Extending, Step<Extension>) {
        let nonce = self.identity.next_nonce();
        let asked = hold.options.protocol;
        let (extending, step) = Extending::start(hold.protocol, asked, &own.lease, expiration, nonce, now);
        let ends = own.lease.end.zip(extending.new_lease().end);
        hold.rely_until(ends.map(|(old, new)| old.min(new)));
        (extending, step)
    }

    /// Notes what came of an extension.
    pub(super) fn end_extension(
        &self,
        hold: &Hold,
        own: &mut MutexGuard<'_, Own>,
        extending: &Extending,
        outcome: Result<Extension, GiveUp>,
        call: Call<'_>,
    ) -> Result<bool, Error> {
        let (key, now) = (&hold.key, clock::now());
        let reason = match outcome {
            Ok(Extension::Extended { lease, certified }) => {
                own.lease = lease;
                (own.began, own.asked, own.failed) = (extending.began(), now.uptime, None);
                hold.rely_until(own.lease.end);
                self.observer.notify(&Event::Extended { key, certified });
                // I3: the reply may have come after the new lease.
                return match hold.lost(now) {
                    Some(reason) => Err(Self::lost(hold, reason, now)),
                    None => Ok(certified),
                };
            }
            Ok(Extension::Lost { reason, overwrote }) => {
                self.report_overwritten(hold, overwrote.as_ref());
                return Err(Self::lose(hold, reason));
            }
            Err(reason) => reason,
        };
        if reason == GiveUp::Unknown {
            own.lease.may_have_become(extending.new_lease(), extending.proves(), now);
        }
        own.failed = Some(now.uptime);
        hold.rely_until(own.lease.end);
        let error = call.error(reason, "the lease goes on until it ends; extend it again, or stop in time");
        self.observer.notify(&Event::ExtendFailed { key, error: &error });
        Err(error)
    }

    fn report_overwritten(&self, hold: &Hold, winner: Option<&LockState>) {
        if let Some(winner) = winner {
            self.observer.notify(&Event::ValueOverwritten { key: &hold.key, winner });
        }
    }

    /// Asks the server whether the lock is still held.
    pub(crate) fn verify(&self, hold: &Arc<Hold>) -> Result<Verification, Error> {
        self.refuse_after_fork(&hold.key)?;
        let mut own = hold.own();
        let now = clock::now();
        let mut call = Call::new(self, &hold.key, hold.options.protocol, Some(now.uptime));
        let (mut verifying, step) = Verifying::start(hold.protocol, &own.lease);
        let outcome = call.run(&mut verifying, step, now);
        let verification = Self::end_verification(hold, &mut own, outcome, call);
        drop(own);
        hold.act_on_loss();
        verification
    }

    /// Notes what came of a look.
    pub(super) fn end_verification(
        hold: &Hold,
        own: &mut MutexGuard<'_, Own>,
        outcome: Result<Verification, GiveUp>,
        call: Call<'_>,
    ) -> Result<Verification, Error> {
        let now = clock::uptime();
        match outcome {
            Ok(verification) => {
                own.asked = now;
                if let Verification::Lost(reason) = &verification {
                    hold.lose(reason);
                }
                Ok(verification)
            }
            Err(reason) => {
                own.failed = Some(now);
                Err(call.error(reason, "ask again"))
            }
        }
    }

    /// Takes a fencing token, or returns the one that this hold has.
    pub(crate) fn fencing_token(&self, hold: &Hold) -> Result<u64, Error> {
        let token = self.fencing_token_owned(hold);
        hold.act_on_loss();
        token
    }

    fn fencing_token_owned(&self, hold: &Hold) -> Result<u64, Error> {
        self.refuse_after_fork(&hold.key)?;
        let mut own = hold.own();
        if let Some(token) = own.token {
            return Ok(token);
        }
        Self::check_held(hold)?;
        let now = clock::now();
        let mut call = Call::new(self, &hold.key, hold.options.protocol, Some(now.uptime));
        let (mut fencing, step) = Fencing::start(hold.protocol, hold.options.protocol, &own.lease, now);
        match call.run(&mut fencing, step, now) {
            Ok(Fenced::Token(found)) => {
                own.token = fence::usable(found);
                own.token.ok_or_else(|| Error::Fence { key: hold.key.clone(), found })
            }
            Ok(Fenced::Lost(reason)) => Err(Self::lose(hold, reason)),
            Err(reason) => Err(call.error(reason, "ask again")),
        }
    }

    /// Does this when the lock is lost: also if only the clocks notice it.
    pub(crate) fn on_loss(self: &Arc<Self>, hold: &Arc<Hold>, act: OnLoss) {
        hold.on_loss(act);
        hold.act_on_loss();
        if self.identity.is_this_process() && hold.end().is_some() {
            self.keep_from_now_on(hold);
        }
    }

    /// Fails if a loss of the lock has been noticed; that a lease has passed is no loss that the server has shown.
    fn check_held(hold: &Hold) -> Result<(), Error> {
        match hold.noticed_loss() {
            Some(reason) => Err(Self::lost(hold, reason, clock::now())),
            None => Ok(()),
        }
    }

    /// Notes that a lock is lost, and returns the error.
    fn lose(hold: &Hold, reason: LossReason) -> Error {
        hold.lose(&reason);
        Self::lost(hold, hold.noticed_loss().unwrap_or(reason), clock::now())
    }

    /// Returns the error of a lock that is lost.
    pub(crate) fn lost(hold: &Hold, reason: LossReason, now: Now) -> Error {
        let key: Key = hold.key.clone();
        match (reason, hold.end()) {
            (LossReason::Expired, Some(End { wall, uptime })) => {
                Error::Expired { key, late: now.uptime.since(uptime).max(now.wall.since(wall)) }
            }
            (reason, _) => Error::Lost { key, reason },
        }
    }

    /// Ends a hold: releases the lock, or leaves it to expire. Waits for a command of the hold that is on its way.
    pub(crate) fn end(
        &self,
        hold: &Arc<Hold>,
        holder: HolderTicket<Answer>,
        leaving: Leaving,
    ) -> Result<Release, Error> {
        let mut own = hold.own();
        own.over = true;
        self.forget(hold);
        let now = clock::now();
        let ended = match (hold.noticed_loss(), leaving) {
            // The server has shown that it is not ours: there is nothing to delete.
            (Some(reason @ (LossReason::Gone | LossReason::Taken(_))), _) => {
                holder.end(Ending::Hint(Hint::Changed));
                Ok((Release::Lost, Some(reason)))
            }
            (_, Leaving::Keep) => {
                holder.end(Ending::Hint(Hint::Changed));
                Ok(kept(&own, now))
            }
            (_, Leaving::Release) => match time_left_to_hold(hold, &own, now) {
                Some(rest) => {
                    let left = self.leave_to_expire(hold, &own, rest, now);
                    holder.end(Ending::Hint(Hint::Changed));
                    left
                }
                None => {
                    let Hold { key, options, protocol, .. } = &**hold;
                    let lease = &own.lease;
                    self.release(HeldLock { key, options, protocol: *protocol, lease, holder }, now)
                }
            },
        };
        drop(own);
        let is_lost = match &ended {
            Ok((_, Some(reason))) => {
                hold.end_lost(reason);
                true
            }
            _ => hold.finish(),
        };
        if is_lost {
            hold.act_on_loss();
        }
        ended.map(|(outcome, _)| outcome)
    }

    /// Has the key expire when `rest` has passed, and no sooner.
    fn leave_to_expire(
        &self,
        hold: &Hold,
        own: &Own,
        rest: Duration,
        now: Now,
    ) -> Result<(Release, Option<LossReason>), Error> {
        if own.lease.end.is_none_or(|end| end.remaining(now) <= rest) {
            return Ok(kept(own, now));
        }
        let (mut extending, step) = self.begin_extension(hold, own, rest, now);
        let mut call = Call::new(self, &hold.key, hold.options.protocol, Some(now.uptime));
        match call.run(&mut extending, step, now) {
            Ok(Extension::Extended { .. }) => Ok((Release::LeftToExpire, None)),
            Ok(Extension::Lost { reason, overwrote }) => {
                self.report_overwritten(hold, overwrote.as_ref());
                let outcome = if reason == LossReason::Expired { Release::Expired } else { Release::Lost };
                Ok((outcome, Some(reason)))
            }
            Err(reason) => {
                Err(call.error(reason, "it frees itself when its lease has passed, which may be later"))
            }
        }
    }
}

/// Returns for how much longer the options have the lock held, if it is to be released before.
fn time_left_to_hold(hold: &Hold, own: &Own, now: Now) -> Option<Duration> {
    // By the monotonic clock: the wall clock may have been set since.
    let left = hold.acquired.uptime.after(hold.options.hold_at_least).since(now.uptime);
    (!own.lease.has_passed(now) && !left.is_zero()).then_some(left)
}

/// The outcome of a release that sends nothing.
fn kept(own: &Own, now: Now) -> (Release, Option<LossReason>) {
    if own.lease.has_passed(now) {
        (Release::Expired, Some(LossReason::Expired))
    } else {
        (Release::LeftToExpire, None)
    }
}

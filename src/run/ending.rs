//! The end of holds: the locks are released, or left to expire.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use proto::GiveUp;
use proto::hold::{self, Extension, Release};
use proto::lease::{End, Lease};
use proto::ownership::Loss;
use proto::task::Task;
use proto::values::Now;

use super::drive::Job;
use super::engine::Engine;
use super::held::{Delivery, HeldLock};
use super::outbox::Outbox;
use super::session::Session;
use super::thread_holds;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::hold::Hold;
use crate::system::clock;
use crate::wait::HolderTicket;

/// How a holder ends its hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    Release,
    /// The key expires by itself.
    ToExpire,
    /// Another process goes on with the lock.
    WithToken,
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
type Released = Option<Release>;

/// What becomes of a hold's key.
enum Way {
    /// Nothing, with this outcome.
    Over(Released),
    /// It expires after a while. Threads that wait learn of it then.
    Expire(Duration),
    Release,
}

impl Engine {
    /// Ends a hold: releases the lock, or leaves it to expire. Waits for commands of it that are on their way.
    pub(crate) fn end_hold(
        self: &Arc<Self>,
        hold: &Hold,
        holder: HolderTicket<Delivery>,
        leaving: Leaving,
    ) -> Result<Ended, Error> {
        let (lock, now) = (self.over(hold, holder), clock::now());
        match way(hold, &lock.lease, leaving, now) {
            // The usual one, without lists.
            Way::Release => self.noted(hold, self.release(lock, now).map(Some), now),
            _ => self.end_each(vec![(hold, lock)], leaving, now).remove(0).1,
        }
    }

    /// Ends holds that began together. What is sent for them goes together.
    pub(crate) fn end_holds<'a>(
        self: &Arc<Self>,
        holds: impl Iterator<Item = (&'a Hold, HolderTicket<Delivery>)>,
        leaving: Leaving,
    ) -> Vec<(&'a Hold, Result<Ended, Error>)> {
        let holds: Vec<_> = holds.collect();
        // As a call that locks all: the keeper goes before it once.
        let waits = self.have_one_node(holds.iter().map(|(hold, _)| *hold));
        for (hold, _) in holds.iter().filter(|_| waits) {
            hold.begin_waiting();
        }
        let over = |(hold, holder): (&'a Hold, _)| {
            if waits {
                hold.end_waiting();
            }
            (hold, self.over(hold, holder))
        };
        let over: Vec<_> = holds.into_iter().map(over).collect();
        self.end_each(over, leaving, clock::now())
    }

    fn end_each<'a>(
        self: &Arc<Self>,
        over: Vec<(&'a Hold, HeldLock<'a>)>,
        leaving: Leaving,
        now: Now,
    ) -> Vec<(&'a Hold, Result<Ended, Error>)> {
        let (mut ended, mut expiring, mut locks) = (Vec::with_capacity(over.len()), Vec::new(), Vec::new());
        for (hold, lock) in over {
            let way = way(hold, &lock.lease, leaving, now);
            match way {
                Way::Over(_) => {}
                Way::Expire(rest) => expiring.push((hold, lock, rest)),
                Way::Release => locks.push(lock),
            }
            ended.push((hold, way));
        }
        let outbox = Outbox::default();
        let mut expired = self.let_expire(expiring, &outbox, now).into_iter();
        // Leaving the others to expire may have taken long (I5).
        let since = if expired.len() > 0 { clock::now() } else { now };
        let mut released = self.release_all(locks, since).into_iter();
        outbox.flush(&self.observer);
        // They are over for the program, which learns of it now.
        for (hold, ..) in &ended {
            thread_holds::forget(hold);
        }
        let outcome = |(hold, way)| {
            let outcome = match way {
                Way::Over(outcome) => Some(Ok(outcome)),
                Way::Expire(_) => expired.next(),
                Way::Release => released.next().map(|released| released.map(Some)),
            };
            (hold, self.noted(hold, outcome.unwrap_or_else(|| unreachable!("each has its outcome")), now))
        };
        ended.into_iter().map(outcome).collect()
    }

    /// Has locks go on with other threads of this process: their leases begin anew, in one trip, and the holds end as by
    /// a release. One that fails is as after an extension that failed.
    pub(crate) fn hand_on(self: &Arc<Self>, holds: &[&Arc<Hold>]) -> Vec<Result<(), Error>> {
        let (outbox, began) = (Outbox::default(), clock::uptime());
        let mut locked = self.lock_all(holds);
        let extended = self.extend_locked(&mut locked, &outbox, |hold, _| hold.options.terms.expiration);
        for ((_, state), extended) in locked.iter_mut().zip(&extended) {
            if extended.is_ok() {
                state.over = true;
                self.forget(state);
            }
        }
        drop(locked);
        outbox.flush(&self.observer);
        let end = |(hold, extended): (&&Arc<Hold>, Result<bool, Error>)| {
            let certified = extended?;
            thread_holds::forget(hold);
            hold.finish();
            let held = began.since(hold.acquired.uptime);
            let ended = Ended { held, certified, left_to_expire: false, outlived_lease: false };
            self.report_end(hold, Leaving::Release, &Ok(ended));
            Ok(())
        };
        holds.iter().zip(extended).map(end).collect()
    }

    /// Leaves locks to expire, each after the rest of the time that its options have it held.
    #[cold]
    fn let_expire(
        &self,
        locks: Vec<(&Hold, HeldLock<'_>, Duration)>,
        outbox: &Outbox,
        now: Now,
    ) -> Vec<Result<Released, Error>> {
        let begin = |(hold, HeldLock { lease, holder, .. }, rest): (_, HeldLock<'_>, _)| {
            let hold: &Hold = hold;
            let (new, end) = (self.next_lease(hold, &lease, rest, now), lease.end);
            // It ends sooner, so the counter is kept for long enough.
            let task = Task::begin(now, async move |io| hold::extend(io, &lease, new, None).await);
            (holder, end, Job::new(&hold.key, task, self.session(hold, now, outbox)))
        };
        let mut jobs: Vec<_> = locks.into_iter().map(begin).collect();
        self.drive(&mut jobs, |(.., job)| Some(job), now);
        let end = |(holder, end, job): (HolderTicket<Delivery>, Option<End>, Job<'_, _>)| {
            drop(holder);
            let key = job.key;
            left_to_expire(job.into_outcome(outbox)).inspect_err(|error| {
                let left = self.open_debts.enter(key.clone(), end, now);
                self.open_debts.note(left, error);
                self.open_debts.leave(left);
            })
        };
        jobs.into_iter().map(end).collect()
    }

    /// Has the server asked nothing more for a hold. Returns its lock.
    fn over<'a>(&self, hold: &'a Hold, holder: HolderTicket<Delivery>) -> HeldLock<'a> {
        let mut state = hold.state();
        state.over = true;
        self.forget(&mut state);
        HeldLock::new(&hold.key, &hold.options, mem::take(&mut state.lease), holder)
    }

    /// Reports how a hold has ended.
    pub(crate) fn report_end(&self, hold: &Hold, leaving: Leaving, ended: &Result<Ended, Error>) {
        let key = &hold.key;
        self.observer.notify(&match ended {
            Ok(Ended { held, .. }) if leaving == Leaving::WithToken => Event::HandedOver { key, held: *held },
            Ok(Ended { held, certified, left_to_expire, outlived_lease }) => Event::Released {
                key,
                held: *held,
                certified: *certified,
                left_to_expire: *left_to_expire,
                outlived_lease: *outlived_lease,
            },
            // It has been reported.
            Err(error) if error.is_lost() => return,
            Err(error) => Event::ReleaseFailed { key, error },
        });
    }

    /// Notes how a hold has ended. It is lost too if its lease was over before its program gave
    /// it up, and the server has not proven that it was held all the time.
    fn noted(&self, hold: &Hold, ended: Result<Released, Error>, now: Now) -> Result<Ended, Error> {
        thread_holds::forget(hold);
        let given_up = hold.given_up();
        let began = given_up.unwrap_or(now);
        let outlived_lease = hold.end().is_some_and(|end| end.has_passed(began));
        let ended = match ended {
            // That was after its program has.
            Ok(Some(Release::Lost(Loss::Expired))) if given_up.is_some() && !outlived_lease => Ok(None),
            ended => ended,
        };
        let loss = match &ended {
            Ok(Some(Release::Lost(reason))) => Some(reason.clone()),
            Ok(Some(Release::Released { certified: true }) | None) => None,
            Ok(Some(Release::Released { certified: false })) | Err(_) => {
                outlived_lease.then_some(Loss::Expired)
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
        let outcome = ended?;
        let certified = matches!(outcome, Some(Release::Released { certified: true }));
        let time = began.uptime.since(hold.acquired.uptime);
        Ok(Ended { held: time, certified, left_to_expire: outcome.is_none(), outlived_lease })
    }
}

fn left_to_expire((extended, session): (Result<Extension, GiveUp>, Session<'_>)) -> Result<Released, Error> {
    let reason = match extended {
        Ok(Extension::Extended(_)) => return Ok(None),
        Ok(Extension::Lost(reason)) => return Ok(Some(Release::Lost(reason))),
        Ok(Extension::Unknown { .. }) => GiveUp::Unknown,
        Err(reason) => reason,
    };
    let advice = "it frees itself when its lease has passed, which may be later";
    Err(session.release_error(reason, advice, advice))
}

/// Returns what becomes of the key of a hold that ends.
fn way(hold: &Hold, lease: &Lease, leaving: Leaving, now: Now) -> Way {
    let to_expire = || Way::Over(lease.has_passed(now).then_some(Release::Lost(Loss::Expired)));
    match (hold.noticed_loss(), leaving) {
        // The server has shown that it is not ours: there is nothing to delete.
        (Some(reason @ (Loss::Gone | Loss::Taken(_))), _) => Way::Over(Some(Release::Lost(reason))),
        (_, Leaving::ToExpire | Leaving::WithToken) => to_expire(),
        (_, Leaving::Release) => match time_left_to_hold(hold, lease, now) {
            Some(rest) if lease.end.is_none_or(|end| end.remaining(now) <= rest) => to_expire(),
            Some(rest) => Way::Expire(rest),
            None => Way::Release,
        },
    }
}

/// Returns for how much longer the options have the lock held, if it is to be released before.
fn time_left_to_hold(hold: &Hold, lease: &Lease, now: Now) -> Option<Duration> {
    // By the monotonic clock: the wall clock may have been set since.
    let left = hold.acquired.uptime.after(hold.options.terms.hold_at_least).since(now.uptime);
    (!lease.has_passed(now) && !left.is_zero()).then_some(left)
}

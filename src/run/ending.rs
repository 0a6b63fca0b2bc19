//! The end of holds: the locks are released, or left to expire.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use proto::hold::Release;
use proto::lease::End;
use proto::ownership::Loss;
use proto::values::Now;

use super::engine::Engine;
use super::held::{HeldLock, Holder};
use super::holder::Locked;
use super::life::{Ended, Released};
use super::outbox::Outbox;
use super::thread_holds;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::hold::{Hold, HoldState};
use crate::system::clock;

/// How a holder ends its hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    Release,
    /// The key expires by itself.
    ToExpire,
    /// Another process goes on with the lock.
    WithToken,
}

/// What becomes of a hold's key.
enum Way {
    /// Nothing, with this outcome.
    Over(Released),
    /// It expires when its options have it held no longer. Threads that wait learn of it then.
    Expire,
    Release,
}

impl Engine {
    /// Ends a hold: releases the lock, or leaves it to expire. Waits for commands of it that are on their way.
    pub(crate) fn end_hold(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        holder: Holder,
        leaving: Leaving,
    ) -> Result<Ended, Error> {
        let (mut state, now) = hold.give_up_and_wait();
        self.forget(&mut state);
        let Way::Release = way(hold, state.lease.end, leaving, now) else {
            drop(state);
            return self.end_holds(vec![(hold, holder)], leaving).remove(0).1;
        };
        // The usual one, without lists.
        let lock = HeldLock::new(&hold.key, &hold.options, mem::take(&mut state.lease), holder);
        drop(state);
        let released = self.release(lock, now).map(Some);
        thread_holds::forget(hold);
        self.noted(hold, released, now)
    }

    /// Ends holds that began together. What is sent for them goes together.
    pub(crate) fn end_holds<'a>(
        self: &Arc<Self>,
        holds: Vec<(&'a Arc<Hold>, Holder)>,
        leaving: Leaving,
    ) -> Vec<(&'a Arc<Hold>, Result<Ended, Error>)> {
        let (holds, holders): (Vec<&'a Arc<Hold>>, Vec<_>) = holds.into_iter().unzip();
        let now = clock::now();
        // Before they wait for commands that are on their way.
        for hold in &holds {
            hold.give_up(now);
        }
        let (outbox, mut locked) = (Outbox::default(), self.lock_all(&holds));
        let now = clock::now();
        let way = |(hold, state): &mut Locked<'_>| {
            self.forget(state);
            way(hold, state.lease.end, leaving, now)
        };
        let ways: Vec<Way> = locked.iter_mut().map(way).collect();
        let expire = ways.iter().any(|way| matches!(way, Way::Expire));
        let mut left =
            if expire { self.let_expire(&mut locked, &outbox, now) } else { Vec::new() }.into_iter();
        let (mut ended, mut locks) = (Vec::with_capacity(holds.len()), Vec::new());
        for (((hold, mut state), holder), way) in locked.into_iter().zip(holders).zip(ways) {
            let left = left.next();
            ended.push(match way {
                Way::Over(outcome) => Some(Ok(outcome)),
                Way::Expire => left,
                Way::Release => {
                    locks.push(HeldLock::new(&hold.key, &hold.options, mem::take(&mut state.lease), holder));
                    None
                }
            });
        }
        // Leaving the others to expire may have taken long (I5).
        let mut released = self.release_all(locks, if expire { clock::now() } else { now }).into_iter();
        outbox.flush(&self.observer);
        // They are over for the program, which learns of it now.
        for hold in &holds {
            thread_holds::forget(hold);
        }
        let outcome = |(hold, ended): (&'a Arc<Hold>, Option<_>)| {
            let released =
                || released.next().unwrap_or_else(|| unreachable!("each has its outcome")).map(Some);
            (hold, self.noted(hold, ended.unwrap_or_else(released), now))
        };
        holds.into_iter().zip(ended).map(outcome).collect()
    }

    /// Leaves those of the locks to expire that are to be held for longer.
    #[cold]
    fn let_expire(
        &self,
        locked: &mut [Locked<'_>],
        outbox: &Outbox,
        now: Now,
    ) -> Vec<Result<Released, Error>> {
        let ends: Vec<Option<End>> = locked.iter().map(|(_, state)| state.lease.end).collect();
        let rest = |hold: &Hold, state: &HoldState, now| {
            let way = way(hold, state.lease.end, Leaving::Release, now);
            matches!(way, Way::Expire).then(|| time_left_to_hold(hold, now))
        };
        let left = self.extend_locked(locked, outbox, now, rest).into_iter();
        let leave = |((hold, _), (left, end)): (&Locked<'_>, (Result<bool, Error>, _))| match left {
            Ok(_) => Ok(None),
            // If that was not noticed before, the lease has ended since the program gave the lock up.
            Err(error) if error.is_lost() => {
                Ok(Some(Release::Lost(hold.noticed_loss().unwrap_or(Loss::Expired))))
            }
            Err(error) => {
                let advice = "it frees itself when its lease has passed, which may be later";
                let why = error.not_released(advice, advice);
                let owed = self.open_debts.enter(hold.key.clone(), end, now);
                self.open_debts.note(owed, &why);
                self.open_debts.leave(owed);
                Err(why)
            }
        };
        locked.iter().zip(left.zip(ends)).map(leave).collect()
    }

    /// Has locks go on with other threads of this process: their leases begin anew, in one trip, and the holds end as by
    /// a release. One that fails is as after an extension that failed.
    pub(crate) fn hand_on(self: &Arc<Self>, holds: &[&Arc<Hold>]) -> Vec<Result<(), Error>> {
        let (outbox, began) = (Outbox::default(), clock::now());
        let mut locked = self.lock_all(holds);
        let expiration = |hold: &Hold, _: &HoldState, _| hold.options.terms.expiration;
        let extended = self.extend_locked(&mut locked, &outbox, began, expiration);
        for ((hold, state), extended) in locked.iter_mut().zip(&extended) {
            if extended.is_ok() {
                hold.give_up(began);
                self.forget(state);
            }
        }
        drop(locked);
        outbox.flush(&self.observer);
        let end = |(hold, extended): (&&Arc<Hold>, Result<bool, Error>)| {
            let release = extended.map(|certified| Some(Release::Released { certified }))?;
            thread_holds::forget(hold);
            let ended = self.noted(hold, Ok(release), began);
            self.report_end(hold, Leaving::Release, &ended);
            Ok(())
        };
        holds.iter().zip(extended).map(end).collect()
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

    /// Notes how a hold has ended.
    fn noted(&self, hold: &Hold, ended: Result<Released, Error>, now: Now) -> Result<Ended, Error> {
        let outcome = hold.finish(ended.as_ref().ok(), now);
        if let (Err(_), Err(error)) = (&outcome, &ended) {
            self.observer.notify(&Event::ReleaseFailed { key: &hold.key, error });
        }
        let outcome = outcome.map_err(|reason| {
            hold.report();
            Self::lose(hold, reason)
        })?;
        ended.map(|_| outcome)
    }
}

/// Returns what becomes of the key of a hold that ends.
fn way(hold: &Hold, end: Option<End>, leaving: Leaving, now: Now) -> Way {
    let has_passed = end.is_some_and(|end| end.has_passed(now));
    let to_expire = || Way::Over(has_passed.then_some(Release::Lost(Loss::Expired)));
    match (hold.noticed_loss(), leaving) {
        // The server has shown that it is not ours: there is nothing to delete.
        (Some(reason @ (Loss::Gone | Loss::Taken(_))), _) => Way::Over(Some(Release::Lost(reason))),
        (_, Leaving::ToExpire | Leaving::WithToken) => to_expire(),
        (_, Leaving::Release) => match time_left_to_hold(hold, now) {
            rest if has_passed || rest.is_zero() => Way::Release,
            rest if end.is_none_or(|end| end.remaining(now) <= rest) => to_expire(),
            _ => Way::Expire,
        },
    }
}

/// Returns for how much longer the options have the lock held.
fn time_left_to_hold(hold: &Hold, now: Now) -> Duration {
    // By the monotonic clock: the wall clock may have been set since.
    hold.acquired.uptime.after(hold.options.terms.hold_at_least).since(now.uptime)
}

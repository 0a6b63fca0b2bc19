//! The end of holds: a lock is handed over to the next queued thread of this process, or released, and the next process
//! that waits learns of it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use proto::hold::{self, HandedOver, Release};
use proto::lease::Lease;
use proto::task::{Begun, Io};
use proto::values::{Key, Now, Uptime};
use proto::waiting_list::Waiting;
use proto::{Command, GiveUp, Reply};

use super::drive::Job;
use super::engine::Engine;
use super::held::{Delivery, HeldLock, Holder};
use super::outbox::Outbox;
use super::session::Session;
use super::turns::{Next, Turn};
use crate::net::Failure;
use crate::report::error::Error;
use crate::report::event::Settlement;
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::WaitMode;

/// A release that has begun.
struct Releasing<'a> {
    lock: HeldLock<'a>,
    turn: Turn<'a>,
    next: Next,
    at_name: Option<Box<AtName>>,
    successor: Option<Box<Successor>>,
}

/// Whose turn it is at the name of several locks, of which this is one.
struct AtName {
    name: Key,
    next: Next,
}

/// The thread that a lock is handed over to.
struct Successor {
    /// How it waits.
    mode: WaitMode,
    lease: Lease,
}

impl Engine {
    /// Ends locks by the rules that each was acquired by, together, with a few commands and no sleep: each is handed
    /// over to the next thread of this process, or released, and the next process that waits is notified. All replies
    /// come within the time of one command; what cannot go together, or went wrong for one, is done for it alone.
    pub(super) fn release_all(
        self: &Arc<Self>,
        locks: Vec<HeldLock<'_>>,
        now: Now,
    ) -> Vec<Result<Release, Error>> {
        // The last key first: who wants all of them waits for the first.
        let mut taken = Vec::new();
        let begin = |lock| self.begin_release(lock, &mut taken, now);
        let (under_way, mut sessions): (Vec<_>, Vec<_>) = locks.into_iter().rev().map(begin).unzip();
        let ios: Vec<Io> = under_way.iter().map(|_| Io::new(now)).collect();
        let mut jobs = Vec::with_capacity(under_way.len());
        for ((release, io), session) in under_way.iter().zip(&ios).zip(&mut sessions) {
            let rules = Box::pin(release.rules(io, session.limits.command_timeout()));
            jobs.push(Job::new(release.lock.key, Begun::begin(io, rules), session));
        }
        self.drive(&mut jobs, |job| Some(job), now);
        // Reported when each next thread has its lock.
        let outbox = Outbox::default();
        let ended: Vec<_> = jobs.into_iter().map(|job| job.outcome(&outbox)).collect();
        let end = |((release, session), ended)| self.end_release(release, ended, session, now.uptime);
        let mut released: Vec<_> = under_way.into_iter().zip(sessions).zip(ended).map(end).collect();
        outbox.flush(&self.observer);
        released.reverse();
        released
    }

    /// Releases one lock.
    pub(super) fn release(self: &Arc<Self>, lock: HeldLock<'_>, now: Now) -> Result<Release, Error> {
        let (release, mut session) = self.begin_release(lock, &mut Vec::new(), now);
        let (io, outbox) = (Io::new(now), Outbox::default());
        let ended = {
            let rules = pin!(release.rules(&io, session.limits.command_timeout()));
            let mut job = Job::new(release.lock.key, Begun::begin(&io, rules), &mut session);
            job.run(now);
            job.outcome(&outbox)
        };
        let released = self.end_release(release, ended, session, now.uptime);
        outbox.flush(&self.observer);
        released
    }

    /// Begins to hand a lock over to a thread that is not among those `taken`, or to release it.
    #[inline]
    fn begin_release<'a>(
        &'a self,
        lock: HeldLock<'a>,
        taken: &mut Vec<u64>,
        now: Now,
    ) -> (Releasing<'a>, Session<'a>) {
        let HeldLock { key, options, lease, holder, owed } = &lock;
        let notifies = self.notifies(options, key);
        let turn = self.turn(notifies, options, key);
        let name = holder.place().and_then(|place| Some(place.name()?.0));
        let next = self.turn(notifies, options, key).of(name).after(holder, now);
        let mut session = Session::new(self, key, options.protocol, Some(now.uptime));
        // A later attempt does not keep others waiting for a connection.
        if owed.is_none() {
            session = session.held_until(lease.end, now);
        } else {
            session.limits.try_itself();
        }
        let at_name = self.at_name(holder, options, now);
        match (next.listed(), at_name.as_deref().and_then(AtName::listed)) {
            (Some(own), None) => session.take(Command::Waiting(own.clone())),
            (own, Some(of_name)) => {
                let lists = own.map(|own| (Key::clone(key), own.clone())).into_iter().chain([of_name]);
                session.take(Command::Take(lists.collect()));
            }
            (None, None) => {}
        }
        let successor = match &next {
            Next::Thread if lease.can_be_handed_over() => {
                let is_like = |mode: &WaitMode| {
                    mode.options().protocol == options.protocol && mode.options().terms.expiration.is_some()
                };
                holder.next(taken, is_like)
            }
            Next::Thread | Next::Any | Next::Pollers | Next::Listed(_) => None,
        };
        let successor = successor.map(|mode| {
            // As the lock was acquired: that is decided for Auto.
            let lease = Lease::of(&mode.options().terms, lease.protocol, &self.tag(), now);
            Box::new(Successor { mode, lease })
        });
        (Releasing { lock, turn, next, at_name, successor }, session)
    }

    /// Returns whose turn it is at the name of several locks, where other processes that wait for one are notified.
    fn at_name(&self, holder: &Holder, options: &LockOptions, now: Now) -> Option<Box<AtName>> {
        let (name, notifies) = holder.place()?.name()?;
        let next = || self.turn_at_name(notifies, options, name).after_one(now);
        notifies.then(|| Box::new(AtName { name: name.clone(), next: next() }))
    }

    /// Has the next waiter get the lock, or learn of the release.
    #[inline]
    fn end_release(
        self: &Arc<Self>,
        release: Releasing<'_>,
        ended: Result<HandedOver, GiveUp>,
        mut session: Session<'_>,
        now: Uptime,
    ) -> Result<Release, Error> {
        let Releasing { lock, turn, next, at_name, successor } = release;
        let (key, options) = (lock.key, lock.options);
        let mut taken = session.take_listed();
        let taken_at_name = at_name.as_deref().and_then(AtName::listed).and_then(|_| last_of(&mut taken));
        let (outcome, lease, in_doubt) = match ended {
            Ok(HandedOver { release, next, in_doubt }) => (release, next, in_doubt),
            Err(reason) => (Err(reason), None, false),
        };
        let released = matches!(outcome, Ok(Release::Released { .. }));
        let ends_place = at_name.as_deref().map(|AtName { name, next }| {
            self.turn_at_name(true, options, name).pass_on(next, released, taken_at_name, now)
        });
        let (outcome, holder) = match outcome {
            Ok(release) => (Ok(release), lock.holder),
            Err(reason) => {
                match self.not_released(lock, reason, lease.as_ref(), in_doubt, session) {
                    (error, Some(holder)) => (Err(error), holder),
                    (error, None) => {
                        // A process that was taken from the list is notified, looks, and enters it again.
                        let _ = turn.pass_on(&next, released, taken, now);
                        return Err(error);
                    }
                }
            }
        };
        let name = holder.place().and_then(|place| Some(place.name()?.0));
        turn.ended(name, now);
        if released {
            self.open_debts.released(key);
        }
        let mut holder = match lease.zip(successor.as_deref()) {
            Some((lease, Successor { mode, .. })) => {
                match holder.deliver(mode, Delivery { lease, in_doubt }, now) {
                    Ok(()) => return outcome,
                    Err((holder, _)) if in_doubt => holder,
                    Err((holder, Delivery { lease, .. })) => {
                        self.release_unwanted(HeldLock::new(key, options, lease, holder));
                        return outcome;
                    }
                }
            }
            None => holder,
        };
        if let Some((wake, at_name)) = ends_place.zip(at_name) {
            holder.end_place(wake);
            if released {
                self.turn_at_name(true, options, &at_name.name).was_left(&at_name.next);
            }
        }
        holder.finish(turn.pass_on(&next, released, taken, now), now);
        if released {
            turn.was_left(&next);
        }
        outcome
    }

    /// Returns the error of a release that gave up, with the holder unless it is tried again. `next`: the lease that
    /// the key may hold instead.
    #[cold]
    fn not_released(
        self: &Arc<Self>,
        lock: HeldLock<'_>,
        reason: GiveUp,
        next: Option<&Lease>,
        in_doubt: bool,
        session: Session<'_>,
    ) -> (Error, Option<Holder>) {
        let (key, before, now) = (lock.key, lock.owed, clock::now());
        // In doubt, the next thread may have it.
        let end = next.filter(|_| in_doubt).unwrap_or(&lock.lease).end;
        let owed = before.unwrap_or_else(|| self.open_debts.enter(key.clone(), end, now));
        let again = if session.failures.may_pass(reason) {
            self.owe_release(lock, owed, reason, next, now)
        } else {
            Err(lock.holder)
        };
        let (if_unknown, if_refused) = if_not_released(end.is_some(), in_doubt, again.is_ok());
        let error = session.error(reason, "").not_released(if_unknown, if_refused);
        self.open_debts.note(owed, &error);
        match before {
            _ if again.is_ok() => {}
            Some(_) => self.settle(key, owed, Settlement::LeftToExpire),
            None => self.open_debts.leave(owed),
        }
        (error, again.err())
    }
}

impl AtName {
    fn listed(&self) -> Option<(Key, Waiting)> {
        Some((self.name.clone(), self.next.listed()?.clone()))
    }
}

/// Takes what came of the last of several lists out of what came of all. A refusal is that of each.
fn last_of(taken: &mut Option<Result<Reply, Failure>>) -> Option<Result<Reply, Failure>> {
    match taken.take()? {
        Ok(Reply::Bulks(mut channels)) => {
            let last = channels.pop().map(|last| Ok(Reply::Bulk(last)));
            *taken = channels.pop().map(|own| Ok(Reply::Bulk(own)));
            last
        }
        // There was only one.
        last @ Ok(Reply::Bulk(_)) => Some(last),
        other => {
            *taken = Some(other.clone());
            Some(other)
        }
    }
}

impl Releasing<'_> {
    async fn rules(&self, io: &Io, command_timeout: Duration) -> Result<HandedOver, GiveUp> {
        let next = self.successor.as_deref().map(|next| &next.lease);
        hold::end(io, &self.lock.lease, next, command_timeout).await
    }
}

/// Returns what it means that a lock was not released: if the reply
/// was lost, and if it was refused. `goes_on`: it is tried again.
fn if_not_released(expires: bool, in_doubt: bool, goes_on: bool) -> (&'static str, &'static str) {
    if goes_on && expires {
        let again = "the release is tried again until the lease ends";
        (again, again)
    } else if goes_on {
        let again = "the release is tried again for at most `retry_for`; the lock has no expiration, so look at the key afterwards, and clear it \
                     if it is still there";
        (again, again)
    } else if in_doubt {
        let may_be = "a waiting thread may have it now; otherwise it frees itself when its lease or that thread's has passed";
        (may_be, may_be)
    } else if expires {
        (
            "if it was not released, it frees itself when its lease has passed",
            "it was not released, and frees itself when its lease has passed",
        )
    } else {
        (
            "it has no expiration, so look at the key, and clear it if it is still there",
            "it was not released and has no expiration, so clear it",
        )
    }
}

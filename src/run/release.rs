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
use proto::{GiveUp, Reply};

use super::drive::Job;
use super::engine::Engine;
use super::held::{Delivery, HeldLock};
use super::notifications::Passed;
use super::outbox::Outbox;
use super::session::Session;
use crate::net::Failure;
use crate::report::error::Error;
use crate::report::event::Settlement;
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::{Hint, HolderTicket, WaitMode, Wake};

/// For how long the lock passes among the threads of a process before it is the turn of another that waits for
/// notifications.
const SLICE: Duration = Duration::from_millis(10);

/// A release that has begun.
struct Releasing<'a> {
    lock: HeldLock<'a>,
    turn: Turn,
    next: Option<Box<Next>>,
}

/// The thread that a lock is handed over to.
struct Next {
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
            let rules = Box::pin(release.rules(io, session.command_timeout()));
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
            let rules = pin!(release.rules(&io, session.command_timeout()));
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
        let turn = self.turn(holder, key, options, now);
        let mut session = Session::new(self, key, options.protocol, Some(now.uptime));
        // A later attempt does not keep others waiting for a connection.
        if owed.is_none() {
            session = session.held_until(lease.end, now);
        } else {
            session.try_itself();
        }
        let next = match &turn {
            Turn::NextThread if lease.can_be_handed_over() => {
                let is_like = |mode: &WaitMode| {
                    mode.options().protocol == options.protocol && mode.options().terms.expiration.is_some()
                };
                holder.next(taken, is_like)
            }
            Turn::NextThread | Turn::WhoComes | Turn::Pollers => None,
            Turn::Listed(taking) => {
                session.take(taking.clone());
                None
            }
        };
        let next = next.map(|mode| {
            // As the lock was acquired: that is decided for Auto.
            let lease = Lease::of(&mode.options().terms, lease.protocol, &self.tag(), now);
            Box::new(Next { mode, lease })
        });
        (Releasing { lock, turn, next }, session)
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
        let Releasing { lock, turn, next } = release;
        let (key, options) = (lock.key, lock.options);
        let taken = session.take_listed();
        let (outcome, lease, in_doubt) = match ended {
            Ok(HandedOver { release, next, in_doubt }) => (release, next, in_doubt),
            Err(reason) => (Err(reason), None, false),
        };
        let (outcome, holder) = match outcome {
            Ok(release) => (Ok(release), lock.holder),
            Err(reason) => {
                match self.not_released(lock, reason, lease.as_ref(), in_doubt, session) {
                    (error, Some(holder)) => (Err(error), holder),
                    (error, None) => {
                        // A process that was taken from the list is notified, looks, and enters it again.
                        let released = false;
                        let _ = self.wake(key, &turn, released, taken, now);
                        return Err(error);
                    }
                }
            }
        };
        let released = matches!(outcome, Ok(Release::Released { .. }));
        if released {
            self.open_debts.released(key);
        }
        let holder = match lease.zip(next.as_deref()) {
            Some((lease, Next { mode, .. })) => match holder.deliver(mode, Delivery { lease, in_doubt }, now)
            {
                Ok(()) => return outcome,
                Err((holder, _)) if in_doubt => holder,
                Err((holder, Delivery { lease, .. })) => {
                    self.release_unwanted(HeldLock::new(key, options, lease, holder));
                    return outcome;
                }
            },
            None => holder,
        };
        holder.finish(self.wake(key, &turn, released, taken, now), now);
        // The threads that it was left to may have given up meanwhile.
        let is_left_here = released && !matches!(turn, Turn::Listed(_));
        if is_left_here && self.notifies(options, key) && !self.queue.is_waited_for(key) {
            self.notifications.of(key).was_left_to_none(key);
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
    ) -> (Error, Option<HolderTicket<Delivery>>) {
        let (key, before, now) = (lock.key, lock.owed, clock::now());
        // In doubt, the next thread may have it.
        let end = next.filter(|_| in_doubt).unwrap_or(&lock.lease).end;
        let owed = before.unwrap_or_else(|| self.open_debts.enter(key.clone(), end, now));
        let again = if session.may_pass(reason) {
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

    /// Notifies the next process, if it is its turn. Returns how the threads of this one learn of the release.
    fn wake(
        &self,
        key: &Key,
        turn: &Turn,
        released: bool,
        taken: Option<Result<Reply, Failure>>,
        now: Uptime,
    ) -> Wake {
        let taking = match turn {
            Turn::Listed(taking) => taking,
            _ if !released => return Wake::Hint(Hint::Changed),
            Turn::NextThread | Turn::WhoComes => return Wake::Hint(Hint::Freed),
            Turn::Pollers => return Wake::NextSlice(Hint::Freed),
        };
        let notifications = self.notifications.of(key);
        notifications.sent_next(key, taking, taken.as_ref());
        let passed = match taken {
            // Even if the key holds another's value: the process that is
            // notified then looks, and enters the list again.
            Some(taken) if released || taken.is_ok() => {
                notifications.pass_on(key, taken, self.budget(Some(now)), &self.observer)
            }
            _ => Passed::ToNone,
        };
        match passed {
            _ if !released => Wake::Hint(Hint::Changed),
            Passed::ToNone => Wake::NextSlice(Hint::Freed),
            Passed::ToOther if notifications.is_listed(key) => Wake::Notification(Hint::Freed),
            // A thread that has come meanwhile, or whose entry was taken, is to look, and to enter the list.
            Passed::ToOther => Wake::NextSlice(Hint::Changed),
        }
    }

    /// Whose turn it is after a release.
    fn turn(&self, holder: &HolderTicket<Delivery>, key: &Key, options: &LockOptions, now: Now) -> Turn {
        let yields = holder.of_next(|key, activity| activity.window(key, now).is_some());
        if yields == Some(true) {
            return Turn::Pollers;
        }
        if self.notifies(options, key) {
            let slice = holder.slice();
            if slice.is_some_and(|since| now.uptime.since(since) < SLICE) {
                return Turn::NextThread;
            }
            if let Some(taking) = self.notifications.of(key).next(key, slice.is_some()) {
                return Turn::Listed(taking);
            }
        }
        if yields.is_some() { Turn::NextThread } else { Turn::WhoComes }
    }
}

impl Releasing<'_> {
    async fn rules(&self, io: &Io, command_timeout: Duration) -> Result<HandedOver, GiveUp> {
        let next = self.next.as_deref().map(|next| &next.lease);
        hold::end(io, &self.lock.lease, next, command_timeout).await
    }
}

/// Whose turn it is after a release.
enum Turn {
    /// A thread of this process is queued, and is next.
    NextThread,
    /// No thread of this process is queued.
    WhoComes,
    /// Other processes poll: the lock is left to them for a while.
    Pollers,
    /// Other processes are in the waiting list, from which the first is taken.
    Listed(Waiting),
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

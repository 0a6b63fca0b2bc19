//! Releasing, and who learns of it: the next queued thread of this process, or the next process that waits.

use super::call::Call;
use super::notifications::Passed;
use super::together::Run;
use super::{Answer, Engine};
use std::time::Duration;

use crate::backend::Failure;
use crate::clock::{Now, Uptime};
use crate::error::Error;
use crate::event::Event;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::lease::Lease;
use crate::protocol::owned::{self, Owned, Release};
use crate::protocol::task::Task;
use crate::protocol::waiting_list::Waiting;
use crate::protocol::{GiveUp, Reply};
use crate::queue::{Ending, Hint, HolderTicket};

/// For how long the lock passes among the threads of a process before it is the turn of another that waits for notifications.
const SLICE: Duration = Duration::from_millis(10);

/// A held lock, to be released.
#[derive(Debug)]
pub(super) struct HeldLock<'a> {
    pub(super) key: &'a Key,
    pub(super) options: &'a LockOptions,
    /// The protocol that it was acquired by.
    pub(super) protocol: Protocol,
    pub(super) lease: &'a Lease,
    pub(super) holder: HolderTicket<Answer>,
}

/// What came of the commands of a release.
struct Ended {
    outcome: Result<Release, Error>,
    /// Whether the head of the queue has an answer.
    has_answered: bool,
    /// What was taken from the waiting list.
    taken: Option<Result<Reply, Failure>>,
}

impl Engine {
    /// Releases a lock that the thread has got and does not want any more. A failure is reported, and returned.
    pub(super) fn release_unwanted(&self, lock: HeldLock<'_>, now: Now) -> Vec<Error> {
        self.release_all_unwanted(vec![lock], now)
    }

    /// The same for several. Returns the failures.
    pub(super) fn release_all_unwanted(&self, locks: Vec<HeldLock<'_>>, now: Now) -> Vec<Error> {
        let keys: Vec<&Key> = locks.iter().map(|lock| lock.key).collect();
        let released = self.release_all(locks, now);
        let failed = |(key, released): (&Key, Result<_, Error>)| {
            let error = released.err()?;
            self.observer.notify(&Event::ReleaseFailed { key, error: &error });
            Some(error)
        };
        keys.into_iter().zip(released).filter_map(failed).collect()
    }

    /// Releases locks by the rules that each was acquired by, together, with a few commands and no sleep, and asks for each lock for the next
    /// thread of this process, or notifies the next waiter. All replies come within the time of one command; what cannot go together, or went
    /// wrong for one, is done for it alone.
    pub(super) fn release_all(&self, locks: Vec<HeldLock<'_>>, now: Now) -> Vec<Result<Release, Error>> {
        let turn = |lock: &HeldLock<'_>| self.turn(&lock.holder, lock.key, lock.options, now);
        let turns: Vec<Turn> = locks.iter().map(turn).collect();
        let begin = |(lock, turn)| self.begin_release(lock, turn, now);
        let mut runs: Vec<Run<'_, Release>> = locks.iter().zip(&turns).map(begin).collect();
        self.run_together(runs.iter_mut().collect());
        // The last key first. A thread that waits for all waits for the first, and then for one after the other: it would go on before those
        // are asked for for which any of them will do.
        self.finish_each(runs.iter_mut().rev());
        let ended: Vec<Ended> = runs.iter_mut().zip(&locks).map(|(run, lock)| ended(run, lock)).collect();
        drop(runs);
        let ends = locks.into_iter().zip(turns).zip(ended);
        ends.map(|((lock, turn), ended)| self.end_release(lock, &turn, ended, now.uptime)).collect()
    }

    fn begin_release<'a>(&'a self, lock: &'a HeldLock<'_>, turn: &Turn, now: Now) -> Run<'a, Release> {
        let HeldLock { key, options, protocol, lease, holder } = lock;
        let call = Call::new(self, key, options.protocol, Some(now.uptime)).held_until(lease.end, now);
        let call = match turn {
            Turn::Passes => call.releasing(holder),
            Turn::Comes | Turn::Yields => call,
            Turn::Ends(taking) => call.taking(taking.clone()),
        };
        let own = Owned { lease: (*lease).clone(), protocol: *protocol, asked: options.protocol };
        Run::new(key, Task::begin(now, |io| owned::release(io, own)), call)
    }

    /// Has the next waiter learn of a release.
    fn end_release(
        &self,
        lock: HeldLock<'_>,
        turn: &Turn,
        ended: Ended,
        now: Uptime,
    ) -> Result<Release, Error> {
        let HeldLock { key, options, holder, .. } = lock;
        let Ended { outcome, has_answered, taken } = ended;
        let released = matches!(outcome, Ok(Release::Released { .. }));
        if let Turn::Ends(taking) = &turn {
            self.notifications.sent_next(key, taking, taken.as_ref());
        }
        let passed = match taken {
            // Also if the key holds another's value: the process that is notified then looks, and enters the list again.
            Some(taken) if released || taken.is_ok() => {
                self.notifications.pass_on(key, taken, self.budget(Some(now)), &self.observer)
            }
            _ => Passed::ToNone,
        };
        let is_left_here = released && !has_answered && !matches!(turn, Turn::Ends(_));
        let ending = match turn {
            _ if has_answered => Ending::Answer,
            _ if !released => Ending::Hint(Hint::Changed),
            Turn::Passes | Turn::Comes => Ending::Hint(Hint::Freed),
            Turn::Yields => Ending::NextSlice(Hint::Freed),
            Turn::Ends(_) if passed == Passed::ToNone => Ending::NextSlice(Hint::Freed),
            Turn::Ends(_) if self.notifications.is_listed(key) => Ending::Notification(Hint::Freed),
            // A thread that has come meanwhile, or whose entry was taken, is to look, and to enter the list.
            Turn::Ends(_) => Ending::NextSlice(Hint::Changed),
        };
        holder.end(ending, now);
        // The threads that it was left to may have given up meanwhile.
        if options.notifies && is_left_here && !self.queue.is_waited_for(key) {
            self.notifications.was_left_to_none(key);
        }
        outcome
    }

    /// Whose turn it is after a release.
    fn turn(&self, holder: &HolderTicket<Answer>, key: &Key, options: &LockOptions, now: Now) -> Turn {
        let yields = holder.of_next(|key, activity| activity.window(key, now).is_some());
        if yields == Some(true) {
            return Turn::Yields;
        }
        if options.notifies {
            let slice = holder.slice();
            if slice.is_some_and(|since| now.uptime.since(since) < SLICE) {
                return Turn::Passes;
            }
            if let Some(taking) = self.notifications.next(key, slice.is_some()) {
                return Turn::Ends(taking);
            }
        }
        if yields.is_some() { Turn::Passes } else { Turn::Comes }
    }
}

/// Whose turn it is after a release.
enum Turn {
    /// That of the next thread of this process.
    Passes,
    /// That of the thread that comes next.
    Comes,
    /// That of other processes, which poll.
    Yields,
    /// That of the process which has waited longest, as the waiting list says.
    Ends(Waiting),
}

fn ended(run: &mut Run<'_, Release>, lock: &HeldLock<'_>) -> Ended {
    let outcome = run.outcome();
    let outcome = outcome.map_err(|reason| not_released(&mut run.call, reason, lock.lease));
    Ended { outcome, has_answered: run.call.has_answered, taken: run.call.taken.take() }
}

fn not_released(call: &mut Call<'_>, reason: GiveUp, lease: &Lease) -> Error {
    let (if_unknown, if_refused) = match lease.end {
        Some(_) => (
            "if it was not released, it frees itself when its lease has passed",
            "it was not released, and frees itself when its lease has passed",
        ),
        None => (
            "it has no expiration, so look at the key, and clear it if it is still there",
            "it was not released and has no expiration, so clear it",
        ),
    };
    call.take_release_error(reason, if_unknown, if_refused)
}

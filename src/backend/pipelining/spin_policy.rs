//! How a thread spends the wait for another's batch: it yields its processor a few times, and then sleeps.
//!
//! Sleeping and waking cost more than a command does. Yielding costs little as long as the threads that run instead have a few
//! microseconds of work, as those of this library have. Among threads that compute, a yield costs some milliseconds, in which
//! next to nothing is sent. So the policy measures how long yields take and how many requests leave the queue meanwhile; while that is
//! too few, no thread yields, but for a try now and then, or while threads queue for admission.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::admission::Admitted;
use super::combiner::{Rank, WaitStage};
use crate::backend::limits::Limits;
use crate::backend::loss_account::LossAccount;
use crate::clock::{self, Uptime};

/// Up to this many threads do not share batches: with a connection each they are faster.
const FEW: usize = 4;
/// The same where waiting threads have to sleep.
const FEW_THAT_SLEEP: usize = 16;
/// How often a thread yields before it sleeps.
const YIELDS: u32 = 16;
/// The same while threads queue for admission: one that sleeps lets in another, whose memory is in no cache.
const YIELDS_BEFORE_A_QUEUE: u32 = 64;
/// How long yielding may take for each request that leaves the queue meanwhile.
const WORTH: Duration = Duration::from_micros(20);
/// What is lost when a thread has yielded as often as it may and sleeps all the same.
const SLEEP: Duration = Duration::from_micros(10);
/// How much may be lost by yielding before it pauses.
const LOSS: Duration = Duration::from_millis(10);
/// A server whose replies take longer is far away: there no thread waits for another's batch while there is a connection.
const FAR: Duration = Duration::from_micros(300);
/// When the first of the queue has been that for so long, it leads a batch of its own. A round trip on one machine takes less; over a
/// little longer way, this is what a thread may lose by pipelining.
const MAX_FIRST: Duration = Duration::from_micros(150);
/// How much longer than the reply may take the thread that sends is waited for.
const GRACE: Duration = Duration::from_millis(50);

/// What the threads of a backend have learned about yielding. All figures are estimates: an update lost to a race does not matter.
#[derive(Debug)]
pub(in crate::backend) struct SpinPolicy {
    /// How many threads can have a connection each.
    connections: usize,
    /// The longest that a reply takes, where that is known.
    command_timeout: Duration,
    /// No thread yields during its pauses.
    account: LossAccount,
    /// How long replies have taken lately, in microseconds.
    reply_time: AtomicU64,
    /// Until when gains and losses have been counted, in microseconds of uptime, and until which request.
    counted_until: AtomicU64,
    counted: AtomicUsize,
}

/// A moment, and how many requests had left the queue by then.
#[derive(Clone, Copy)]
struct Mark {
    at: Uptime,
    dequeued: usize,
}

impl SpinPolicy {
    pub(in crate::backend) fn new(connections: usize, command_timeout: Duration) -> Self {
        Self {
            connections,
            command_timeout,
            account: LossAccount::new(LOSS),
            reply_time: AtomicU64::new(0),
            counted_until: AtomicU64::new(0),
            counted: AtomicUsize::new(0),
        }
    }

    /// Whether so many active threads should share batches.
    pub(in crate::backend) fn is_contended(&self, threads: usize) -> bool {
        if self.is_far() {
            return threads > self.connections;
        }
        threads > FEW_THAT_SLEEP.min(self.connections)
            || threads > FEW.min(self.connections) && self.account.pays(clock::uptime())
    }

    /// Notes how long the replies to a batch have taken.
    pub(in crate::backend) fn note_replies(&self, took: Duration) {
        let before = self.reply_time.load(Ordering::Relaxed);
        // A moving average.
        self.reply_time.store((7 * before + micros(took)) / 8, Ordering::Relaxed);
    }

    fn is_far(&self) -> bool {
        self.reply_time.load(Ordering::Relaxed) > micros(FAR)
    }

    /// Returns how a thread waits: a function that spends some time and returns whether to go on. `dequeued` counts the requests that
    /// have left the queue. A thread that sleeps gives up its place.
    pub(in crate::backend) fn waiting<'a>(
        &'a self,
        limits: &Limits<'a>,
        dequeued: impl Fn() -> usize + 'a,
        admitted: &'a Admitted<'a>,
    ) -> impl FnMut(WaitStage) -> bool + 'a {
        let Limits { connected_by, answered_by, held_until, stop, .. } = *limits;
        let mark = move || Mark { at: clock::uptime(), dequeued: dequeued() };
        // Being sent wakes no thread, and how long the reply may take is counted from then.
        let look = self.command_timeout.max(GRACE);
        let mut yielded = Some(0);
        let mut first = None;
        let mut in_flight = None;
        move |stage| {
            let before = mark();
            let until = match stage {
                WaitStage::Queued(_) if stop.0() => return false,
                WaitStage::Queued(Rank::First) => {
                    let at_most = if self.is_far() { Duration::ZERO } else { MAX_FIRST };
                    *first.get_or_insert_with(|| before.at.after(at_most).min(connected_by))
                }
                WaitStage::Queued(Rank::Later | Rank::Overdue) => connected_by,
                // The leader notices its time limit no sooner, and then hands out the replies it has. It may get no processor for
                // longer, which is no reason to leave a lock held.
                WaitStage::InFlight => *in_flight.get_or_insert_with(|| {
                    let at_most = before.at.after(self.command_timeout).max(held_until.unwrap_or_default());
                    at_most.min(answered_by).after(GRACE)
                }),
            };
            let left = until.since(before.at);
            if left.is_zero() {
                return false;
            }
            // Sleeping would let in the whole queue, thread after thread: so no pause ends yielding then.
            let others_queue = admitted.others_queue();
            let most = if others_queue { YIELDS_BEFORE_A_QUEUE } else { YIELDS };
            match yielded {
                Some(times) if times < most && (others_queue || self.account.pays(before.at)) => {
                    yielded = Some(times + 1);
                    thread::yield_now();
                    if !others_queue {
                        self.note(before, mark());
                    }
                }
                _ => {
                    if yielded.take() == Some(YIELDS) && !others_queue {
                        self.account.note(SLEEP, Duration::ZERO, before.at);
                    }
                    admitted.give_up_place();
                    thread::park_timeout(left.min(look));
                }
            }
            true
        }
    }

    /// Counts a yield. What another thread has counted already does not count again: many yield at the same time.
    fn note(&self, from: Mark, to: Mark) {
        let until = micros(to.at.0);
        let since = micros(from.at.0).max(self.counted_until.swap(until, Ordering::Relaxed));
        let counted = self.counted.swap(to.dequeued, Ordering::Relaxed);
        let dequeued = to.dequeued.saturating_sub(from.dequeued.max(counted));
        let took = Duration::from_micros(until.saturating_sub(since));
        self.account.note(took, WORTH.saturating_mul(u32::try_from(dequeued).unwrap_or(u32::MAX)), to.at);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(connections: usize) -> SpinPolicy {
        SpinPolicy::new(connections, Duration::from_secs(2))
    }

    fn mark(millis: u64, dequeued: usize) -> Mark {
        Mark { at: Uptime(Duration::from_millis(millis)), dequeued }
    }

    /// Yields a hundred times for three milliseconds each, with so many requests leaving the queue each time; returns whether it goes on.
    fn goes_on(dequeued_each: usize) -> bool {
        let policy = policy(10);
        let marks: Vec<_> = (0..=100).map(|turn| mark(1000 + 3 * turn, 0)).collect();
        marks.windows(2).enumerate().all(|(turn, pair)| {
            let dequeued = (turn * dequeued_each, (turn + 1) * dequeued_each);
            policy.note(Mark { dequeued: dequeued.0, ..pair[0] }, Mark { dequeued: dequeued.1, ..pair[1] });
            policy.account.pays(pair[1].at)
        })
    }

    #[test]
    fn yielding_goes_on_while_requests_leave_the_queue() {
        // 3 ms are worth 150 commands.
        assert!(goes_on(150) && goes_on(1000));
        assert!(!goes_on(140) && !goes_on(0));
    }

    #[test]
    fn sleeping_after_all_is_a_loss_too() {
        let policy = policy(10);
        let at = mark(1000, 0).at;
        for _ in 0..1000 {
            policy.account.note(SLEEP, Duration::ZERO, at);
        }
        assert!(policy.account.pays(at), "10 ms");
        policy.account.note(SLEEP, Duration::ZERO, at);
        assert!(!policy.account.pays(at));
    }

    #[test]
    fn what_many_lose_at_the_same_time_is_lost_once() {
        let policy = policy(10);
        for _ in 0..200 {
            policy.note(mark(1000, 0), mark(1008, 0));
        }
        assert!(policy.account.pays(mark(1008, 0).at));
    }

    #[test]
    fn batches_are_shared_by_more_threads_than_have_a_connection_each() {
        let (one, ten) = (policy(1), policy(10));
        assert!(!one.is_contended(1) && one.is_contended(2));
        assert!(!ten.is_contended(4) && ten.is_contended(5));
        // While threads have to sleep, sharing is for larger ones.
        ten.account.pause_for_ever();
        assert!(!ten.is_contended(10) && ten.is_contended(11));
    }
}

//! One of the threads of a scenario.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::Ordering::SeqCst;

use super::lease::{Lease, Server};
use super::scenario::{Behavior, Ending, Harness, Kind, Release};
use super::subject::{self, Called, Hint, no_hold};
use super::sync::{self, wait_while};
use super::{Key, Observation, WaitMode};

type HolderTicket = subject::HolderTicket<Lease>;
type Ticket = subject::Ticket<Lease>;

/// The payload of a panic that belongs to the scenario.
struct ExpectedPanic;

pub(super) struct Worker<'a> {
    pub(super) harness: &'a Harness,
    pub(super) number: usize,
    pub(super) behavior: Behavior,
}

impl Worker<'_> {
    pub(super) fn run(&self) {
        for _ in 0..self.behavior.rounds {
            let held = match self.behavior.kind {
                Kind::Waits => match catch_unwind(AssertUnwindSafe(|| self.wait())) {
                    Ok(held) => held,
                    Err(panic) if panic.is::<ExpectedPanic>() => None,
                    Err(panic) => resume_unwind(panic),
                },
                Kind::TriesOnce => {
                    let observation = Observation::default();
                    let hold = |lease| (lease, self.harness.queue.hold(self.key(), &observation, no_hold()));
                    self.server().set().map(hold)
                }
                Kind::InAnotherProcess => {
                    if let Some(lease) = self.server().set() {
                        lease.work(|| ());
                        lease.end();
                        self.harness.notifications.send();
                    }
                    None
                }
            };
            if let Some((lease, holder)) = held {
                self.note_served();
                lease.work(|| ());
                self.release(lease, holder);
            }
        }
    }

    /// As the engine does it: where another thread has looked it sleeps first, and at its deadline it looks once more.
    fn wait(&self) -> Option<(Lease, HolderTicket)> {
        let notified = self.behavior.release == Release::Notifies;
        let mut ticket = self.join(WaitMode { notified, variant: self.behavior.variant });
        let mut delivered = None;
        let mut look = match ticket.wait(None, self.behavior.is_ahead, || self.park(false)) {
            Called::Lease(lease) => {
                delivered = Some(lease);
                false
            }
            Called::Over { .. } => return None,
            Called::Head { seen, .. } => seen.is_none(),
        };
        let (head, changed) = &self.harness.head;
        *head.lock() = self.number;
        changed.notify_all();
        let mut over = false;
        loop {
            let lease = delivered.take().or_else(|| if look { self.ask() } else { None });
            if let Some(lease) = lease {
                lease.assert_held();
                return Some((lease, ticket.enter(&Observation::default(), no_hold())));
            }
            if over {
                return None;
            }
            if notified {
                self.harness.notifications.want();
            }
            look = true;
            match ticket.wait(Some(Observation::default()), false, || self.park(true)) {
                Called::Lease(lease) => delivered = Some(lease),
                // A thread that is past its deadline passes the hint on.
                Called::Head { hint: Some(hint), .. }
                    if self.behavior.ending == Ending::TimesOut && self.ends() =>
                {
                    self.harness.queue.notify(self.key(), hint);
                    return None;
                }
                Called::Head { .. } => {}
                Called::Over { .. } => {
                    over = self.behavior.ending != Ending::Polls || self.harness.queue.is_closed();
                }
            }
        }
    }

    fn join(&self, mode: WaitMode) -> Ticket {
        let Some((joined, changed)) = &self.harness.joined else {
            if self.behavior.is_ahead {
                return self.harness.queue.join_ahead(self.key(), mode);
            }
            return self.harness.queue.join(self.key(), mode);
        };
        let mut count = wait_while(changed, joined.lock(), |count| *count < self.number);
        let ticket = self.harness.queue.join(self.key(), mode);
        *count += 1;
        let last = *count == self.harness.ends.len();
        drop(count);
        changed.notify_all();
        if last {
            // Another process has held the lock until now.
            self.server().free();
            self.harness.queue.notify(self.key(), Hint::Freed);
        }
        ticket
    }

    /// One command of a head.
    fn ask(&self) -> Option<Lease> {
        if self.behavior.is_ahead {
            return self.server().set();
        }
        let asked = &self.harness.asked[self.behavior.key][self.behavior.variant];
        assert!(!asked.swap(true, SeqCst), "two heads of one mode");
        let acquired = self.server().set();
        assert!(asked.swap(false, SeqCst));
        acquired
    }

    fn release(&self, lease: Lease, holder: HolderTicket) {
        const FREED: subject::Wake = subject::Wake::Hint(Hint::Freed);
        let harness = self.harness;
        if self.behavior.release == Release::OutlivesItsLease {
            let (head, changed) = &harness.head;
            let _next = wait_while(changed, head.lock(), |head| *head <= self.number);
        }
        let hands_over = matches!(
            self.behavior.release,
            Release::HandsOver | Release::HandsOverInVain | Release::HandsOverUnheard
        );
        let next = if hands_over { holder.next(&mut Vec::new(), |_| true) } else { None };
        match (self.behavior.release, next) {
            (Release::HandsOver, Some(mode)) => {
                let delivered = holder.deliver(&mode, lease.replace(), super::Uptime);
                if let Err((holder, lease)) = delivered {
                    lease.end();
                    holder.finish(FREED, super::Uptime);
                }
            }
            // The holder does not learn that it was written. It expires.
            (Release::HandsOverUnheard, Some(_)) => {
                lease.replace().end();
                drop(holder);
            }
            (Release::Notifies, _) => {
                lease.end();
                harness.notifications.send();
                holder.finish(subject::Wake::Notification(Hint::Freed), super::Uptime);
            }
            _ => {
                lease.end();
                holder.finish(FREED, super::Uptime);
            }
        }
    }

    /// Sleeps. Returns whether to sleep on.
    fn park(&self, is_head: bool) -> bool {
        let ends = match self.behavior.ending {
            Ending::Never => false,
            Ending::TimesOut | Ending::Panics => self.ends(),
            Ending::Polls => is_head && self.harness.ends[self.number].swap(false, SeqCst),
        };
        if ends && self.behavior.ending == Ending::Panics {
            self.server().allow_left();
            resume_unwind(Box::new(ExpectedPanic));
        }
        if ends {
            return false;
        }
        // Sometimes it returns spuriously.
        if !thread_rng().gen_bool(0.1) {
            sync::park();
        }
        true
    }

    fn ends(&self) -> bool {
        self.harness.ends[self.number].load(SeqCst)
    }

    fn note_served(&self) {
        if self.harness.joined.is_some() {
            self.harness.served.lock().push(self.number);
        }
    }

    fn key(&self) -> &Key {
        &self.harness.keys[self.behavior.key]
    }

    fn server(&self) -> &Arc<Server> {
        &self.harness.servers[self.behavior.key]
    }
}

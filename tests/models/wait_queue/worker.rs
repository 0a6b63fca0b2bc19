//! One of the threads of a scenario.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::Ordering::SeqCst;

use super::scenario::{Behavior, Ending, FREE, HANDED_OFF, HELD, Harness, Kind, Release, Server};
use super::subject::{Hint, HolderTicket, Ticket, Turn, Woken};
use super::sync::{self, lock, wait_while};
use super::{Handoff, Key, Observation, WaitMode};

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
            let holder = match self.behavior.kind {
                Kind::Waits => match catch_unwind(AssertUnwindSafe(|| self.wait())) {
                    Ok(holder) => holder,
                    Err(panic) if panic.is::<ExpectedPanic>() => None,
                    Err(panic) => resume_unwind(panic),
                },
                Kind::TriesOnce => {
                    self.server().set(false).then(|| self.harness.queue.hold(self.key(), Observation))
                }
                Kind::InAnotherProcess => {
                    if self.server().set(false) {
                        self.server().hold();
                        self.server().value.store(FREE, SeqCst);
                        self.harness.notifications.send();
                    }
                    None
                }
            };
            if let Some(holder) = holder {
                self.note_served();
                self.server().hold();
                self.release(holder);
            }
        }
    }

    /// As the engine does it: where another thread has looked it sleeps first, and at its deadline it looks once more.
    fn wait(&self) -> Option<HolderTicket> {
        let notified = self.behavior.release == Release::Notifies;
        let mode = WaitMode { notified, variant: self.behavior.variant, worker: self.number };
        let mut ticket = self.join(mode);
        let mut look = match ticket.turn(|| self.park(false)) {
            Turn::HandedOff(handoff, holder) => return Some(self.accept(&handoff, holder)),
            Turn::Over { .. } => return None,
            Turn::Head(observation) => observation.is_none(),
        };
        let (head, changed) = &self.harness.head;
        *lock(head) = self.number;
        changed.notify_all();
        let mut over = false;
        loop {
            if look && self.ask() {
                return Some(ticket.enter(Observation));
            }
            if over {
                return None;
            }
            if notified {
                self.harness.notifications.want();
            }
            look = true;
            match ticket.sleep(Observation, || self.park(true)) {
                Woken::HandedOff(handoff, holder) => return Some(self.accept(&handoff, holder)),
                // A thread that is past its deadline passes the hint on.
                Woken::Hint(hint) if self.behavior.ending == Ending::TimesOut && self.ends() => {
                    self.harness.queue.notify(self.key(), hint);
                    return None;
                }
                Woken::Hint(_) => {}
                Woken::Over => {
                    over = self.behavior.ending != Ending::Polls || self.harness.queue.is_closed();
                }
            }
        }
    }

    fn join(&self, mode: WaitMode) -> Ticket {
        let Some((joined, changed)) = &self.harness.joined else {
            return self.harness.queue.join(self.key(), mode);
        };
        let mut count = wait_while(changed, lock(joined), |count| *count < self.number);
        let ticket = self.harness.queue.join(self.key(), mode);
        *count += 1;
        let last = *count == self.harness.ends.len();
        drop(count);
        changed.notify_all();
        if last {
            // Another process has held the lock until now.
            self.server().value.store(FREE, SeqCst);
            self.harness.queue.notify(self.key(), Hint::Freed);
        }
        ticket
    }

    /// One command of a head.
    fn ask(&self) -> bool {
        let server = self.server();
        let asked = &server.asked[self.behavior.variant];
        assert!(!asked.swap(true, SeqCst), "two heads of one mode");
        let acquired = server.set(self.harness.panicked.load(SeqCst));
        assert!(asked.swap(false, SeqCst));
        acquired
    }

    fn accept(&self, handoff: &Handoff, holder: HolderTicket) -> HolderTicket {
        assert_eq!(handoff.mode.worker, self.number, "renewed for another thread");
        let renewed = self.server().value.compare_exchange(HANDED_OFF, HELD, SeqCst, SeqCst);
        assert_eq!(renewed, Ok(HANDED_OFF), "the lock was not handed off");
        holder
    }

    fn release(&self, holder: HolderTicket) {
        let (harness, server) = (self.harness, self.server());
        if self.behavior.release == Release::OutlivesItsLease {
            let (head, changed) = &harness.head;
            let _next = wait_while(changed, lock(head), |head| *head <= self.number);
        }
        let mut ours = HELD;
        let mut holder = holder;
        if self.behavior.release == Release::HandsOff
            && let Some((successor, mode)) = holder.successor()
        {
            server.value.store(HANDED_OFF, SeqCst);
            ours = HANDED_OFF;
            match holder.hand_off(successor, &Handoff { observation: Observation, mode }) {
                None => return,
                Some(kept) => holder = kept,
            }
        }
        let released = server.value.compare_exchange(ours, FREE, SeqCst, SeqCst);
        assert!(
            released.is_ok() || harness.panicked.load(SeqCst),
            "another thread holds the lock: {released:?}"
        );
        match self.behavior.release {
            Release::Plain | Release::HandsOff | Release::OutlivesItsLease => {
                holder.end(Hint::Freed, false);
            }
            Release::ReplyLost => drop(holder),
            Release::Notifies => {
                harness.notifications.send();
                holder.end(Hint::Freed, true);
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
            self.harness.panicked.store(true, SeqCst);
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
            lock(&self.harness.served).push(self.number);
        }
    }

    fn key(&self) -> &Key {
        &self.harness.keys[self.behavior.key]
    }

    fn server(&self) -> &Server {
        &self.harness.servers[self.behavior.key]
    }
}

//! One of the threads of a scenario.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::Ordering::SeqCst;

use super::scenario::{BY_FIRST, Behavior, Ending, FREE, Harness, Kind, Release, Server};
use super::subject::{self, Hint, Sleep, Turn, Woken};
use super::sync::{self, lock, wait_while};
use super::{Answer, Key, Observation, WaitMode};

type HolderTicket = subject::HolderTicket<Answer>;
type Ticket = subject::Ticket<Answer>;

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
                    self.set().then(|| self.harness.queue.hold(self.key(), None, &Observation::default()))
                }
                Kind::InAnotherProcess => {
                    if self.set() {
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
        let (mut answer, mut in_doubt) = (None, false);
        let mut look = match ticket.turn(|sleep| self.park(sleep, false)) {
            Turn::Answered(answered) => {
                answer = Some(answered);
                false
            }
            Turn::Over { .. } => return None,
            Turn::Head(observation, _) => observation.is_none(),
        };
        let (head, changed) = &self.harness.head;
        *lock(head) = self.number;
        changed.notify_all();
        let mut over = false;
        loop {
            let granted = match answer.take() {
                Some(Answer::Granted) => true,
                // It reads the key, which shows its own value if the command was carried out.
                Some(Answer::Lost) => {
                    in_doubt = true;
                    self.owns() || self.ask()
                }
                Some(Answer::NotGranted) => false,
                None => look && (in_doubt && self.owns() || self.ask()),
            };
            if granted {
                assert!(self.owns(), "not granted to this thread");
                return Some(ticket.enter(None, &Observation::default()));
            }
            if over {
                self.abandon(in_doubt);
                return None;
            }
            if notified {
                self.harness.notifications.want();
            }
            look = true;
            match ticket.sleep(Observation::default(), true, |sleep| self.park(sleep, true)) {
                Woken::Answered(answered) => answer = Some(answered),
                // A thread that is past its deadline passes the hint on.
                Woken::Hint(hint) if self.behavior.ending == Ending::TimesOut && self.ends() => {
                    self.harness.queue.notify(self.key(), hint);
                    drop(ticket);
                    self.abandon(in_doubt);
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
        let acquired = self.set();
        assert!(asked.swap(false, SeqCst));
        acquired
    }

    /// SETNX, or a takeover.
    fn set(&self) -> bool {
        let panicked = self.harness.panicked.load(SeqCst).then(|| self.harness.panicked_by.load(SeqCst));
        self.server().set(self.number, panicked)
    }

    /// Gives up, perhaps with a command on its way whose lease then passes.
    fn abandon(&self, in_doubt: bool) {
        if in_doubt {
            self.server().abandoned[self.number].store(true, SeqCst);
            self.let_expire(self.number);
        }
    }

    /// Has the lease of a worker pass that has given up. Those who wait see that in the key.
    fn let_expire(&self, worker: usize) {
        let server = self.server();
        if server.abandoned[worker].load(SeqCst)
            && server.value.compare_exchange(BY_FIRST + worker, FREE, SeqCst, SeqCst).is_ok()
        {
            self.harness.queue.notify(self.key(), Hint::Freed);
        }
    }

    fn owns(&self) -> bool {
        self.server().value.load(SeqCst) == BY_FIRST + self.number
    }

    fn release(&self, holder: HolderTicket) {
        let (harness, server) = (self.harness, self.server());
        if self.behavior.release == Release::OutlivesItsLease {
            let (head, changed) = &harness.head;
            let _next = wait_while(changed, lock(head), |head| *head <= self.number);
        }
        let (ours, mut next) = (BY_FIRST + self.number, None);
        let claim = match self.behavior.release {
            Release::Asks | Release::AsksInVain | Release::AsksButIsTooLate | Release::ReplyLost => holder
                .claim(|mode| {
                    next = Some(mode.worker);
                    Some(Answer::Lost)
                }),
            Release::Plain | Release::Notifies | Release::OutlivesItsLease => None,
        };
        let granted = next.is_some() && matches!(self.behavior.release, Release::Asks | Release::ReplyLost);
        // One trip: no other client comes in between.
        let after = next.filter(|_| granted).map_or(FREE, |next| BY_FIRST + next);
        let released = server.value.compare_exchange(ours, after, SeqCst, SeqCst);
        assert!(
            released.is_ok() || harness.panicked.load(SeqCst),
            "another thread holds the lock: {released:?}"
        );
        let granted = granted && released.is_ok();
        if let Some(next) = next {
            self.let_expire(next);
        }
        match (self.behavior.release, claim) {
            (Release::Asks | Release::AsksInVain, Some(claim)) => {
                let taken = claim.answer(if granted { Answer::Granted } else { Answer::NotGranted });
                holder
                    .end(if granted && taken { subject::Ending::Answer } else { Self::FREED }, super::Uptime);
            }
            (Release::ReplyLost, claim) => {
                drop(claim);
                drop(holder);
            }
            (Release::AsksButIsTooLate, Some(claim)) => {
                claim.withdraw();
                holder.end(Self::FREED, super::Uptime);
            }
            (Release::Notifies, _) => {
                harness.notifications.send();
                holder.end(subject::Ending::Notification(Hint::Freed), super::Uptime);
            }
            _ => holder.end(Self::FREED, super::Uptime),
        }
    }

    const FREED: subject::Ending = subject::Ending::Hint(Hint::Freed);

    /// Sleeps. Returns whether to sleep on.
    fn park(&self, sleep: Sleep, is_head: bool) -> bool {
        let ends = match self.behavior.ending {
            // It gives up on its answer at any moment, too.
            _ if sleep == Sleep::Claimed && self.behavior.ending != Ending::TimesOut => false,
            Ending::Never => false,
            Ending::TimesOut | Ending::Panics => self.ends(),
            Ending::Polls => is_head && self.harness.ends[self.number].swap(false, SeqCst),
        };
        if ends && self.behavior.ending == Ending::Panics {
            self.harness.panicked_by.store(self.number, SeqCst);
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

//! Clients that ask for the lock in the random search, by the rules.

use std::time::Duration;

use super::holding::Held;
use super::{Doing, Run, gem, one_in};
use setnx_lock_proto::acquire::Params;
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::task::Rules;
use setnx_lock_proto::values::Now;
use setnx_lock_proto::{Cue, Observation, Replies, Step};

/// Returns how a client goes on that was woken: by asking, or by looking.
pub(super) fn hinted(choice: u8) -> Cue {
    if one_in(5, choice) { Cue::Ask } else { Cue::Look(None) }
}

impl Run {
    pub(super) fn start(&mut self, n: usize, choice: u8, now: Now) {
        let other = usize::from(choice / 6) % 3;
        let observation = self.clients[other].observation.clone().filter(|_| one_in(6, choice));
        let tag = self.fresh_tag(n);
        let terms = self.terms(n);
        self.clients[n].wrote.clear();
        let client = &mut self.clients[n];
        let protocol = client.protocol.on(client.server);
        let soon = now.uptime.after(Duration::from_millis(choice.into()));
        let deadline = self.conditions.doubts.then_some(soon);
        let params = Params { terms, protocol, deadline, retry_for: Duration::from_secs(5), tag };
        let (attempt, step, owed) = crate::owing(params, observation.map_or(Cue::Ask, Cue::Behind), now);
        (client.attempt, client.debts.of_attempt) = (Some(attempt), owed);
        self.act(n, step);
    }

    pub(super) fn reply_to_attempt(&mut self, n: usize, replies: Replies, now: Now) {
        let client = &mut self.clients[n];
        if let Some(attempt) = &mut client.attempt {
            let step = attempt.resume(replies, now);
            self.act(n, step);
        }
    }

    pub(super) fn wake(&mut self, n: usize, cue: Cue, now: Now) {
        if let Some(attempt) = &mut self.clients[n].attempt {
            let step = attempt.wake(cue, now);
            self.act(n, step);
        }
    }

    pub(super) fn act(&mut self, n: usize, step: Step<Lease>) {
        self.note(n, format_args!("{step:?}"));
        let now = self.now(n);
        self.take_owed(n);
        self.clients[n].doing = match step {
            Step::Send(trip) => self.sent(n, trip),
            Step::Sleep(pause) if pause.time == gem::BETWEEN => Doing::Pausing { since: self.time },
            Step::Sleep(pause) => {
                self.clients[n].observation = Some(Observation { seen: pause.seen, at: now.uptime });
                Doing::Asleep { in_doubt: pause.in_doubt }
            }
            Step::Done(lease) => {
                self.grants += 1;
                let number = self.clients[n].executed;
                let on = self.clients[n].executed_on;
                if on == self.failovers.epoch || !self.conditions.fails_over {
                    self.holders.insert(number);
                }
                if !self.written.contains(&*lease.value) {
                    self.breaks("a client was told that it has the lock, and its value was never in the key");
                }
                // Another client has written it for this one.
                if !self.clients[n].wrote.contains(&lease.value.to_vec()) {
                    self.clients[n].wrote = vec![lease.value.to_vec()];
                }
                self.clients[n].held = Some(Held { lease, number, on });
                self.clients[n].granted = self.clients[n].handed_over.take().unwrap_or(self.time);
                self.looks_soon(n);
                Doing::Working
            }
            Step::GiveUp(_) => {
                // A gem that has got no reply is as one that has crashed.
                self.clients[n].held = None;
                Doing::Nothing
            }
        };
    }
}

//! How time passes in the random search, and who holds the lock meanwhile.

use super::{Client, Doing, Gems, MILLI, Run, gem};
use setnx_lock_proto::Cue;

impl Run {
    /// Lets time pass. A command that has been on its way for the
    /// longest delay is carried out; with gems, a reply arrives as soon.
    pub(super) fn pass(&mut self, time: u64) {
        let end = self.time + time;
        let limit = self.conditions.delay * MILLI;
        loop {
            let late = |n| if self.is_gem(n) { 0 } else { self.conditions.late * MILLI };
            let due = |n: usize, client: &Client| match client.doing {
                Doing::Sent { since, .. } => Some(since + limit),
                Doing::Replied(..) if self.conditions.gems != Gems::None => {
                    Some(client.executed_at + limit + late(n))
                }
                Doing::Pausing { since } => Some(since + gem::PAUSE),
                Doing::Working => client.looks_at.map(|at| at.max(self.time)),
                _ => None,
            };
            let runs = |n: &usize| Some(*n) != self.frozen;
            let next = (0..3).filter(runs).filter_map(|n| due(n, &self.clients[n]).map(|at| (at, n))).min();
            let next = next.filter(|(at, _)| *at <= end);
            let by = next.map_or(end, |(at, _)| at);
            if let Some(first) = (0..self.late.len()).find(|late| self.late[*late].0 <= by) {
                let (at, n, mut leg) = self.late.swap_remove(first);
                self.time = self.time.max(at);
                let reply = self.server.carry_out(self.since_start(), &mut leg);
                self.note_written();
                self.note(n, format_args!("carried out late: {leg:?}, no reply, which was {reply:?}"));
                continue;
            }
            let Some((at, n)) = next else { break };
            self.time = self.time.max(at);
            match std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
                Doing::Sent { mut leg, .. } => {
                    let reply = self.carry_out(n, &mut leg);
                    self.clients[n].doing = Doing::Replied(leg, reply);
                }
                Doing::Replied(leg, reply) => self.reply(n, leg, reply),
                Doing::Pausing { .. } => self.wake(n, Cue::Look(None), self.now(n)),
                Doing::Working => self.looks(n, self.now(n)),
                doing => self.clients[n].doing = doing,
            }
        }
        self.time = self.time.max(end);
    }

    /// Those that hold the lock now.
    pub(super) fn present(&self) -> impl Iterator<Item = usize> {
        let holds = |n: &usize| {
            let Client { held, counts_until, .. } = &self.clients[*n];
            let end = held.as_ref().and_then(|held| counts_until.or(held.lease.end));
            end.is_some_and(|end| !end.has_passed(self.now(*n)))
        };
        (0..3).filter(holds)
    }

    /// Returns true if two hold the lock. Beside gems one of ours
    /// must have had it first: gems overwrite each other as well.
    pub(super) fn is_shared(&self) -> bool {
        let number = |n: &usize| self.clients[*n].held.as_ref().map(|held| held.number);
        let mut present: Vec<usize> = self.present().collect();
        present.sort_by_key(number);
        match self.conditions.gems {
            Gems::Classic { count, .. } if count > 1 => {
                present.iter().take(present.len().saturating_sub(1)).any(|n| !self.is_gem(*n))
            }
            _ => present.len() > 1,
        }
    }
}

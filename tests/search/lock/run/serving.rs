//! How trips get to the server in the random search, one step at a time.

use super::{Doing, Gems, Run, gem};
use crate::rules::{Command, Reply, Trip};
use crate::simulated::Leg;

impl Run {
    pub(super) fn sent(&self, n: usize, trip: Trip) -> Doing {
        self.on_its_way(n, Leg::first(trip))
    }

    pub(super) fn on_its_way(&self, n: usize, leg: Leg) -> Doing {
        let is_late = leg.before().is_some_and(|end| end.has_passed(self.now(n)));
        // Gems, and holders, wait no longer than a command takes.
        let waits = self.conditions.waits && (self.conditions.gems == Gems::None || leg.before().is_some());
        if is_late || waits { Doing::Waiting(leg) } else { Doing::Sent { leg, since: self.time } }
    }

    pub(super) fn note_written(&mut self) {
        if let Some(value) = self.server.value(self.since_start()) {
            self.written.insert(value.to_vec());
        }
    }

    pub(super) fn carry_out(&mut self, n: usize, leg: &mut Leg) -> Reply {
        let now = self.since_start();
        let before = self.server.value(now).map(<[u8]>::to_vec);
        if !leg.command().is_none_or(Command::only_reads) {
            self.clients[n].replaced.clone_from(&before);
        }
        let own = self.clients[n].ends.as_ref();
        let is_own = own.is_some_and(|own| self.server.value(now) == Some(&*own.value));
        self.clients[n].found_another |= !is_own;
        let is_newer = self.conditions.gems == Gems::Newer;
        let of_gem = is_newer
            .then(|| gem::carry_out(&mut self.server, leg, self.clients[n].expiration, now))
            .flatten();
        let reply = of_gem.unwrap_or_else(|| self.server.carry_out(now, leg));
        self.note_written();
        if matches!(self.conditions.gems, Gems::Classic { .. }) {
            if self.is_gem(n) {
                self.note_gem(n, leg, before.as_deref());
            }
            self.note_driven_out(n, leg, before.as_deref());
        }
        self.executions += 1;
        (self.clients[n].executed, self.clients[n].executed_at) = (self.executions, self.time);
        self.note(n, format_args!("carried out: {leg:?}, reply: {reply:?}"));
        reply
    }
}

//! Failovers in the random search. The new master has not the last writes, and the old one may go on for a second: a
//! client uses its connection to that until it sends its next command, or is cut off.

use super::{MILLI, Run};
use crate::simulated::{Leg, Server};
use setnx_lock_proto::values::Protocol;
use setnx_lock_proto::{Command, Reply};

/// How many writes are remembered.
const REMEMBERED: usize = 8;
/// How long the old master goes on, in microseconds.
const GOES_ON: u64 = 1000 * MILLI;

/// The master's configuration, and what was before.
#[derive(Debug, Default)]
pub(super) struct Failovers {
    /// The number of the configuration.
    pub(super) epoch: u64,
    /// The master before each of its last writes.
    history: Vec<Server>,
    /// The old master, and until when it goes on.
    old: Option<(Server, u64)>,
    /// How often one has lost a write.
    pub(super) lost: u64,
}

impl Run {
    pub(in crate::lock) fn lost(&self) -> u64 {
        self.failovers.lost
    }

    /// The server has restarted: what was on its way is gone.
    pub(super) fn restarts(&mut self) {
        self.failovers.epoch += 1;
        self.late.clear();
    }

    /// Another server becomes the master.
    pub(super) fn fails_over(&mut self, choice: u8) {
        let lost = 1 + usize::from(choice / 32) % 3;
        let Failovers { history, .. } = &mut self.failovers;
        let kept = history.len().saturating_sub(lost);
        let Some(server) = history.drain(kept..).next() else { return };
        let old = std::mem::replace(&mut self.server, server);
        self.failovers.old = (choice >= 64).then_some((old, self.time + GOES_ON));
        self.failovers.epoch += 1;
        self.failovers.lost += 1;
        self.late.clear();
        let epoch = self.failovers.epoch;
        self.note(0, format_args!("sees the failover to {epoch}, which loses {lost} writes"));
    }

    /// Has a client use another connection for what it sends next.
    pub(super) fn connect(&mut self, n: usize) {
        self.failovers.old.take_if(|(_, until)| *until <= self.time);
        let goes_on = self.failovers.old.is_some() && (self.time / MILLI).is_multiple_of(2);
        if !goes_on || !self.is_connected(n) {
            self.clients[n].connected = self.failovers.epoch;
            if self.conditions.ages {
                self.clients[n].server = Some(self.version);
            }
        }
    }

    fn is_connected(&self, n: usize) -> bool {
        let Failovers { epoch, old, .. } = &self.failovers;
        let connected = self.clients[n].connected;
        connected == *epoch || old.is_some() && connected + 1 == *epoch
    }

    /// Carries out a step of a trip on the server that the client is connected to; `None` if that is gone.
    pub(super) fn on_its_server(
        &mut self,
        n: usize,
        leg: &mut Leg,
        carry_out: impl FnOnce(&mut Self, &mut Leg) -> Reply,
    ) -> Reply {
        self.failovers.old.take_if(|(_, until)| *until <= self.time);
        if !self.is_connected(n) {
            return Reply::Lost;
        }
        let epoch = self.clients[n].connected;
        if !matches!(leg.command(), Some(Command::ForgetAfter(_))) {
            self.clients[n].executed_on = epoch;
        }
        let swap = |run: &mut Self| {
            if let Some((old, _)) = run.failovers.old.as_mut().filter(|_| epoch < run.failovers.epoch) {
                std::mem::swap(&mut run.server, old);
            }
        };
        swap(self);
        let before = self.server.clone();
        let writes = !leg.command().is_none_or(|command| matches!(command, Command::Get));
        let reply = carry_out(self, leg);
        swap(self);
        if writes && epoch == self.failovers.epoch {
            let history = &mut self.failovers.history;
            history.push(before);
            history.drain(..history.len().saturating_sub(REMEMBERED));
        }
        reply
    }

    /// Returns true if every release compares. In Classic it deletes the lock of another on a new master.
    pub(super) fn all_compare(&self) -> bool {
        let compares = |protocol: &Protocol| matches!(protocol, Protocol::Watched | Protocol::Ttl);
        self.conditions.protocols.iter().all(compares)
    }

    /// Returns true if two hold the lock of one master: it has granted it to each, or confirmed it.
    pub(super) fn is_shared_on_a_master(&self) -> bool {
        let of_master = |n: &usize| {
            let held = self.clients[*n].held.as_ref();
            held.is_some_and(|held| held.on == self.failovers.epoch)
        };
        self.present().filter(of_master).count() > 1
    }
}

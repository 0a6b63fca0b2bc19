//! How trips get to the server in the random search, one step at a time.

use std::time::Duration;

use super::{Client, Doing, Gems, Run, gem};
use crate::simulated::Leg;
use setnx_lock_proto::lease::GUARD;
use setnx_lock_proto::values::{Protocol, State};
use setnx_lock_proto::{Command, Reply, Trip, WhyRefused};

/// Within which time after a value was made another may be that of a client that has lost the takeover.
const LOSER_WITHIN: Duration = Duration::from_millis(700);

impl Run {
    pub(super) fn sent(&mut self, n: usize, trip: Trip) -> Doing {
        self.connect(n);
        let value = match &trip.command {
            Command::SetNx(entry) | Command::Set(entry) => Some(&entry.value),
            Command::Renew(renewed) => Some(&renewed.0.value),
            Command::GetSet(value) => Some(value),
            _ => None,
        };
        self.clients[n].wrote.extend(value.map(|value| value.to_vec()));
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
        self.on_its_server(n, leg, |run, leg| run.carried_out(n, leg))
    }

    fn carried_out(&mut self, n: usize, leg: &mut Leg) -> Reply {
        let now = self.since_start();
        let before = self.server.value(now).map(<[u8]>::to_vec);
        if !leg.command().is_none_or(Command::leaves_key) {
            self.clients[n].replaced.clone_from(&before);
        }
        let is_own = self.is_own(n, before.as_deref());
        self.clients[n].found_another |= !is_own;
        // A loser's value is as good.
        let since = self.clients[n].ends.as_ref().map(|own| own.since);
        let is_losers = since.is_some_and(|since| self.now(n).uptime.since(since) < LOSER_WITHIN);
        let wrote = before.as_ref().is_some_and(|value| self.clients[n].wrote.contains(value));
        self.clients[n].found_own |= is_own || wrote || is_losers;
        let is_newer = self.conditions.gems == Gems::Newer;
        let of_gem = is_newer
            .then(|| gem::carry_out(&mut self.server, leg, self.clients[n].expiration, now))
            .flatten();
        let of_full = self.refusal_of_a_full_server(n, leg);
        let of_older = self.refusal_of_an_older_server(n, leg);
        let reply = of_gem.or(of_full).or(of_older).unwrap_or_else(|| self.server.carry_out(now, leg));
        self.note_written();
        let keeps = matches!(leg.command(), Some(Command::ForgetAfter(_) | Command::Renew(_)))
            || matches!(leg.command(), Some(Command::Count { forget_after: Some(_) }));
        if keeps && !matches!(reply, Reply::Executed(None)) && !self.clients[n].found_own {
            self.breaks("a call has set the time of a counter, and had not found the lock to be its own");
        }
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

    /// The server gets full, or has memory again.
    pub(super) fn fills(&mut self, n: usize) {
        self.is_full = !self.is_full;
        let what = if self.is_full { "full" } else { "with memory" };
        self.note(n, format_args!("finds the server {what}"));
    }

    /// A full server refuses what may need memory, and queues nothing.
    /// It carries out what deletes; one of the clients has an old one.
    fn refusal_of_a_full_server(&mut self, n: usize, leg: &Leg) -> Option<Reply> {
        let command = leg.command().filter(|_| self.conditions.fills)?;
        let is_alone = leg.trip().if_holds.is_none();
        let lacks = n == 0 && *command == Command::GetDel;
        let deletes = matches!(command, Command::Del | Command::GetDel);
        self.deleted_alone += u64::from(is_alone && deletes && !lacks);
        let why = match command {
            _ if lacks => WhyRefused::Command,
            Command::Get | Command::Del | Command::GetDel if is_alone => return None,
            Command::ForgetAfter(_) => return None,
            _ if self.is_full => WhyRefused::OverMemory,
            _ => return None,
        };
        Some(Reply::Refused(why))
    }

    /// Returns true if this is a client's own value of what it does with its lock; or one that it wrote before, since
    /// when the server has lost writes, and both leases last.
    fn is_own(&self, n: usize, found: Option<&[u8]>) -> bool {
        let Client { ends: Some(own), wrote, .. } = &self.clients[n] else { return false };
        let Some(found) = found else { return false };
        let now = self.now(n);
        let lasts = || {
            let later = if own.protocol == Protocol::Ttl { GUARD * 10 } else { GUARD };
            let State::Until { until: shown, .. } = State::of_value(Some(found)) else {
                return false;
            };
            shown.before(later) > now.wall && !own.has_passed(now)
        };
        let wrote = |bytes: &[u8]| wrote.iter().any(|value| value == bytes);
        found == &*own.value || self.conditions.fails_over && wrote(found) && wrote(&own.value) && lasts()
    }
}

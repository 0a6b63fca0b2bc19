//! One run of the random search: three clients, their clocks, one key, and the commands and replies on their way.

mod aging;
mod attempts;
mod conditions;
mod debts;
mod failover;
mod fencing;
mod gem;
mod holding;
mod passing;
mod releasing;
mod serving;
mod tokens;
mod visitor;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::simulated::{Leg, Next, Server};
pub(super) use conditions::{Conditions, Gems};
use failover::Failovers;
use holding::{Held, Power};
use releasing::Releasing;
use setnx_lock_proto::lease::{End, Lease};
use setnx_lock_proto::task::Task;
use setnx_lock_proto::values::{Nonce, Now, Protocol, Tag, Terms, Uptime, Version, Wall};
use setnx_lock_proto::{Cue, Observation, Reply};
use tokens::HandedOut;
use visitor::Visitor;

const START: u64 = 1_795_000_000_000_000;
const MILLI: u64 = 1000;

/// Which client, which of its possible steps, and after how many milliseconds.
pub(super) type Choice = (usize, u8, u64);

#[derive(Debug)]
enum Doing {
    Nothing,
    /// There is no connection yet.
    Waiting(Leg),
    /// A command is on its way.
    Sent {
        leg: Leg,
        since: u64,
    },
    /// The command was carried out, and the reply is on its way.
    Replied(Leg, Reply),
    /// Whether a command whose reply was lost may have acquired the lock.
    Asleep {
        in_doubt: bool,
    },
    /// A gem, since then, between two commands.
    Pausing {
        since: u64,
    },
    /// It holds the lock, and no command is on its way.
    Working,
}

#[derive(Debug)]
struct Client {
    protocol: Protocol,
    /// The version that its connection reported.
    server: Option<Version>,
    expiration: Duration,
    skew: u64,
    doing: Doing,
    attempt: Option<Task<Lease>>,
    releasing: Option<Releasing>,
    held: Option<Held>,
    /// During an extension: until when one of the leases counts.
    counts_until: Option<End>,
    power: Option<Power>,
    /// When the server carried out its last command, counted by commands.
    executed: u64,
    /// And when.
    executed_at: u64,
    /// And on the master of which configuration, and which it is connected to.
    executed_on: u64,
    /// Until when the server cannot have proved that it had the lock.
    unproven: u64,
    connected: u64,
    /// What its last change of the key has replaced.
    replaced: Option<Vec<u8>>,
    /// The lease of what it does with its lock.
    ends: Option<Lease>,
    /// True if the key held another value than its own when a command of what it does with its lock was carried out.
    found_another: bool,
    /// True if it held its own at one of them.
    found_own: bool,
    /// The values that it has sent since it began to ask for the lock.
    wrote: Vec<Vec<u8>>,
    /// When it is to look whether its value was overwritten.
    looks_at: Option<u64>,
    /// When it was granted the lock, or extended its lease too late.
    /// With a lock that is handed over it is handed over as well.
    granted: u64,
    handed_over: Option<u64>,
    /// For how long its machine was suspended.
    suspended: u64,
    /// What it saw last of the lock, and when.
    observation: Option<Observation>,
    /// The lock that it releases, and one that it has failed to.
    ended: Option<Lease>,
    again: Option<Lease>,
    debts: debts::Debts,
}

#[derive(Debug)]
pub(super) struct Run {
    conditions: Conditions,
    /// True time, in microseconds.
    time: u64,
    server: Server,
    clients: Vec<Client>,
    /// Requests whose connections have failed, and that arrive all the same: when, and whose.
    late: Vec<(u64, usize, Leg)>,
    /// What happened; only on request, since writing it takes longer than the rest of the run.
    log: Option<Vec<String>>,
    /// How often a client acquired the lock, how often a holder's lease was extended, and how often that was certified.
    pub(super) grants: u64,
    pub(super) extensions: u64,
    pub(super) certified: u64,
    /// How many commands the server has carried out.
    executions: u64,
    /// The numbers of all holders so far.
    holders: BTreeSet<u64>,
    /// The tokens of holders, by their number. Before each token: how often the counter was forgotten.
    pub(super) tokens: BTreeMap<u64, (u64, u64)>,
    /// How often the counter was forgotten.
    pub(super) forgotten: u64,
    /// The law that was broken first, of those that are not seen in the state.
    broken: Option<&'static str>,
    /// How often a holder has handed the lock over.
    pub(super) handed_over: u64,
    /// How often a release was tried again.
    pub(super) again: u64,
    handed_out: Vec<HandedOut>,
    /// How often a client has gone on with the lock of a token.
    pub(super) resumed: u64,
    visitor: Option<Visitor>,
    /// The client whose machine is suspended.
    frozen: Option<usize>,
    /// All that was ever written into the key.
    written: BTreeSet<Vec<u8>>,
    /// How often a gem has overwritten the value of a holder.
    pub(super) overwritten: u64,
    /// How often a gem has lost the lock after a clear, just after another's grant.
    pub(super) priced: u64,
    failovers: Failovers,
    is_full: bool,
    /// How often the server was found too old for what was sent.
    pub(super) too_old: u64,
    version: Version,
    /// How often the key was deleted by a command alone.
    pub(super) deleted_alone: u64,
    nonces: u64,
}

impl Run {
    fn new(conditions: Conditions) -> Self {
        let clients = (0..3).map(|n| Client {
            protocol: conditions.protocols[n],
            // One knows that the server has Watched, and one Ttl.
            server: [None, Some(aging::WITH_WATCH), Some(aging::WITH_TTL)][n],
            expiration: Duration::from_millis(conditions.expirations[n]),
            skew: conditions.skew * MILLI * n as u64 / 2,
            doing: Doing::Nothing,
            attempt: None,
            releasing: None,
            held: None,
            counts_until: None,
            power: None,
            executed: 0,
            executed_at: START,
            executed_on: 0,
            unproven: 0,
            connected: 0,
            replaced: None,
            ends: None,
            found_another: false,
            found_own: false,
            wrote: Vec::new(),
            looks_at: None,
            granted: 0,
            handed_over: None,
            suspended: 0,
            observation: None,
            ended: None,
            again: None,
            debts: debts::Debts::default(),
        });
        Self {
            conditions,
            time: START,
            server: crate::holding((conditions.gems != Gems::Newer).then(|| b"1532000016.5".to_vec())),
            clients: clients.collect(),
            late: Vec::new(),
            log: None,
            grants: 0,
            extensions: 0,
            certified: 0,
            executions: 0,
            holders: BTreeSet::new(),
            tokens: BTreeMap::new(),
            forgotten: 0,
            broken: None,
            handed_over: 0,
            again: 0,
            handed_out: Vec::new(),
            resumed: 0,
            visitor: None,
            frozen: None,
            written: BTreeSet::new(),
            overwritten: 0,
            priced: 0,
            failovers: Failovers::default(),
            is_full: false,
            version: aging::WITH_TTL,
            too_old: 0,
            deleted_alone: 0,
            nonces: 0,
        }
    }

    /// Performs the steps until a law is broken. Returns the run, and which.
    pub(super) fn perform(conditions: Conditions, steps: &[Choice]) -> (Self, Option<&'static str>) {
        let mut run = Self::new(conditions);
        let broken = steps.iter().find_map(|(n, choice, millis)| run.step(*n, *choice, *millis));
        (run, broken)
    }

    /// Performs the steps again, and returns what happened.
    pub(super) fn log(conditions: Conditions, steps: &[Choice]) -> String {
        let mut run = Self { log: Some(Vec::new()), ..Self::new(conditions) };
        steps.iter().find_map(|(n, choice, millis)| run.step(*n, *choice, *millis));
        run.log.unwrap_or_default().join("\n")
    }

    fn since_start(&self) -> Duration {
        Duration::from_micros(self.time - START)
    }

    fn now(&self, n: usize) -> Now {
        let Client { skew, suspended, .. } = self.clients[n];
        let uptime = self.since_start().saturating_sub(Duration::from_micros(suspended));
        Now { wall: Wall(self.time + skew), uptime: Uptime::of(uptime) }
    }

    /// Lets client `n` take one of its possible steps, after some time. Returns the law that is broken then.
    fn step(&mut self, n: usize, choice: u8, millis: u64) -> Option<&'static str> {
        self.pass(millis * MILLI);
        self.forgotten += u64::from(self.server.forget_counter(self.since_start()));
        if self.conditions.suspends && !self.is_gem(n) && choice % 16 == 9 {
            let time = u64::from(choice) * 50 * MILLI;
            self.frozen = Some(n);
            self.pass(time);
            self.frozen = None;
            self.clients[n].suspended += time;
            self.note(n, format_args!("was suspended for {} ms", time / MILLI));
        }
        if self.conditions.clears && choice % 16 == 13 {
            self.server.set(None);
            self.note(n, format_args!("finds that the key was cleared"));
        }
        if self.conditions.fails_over && choice % 32 == 21 {
            self.fails_over(choice);
        }
        if self.conditions.ages && choice % 16 == 5 {
            self.ages(choice);
        }
        if self.conditions.fills && choice % 8 == 7 {
            self.fills(n);
        }
        if self.conditions.touches && one_in(3, choice) {
            self.server.touch();
        }
        self.visit(choice);
        let now = self.now(n);
        match std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
            Doing::Nothing if self.is_gem(n) => self.start_gem(n, now),
            Doing::Nothing if !one_in(8, choice) && self.pay(n, now) => {}
            Doing::Nothing => match self.clients[n].again.take_if(|_| !one_in(3, choice)) {
                Some(own) => self.try_again(n, own, now),
                None => match self.new_token(choice) {
                    Some(token) => self.resumes(n, token, now),
                    None => self.start(n, choice, now),
                },
            },
            Doing::Waiting(leg) if leg.before().is_some_and(|end| end.has_passed(now)) => {
                self.reply(n, leg, Reply::TooLate);
            }
            Doing::Waiting(leg) if one_in(16, choice) => self.reply(n, leg, Reply::Unsent),
            Doing::Waiting(leg) => self.clients[n].doing = Doing::Sent { leg, since: self.time },
            Doing::Sent { leg, since } if self.loses_request(choice) => {
                // It is lost, or arrives after the client has given it up.
                if one_in(16, choice) && self.clients[n].connected == self.failovers.epoch {
                    let delay = self.conditions.delay * MILLI;
                    self.late.push((since + delay, n, leg.clone()));
                }
                self.reply(n, leg, Reply::Lost);
            }
            Doing::Sent { mut leg, .. } => {
                let reply = self.carry_out(n, &mut leg);
                self.clients[n].doing = Doing::Replied(leg, reply);
            }
            Doing::Replied(leg, reply)
                if !self.conditions.reliable
                    && one_in(self.losses(matches!(reply, Reply::Executed(_))), choice) =>
            {
                self.reply(n, leg, Reply::Lost);
            }
            paused @ Doing::Pausing { .. } if one_in(2, choice) => self.clients[n].doing = paused,
            Doing::Pausing { .. } => self.wake(n, Cue::Look(None), now),
            replied @ Doing::Replied(..)
                if self.conditions.late > 0 && !self.is_gem(n) && !one_in(3, choice) =>
            {
                self.clients[n].doing = replied;
            }
            Doing::Replied(leg, reply) => self.reply(n, leg, reply),
            // Another thread holds the lock mostly for longer than a sleep.
            asleep @ Doing::Asleep { .. } if one_in(3, choice) => self.clients[n].doing = asleep,
            Doing::Asleep { in_doubt: false } if self.new_token(choice).is_some() => {
                self.resumes(n, self.new_token(choice).unwrap_or_default(), now);
            }
            // A hint may be old, or of another's release.
            Doing::Asleep { .. } => self.wake(n, attempts::hinted(choice), now),
            Doing::Working if self.is_gem(n) => self.work_as_gem(n, choice),
            Doing::Working => self.work(n, choice, now),
        }
        if self.broken.is_some() {
            return self.broken;
        }
        if self.visitor_was_driven_out() {
            return Some("a gem has lost the lock within its lease");
        }
        // A holder may be overwritten unseen where it cannot look.
        if self.conditions.clears || self.conditions.suspends || self.conditions.late > 0 {
            return None;
        }
        if self.conditions.fails_over {
            let law = "two clients hold the lock, and one master has granted or confirmed it to both";
            return (self.all_compare() && self.is_shared_on_a_master()).then_some(law);
        }
        if self.is_shared() {
            return Some("two clients hold the lock");
        }
        self.has_unsafe_token()
    }

    fn breaks(&mut self, law: &'static str) {
        self.broken.get_or_insert(law);
    }

    pub(super) fn terms(&self, n: usize) -> Terms {
        Terms::expiring_after(self.clients[n].expiration)
    }

    fn reply(&mut self, n: usize, leg: Leg, reply: Reply) {
        let now = self.now(n);
        let replies = match leg.answered(reply) {
            Next::Leg(leg) => return self.clients[n].doing = self.on_its_way(n, leg),
            Next::End(replies) => replies,
        };
        let client = &mut self.clients[n];
        if let Some(releasing) = &mut client.releasing {
            let step = releasing.resume(replies, now);
            self.act_on_release(n, step);
        } else if client.power.is_some() {
            self.reply_to_holder(n, replies, now);
        } else {
            self.reply_to_attempt(n, replies, now);
        }
    }

    /// A nonce that is far from all others and their successors, also in its last three digits.
    fn fresh_nonce(&mut self) -> Nonce {
        self.nonces += 1_000_017;
        Nonce::from_random(self.nonces)
    }

    /// One of three clients has a name.
    fn fresh_tag(&mut self, n: usize) -> Tag {
        Tag { nonce: self.fresh_nonce(), name: (n == 1).then(|| "worker:7".into()) }
    }

    fn note(&mut self, n: usize, what: fmt::Arguments<'_>) {
        let millis = (self.time - START) / MILLI;
        if let Some(log) = &mut self.log {
            log.push(format!("{millis:>6} ms  client {n} {what}"));
        }
    }
}

fn one_in(n: u8, choice: u8) -> bool {
    choice.is_multiple_of(n)
}

//! One run: four clients and the servers of the keys, step by step.

use std::time::Duration;

use super::client::{Client, Doing, Flaw, KEYS, Legs, Part};
use crate::simulated::Server;
use setnx_lock_proto::values::{Now, Protocol, Uptime, Wall};
use setnx_lock_proto::{Cue, Reply};

const START: u64 = 1_795_000_000_000_000;
/// More steps than any call takes without faults.
const LAST_STEPS: usize = 6000;

#[derive(Debug)]
pub(super) struct Run {
    /// True time, in microseconds.
    pub(super) time: u64,
    /// How long a command is on its way at most.
    delay: u64,
    /// How far the clock of each client is ahead of that of the one before.
    skew: u64,
    pub(super) servers: [Server; KEYS],
    pub(super) clients: Vec<Client>,
    /// Requests whose connections have failed, and that arrive all the same.
    late: Vec<(u64, Legs)>,
    pub(super) nonces: u64,
    pub(super) flaw: Option<Flaw>,
    /// True if a call has ended that could have given back what it left.
    pub(super) leaves_a_lock: bool,
    /// How often several were acquired: at once, and after a wait.
    pub(super) at_once: u64,
    pub(super) waited: u64,
}

type Choice = (usize, u8, u64);

impl Run {
    fn new(protocols: [Protocol; 2], [delay, skew]: [u64; 2], flaw: Option<Flaw>) -> Self {
        let keys = [vec![0, 1, 2], vec![0], vec![1, 2], vec![0, 2]];
        let client = |(n, keys): (usize, Vec<usize>)| Client::new(protocols[n / 2], keys);
        let past = || crate::holding(Some(b"1532000016.5".to_vec()));
        Self {
            time: START,
            delay: delay * 1000,
            skew: skew * 1000,
            servers: [past(), Server::default(), past()],
            clients: keys.into_iter().enumerate().map(client).collect(),
            late: Vec::new(),
            nonces: 0,
            flaw,
            leaves_a_lock: false,
            at_once: 0,
            waited: 0,
        }
    }

    /// Performs the steps, and then lets each call end. `times` are the longest delay of a command and how far the
    /// clock of each client is ahead of that of the one before. Returns the run, and the law that was broken.
    pub(super) fn perform(
        protocols: [Protocol; 2],
        times: [u64; 2],
        flaw: Option<Flaw>,
        steps: &[Choice],
    ) -> (Self, Option<&'static str>) {
        let mut run = Self::new(protocols, times, flaw);
        // Half of the runs begin with free keys.
        if steps.first().is_some_and(|(_, choice, _)| choice.is_multiple_of(2)) {
            run.servers = Default::default();
        }
        let chosen = steps.iter().map(|(n, choice, millis)| (*n, *choice, millis * 1000, true));
        let last = (0..run.clients.len()).cycle().take(LAST_STEPS).map(|n| (n, 1, 20_000, false));
        for (n, choice, time, faults) in chosen.chain(last) {
            run.pass(time);
            run.step(n, choice, faults);
            if let Some(broken) = run.broken() {
                return (run, Some(broken));
            }
        }
        let ended = run.clients.iter().all(|client| matches!(client.doing, Doing::Nothing));
        (run, (!ended).then_some("a call does not end"))
    }

    pub(super) fn now(&self, n: usize) -> Now {
        Now { wall: Wall(self.time + self.skew * n as u64), uptime: Uptime::of(self.since_start()) }
    }

    pub(super) fn since_start(&self) -> Duration {
        Duration::from_micros(self.time - START)
    }

    fn broken(&mut self) -> Option<&'static str> {
        if self.leaves_a_lock {
            return Some("a call has ended and left a lock");
        }
        let holds = |n: usize, key: usize| {
            let client = &self.clients[n];
            let lock = client.keys.iter().position(|other| *other == key);
            let lease = lock.and_then(|lock| client.held[lock].as_ref());
            lease.is_some_and(|lease| !lease.has_passed(self.now(n)))
        };
        if (0..KEYS).any(|key| (0..self.clients.len()).filter(|n| holds(*n, key)).count() > 1) {
            return Some("two clients hold a key");
        }
        let waits_with_more = (0..self.clients.len()).any(|n| self.waits_with_more(n));
        waits_with_more.then_some("a client waits for a key and has one behind it")
    }

    fn waits_with_more(&mut self, n: usize) -> bool {
        let (now, server_now, client) = (self.now(n), self.since_start(), &self.clients[n]);
        let is_held =
            |key: &usize| self.servers[*key].value(server_now).is_some_and(|value| client.knows(value, now));
        let Part::Taking(lock, _) = client.part else { return false };
        matches!(client.doing, Doing::Asleep) && client.keys[lock + 1..].iter().any(is_held)
    }

    /// Lets time pass. A command that has been on its way for the longest delay is carried out.
    fn pass(&mut self, time: u64) {
        let end = self.time + time;
        loop {
            let due = |client: &Client| match client.doing {
                Doing::Sent { since, .. } => Some(since + self.delay),
                _ => None,
            };
            let next = (0..self.clients.len()).filter_map(|n| due(&self.clients[n]).map(|at| (at, n))).min();
            let next = next.filter(|(at, _)| *at <= end);
            let by = next.map_or(end, |(at, _)| at);
            if let Some(first) = self.late.iter().position(|(at, ..)| *at <= by) {
                let (at, mut trip) = self.late.swap_remove(first);
                self.time = self.time.max(at);
                drop(self.carry_out(&mut trip));
                continue;
            }
            let Some((at, n)) = next else { break };
            self.time = self.time.max(at);
            self.arrive(n);
        }
        self.time = self.time.max(end);
    }

    fn arrive(&mut self, n: usize) {
        if let Doing::Sent { mut trip, .. } = std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
            let replies = self.carry_out(&mut trip);
            self.clients[n].doing = Doing::Replied(trip, replies);
        }
    }

    fn carry_out(&mut self, trip: &mut Legs) -> Vec<Reply> {
        let now = self.since_start();
        trip.iter_mut().map(|(key, leg)| self.servers[*key].carry_out(now, leg)).collect()
    }

    /// Lets client `n` take a step. Without faults no command is lost, no client crashes, and none begins another call.
    fn step(&mut self, n: usize, choice: u8, faults: bool) {
        let one_in = |count: u8| faults && choice.is_multiple_of(count);
        match std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
            Doing::Nothing if one_in(7) => {
                self.clients[n].waited = false;
                self.go_on(n);
            }
            Doing::Nothing => {}
            Doing::Sent { trip, since } if one_in(8) => {
                if one_in(16) {
                    self.clients[n].may_write_later(&trip);
                    self.late.push((since + self.delay, trip.clone()));
                }
                let lost = vec![Reply::Lost; trip.len()];
                self.answer(n, trip, lost);
            }
            sent @ Doing::Sent { .. } => {
                self.clients[n].doing = sent;
                self.arrive(n);
            }
            Doing::Replied(trip, mut replies) => {
                if one_in(8) {
                    let lost_from = usize::from(choice / 8) % replies.len();
                    replies[lost_from..].fill(Reply::Lost);
                }
                self.answer(n, trip, replies);
            }
            // Its time is over.
            Doing::Asleep if one_in(13) => self.fail(n),
            Doing::Asleep => {
                let now = self.now(n);
                let Part::Taking(_, attempt) = &mut self.clients[n].part else {
                    unreachable!("only an attempt sleeps")
                };
                let step = attempt.wake(if choice.is_multiple_of(5) { Cue::Ask } else { Cue::Look }, now);
                self.act(n, step);
            }
            Doing::Working if one_in(32) => {
                // It crashes, and begins again.
                let Client { protocol, keys, .. } = &self.clients[n];
                self.clients[n] = Client::new(*protocol, keys.clone());
            }
            Doing::Working if faults && !choice.is_multiple_of(3) => self.clients[n].doing = Doing::Working,
            Doing::Working => {
                self.clients[n].failed = true;
                self.clients[n].rules.fail();
                self.go_on(n);
            }
        }
    }
}

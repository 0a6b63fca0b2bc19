//! One run: four clients and the servers of the keys, step by step.

use std::time::Duration;

use super::client::{Answer, Client, Doing, KEYS, Legs, Rules, Then};
use crate::rules::acquire::{Params, first_command};
use crate::rules::lease::Lease;
use crate::rules::owned::{Ending, HandedOver};
use crate::rules::{Command, Cue, Replies, Reply, Step, Trip};
use crate::simulated::{Leg, Next, Server};
use crate::values::clock::{Now, Uptime, Wall};
use crate::values::options::{LockOptions, Protocol};
use crate::values::value::Nonce;

const START: u64 = 1_795_000_000_000_000;
/// In milliseconds: how long a lease lasts.
const EXPIRATION: u64 = 1500;
/// How often a client reads keys whose SETNX had no reply.
const READS: u32 = 2;
/// More steps than any call takes without faults.
const LAST_STEPS: usize = 6000;

#[derive(Debug)]
pub(super) struct Run {
    /// True time, in microseconds.
    time: u64,
    /// How long a command is on its way at most.
    delay: u64,
    /// How far the clock of each client is ahead of that of the one before.
    skew: u64,
    servers: [Server; KEYS],
    clients: Vec<Client>,
    /// Requests whose connections have failed, and that arrive all the same.
    late: Vec<(u64, Legs)>,
    nonces: u64,
    /// How often several were acquired: at once, and after a wait.
    pub(super) at_once: u64,
    pub(super) waited: u64,
}

type Choice = (usize, u8, u64);

impl Run {
    fn new(protocols: [Protocol; 2], [delay, skew]: [u64; 2]) -> Self {
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
            at_once: 0,
            waited: 0,
        }
    }

    /// Performs the steps, and then lets each call end. `times` are the longest delay of a command and how far the clock of each client is
    /// ahead of that of the one before. Returns the run, and the law that was broken.
    pub(super) fn perform(
        protocols: [Protocol; 2],
        times: [u64; 2],
        steps: &[Choice],
    ) -> (Self, Option<&'static str>) {
        let mut run = Self::new(protocols, times);
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

    fn now(&self, n: usize) -> Now {
        Now { wall: Wall(self.time + self.skew * n as u64), uptime: Uptime::of(self.since_start()) }
    }

    fn since_start(&self) -> Duration {
        Duration::from_micros(self.time - START)
    }

    fn broken(&mut self) -> Option<&'static str> {
        let holds = |n: usize, key: usize| {
            self.clients[n].held[key].as_ref().is_some_and(|lease| !lease.has_passed(self.now(n)))
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
        matches!(client.doing, Doing::Asleep) && client.keys[client.index + 1..].iter().any(is_held)
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
                self.next(n);
            }
            Doing::Nothing => {}
            Doing::Sent { trip, since } if one_in(8) => {
                if one_in(16) {
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
            Doing::Asleep => {
                let now = self.now(n);
                let Rules::Acquiring(attempt) = &mut self.clients[n].rules else {
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
            Doing::Working => self.end(n, Then::End),
        }
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1_000_000;
        Nonce::from_random(self.nonces)
    }

    fn params(&mut self, n: usize) -> Params {
        let options = LockOptions::expiring_after(Duration::from_millis(EXPIRATION));
        let options = options.protocol(self.clients[n].protocol).wait_forever();
        let (retry_for, nonce) = (Duration::from_secs(5), self.nonce());
        Params { options, protocol: options.protocol, deadline: None, retry_for, nonce }
    }

    fn send(&mut self, n: usize, trip: Legs) {
        self.clients[n].doing = Doing::Sent { trip, since: self.time };
    }

    /// Goes on with the next key: it is asked for together with those behind it, unless it was before.
    fn next(&mut self, n: usize) {
        let Some(keys) = self.clients[n].together() else { return self.wait(n) };
        let now = self.now(n);
        let commands: Vec<(Lease, Trip)> = keys
            .iter()
            .map(|_| {
                let params = self.params(n);
                first_command(&params.options, params.protocol, params.nonce, now)
            })
            .collect();
        let (leases, trips): (Vec<Lease>, Vec<Trip>) = commands.into_iter().unzip();
        let trip = keys.into_iter().zip(trips.into_iter().map(Leg::first)).collect();
        self.clients[n].rules = Rules::Asking(leases);
        self.send(n, trip);
    }

    /// Finds out what commands without a reply have acquired, then waits for the next key.
    fn settle(&mut self, n: usize, keys: Vec<usize>, reads: u32) {
        if keys.is_empty() {
            return self.wait(n);
        }
        if reads == 0 {
            for key in keys {
                self.clients[n].answers[key] = None;
            }
            return self.end(n, Then::End);
        }
        let trip = keys.iter().map(|key| (*key, Leg::first(Trip::of(Command::Get)))).collect();
        self.clients[n].rules = Rules::Settling { keys, reads };
        self.send(n, trip);
    }

    /// Waits for the next key. Unless it is granted, what is granted behind it is given back first.
    fn wait(&mut self, n: usize) {
        let client = &mut self.clients[n];
        let first = client.answers[client.key()].take();
        if first.as_ref().is_some_and(Answer::is_granted) {
            return self.acquire(n, first);
        }
        client.waited = true;
        let left = client.take_granted();
        self.release(n, left, Then::Wait(first));
    }

    fn acquire(&mut self, n: usize, first: Option<Answer>) {
        let (params, now) = (self.params(n), self.now(n));
        let cue = first.map_or(Cue::Ask, |Answer { lease, reply }| Cue::Sent(lease, reply.into()));
        let (attempt, step) = crate::stepped(params, cue, now);
        self.clients[n].rules = Rules::Acquiring(attempt);
        self.act(n, step);
    }

    fn act(&mut self, n: usize, step: Step<Lease>) {
        let now = self.now(n);
        let client = &mut self.clients[n];
        match step {
            Step::Send(trip) => {
                let trip = vec![(client.key(), Leg::first(trip))];
                self.send(n, trip);
            }
            Step::Sleep(_) => client.doing = Doing::Asleep,
            Step::Done(lease) => {
                client.known.insert(lease.value.to_vec(), lease.clone());
                client.held[client.key()] = Some(lease);
                client.index += 1;
                if client.index < client.keys.len() {
                    return self.next(n);
                }
                if client.held.iter().flatten().any(|lease| lease.has_passed(now)) {
                    return self.end(n, Then::Again);
                }
                client.doing = Doing::Working;
                let counts = u64::from(client.keys.len() > 1);
                *(if client.waited { &mut self.waited } else { &mut self.at_once }) += counts;
            }
            Step::GiveUp(_) => self.end(n, Then::End),
        }
    }

    /// Ends the call, or begins it again.
    fn end(&mut self, n: usize, then: Then) {
        let client = &mut self.clients[n];
        let mut left = client.take_held();
        left.extend(client.take_granted());
        client.answers = Default::default();
        client.index = 0;
        self.release(n, left, then);
    }

    fn release(&mut self, n: usize, mut left: Vec<(usize, Lease)>, then: Then) {
        let now = self.now(n);
        let Some((_, lease)) = left.last() else {
            self.clients[n].rules = Rules::None;
            return match then {
                Then::Wait(first) => self.acquire(n, first),
                Then::Again => self.next(n),
                Then::End => {}
            };
        };
        let own = lease.clone();
        let (ending, step) = Ending::begin(own, None, now);
        // Whatever comes of it, nothing more is known of the key.
        self.clients[n].known.remove(&*lease.value);
        if let Step::Send(_) = step {
            self.clients[n].rules = Rules::Releasing { releasing: Box::new(ending), left, then };
            return self.release_step(n, step);
        }
        left.pop();
        self.release(n, left, then);
    }

    fn release_step(&mut self, n: usize, step: Step<HandedOver>) {
        match (step, std::mem::replace(&mut self.clients[n].rules, Rules::None)) {
            (Step::Send(trip), Rules::Releasing { releasing, left, then }) => {
                let trip = left.last().map(|(key, _)| (*key, Leg::first(trip))).into_iter().collect();
                self.clients[n].rules = Rules::Releasing { releasing, left, then };
                self.send(n, trip);
            }
            (_, Rules::Releasing { mut left, then, .. }) => {
                left.pop();
                self.release(n, left, then);
            }
            (step, rules) => unreachable!("{rules:?} release nothing: {step:?}"),
        }
    }

    /// Has each step of a trip answered. A transaction, which is one key's, has another.
    fn answer(&mut self, n: usize, trip: Legs, replies: Vec<Reply>) {
        let (mut again, mut ended) = (Vec::new(), Vec::new());
        for ((key, leg), reply) in trip.into_iter().zip(replies) {
            match leg.answered(reply) {
                Next::Leg(leg) => again.push((key, leg)),
                Next::End(replies) => ended.push(replies),
            }
        }
        if again.is_empty() { self.reply(n, ended) } else { self.send(n, again) }
    }

    fn reply(&mut self, n: usize, replies: Vec<Replies>) {
        let now = self.now(n);
        match std::mem::replace(&mut self.clients[n].rules, Rules::None) {
            Rules::Asking(leases) => {
                let client = &mut self.clients[n];
                let keys = client.together().unwrap_or_default();
                for ((key, lease), replies) in keys.into_iter().zip(leases).zip(replies) {
                    let answer = Answer { lease, reply: replies.own() };
                    if answer.is_granted() {
                        client.known.insert(answer.lease.value.to_vec(), answer.lease.clone());
                    }
                    client.answers[key] = Some(answer);
                }
                let lost = client.lost();
                self.settle(n, lost, READS);
            }
            Rules::Settling { keys, reads } => {
                let mut unread = Vec::new();
                for (key, replies) in keys.into_iter().zip(replies) {
                    let Client { answers, known, .. } = &mut self.clients[n];
                    match (&mut answers[key], replies.own()) {
                        (_, Reply::Lost) => unread.push(key),
                        (Some(answer), Reply::Bulk(Some(found))) if found == answer.lease.value => {
                            answer.reply = Reply::Integer(1);
                            known.insert(found, answer.lease.clone());
                        }
                        _ => {}
                    }
                }
                self.settle(n, unread, reads - 1);
            }
            Rules::Acquiring(mut attempt) => {
                let step = attempt.resume(only(replies), now);
                self.clients[n].rules = Rules::Acquiring(attempt);
                self.act(n, step);
            }
            Rules::Releasing { mut releasing, left, then } => {
                let step = releasing.resume(only(replies), now);
                self.clients[n].rules = Rules::Releasing { releasing, left, then };
                self.release_step(n, step);
            }
            Rules::None => unreachable!("it has asked for nothing"),
        }
    }
}

/// The replies to a trip of one key.
fn only(replies: Vec<Replies>) -> Replies {
    replies.into_iter().next().unwrap_or_default()
}

//! One run: four clients and the servers of two keys, step by step.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Now, Uptime, Wall};
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::acquire::{Acquiring, Action, Params};
use crate::protocol::acquire_all::{AcquiringAll, Next, Unresolved};
use crate::protocol::lease::Lease;
use crate::protocol::release::{Release, Releasing};
use crate::protocol::simulated::{Server, Watching};
use crate::protocol::{Command, Entry, Reply, Rules as _, Step};
use crate::value::{LockState, Nonce};

const START: u64 = 1_795_000_000_000_000;
const KEYS: usize = 2;
/// In milliseconds: how long a lease lasts.
const EXPIRATION: u64 = 1500;
/// More steps than any call takes without faults.
const LAST_STEPS: usize = 4000;

/// What a client sends in one trip.
#[derive(Clone, Debug)]
enum Trip {
    One(usize, Command),
    All(Command),
    Watch,
    Replace(Command),
}

#[derive(Clone, Debug)]
enum Replies {
    One(Reply),
    Many(Vec<Reply>),
}

#[derive(Debug)]
enum Doing {
    Nothing,
    Sent { trip: Trip, since: u64 },
    Replied(Replies),
    Asleep,
    Working,
}

#[derive(Debug)]
enum Rules {
    None,
    AtOnce(AcquiringAll),
    OneByOne { index: usize, attempt: Box<Acquiring> },
    Releasing(Releasing),
}

#[derive(Debug)]
struct Client {
    protocol: Protocol,
    /// In their order.
    keys: Vec<usize>,
    doing: Doing,
    rules: Rules,
    doubt: Option<Unresolved>,
    held: [Option<Lease>; KEYS],
    releases: Vec<Lease>,
    releasing: Vec<usize>,
    /// Whether it begins again once all are released: one was lost while the other was waited for.
    again: bool,
    watching: [Watching; KEYS],
}

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
    late: Vec<(u64, Trip, [Watching; KEYS])>,
    nonces: u64,
    /// How often both were acquired: at once, and one by one.
    pub(super) at_once: u64,
    pub(super) one_by_one: u64,
}

type Choice = (usize, u8, u64);

impl Run {
    fn new(protocols: [Protocol; 2], [delay, skew]: [u64; 2]) -> Self {
        let keys = [vec![0, 1], vec![0], vec![0, 1], vec![1]];
        let client = |(n, keys): (usize, Vec<usize>)| Client {
            protocol: protocols[n / 2],
            keys,
            doing: Doing::Nothing,
            rules: Rules::None,
            doubt: None,
            held: [None, None],
            releases: Vec::new(),
            releasing: Vec::new(),
            again: false,
            watching: Default::default(),
        };
        let past = || Server::holding(Some(b"1532000016.5".to_vec()));
        Self {
            time: START,
            delay: delay * 1000,
            skew: skew * 1000,
            servers: [past(), Server::default()],
            clients: keys.into_iter().enumerate().map(client).collect(),
            late: Vec::new(),
            nonces: 0,
            at_once: 0,
            one_by_one: 0,
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
            run.servers[0].set(None);
        }
        for (n, choice, millis) in steps {
            run.pass(millis * 1000);
            run.step(*n, *choice, true);
            if run.overlaps() {
                return (run, Some("two clients hold a key"));
            }
        }
        for n in (0..run.clients.len()).cycle().take(LAST_STEPS) {
            run.pass(20_000);
            run.step(n, 1, false);
            if run.overlaps() {
                return (run, Some("two clients hold a key"));
            }
        }
        let ended = run.clients.iter().all(|client| matches!(client.doing, Doing::Nothing));
        (run, (!ended).then_some("a call does not end"))
    }

    fn now(&self, n: usize) -> Now {
        Now { wall: Wall(self.time + self.skew * n as u64), uptime: Uptime(self.since_start()) }
    }

    fn since_start(&self) -> Duration {
        Duration::from_micros(self.time - START)
    }

    fn overlaps(&self) -> bool {
        let holds = |n: usize, key: usize| {
            self.clients[n].held[key].as_ref().is_some_and(|lease| !lease.has_passed(self.now(n)))
        };
        (0..KEYS).any(|key| (0..self.clients.len()).filter(|n| holds(*n, key)).count() > 1)
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
                let (at, trip, mut watching) = self.late.swap_remove(first);
                self.time = self.time.max(at);
                drop(self.carry_out(&trip, &mut watching));
                continue;
            }
            let Some((at, n)) = next else { break };
            self.time = self.time.max(at);
            self.arrive(n);
        }
        self.time = self.time.max(end);
    }

    fn arrive(&mut self, n: usize) {
        if let Doing::Sent { trip, .. } = std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
            let mut watching = self.clients[n].watching;
            let replies = self.carry_out(&trip, &mut watching);
            self.clients[n].watching = watching;
            self.clients[n].doing = Doing::Replied(replies);
        }
    }

    fn carry_out(&mut self, trip: &Trip, watching: &mut [Watching; KEYS]) -> Replies {
        let now = self.since_start();
        let each = |servers: &mut [Server; KEYS], watching: &mut [Watching; KEYS], command: &Command| {
            let on =
                |(server, watching): (&mut Server, &mut Watching)| server.carry_out(now, watching, command);
            servers.iter_mut().zip(watching).map(on).collect::<Vec<Reply>>()
        };
        match trip {
            Trip::One(key, command) => {
                Replies::One(self.servers[*key].carry_out(now, &mut watching[*key], command))
            }
            Trip::All(Command::SetNxAll(_, value)) => {
                let are_free = self.servers.iter_mut().all(|server| server.value(now).is_none());
                if are_free {
                    let set = Command::SetNx(Entry { value: value.clone(), ttl: None });
                    each(&mut self.servers, watching, &set);
                }
                Replies::One(Reply::Integer(i64::from(are_free)))
            }
            Trip::All(_) => {
                let found = self.servers.iter_mut().map(|server| server.value(now).map(<[u8]>::to_vec));
                Replies::One(Reply::Bulks(found.collect()))
            }
            Trip::Watch => Replies::Many(each(&mut self.servers, watching, &Command::WatchGet)),
            Trip::Replace(command) => {
                let mut changed = self.servers.clone();
                let replies = each(&mut changed, watching, command);
                if replies.contains(&Reply::Executed(None)) {
                    return Replies::Many(vec![Reply::Executed(None); KEYS]);
                }
                self.servers = changed;
                Replies::Many(replies)
            }
        }
    }

    /// Lets client `n` take a step. Without faults no command is lost, no client crashes, and none begins another call.
    fn step(&mut self, n: usize, choice: u8, faults: bool) {
        let one_in = |count: u8| faults && choice.is_multiple_of(count);
        match std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
            Doing::Nothing if one_in(7) => self.start(n),
            Doing::Nothing => {}
            Doing::Sent { trip, since } if one_in(8) => {
                if one_in(16) {
                    let watching = std::mem::take(&mut self.clients[n].watching);
                    self.late.push((since + self.delay, trip.clone(), watching));
                }
                self.reply(n, &lost(&trip));
            }
            sent @ Doing::Sent { .. } => {
                self.clients[n].doing = sent;
                self.arrive(n);
            }
            Doing::Replied(Replies::One(_)) if one_in(8) => self.reply(n, &Replies::One(Reply::Lost)),
            Doing::Replied(Replies::Many(replies)) if one_in(8) => {
                self.reply(n, &Replies::Many(vec![Reply::Lost; replies.len()]));
            }
            Doing::Replied(replies) => self.reply(n, &replies),
            Doing::Asleep => {
                let now = self.now(n);
                match &mut self.clients[n].rules {
                    Rules::AtOnce(rules) => {
                        let next = rules.look();
                        self.go_on(n, next);
                    }
                    Rules::OneByOne { attempt, .. } => {
                        let action =
                            if choice.is_multiple_of(5) { attempt.freed(now) } else { attempt.woken(now) };
                        self.act(n, action);
                    }
                    rules => unreachable!("{rules:?} do not sleep"),
                }
            }
            Doing::Working if one_in(32) => {
                // It crashes, and begins again.
                let Client { held, rules, .. } = &mut self.clients[n];
                (*held, *rules) = ([None, None], Rules::None);
            }
            Doing::Working if faults && !choice.is_multiple_of(3) => self.clients[n].doing = Doing::Working,
            Doing::Working => self.release_all(n),
        }
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1_000_000;
        Nonce::from_random(self.nonces)
    }

    fn options(&self, n: usize) -> LockOptions {
        let options = LockOptions::expiring_after(Duration::from_millis(EXPIRATION));
        options.protocol(self.clients[n].protocol).wait_forever()
    }

    fn params(&mut self, n: usize) -> Params {
        let (options, nonce) = (self.options(n), self.nonce());
        Params { options, deadline: None, retry_for: Duration::from_secs(5), nonce }
    }

    fn start(&mut self, n: usize) {
        self.clients[n].again = false;
        if self.clients[n].keys.len() == 1 {
            return self.one_by_one(n, 0);
        }
        let now = self.now(n);
        let keys: Arc<[Key]> = ["k0", "k1"].map(Key::from).into();
        let (rules, next) = AcquiringAll::start(keys, self.params(n), false, now);
        self.clients[n].rules = Rules::AtOnce(rules);
        self.go_on(n, next);
    }

    fn go_on(&mut self, n: usize, next: Next) {
        let trip = match next {
            Next::Send(request) => Trip::All(request.command),
            Next::Watch => Trip::Watch,
            Next::Replace(command) => Trip::Replace(command),
            Next::Pause(_) => {
                self.clients[n].doing = Doing::Asleep;
                return;
            }
            Next::Held { lease, .. } => {
                self.at_once += 1;
                self.clients[n].held = [Some(lease.clone()), Some(lease)];
                self.clients[n].doing = Doing::Working;
                return;
            }
            Next::Contended { .. } | Next::Late => return self.one_by_one(n, 0),
            Next::OneByOne(unresolved) => {
                self.clients[n].doubt = unresolved;
                return self.one_by_one(n, 0);
            }
            Next::GiveUp(_) => return,
        };
        self.clients[n].doing = Doing::Sent { trip, since: self.time };
    }

    fn one_by_one(&mut self, n: usize, index: usize) {
        let (params, now) = (self.params(n), self.now(n));
        let (attempt, action) = match &self.clients[n].doubt {
            Some(Unresolved { lease, from }) => {
                let from = from.get(index).filter(|from| **from != LockState::Absent);
                Acquiring::after(params, lease.clone(), from.cloned(), now)
            }
            None => Acquiring::start(params, now),
        };
        self.clients[n].rules = Rules::OneByOne { index, attempt: Box::new(attempt) };
        self.act(n, action);
    }

    fn act(&mut self, n: usize, action: Action) {
        let Rules::OneByOne { index, .. } = self.clients[n].rules else { return };
        let key = self.clients[n].keys[index];
        let doing = match action {
            Action::Send(request) => Doing::Sent { trip: Trip::One(key, request.command), since: self.time },
            Action::Sleep(_) => Doing::Asleep,
            Action::Held(lease) => {
                self.clients[n].held[key] = Some(lease);
                if index + 1 < self.clients[n].keys.len() {
                    return self.one_by_one(n, index + 1);
                }
                self.clients[n].doubt = None;
                let now = self.now(n);
                if self.clients[n].held.iter().flatten().any(|lease| lease.has_passed(now)) {
                    self.clients[n].again = true;
                    return self.release_all(n);
                }
                self.one_by_one += u64::from(index > 0);
                Doing::Working
            }
            Action::GiveUp(_) => {
                self.clients[n].doubt = None;
                return self.release_all(n);
            }
        };
        self.clients[n].doing = doing;
    }

    fn release_all(&mut self, n: usize) {
        let client = &mut self.clients[n];
        for key in client.keys.iter().rev() {
            if let Some(lease) = client.held[*key].take() {
                client.releasing.push(*key);
                client.releases.push(lease);
            }
        }
        self.release_next(n);
    }

    fn release_next(&mut self, n: usize) {
        let now = self.now(n);
        let client = &mut self.clients[n];
        let Some(lease) = client.releases.last() else {
            client.rules = Rules::None;
            if client.again {
                client.again = false;
                self.one_by_one(n, 0);
            }
            return;
        };
        let (releasing, step) = Releasing::start(client.protocol, client.protocol, lease, now);
        client.rules = Rules::Releasing(releasing);
        self.release_step(n, step);
    }

    fn release_step(&mut self, n: usize, step: Step<Release>) {
        match (step, self.clients[n].releasing.last().copied()) {
            (Step::Send(request), Some(key)) => {
                let trip = Trip::One(key, request.command);
                self.clients[n].doing = Doing::Sent { trip, since: self.time };
            }
            _ => {
                let client = &mut self.clients[n];
                client.releases.pop();
                client.releasing.pop();
                self.release_next(n);
            }
        }
    }

    fn reply(&mut self, n: usize, replies: &Replies) {
        let now = self.now(n);
        match (&mut self.clients[n].rules, replies) {
            (Rules::AtOnce(rules), Replies::One(reply)) => {
                let next = rules.reply(reply, now);
                self.go_on(n, next);
            }
            (Rules::AtOnce(rules), Replies::Many(replies)) => {
                let is_exec = replies.iter().any(|reply| matches!(reply, Reply::Executed(_)));
                let next = match replies.iter().all(|reply| *reply == Reply::Lost) {
                    // Which of the two was lost, the rules know.
                    true if rules.is_replacing() => rules.replaced(replies, now),
                    false if is_exec => rules.replaced(replies, now),
                    _ => rules.watched(replies, now),
                };
                self.go_on(n, next);
            }
            (Rules::OneByOne { attempt, .. }, Replies::One(reply)) => {
                let action = attempt.reply(reply.clone(), now);
                self.act(n, action);
            }
            (Rules::Releasing(releasing), Replies::One(reply)) => {
                let step = releasing.reply(reply, now);
                self.release_step(n, step);
            }
            (rules, replies) => unreachable!("{rules:?} did not ask for {replies:?}"),
        }
    }
}

/// The replies to a trip that was lost.
fn lost(trip: &Trip) -> Replies {
    match trip {
        Trip::One(..) | Trip::All(_) => Replies::One(Reply::Lost),
        Trip::Watch | Trip::Replace(_) => Replies::Many(vec![Reply::Lost; KEYS]),
    }
}

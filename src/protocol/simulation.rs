//! Three clients at random on one key: any interleaving, crashes, lost requests and answers, clocks that differ. Looks for two
//! that are inside at the same time, each within a lease that it may rely on. With equal expirations, and clocks and delays
//! that together stay within the guard, there must be none; outside of that there must be some, or the search has no teeth.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::acquire::{Acquiring, Action, Terms};
use super::lease::Lease;
use super::release::{Releasing, Step};
use super::simulated::{Server, Watching};
use super::{Command, Reply, Request};
use crate::clock::{Now, Uptime, Wall};
use crate::options::{Polling, Protocol, Takeover};
use crate::value::Nonce;

const START: u64 = 1_795_000_000_000_000;
const MILLI: u64 = 1000;

/// What a world allows, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Laws {
    protocols: [Protocol; 3],
    expirations: [u64; 3],
    /// How far clocks are apart at most.
    skew: u64,
    /// How much longer than its time a lock is left alone.
    margin: u64,
    /// How long a command may take from being decided to being carried out.
    delay: u64,
}

const WITHIN_THE_GUARD: Laws =
    Laws { protocols: [Protocol::Classic; 3], expirations: [1500; 3], skew: 400, margin: 0, delay: 400 };

#[derive(Debug)]
enum Doing {
    Nothing,
    /// A command is on its way since then.
    Sent {
        command: Command,
        since: u64,
    },
    /// It was carried out, and this is on its way back.
    Answered(Reply),
    Asleep,
    Inside(Lease),
}

#[derive(Debug)]
struct Client {
    protocol: Protocol,
    expiration: Duration,
    skew: u64,
    nonce: Nonce,
    doing: Doing,
    attempt: Option<Acquiring>,
    releasing: Option<Releasing>,
    watching: Watching,
}

#[derive(Debug)]
struct World {
    laws: Laws,
    /// True time, in microseconds.
    time: u64,
    server: Server,
    clients: Vec<Client>,
    /// What happened, to be read when something went wrong.
    log: Vec<String>,
}

impl World {
    fn new(laws: Laws) -> Self {
        let clients = (0..3).map(|n| Client {
            protocol: laws.protocols[n],
            expiration: Duration::from_millis(laws.expirations[n]),
            skew: laws.skew * MILLI * n as u64 / 2,
            nonce: Nonce::from_random(1_000_000 * (n as u64 + 1)),
            doing: Doing::Nothing,
            attempt: None,
            releasing: None,
            watching: Watching::default(),
        });
        Self {
            laws,
            time: START,
            server: Server::holding(Some(b"1532000016.5".to_vec())),
            clients: clients.collect(),
            log: Vec::new(),
        }
    }

    fn now(&self, n: usize) -> Now {
        let uptime = Duration::from_micros(self.time - START);
        Now { wall: Wall(self.time + self.clients[n].skew), uptime: Uptime(uptime) }
    }

    /// Lets client `n` do the next thing it can, one way or another, after some time. Returns whether two are inside.
    fn step(&mut self, n: usize, way: u8, millis: u64) -> bool {
        self.pass(millis * MILLI);
        let now = self.now(n);
        match std::mem::replace(&mut self.clients[n].doing, Doing::Nothing) {
            Doing::Nothing => self.start(n, now),
            Doing::Sent { command, .. } if one_in(8, way) => {
                drop(command); // lost on its way
                self.answer(n, Reply::Lost);
            }
            Doing::Sent { command, .. } => {
                let reply = self.carry_out(n, &command);
                self.clients[n].doing = Doing::Answered(reply);
            }
            Doing::Answered(_) if one_in(8, way) => self.answer(n, Reply::Lost),
            Doing::Answered(reply) => self.answer(n, reply),
            Doing::Asleep => {
                let action = self.clients[n].attempt.as_mut().map(|attempt| attempt.woken(now));
                self.act(n, action);
            }
            // Crashes, and comes back as another.
            Doing::Inside(_) if one_in(4, way) => {}
            Doing::Inside(lease) if one_in(3, way) => self.clients[n].doing = Doing::Inside(lease),
            Doing::Inside(lease) => {
                let (releasing, step) = Releasing::start(self.clients[n].protocol, &lease, now);
                self.clients[n].releasing = Some(releasing);
                self.act_on(n, step);
            }
        }
        self.inside().count() > 1
    }

    /// Time goes on, and what has been on its way for as long as the laws allow is carried out.
    fn pass(&mut self, time: u64) {
        let end = self.time + time;
        let limit = self.laws.delay * MILLI;
        loop {
            let due = |client: &Client| match client.doing {
                Doing::Sent { since, .. } => Some(since + limit),
                _ => None,
            };
            let next = (0..3).filter_map(|n| due(&self.clients[n]).map(|at| (at, n))).min();
            let Some((at, n)) = next.filter(|(at, _)| *at <= end) else { break };
            self.time = self.time.max(at);
            if let Doing::Sent { command, .. } = std::mem::replace(&mut self.clients[n].doing, Doing::Nothing)
            {
                let reply = self.carry_out(n, &command);
                self.clients[n].doing = Doing::Answered(reply);
            }
        }
        self.time = self.time.max(end);
    }

    fn inside(&self) -> impl Iterator<Item = usize> {
        (0..3).filter(
            |n| matches!(&self.clients[*n].doing, Doing::Inside(lease) if !lease.has_passed(self.now(*n))),
        )
    }

    fn start(&mut self, n: usize, now: Now) {
        let client = &mut self.clients[n];
        let terms = Terms {
            protocol: client.protocol,
            expiration: Some(client.expiration),
            deadline: None,
            polling: Polling::every(Duration::from_millis(100)),
            takeover: Takeover::Expired,
            takeover_margin: Duration::from_millis(self.laws.margin),
            patience: Duration::from_secs(5),
            nonce: client.nonce,
        };
        let (attempt, action) = Acquiring::start(terms, now);
        client.attempt = Some(attempt);
        self.act(n, Some(action));
    }

    fn answer(&mut self, n: usize, reply: Reply) {
        let now = self.now(n);
        if let Some(releasing) = &mut self.clients[n].releasing {
            let step = releasing.reply(&reply, now);
            self.act_on(n, step);
        } else {
            let action = self.clients[n].attempt.as_mut().map(|attempt| attempt.reply(reply, now));
            self.act(n, action);
        }
    }

    fn act(&mut self, n: usize, action: Option<Action>) {
        let since = self.time;
        self.note(n, &format!("{action:?}"));
        self.clients[n].doing = match action {
            Some(Action::Send(Request { command, .. })) => Doing::Sent { command, since },
            Some(Action::Sleep(_)) => Doing::Asleep,
            Some(Action::Held(lease)) => Doing::Inside(lease),
            Some(Action::GiveUp(_)) | None => Doing::Nothing,
        };
    }

    fn act_on(&mut self, n: usize, step: Step) {
        self.note(n, &format!("{step:?}"));
        let since = self.time;
        let client = &mut self.clients[n];
        match step {
            Step::Send(Request { command, .. }) => {
                client.doing = Doing::Sent { command, since };
            }
            Step::Done(_) | Step::GiveUp(_) => client.releasing = None,
        }
    }

    fn note(&mut self, n: usize, what: &str) {
        let millis = (self.time - START) / MILLI;
        self.log.push(format!("{millis:>6} ms  client {n} {what}"));
    }

    fn carry_out(&mut self, n: usize, command: &Command) -> Reply {
        let now = Duration::from_micros(self.time - START);
        let mut watching = self.clients[n].watching;
        let reply = self.server.carry_out(now, &mut watching, command);
        self.clients[n].watching = watching;
        self.note(n, &format!("has {command:?} carried out: {reply:?}"));
        reply
    }
}

fn one_in(n: u8, way: u8) -> bool {
    way.is_multiple_of(n)
}

/// Plays `worlds` worlds. Returns how often somebody was inside, or an error with the shortest way to two being inside.
fn search(laws: Laws, worlds: u32) -> Result<u64, String> {
    let entries = std::cell::Cell::new(0);
    let config =
        Config { cases: worlds, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    // Mostly no time at all between two steps, sometimes a little, sometimes a lease.
    let pause = prop_oneof![6 => Just(0_u64), 3 => 0..300_u64, 1 => 1000..3000_u64];
    let steps = prop::collection::vec((0..3_usize, any::<u8>(), pause), 1..200);
    TestRunner::new(config)
        .run(&steps, |steps| {
            let mut world = World::new(laws);
            for (n, way, millis) in steps {
                let before = world.inside().count();
                prop_assert!(!world.step(n, way, millis), "two are inside:\n{}", world.log.join("\n"));
                entries.set(entries.get() + u64::from(world.inside().count() > before));
            }
            Ok(())
        })
        .map(|()| entries.get())
        .map_err(|error| error.to_string())
}

#[test]
fn two_are_never_inside_within_the_guard() {
    let entries = search(WITHIN_THE_GUARD, 3000).unwrap_or_else(|way| panic!("{way}"));
    assert!(entries > 10_000, "hardly anybody got in: {entries}");
}

#[test]
fn watched_needs_neither_equal_expirations_nor_quick_commands() {
    let laws = Laws { expirations: [6000, 200, 1500], skew: 900, delay: 3000, ..WITHIN_THE_GUARD };
    for protocols in
        [[Protocol::Watched; 3], [Protocol::Ttl; 3], [Protocol::Watched, Protocol::Ttl, Protocol::Watched]]
    {
        let entries =
            search(Laws { protocols, ..laws }, 2000).unwrap_or_else(|way| panic!("{protocols:?}: {way}"));
        assert!(entries > 3_000, "hardly anybody got in: {entries}");
    }
}

#[test]
fn all_protocols_mix_within_the_guard() {
    for protocols in [
        [Protocol::Classic, Protocol::Watched, Protocol::Ttl],
        [Protocol::Classic, Protocol::Classic, Protocol::Watched],
        [Protocol::Classic, Protocol::Ttl, Protocol::Ttl],
    ] {
        let laws = Laws { protocols, ..WITHIN_THE_GUARD };
        let entries = search(laws, 2000).unwrap_or_else(|way| panic!("{protocols:?}: {way}"));
        assert!(entries > 3_000, "hardly anybody got in: {entries}");
    }
}

#[test]
fn two_get_inside_when_commands_take_longer_than_the_guard() {
    assert!(search(Laws { delay: 3000, ..WITHIN_THE_GUARD }, 20_000).is_err());
}

#[test]
fn two_get_inside_when_expirations_differ() {
    assert!(search(Laws { expirations: [6000, 200, 6000], ..WITHIN_THE_GUARD }, 20_000).is_err());
}

#[test]
fn two_get_inside_when_clocks_are_further_apart_than_the_guard() {
    assert!(search(Laws { skew: 2000, ..WITHIN_THE_GUARD }, 20_000).is_err());
}

#[test]
fn a_takeover_margin_makes_up_for_clocks_that_are_further_apart() {
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let laws = Laws { protocols: [protocol; 3], skew: 2400, margin: 2000, ..WITHIN_THE_GUARD };
        let entries = search(laws, 2000).unwrap_or_else(|way| panic!("{protocol:?}: {way}"));
        assert!(entries > 2_000, "hardly anybody got in: {entries}");
    }
}

//! A random search: several clients that want one of two locks, with random interleavings, crashes, lost requests and
//! replies. It looks for two clients that hold a lock at the same time, each within its lease.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;

use crate::Searches;
use crate::simulated::{Leg, Next, Server};
use crate::stepped::{Action, Held, Stepped};
use setnx_lock_proto::acquire::Params;
use setnx_lock_proto::hold::{Ending, HandedOver};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::task::Rules;
use setnx_lock_proto::values::{Nonce, Now, Protocol, Tag, Terms, Uptime, Wall};
use setnx_lock_proto::{Reply, Step, Trip};

const HOUR: Duration = Duration::from_secs(3600);
const PAST: &[u8] = b"1532000016.5";

fn start() -> Now {
    Now { wall: Wall(1_795_000_000_000_000), uptime: Uptime::of(HOUR) }
}

/// One of the clients of the search.
#[derive(Default)]
struct Client {
    attempt: Option<Stepped>,
    action: Option<Action>,
    held: Option<(usize, Lease)>,
    /// The second step of what it sends.
    leg: Option<Leg>,
    grants: u64,
}

struct Search {
    /// In microseconds.
    time: u64,
    /// How far the clock of each client is ahead of that of the one before.
    skew: Duration,
    servers: [Server; 2],
    clients: [Client; 4],
    nonces: u64,
}

impl Search {
    fn now(&self, n: usize) -> Now {
        let time = Duration::from_micros(self.time);
        let skew = self.skew * u32::try_from(n).unwrap_or(0);
        Now { wall: start().wall.after(time + skew), uptime: start().uptime.after(time) }
    }

    fn values(&mut self) -> Reply {
        let now = Duration::from_micros(self.time);
        Reply::Bulks(self.servers.iter_mut().map(|server| server.value(now).map(<[u8]>::to_vec)).collect())
    }

    /// Carries a step of a trip out, unless the request is lost, and returns the reply, unless that is.
    fn send(&mut self, slot: usize, leg: &mut Leg, choice: u8) -> Reply {
        if choice % 8 == 1 {
            return Reply::Lost;
        }
        let now = Duration::from_micros(self.time);
        let reply = self.servers[slot].carry_out(now, leg);
        if choice % 8 == 2 { Reply::Lost } else { reply }
    }

    fn look(&mut self, choice: u8) -> Reply {
        if choice % 16 == 3 { Reply::Lost } else { self.values() }
    }

    fn step(&mut self, protocol: Protocol, n: usize, choice: u8) {
        let now = self.now(n);
        if let Some((slot, lease)) = self.clients[n].held.clone() {
            // It works on, crashes, or releases.
            match choice % 4 {
                0 => self.clients[n].held = None,
                1 | 2 => self.release(protocol, n, slot, &lease, choice / 4),
                _ => {}
            }
            return;
        }
        let action = match self.clients[n].action.take() {
            // A crash, at any moment.
            Some(_) if choice == 255 => return self.clients[n].leg = None,
            Some(Action::Ask { slot, trip }) => {
                let set = self.send(slot, &mut Leg::first(Trip { behind: None, ..trip }), choice);
                let found = if set == Reply::Lost { Reply::Lost } else { self.look(choice) };
                self.attempt(n).asked(&set, &found, now)
            }
            Some(Action::Look) => {
                let found = self.look(choice);
                self.attempt(n).reply(found, now)
            }
            Some(Action::Send { slot, trip }) => {
                let mut leg = self.clients[n].leg.take().unwrap_or_else(|| Leg::first(trip.clone()));
                let reply = match leg.before() {
                    Some(end) if end.has_passed(now) => Reply::TooLate,
                    _ => self.send(slot, &mut leg, choice),
                };
                match leg.answered(reply) {
                    Next::Leg(leg) => {
                        self.clients[n].leg = Some(leg);
                        Action::Send { slot, trip }
                    }
                    Next::End(replies) => self.attempt(n).reply(replies, now),
                }
            }
            Some(Action::Sleep(_)) => self.attempt(n).woken(now),
            Some(Action::Held(_) | Action::GiveUp(_)) | None => {
                self.nonces += 1_000_000;
                let terms = Terms::expiring_after(Duration::from_millis(1500));
                let nonce = Nonce::from_random(self.nonces + u64::from(choice));
                let tag = Tag { nonce, name: (n == 1).then(|| "worker:7".into()) };
                let params = Params { terms, protocol, deadline: None, retry_for: HOUR, tag };
                let (attempt, action) = Stepped::start(params, 2, now);
                self.clients[n].attempt = Some(attempt);
                action
            }
        };
        self.act(n, action);
    }

    fn act(&mut self, n: usize, action: Action) {
        if let Action::Held(Held { slot, lease, .. }) = &action {
            self.clients[n].held = Some((*slot, lease.clone()));
            self.clients[n].grants += 1;
        }
        self.clients[n].action = Some(action);
    }

    fn attempt(&mut self, n: usize) -> &mut Stepped {
        self.clients[n].attempt.as_mut().expect("there is an action")
    }

    fn release(&mut self, protocol: Protocol, n: usize, slot: usize, lease: &Lease, mut choice: u8) {
        let now = self.now(n);
        self.clients[n].held = None;
        let own = lease.clone();
        let sleeps = |other: &usize| {
            let asleep =
                matches!(&self.clients[*other].action, Some(Action::Sleep(pause)) if !pause.in_doubt);
            *other != n && asleep
        };
        let next = (0..self.clients.len()).find(sleeps);
        self.nonces += 1_000_000;
        let expiration = Duration::from_millis(1500);
        let lease = Lease::beginning(now, Some(expiration), protocol, Nonce::from_random(self.nonces));
        let (mut ending, mut step) = Ending::begin(own, next.map(|_| &lease), Duration::ZERO, now);
        while let Step::Send(trip) = step {
            let mut leg = Leg::first(trip);
            let replies = loop {
                let reply = self.send(slot, &mut leg, choice);
                choice = choice.rotate_left(3) ^ 5;
                match leg.answered(reply) {
                    Next::Leg(next) => leg = next,
                    Next::End(replies) => break replies,
                }
            };
            step = ending.resume(replies, now);
        }
        if let (Some(next), Step::Done(HandedOver { next: Some(lease), in_doubt, .. })) = (next, step) {
            let now = self.now(next);
            let action = self.attempt(next).handed_over(slot, lease, in_doubt, now);
            self.act(next, action);
        }
    }

    /// Returns true if two hold one lock.
    fn overlaps(&self) -> bool {
        let held = self.clients.iter().enumerate().filter_map(|(n, client)| {
            let (slot, lease) = client.held.as_ref()?;
            (!lease.has_passed(self.now(n))).then_some(*slot)
        });
        let held: Vec<usize> = held.collect();
        (0..2).any(|slot| held.iter().filter(|held| **held == slot).count() > 1)
    }
}

/// Searches so many runs. Returns how often a permit was acquired, or an error with the fewest steps to an overlap.
fn search(protocol: Protocol, skew: Duration, runs: u32) -> Result<u64, String> {
    let grants = Cell::new(0);
    let step = (0..4_usize, any::<u8>(), crate::pause(8, 50));
    let run = |steps: &[_]| {
        let search = perform(protocol, skew, steps)?;
        grants.set(grants.get() + search.clients.iter().map(|client| client.grants).sum::<u64>());
        Ok(())
    };
    crate::search(step, 250, runs, run, |_| String::new())?;
    Ok(grants.get())
}

/// Performs the steps: whose, which of those that are possible, and after how many milliseconds.
fn perform(protocol: Protocol, skew: Duration, steps: &[(usize, u8, u64)]) -> Result<Search, &'static str> {
    let server = |value: Option<&[u8]>| crate::holding(value.map(<[u8]>::to_vec));
    let servers = [server(Some(PAST)), server(None)];
    let mut search = Search { time: 0, skew, servers, clients: Default::default(), nonces: 0 };
    for (n, choice, millis) in steps {
        search.time += millis * 1000;
        search.step(protocol, *n, *choice);
        if search.overlaps() {
            return Err("two clients hold a permit");
        }
    }
    Ok(search)
}

fn no_permit_has_two_holders() {
    let hours = Duration::from_secs(7200);
    for (protocol, skew) in [
        (Protocol::Classic, Duration::ZERO),
        (Protocol::Watched, Duration::ZERO),
        (Protocol::Ttl, Duration::ZERO),
        (Protocol::Ttl, hours),
    ] {
        let grants =
            search(protocol, skew, crate::runs(750)).unwrap_or_else(|steps| panic!("{protocol:?}: {steps}"));
        assert!(grants > 5000, "little happened: {grants} grants");
    }
}

fn a_permit_has_two_holders_when_clocks_are_further_apart_than_the_guard() {
    assert!(search(Protocol::Classic, Duration::from_secs(2), 20_000).is_err());
}

pub(crate) const SEARCHES: &Searches = &[
    ("no_permit_has_two_holders", no_permit_has_two_holders),
    (
        "a_permit_has_two_holders_when_clocks_are_further_apart_than_the_guard",
        a_permit_has_two_holders_when_clocks_are_further_apart_than_the_guard,
    ),
];

//! What a client does: a call on several keys, as the rules say.

use std::mem;
use std::time::Duration;

use super::client::{Doing, Flaw, KEYS, Legs, Part};
use super::run::Run;
use crate::simulated::{Leg, Next, Server};
use setnx_lock_proto::acquire::{Params, first_command};
use setnx_lock_proto::hold::{Ending, HandedOver};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::several::Do;
use setnx_lock_proto::task::Rules;
use setnx_lock_proto::values::{Nonce, Tag, Terms};
use setnx_lock_proto::{Cue, Replies, Reply, Step};

/// In milliseconds: how long a lease lasts.
const EXPIRATION: u64 = 1500;

impl Run {
    fn nonce(&mut self) -> Nonce {
        self.nonces += 1_000_000;
        Nonce::from_random(self.nonces)
    }

    fn params(&mut self, n: usize) -> Params {
        let terms = Terms::expiring_after(Duration::from_millis(EXPIRATION));
        let tag = Tag { nonce: self.nonce(), name: (n == 1).then(|| "worker:7".into()) };
        let retry_for = Duration::from_millis(EXPIRATION / 3);
        Params { terms, protocol: self.clients[n].protocol, deadline: None, retry_for, tag }
    }

    fn send(&mut self, n: usize, trip: Legs) {
        self.clients[n].doing = Doing::Sent { trip, since: self.time };
    }

    /// Does what the rules say is next.
    pub(super) fn go_on(&mut self, n: usize) {
        match self.clients[n].rules.next() {
            // As if another thread of its process had the next.
            Do::Ask(_) if self.nonces.is_multiple_of(4_000_000) => {
                self.clients[n].rules.takes_one();
                self.go_on(n);
            }
            // Or the one behind the next.
            Do::Ask(locks) if self.nonces.is_multiple_of(3_000_000) => self.ask(n, locks.take(2).collect()),
            Do::Ask(locks) => self.ask(n, locks.collect()),
            Do::GiveBack(locks) => self.give_back(n, &locks),
            Do::Take(lock) => self.take(n, lock),
            Do::End => self.end(n),
        }
    }

    fn ask(&mut self, n: usize, locks: Vec<usize>) {
        let now = self.now(n);
        let mut trip = Legs::new();
        for lock in &locks {
            let Params { terms, protocol, tag, .. } = self.params(n);
            let (lease, set) = first_command(&terms, protocol, &tag, now);
            let client = &mut self.clients[n];
            client.owes(&lease);
            client.asked[*lock] = Some((lease, Reply::Lost));
            trip.push((client.keys[*lock], Leg::first(set)));
        }
        self.clients[n].part = Part::Asking(locks);
        self.send(n, trip);
    }

    fn give_back(&mut self, n: usize, locks: &[usize]) {
        let (flaw, client) = (self.flaw, &mut self.clients[n]);
        let left = locks.iter().map(|lock| {
            client.rules.forget(*lock);
            // What had no reply is a debt, which another search looks at.
            let owed = client.asked[*lock].take_if(|(_, reply)| *reply == Reply::Lost);
            if let Some((lease, _)) = owed {
                client.is_excused(&lease.value);
            }
            let asked = client.asked[*lock].take().map(|(lease, _)| lease);
            (client.keys[*lock], client.held[*lock].take().or(asked))
        });
        let mut left: Vec<_> = left.filter_map(|(key, lease)| Some((key, lease?))).collect();
        match flaw {
            Some(Flaw::KeepsWhatIsBehind) if !client.failed => left.clear(),
            Some(Flaw::GivesBackOneAlone) if !client.failed => left.truncate(1),
            Some(Flaw::KeepsAllButTheLast) if client.failed => {
                drop(left.drain(..left.len().saturating_sub(1)));
            }
            _ => {}
        }
        self.release(n, left);
    }

    fn release(&mut self, n: usize, mut left: Vec<(usize, Lease)>) {
        let (now, client) = (self.now(n), &mut self.clients[n]);
        let Some((_, lease)) = left.last() else {
            client.part = Part::None;
            return self.go_on(n);
        };
        client.deletes(lease);
        let (ending, step) = Ending::begin(lease.clone(), None, Duration::ZERO, now);
        if let Step::Send(_) = step {
            client.part = Part::Releasing(left, Box::new(ending));
            return self.release_step(n, step);
        }
        left.pop();
        self.release(n, left);
    }

    fn release_step(&mut self, n: usize, step: Step<HandedOver>) {
        let Part::Releasing(left, _) = &mut self.clients[n].part else {
            unreachable!("nothing is released: {step:?}")
        };
        if let Step::Send(trip) = step {
            let trip = left.last().map(|(key, _)| (*key, Leg::first(trip))).into_iter().collect();
            return self.send(n, trip);
        }
        left.pop();
        let left = mem::take(left);
        self.release(n, left);
    }

    /// Has a lock held, by waiting for it unless it is granted.
    fn take(&mut self, n: usize, lock: usize) {
        let (params, now) = (self.params(n), self.now(n));
        let client = &mut self.clients[n];
        let first = client.asked[lock].take();
        if let Some((lease, Reply::Lost)) = &first {
            client.is_excused(&lease.value);
        }
        match first {
            Some((lease, Reply::Integer(1))) if !lease.has_passed(now) => self.held(n, lock, lease),
            first => {
                client.waited = true;
                let cue = first.map_or(Cue::Ask, |(lease, reply)| Cue::Sent(lease, reply.into()));
                let (attempt, step) = crate::stepped(params, cue, now);
                client.part = Part::Taking(lock, attempt);
                self.act(n, step);
            }
        }
    }

    fn held(&mut self, n: usize, lock: usize, lease: Lease) {
        let client = &mut self.clients[n];
        client.learns(&lease);
        (client.held[lock], client.asked[lock], client.part) = (Some(lease), None, Part::None);
        client.rules.held(lock);
        self.go_on(n);
    }

    pub(super) fn act(&mut self, n: usize, step: Step<Lease>) {
        let client = &mut self.clients[n];
        let Part::Taking(lock, _) = client.part else { unreachable!("{step:?} is of no attempt") };
        match step {
            Step::Send(trip) => {
                let trip = vec![(client.keys[lock], Leg::first(trip))];
                self.send(n, trip);
            }
            Step::Sleep(_) if !client.may_wait() => self.fail(n),
            Step::Sleep(_) => client.doing = Doing::Asleep,
            Step::Done(lease) => self.held(n, lock, lease),
            Step::GiveUp(_) => self.fail(n),
        }
    }

    pub(super) fn fail(&mut self, n: usize) {
        let client = &mut self.clients[n];
        client.failed = true;
        if self.flaw == Some(Flaw::ForgetsWhatIsLost) {
            let is_lost = |lock: &usize| matches!(client.asked[*lock], Some((_, Reply::Lost)));
            let lost: Vec<usize> = (0..client.keys.len()).filter(is_lost).collect();
            for lock in lost {
                client.rules.forget(lock);
            }
        }
        client.rules.fail();
        self.go_on(n);
    }

    /// All are held, or the call has ended.
    fn end(&mut self, n: usize) {
        let (now, server_now) = (self.now(n), self.since_start());
        let client = &mut self.clients[n];
        if client.failed {
            let (keys, begins_again) = (client.keys.clone(), client.begins_again);
            let owed = client.ended();
            let leaves = |key: usize, servers: &mut [Server; KEYS]| {
                let lease = servers[key].value(server_now).and_then(|value| owed.get(value));
                lease.is_some_and(|lease| !lease.has_passed(now))
            };
            self.leaves_a_lock |= keys.into_iter().any(|key| leaves(key, &mut self.servers));
            if begins_again {
                self.go_on(n);
            }
        } else if client.held.iter().flatten().any(|lease| lease.has_passed(now)) {
            client.begins_again = true;
            self.fail(n);
        } else {
            client.doing = Doing::Working;
            let counts = u64::from(client.keys.len() > 1);
            *(if client.waited { &mut self.waited } else { &mut self.at_once }) += counts;
        }
    }

    /// Has each step of a trip answered. A transaction, which is one key's, has another.
    pub(super) fn answer(&mut self, n: usize, trip: Legs, replies: Vec<Reply>) {
        if replies.contains(&Reply::Lost) {
            self.clients[n].may_not_release();
        }
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
        let (now, flaw) = (self.now(n), self.flaw);
        let client = &mut self.clients[n];
        match mem::replace(&mut client.part, Part::None) {
            Part::Asking(locks) => {
                for (lock, replies) in locks.into_iter().zip(replies) {
                    let reply = match replies.plain() {
                        Reply::Lost if flaw == Some(Flaw::BelievesWhatIsLost) => Reply::Integer(1),
                        reply => reply,
                    };
                    let Some((lease, of_set)) = &mut client.asked[lock] else { continue };
                    client.rules.asked(lock, &reply);
                    *of_set = reply;
                    if let (lease, Reply::Integer(1)) = (lease.clone(), of_set) {
                        client.learns(&lease);
                    }
                }
                self.go_on(n);
            }
            Part::Taking(lock, mut attempt) => {
                let step = attempt.resume(only(replies), now);
                client.part = Part::Taking(lock, attempt);
                self.act(n, step);
            }
            Part::Releasing(left, mut ending) => {
                let step = ending.resume(only(replies), now);
                client.part = Part::Releasing(left, ending);
                self.release_step(n, step);
            }
            Part::None => unreachable!("it has asked for nothing"),
        }
    }
}

/// The replies to a trip of one key.
fn only(replies: Vec<Replies>) -> Replies {
    replies.into_iter().next().unwrap_or_default()
}

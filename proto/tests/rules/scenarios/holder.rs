//! What a client of a scenario does with its lock.

use std::time::Duration;

use super::client::{shown_notes, shown_release};
use super::{COMMAND_TIMEOUT, Interpreter, MANY, ScriptResult};
use setnx_lock_proto::hold::{self, HandedOver};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::task::{Rules, Task};
use setnx_lock_proto::values::Nonce;
use setnx_lock_proto::{Cue, Step};

impl Interpreter {
    pub(super) fn releases(&mut self, name: &str) -> ScriptResult<String> {
        let now = self.now(name)?;
        let client = self.client(name)?;
        let own = client.own()?;
        client.lease = None;
        Ok(client.release(own, now))
    }

    pub(super) fn tries_again(&mut self, name: &str) -> ScriptResult<String> {
        let now = self.now(name)?;
        let client = self.client(name)?;
        match client.again.take() {
            Some(own) if !own.has_passed(now) => Ok(client.release(own, now)),
            _ => Ok("does not".into()),
        }
    }

    pub(super) fn extends(&mut self, name: &str, expiration: Duration) -> ScriptResult<String> {
        let now = self.now(name)?;
        let client = self.client(name)?;
        let own = client.own()?;
        client.extensions += 1;
        let nonce = Nonce::from_random(client.number * MANY + MANY / 2 + 500 + client.extensions);
        let new = own.next(expiration, nonce, now);
        let (task, step) = Task::begin(now, async move |io| hold::extend(io, &own, new, None).await);
        client.extending = Some(task);
        Ok(client.shown_extension(step, now))
    }

    pub(super) fn verifies(&mut self, name: &str) -> ScriptResult<String> {
        let now = self.now(name)?;
        let client = self.client(name)?;
        let own = client.own()?;
        client.extensions += 1;
        let nonce = Nonce::from_random(client.number * MANY + MANY / 2 + 500 + client.extensions);
        let (task, step) = Task::begin(now, async move |io| hold::verify(io, &own, nonce).await);
        client.verifying = Some(task);
        Ok(client.shown_verification(step, now))
    }

    pub(super) fn makes_a_token(&mut self, name: &str) -> ScriptResult<String> {
        let now = self.now(name)?;
        let client = self.client(name)?;
        let own = client.own()?;
        if !own.is_unresolved() {
            return Ok(client.hands_out(&own, now));
        }
        client.extensions += 1;
        let nonce = Nonce::from_random(client.number * MANY + MANY / 2 + 500 + client.extensions);
        let (task, step) = Task::begin(now, async move |io| hold::settle(io, &own, nonce).await);
        client.settling = Some(task);
        Ok(client.shown_settled(step, now))
    }

    pub(super) fn resumes(&mut self, name: &str, of: &str) -> ScriptResult<String> {
        let token = self.client(of)?.token.clone().ok_or("it has no token")?;
        let (now, server) = (self.now(name)?, self.version);
        let client = self.client(name)?;
        client.extensions += 1;
        let tag = client.tag(client.number * MANY + MANY / 2 + 500 + client.extensions);
        let (terms, acquired) = (client.terms, token.acquired);
        let given = Lease::given(&token, client.protocol_on(server), now);
        let first = given.clone();
        let new = move |now| first.resumed(&terms, &tag, acquired, now);
        let (task, step) = Task::begin(now, async move |io| hold::resume(io, &given, new, None).await);
        client.lease = None;
        client.values.clear();
        client.extending = Some(task);
        Ok(client.shown_extension(step, now))
    }

    pub(super) fn counts(&mut self, name: &str) -> ScriptResult<String> {
        let now = self.now(name)?;
        let client = self.client(name)?;
        let own = client.own()?;
        let (task, step) = Task::begin(now, async move |io| hold::count(io, &own, None).await);
        client.counting = Some(task);
        Ok(client.shown_token(step))
    }

    pub(super) fn hands_over(&mut self, name: &str, other: &str) -> ScriptResult<String> {
        let now = self.now(name)?;
        let next = self.client(other)?;
        next.extensions += 1;
        let tag = next.tag(next.number * MANY + MANY / 2 + 500 + next.extensions);
        let terms = next.terms;
        terms.expiration.ok_or("it has no expiration")?;
        let client = self.client(name)?;
        let own = client.own()?;
        let next = Lease::of(&terms, own.protocol, &tag, now);
        client.lease = None;
        client.ended = Some(own.clone());
        let (ending, step) =
            Task::begin(now, async move |io| hold::end(io, &own, Some(&next), COMMAND_TIMEOUT).await);
        client.handing_over = Some((ending, other.to_owned()));
        self.shows_hand_over(name, step)
    }

    /// Shows a step of a hand-over. At its end the other client has the lock, if that still sleeps.
    pub(super) fn shows_hand_over(&mut self, name: &str, step: Step<HandedOver>) -> ScriptResult<String> {
        let handed = match step.outcome() {
            Err(trip) => return Ok(self.client(name)?.sends(trip)),
            Ok(Ok(handed)) => handed,
            Ok(Err(reason)) => {
                let now = self.now(name)?;
                let client = self.client(name)?;
                client.handing_over = None;
                client.gave_up(reason, None, now);
                return Ok(format!("gives up: {reason:?}"));
            }
        };
        let client = self.client(name)?;
        let (ending, other) = client.handing_over.take().ok_or("it hands nothing over")?;
        let shown = shown_release(&handed.release) + shown_notes(&ending.take_notes());
        let Some(lease) = handed.next else { return Ok(shown) };
        let now = self.now(&other)?;
        let next = self.client(&other)?;
        if std::mem::take(&mut next.asleep) {
            let attempt = next.attempt.as_mut().ok_or("it has no attempt")?;
            let step = attempt.wake(Cue::HandedOver { lease, in_doubt: handed.in_doubt }, now);
            return Ok(format!("{shown}; {other} {}", next.shown(step)));
        }
        if handed.in_doubt {
            if let Err(reason) = handed.release {
                let now = self.now(name)?;
                self.client(name)?.gave_up(reason, Some(&lease), now);
            }
            return Ok(shown);
        }
        let client = self.client(name)?;
        client.lease = Some(lease);
        Ok(format!("{shown}; {other} has left, {}", self.releases(name)?))
    }
}

//! Locks that go to other clients by tokens in the random search. A token may come to several clients, at any time.

use super::holding::{Held, Power};
use super::{Doing, MILLI, Run};
use setnx_lock_proto::Step;
use setnx_lock_proto::hold::{self, Extension};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::ownership::Loss;
use setnx_lock_proto::task::Task;
use setnx_lock_proto::values::{Key, Now, Token};

/// A token, the number of its hold, and whether a client has gone on with that.
#[derive(Debug)]
pub(super) struct HandedOut {
    token: Token,
    number: u64,
    is_used: bool,
}

impl Run {
    /// A holder ends its hold by a token.
    pub(super) fn hands_out(&mut self, n: usize, own: Lease, number: u64, now: Now) {
        self.clients[n].held = None;
        if !own.is_unresolved() {
            return self.handed_out(n, &own, number);
        }
        let nonce = self.fresh_nonce();
        let (task, step) = Task::begin(now, async move |io| hold::settle(io, &own, nonce).await);
        self.clients[n].power = Some(Power::HandingOut(task, number));
        self.act_on_settling(n, step);
    }

    pub(super) fn act_on_settling(&mut self, n: usize, step: Step<Extension>) {
        self.note(n, format_args!("{step:?}"));
        if let Step::Send(trip) = step {
            return self.clients[n].doing = self.sent(n, trip);
        }
        let Some(Power::HandingOut(_, number)) = self.clients[n].power.take() else {
            unreachable!("it makes a token")
        };
        if let Step::Done(Extension::Extended(lease)) = step {
            self.handed_out(n, &lease, number);
        }
    }

    fn handed_out(&mut self, n: usize, lease: &Lease, number: u64) {
        let token = lease.token(&Key::from("k"), &self.terms(n), self.now(n).wall);
        // It is written down and read again.
        let token = Token::read(&token.to_string()).unwrap_or_else(|problem| panic!("{problem}"));
        self.note(n, format_args!("hands out {token:?}"));
        self.handed_out.push(HandedOut { token, number, is_used: false });
    }

    /// Returns a token for a client to use: mostly one that was handed out lately.
    pub(super) fn new_token(&self, choice: u8) -> Option<usize> {
        let last = self.handed_out.len().checked_sub(1)?;
        let is_recent = self.handed_out[last].token.end.0 + MILLI * 1000 > self.time;
        let often = if is_recent { choice & 3 > 0 } else { choice.is_multiple_of(11) };
        often.then(|| last.saturating_sub(usize::from(choice.is_multiple_of(7))))
    }

    pub(super) fn resumes(&mut self, n: usize, token: usize, now: Now) {
        self.clients[n].attempt = None;
        self.clients[n].wrote.clear();
        let (terms, tag) = (self.terms(n), self.fresh_tag(n));
        let protocol = self.clients[n].protocol.on(self.clients[n].server);
        let given = &self.handed_out[token].token;
        let (acquired, given) = (given.acquired, Lease::given(given, protocol, now));
        self.begins(n, &given);
        let first = given.clone();
        let new = move |now| first.resumed(&terms, &tag, acquired, now);
        let counter = self.counter_of(self.handed_out[token].number);
        let (task, step) = Task::begin(now, async move |io| hold::resume(io, &given, new, counter).await);
        self.clients[n].power = Some(Power::Resuming(task, token));
        self.act_on_resuming(n, step);
    }

    pub(super) fn act_on_resuming(&mut self, n: usize, step: Step<Extension>) {
        self.note(n, format_args!("{step:?}"));
        let outcome = match step.outcome() {
            Err(trip) => return self.clients[n].doing = self.sent(n, trip),
            Ok(outcome) => outcome,
        };
        let Some(Power::Resuming(_, token)) = self.clients[n].power.take() else {
            unreachable!("it resumes a lock")
        };
        let now = self.now(n);
        match outcome {
            Ok(Extension::Extended(lease)) => {
                let HandedOut { number, is_used, .. } = &mut self.handed_out[token];
                let number = *number;
                // The server may have the token's value again.
                if std::mem::replace(is_used, true) && !self.conditions.fails_over {
                    self.breaks("a token has worked twice");
                }
                self.resumed += 1;
                self.certify(n, number, lease.proven);
                if lease.has_passed(now) {
                    return;
                }
                self.clients[n].granted = self.time;
                let on = self.clients[n].executed_on;
                self.clients[n].held = Some(Held { lease, number, on });
                self.clients[n].doing = Doing::Working;
                self.looks_soon(n);
            }
            Ok(Extension::Lost(reason)) => {
                if reason != Loss::Expired && !self.clients[n].found_another {
                    self.breaks("a token was refused, and the key held its value all the time");
                }
            }
            // It may have worked, but not for this client.
            Ok(Extension::Unknown { .. }) | Err(_) => {}
        }
    }
}

//! Talking to the server, as the rules say, until there is a lease or an error.

use std::mem;

use super::{Granted, Wait};
use crate::backend::Failure;
use crate::clock::{self, Now, Uptime};
use crate::engine::Delivery;
use crate::engine::call::Call;
use crate::engine::release::HeldLock;
use crate::error::Error;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::acquire::{Acquiring, Action};
use crate::protocol::lease::Lease;
use crate::protocol::{Command, GiveUp, Reply};
use crate::queue::{Hint, Observation, Ticket, Woken};

/// What the server has answered to a SETNX that was sent before the wait for the lock.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Answer {
    /// The lock that was asked for.
    pub(in crate::engine) key: Key,
    /// What it acquires.
    pub(in crate::engine) lease: Lease,
    pub(in crate::engine) command: &'static str,
    pub(in crate::engine) reply: Result<Reply, Failure>,
}

impl Answer {
    /// Whether the lock was acquired.
    pub(in crate::engine) fn is_granted(&self) -> bool {
        matches!(self.reply, Ok(Reply::Integer(granted)) if granted > 0)
    }

    /// Whether the command may have been carried out, or may be still.
    pub(in crate::engine) fn is_lost(&self) -> bool {
        matches!(self.reply, Err(Failure::Lost(_)))
    }
}

/// How an attempt begins.
pub(super) struct Beginning<'a> {
    pub(super) call: Call<'a>,
    pub(super) action: Action,
    /// Whether a holder has handed the lock over.
    pub(super) handed_over: bool,
    /// When the key was last looked at.
    pub(super) looked: Uptime,
}

impl Wait<'_> {
    /// Talks to the server, as the head of the queue.
    pub(super) fn attempt(
        &self,
        mut attempt: Acquiring,
        beginning: Beginning<'_>,
        now: Now,
        ticket: &mut Option<Ticket<Delivery>>,
    ) -> Result<Granted, Error> {
        let granted = self.go_on(&mut attempt, beginning, now, ticket);
        self.protocol.set(attempt.protocol().on(self.engine.backend.server_version()));
        self.unresolved.replace(attempt.into_unresolved().into_iter().flatten().collect());
        granted
    }

    fn go_on(
        &self,
        attempt: &mut Acquiring,
        beginning: Beginning<'_>,
        mut now: Now,
        ticket: &mut Option<Ticket<Delivery>>,
    ) -> Result<Granted, Error> {
        let Beginning { mut call, mut action, mut handed_over, mut looked } = beginning;
        // Whether that was before the sleep that is next.
        let mut has_looked = false;
        loop {
            self.attempts.set(attempt.attempts);
            match action {
                Action::Send(_) => {}
                // Unwatching takes a round trip, and the lease runs; so this connection is dropped (I3).
                Action::Held(_) => call.abandon_watch(),
                Action::Sleep(_) | Action::GiveUp(_) => call.unwatch(),
            }
            // An observer may want a connection for itself.
            self.engine.report(self.key, &mut attempt.notes);
            if let Some(reply) = self.ask(&mut call, &action, has_looked, ticket.as_ref(), now) {
                let asked = mem::replace(&mut now, clock::now());
                if !matches!(reply, Reply::Lost | Reply::Unsent | Reply::TooLate) {
                    looked = now.uptime;
                }
                handed_over = false;
                has_looked = matches!(action, Action::Sleep(_));
                action = self.heard(attempt, reply, &action, asked, now);
                continue;
            }
            has_looked = false;
            action = match action {
                Action::Send(_) => unreachable!("it has been sent"),
                Action::Sleep(time) => {
                    let Some(ticket) = ticket else {
                        unreachable!("at its deadline an attempt gives up rather than sleep")
                    };
                    let observation = Observation { seen: attempt.seen.clone(), at: looked };
                    let in_doubt = attempt.is_in_doubt();
                    let parking = self.parking(Some(now.uptime.after(time)));
                    let woken = ticket.sleep(observation, in_doubt, parking);
                    now = clock::now();
                    if self.is_over() && !matches!(woken, Woken::Delivered(_)) {
                        if let Woken::Hint(hint) = woken {
                            self.pass_on(hint);
                        }
                        if in_doubt {
                            return Err(self.given_up(call, GiveUp::Unknown));
                        }
                        self.check()?;
                    }
                    self.owes.set(self.owes.get() || matches!(woken, Woken::Hint(Hint::Freed)));
                    let window = if in_doubt { None } else { self.window(now) };
                    match (woken, window) {
                        (Woken::Hint(_) | Woken::Over, Some(end)) => attempt.in_window(end, now),
                        (Woken::Hint(Hint::Freed), None) => attempt.freed(now),
                        (Woken::Delivered(Delivery { lease, protocol, in_doubt, .. }), _) => {
                            (looked, handed_over) = (now.uptime, true);
                            attempt.handed_over(lease, protocol, in_doubt, now)
                        }
                        (Woken::Hint(Hint::Changed) | Woken::Over, None) => attempt.woken(now),
                    }
                }
                Action::Held(lease) => {
                    if self.options.notifies {
                        self.engine.notifications.acquired(self.key);
                    }
                    let observation = Observation::of(&lease, now);
                    let holder = match ticket.take() {
                        Some(ticket) => ticket.enter(self.shared, &observation),
                        None => self.engine.queue.hold(self.key, self.shared, &observation),
                    };
                    let protocol = attempt.protocol();
                    // A command of its own would not have been sent.
                    if let (true, Err(ended)) = (handed_over, self.check()) {
                        let (key, options) = (self.key, self.options);
                        let lock = HeldLock { key, options, protocol, lease, holder };
                        self.engine.release_unwanted(lock, now);
                        return Err(ended);
                    }
                    return Ok(Granted { lease, protocol, holder, at: now });
                }
                Action::GiveUp(GiveUp::Timeout) => {
                    let exhausted = attempt.has_used_its_attempts();
                    return Err(self.contended(attempt.seen.take(), exhausted, now));
                }
                Action::GiveUp(reason) => {
                    // Unless the outcome is unknown, the end of the wait from outside is the reason.
                    if reason != GiveUp::Unknown {
                        self.check()?;
                    }
                    return Err(self.given_up(call, reason));
                }
            };
        }
    }

    /// Sends the command that is next, or looks before a sleep, if that is due and was not done. Returns the reply.
    fn ask(
        &self,
        call: &mut Call<'_>,
        action: &Action,
        has_looked: bool,
        ticket: Option<&Ticket<Delivery>>,
        now: Now,
    ) -> Option<Reply> {
        match action {
            Action::Send(request) if self.options.notifies && request.command == Command::Get => {
                Some(self.look(call, ticket, now))
            }
            Action::Send(request) => Some(call.send(request, now)),
            Action::Sleep(_) if !has_looked => self.look_before_sleep(call, ticket, now),
            Action::Sleep(_) | Action::Held(_) | Action::GiveUp(_) => None,
        }
    }

    /// Goes on with the reply to what was asked then.
    fn heard(&self, attempt: &mut Acquiring, reply: Reply, action: &Action, asked: Now, now: Now) -> Action {
        let replied = matches!(reply, Reply::Integer(_) | Reply::Bulk(_));
        if replied && attempt.protocol() == Protocol::Auto {
            attempt.decide_protocol(self.engine.backend.server_version());
        }
        let action = match action {
            Action::Sleep(time) => attempt
                .looked(reply, now)
                .unwrap_or_else(|| Action::Sleep(time.saturating_sub(now.uptime.since(asked.uptime)))),
            _ => attempt.reply(reply, now),
        };
        // One that leaves the lock has not acted upon its release.
        self.owes.set(self.owes.get() && (!replied || attempt.leaves()));
        if attempt.asks(now.uptime) {
            self.engine.queue.met_poller(self.key, now.uptime);
        }
        action
    }
}

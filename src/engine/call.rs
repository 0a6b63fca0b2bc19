//! The commands of one call on one lock: which connection each goes to, and what went wrong with the last.

use std::time::Duration;

use super::Engine;
use crate::clock::{self, Now, Uptime};
use crate::error::{Error, NoConnection};
use crate::event::Event;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Command, GiveUp, Reply, Request};
use crate::server::refusal::Refusal;
use crate::server::{Burst, Failure, Limits, Over};
use crate::version::Version;

/// The commands of one call on one lock, and what went wrong last: the rules know only that something did.
pub(super) struct Call<'a> {
    engine: &'a Engine,
    key: &'a Key,
    protocol: Protocol,
    /// Whether waiting has been ended from outside.
    over: Over<'a>,
    /// How long a server that cannot be reached is put up with, where there is no deadline.
    patience: Duration,
    trouble: Option<Trouble>,
    /// The connection that watches the key, and until when it may take to leave it.
    pub(super) burst: Option<(Box<dyn Burst>, Limits<'static>)>,
    /// The last command that got no answer and may have changed the key, and why it got none.
    unanswered: Option<(&'static str, redis::RedisError)>,
}

enum Trouble {
    TooOld(Version),
    Refused { command: &'static str, refusal: Refusal },
    NoConnection { cause: NoConnection, waited: Duration },
    Lost { command: &'static str, error: redis::RedisError },
}

impl<'a> Call<'a> {
    pub(super) fn new(engine: &'a Engine, key: &'a Key, protocol: Protocol) -> Self {
        let patience = engine.window.patience();
        let over = Over::NEVER;
        Self { engine, key, protocol, over, patience, trouble: None, burst: None, unanswered: None }
    }

    /// Has no connection waited for any longer once this says so, or, without a deadline, than this.
    pub(super) fn ended_by(self, over: Over<'a>, patience: Duration) -> Self {
        Self { over, patience, ..self }
    }

    pub(super) fn send(&mut self, request: &Request, now: Now, deadline: Option<Uptime>) -> Reply {
        let mut limits = Limits { over: self.over, ..self.engine.limits(self.protocol, now, deadline) };
        if deadline.is_none() {
            limits.reachable_by = now.uptime.after(self.patience);
            limits.connected_by = limits.reachable_by;
        }
        if self.trouble.is_some() && clock::uptime() >= limits.answered_by {
            return Reply::Unsent;
        }
        let (reply, trouble) = match self.carry(request, &limits) {
            Ok(reply) => return reply,
            Err(Failure::TooLate) => return Reply::TooLate,
            Err(Failure::TooOld(version)) => (Reply::Refused, Trouble::TooOld(version)),
            Err(Failure::Refused(refusal)) => {
                (Reply::Refused, Trouble::Refused { command: request.command.name(), refusal })
            }
            Err(Failure::NoConnection { cause, waited }) => {
                (Reply::Unsent, Trouble::NoConnection { cause, waited })
            }
            Err(Failure::Lost(error)) => {
                let (key, command) = (self.key, request.command.name());
                self.engine.observer.tell(&Event::Trouble { key, command, error: &error });
                if !request.command.only_reads() {
                    self.unanswered = Some((command, error.clone()));
                }
                (Reply::Lost, Trouble::Lost { command, error })
            }
        };
        self.trouble = Some(trouble);
        reply
    }

    /// A transaction goes to the connection that watches; everything else ends the watching, so that a call never needs two
    /// connections at a time.
    fn carry(&mut self, request: &Request, limits: &Limits<'_>) -> Result<Reply, Failure> {
        let window = &self.engine.window;
        match &request.command {
            command @ Command::Exec(_) => match self.burst.take() {
                // It changes what is watched, or nothing, so it is right at any time.
                Some((burst, _)) => burst.exec(self.key, command, limits),
                None => unreachable!("the rules watch a key before they change it"),
            },
            Command::WatchGet => {
                self.leave_the_burst();
                let (reply, burst) = window.watch(self.key, limits)?;
                self.burst = Some((burst, Limits { over: Over::NEVER, ..*limits }));
                Ok(reply)
            }
            _ => {
                self.leave_the_burst();
                window.call(self.key, request, limits)
            }
        }
    }

    /// Gives the connection that watches back, if there is one (I9).
    pub(super) fn leave_the_burst(&mut self) {
        if let Some((burst, limits)) = self.burst.take() {
            burst.leave(&limits);
        }
    }

    /// Makes the user's error: a doubt about the key comes first, then what went wrong last.
    pub(super) fn error(self, reason: GiveUp, advice: &'static str) -> Error {
        let key = self.key.clone();
        match (self.unanswered, self.trouble) {
            (Some((command, cause)), _) if reason == GiveUp::Unknown => {
                Error::Unknown { key, command, advice, cause }
            }
            (_, Some(Trouble::TooOld(version))) => {
                Error::Unsupported { key, protocol: self.protocol, version: Some(version), refusal: None }
            }
            (_, Some(Trouble::Refused { command, refusal })) => match refusal.protocol_too_new(command) {
                Some(protocol) => {
                    Error::Unsupported { key, protocol, version: None, refusal: Some(Box::new(refusal)) }
                }
                None => Error::Refused { key, refusal: Box::new(refusal) },
            },
            (_, Some(Trouble::Lost { command, error })) => Error::Io { key, command, source: error },
            (_, Some(Trouble::NoConnection { cause, waited })) => Error::Pool { key, waited, cause },
            (_, None) => Error::Pool { key, waited: Duration::ZERO, cause: NoConnection::PoolExhausted },
        }
    }
}

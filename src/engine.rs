//! The only loop: asks the rules what to do, does it through the windows, and brings the answer and the time back to the
//! rules, until there is a lease or an error.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::clock::{self, Now, Uptime};
use crate::error::{Contention, Error, NoConnection};
use crate::event::{Event, Observer};
use crate::identity::Identity;
use crate::key::Key;
use crate::options::LockOptions;
use crate::protocol::acquire::{Acquiring, Action, Note, Terms};
use crate::protocol::lease::{End, Lease};
use crate::protocol::release::{Release, Releasing, Step};
use crate::protocol::{Command, GiveUp, Reply};
use crate::server::refusal::Refusal;
use crate::server::{Failure, Limits, Window};
use crate::value::Content;

/// The windows that an attempt is made through.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) window: Arc<dyn Window>,
    pub(crate) observer: Observer,
    pub(crate) identity: Arc<Identity>,
}

// A panic in the user's code finds nothing here half done: pool and observer are only reached through locks that are let
// go of between two calls, and a connection that was in the middle of a command is not used again (I8).
impl UnwindSafe for Engine {}
impl RefUnwindSafe for Engine {}

/// A lock that was got, and what it took.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) lease: Lease,
    pub(crate) at: Now,
    pub(crate) tries: u32,
    pub(crate) waited: Duration,
}

impl Engine {
    /// Tries until there is a lease, or an error; contention until the deadline is an [`Error::Timeout`].
    pub(crate) fn acquire(&self, key: &Key, options: &LockOptions) -> Result<Acquired, Error> {
        let began = clock::now();
        let deadline = options.timeout.map(|timeout| began.uptime.after(timeout));
        let terms = Terms {
            expiration: options.expiration,
            deadline,
            poll_interval: options.poll_interval,
            takeover: options.takeover,
            patience: self.window.patience(),
            nonce: self.identity.next_nonce(began.wall),
        };
        let mut call = Call::new(self, key);
        let mut now = began;
        let (mut attempt, mut action) = Acquiring::start(terms, now);
        loop {
            self.report(key, &mut attempt.notes);
            action = match action {
                Action::Send(command) => {
                    let reply = call.send(&command, &self.limits(began.uptime, now.uptime, deadline));
                    now = clock::now();
                    attempt.reply(reply, now)
                }
                Action::Sleep(time) => {
                    thread::sleep(time);
                    now = clock::now();
                    attempt.woken(now)
                }
                Action::Held(lease) => {
                    let at = now;
                    let waited = at.uptime.since(began.uptime);
                    self.observer.tell(&Event::Acquired { key, tries: attempt.tries, waited });
                    return Ok(Acquired { lease, at, tries: attempt.tries, waited });
                }
                Action::GiveUp(reason) => {
                    let details = Box::new(Contention {
                        tries: attempt.tries,
                        waited: now.uptime.since(began.uptime),
                        seen: attempt.seen.take(),
                        expiring: options.expiration.is_some(),
                        taken_by_this_thread: false,
                    });
                    let timeout = options.timeout.unwrap_or(Duration::MAX);
                    let advice = match options.expiration {
                        Some(_) => "if it is ours, it frees itself when its lease has passed; try again then",
                        None => {
                            "it has no expiration, so nobody can tell whether it is ours; look at the key, and clear it if its holder is dead"
                        }
                    };
                    return Err(match reason {
                        GiveUp::Timeout => Error::Timeout { key: key.clone(), timeout, details },
                        _ => call.error(reason, advice),
                    });
                }
            };
        }
    }

    /// Gives a lease back, with at most two commands and no sleep; says what became of it and when.
    pub(crate) fn release(&self, key: &Key, lease: &Lease) -> Result<(Release, Now), Error> {
        let began = clock::now();
        let mut call = Call::new(self, key);
        let (mut releasing, mut step) = Releasing::start(lease, began);
        let base = self.limits(began.uptime, began.uptime, Some(began.uptime));
        let mut now = began;
        loop {
            let (command, before) = match step {
                Step::Send(command) => (command, None),
                Step::SendBefore(end, command) => (command, Some(end)),
                Step::Done(release) => return Ok((release, now)),
                Step::GiveUp(reason) => {
                    let advice = match lease.end {
                        Some(_) => "if it was not released, it frees itself when its lease has passed",
                        None => "it has no expiration, so look at the key, and clear it if it is still there",
                    };
                    return Err(call.error(reason, advice));
                }
            };
            let reply = call.send(&command, &within(base, now, before));
            now = clock::now();
            step = releasing.reply(&reply, now);
        }
    }

    /// Reads what the key holds, with one GET.
    pub(crate) fn peek(&self, key: &Key) -> Result<Content, Error> {
        match self.once(key, &Command::Get)? {
            Reply::Bulk(found) => Ok(Content::read(found.as_deref())),
            _ => unreachable!("a window answers GET with a bulk"),
        }
    }

    /// Deletes the key, whoever holds it, with one DEL.
    pub(crate) fn clear(&self, key: &Key) -> Result<bool, Error> {
        match self.once(key, &Command::Del)? {
            Reply::Integer(deleted) => Ok(deleted > 0),
            _ => unreachable!("a window answers DEL with an integer"),
        }
    }

    fn once(&self, key: &Key, command: &Command) -> Result<Reply, Error> {
        let began = clock::now().uptime;
        let mut call = Call::new(self, key);
        let reason = match call.send(command, &self.limits(began, began, Some(began))) {
            reply @ (Reply::Integer(_) | Reply::Bulk(_)) => return Ok(reply),
            Reply::Refused => GiveUp::Refused,
            Reply::Unsent | Reply::TooLate => GiveUp::Unsent,
            Reply::Lost if *command == Command::Del => GiveUp::Unknown,
            Reply::Lost => GiveUp::Io,
        };
        Err(call.error(reason, "look at the key again"))
    }

    /// A call ends within its timeout and the time of one command. A connection is waited for until the deadline, and
    /// not less than a command's time, or a short timeout could never open one.
    fn limits(&self, began: Uptime, now: Uptime, deadline: Option<Uptime>) -> Limits {
        let command = self.window.command_timeout();
        match deadline {
            Some(deadline) => Limits {
                reachable_by: deadline,
                connected_by: deadline.max(began.after(command)),
                answered_by: deadline.after(command),
                before: None,
            },
            None => {
                let patience = now.after(self.window.patience());
                Limits {
                    reachable_by: patience,
                    connected_by: patience,
                    answered_by: Uptime::MAX,
                    before: None,
                }
            }
        }
    }

    fn report(&self, key: &Key, notes: &mut Vec<Note>) {
        for note in notes.drain(..) {
            self.observer.tell(&match &note {
                Note::TookOver(from) => Event::TookOver { key, from },
                Note::Overwrote(winner) => Event::Overwrote { key, winner },
                Note::LateGrant => Event::LateGrant { key },
                Note::Stuck(content) => Event::Stuck { key, content },
            });
        }
    }
}

/// Binds a command to the end of a lease: with that passed it is not sent, so nothing is waited for beyond it.
fn within(limits: Limits, now: Now, before: Option<End>) -> Limits {
    let Some(end) = before else { return limits };
    let connected_by = limits.connected_by.min(now.uptime.after(end.remaining(now)));
    Limits { connected_by, before, ..limits }
}

/// The commands of one call on one lock, and what went wrong last: the rules know only that something did.
struct Call<'a> {
    engine: &'a Engine,
    key: &'a Key,
    trouble: Option<Trouble>,
    /// The last command that got no answer and may have changed the key, and why it got none.
    unanswered: Option<(&'static str, redis::RedisError)>,
}

enum Trouble {
    Refused(Refusal),
    NoConnection { cause: NoConnection, waited: Duration },
    Lost { command: &'static str, error: redis::RedisError },
}

impl<'a> Call<'a> {
    fn new(engine: &'a Engine, key: &'a Key) -> Self {
        Self { engine, key, trouble: None, unanswered: None }
    }

    fn send(&mut self, command: &Command, limits: &Limits) -> Reply {
        if self.trouble.is_some() && clock::now().uptime >= limits.answered_by {
            return Reply::Unsent;
        }
        let (reply, trouble) = match self.engine.window.call(self.key, command, limits) {
            Ok(reply) => return reply,
            Err(Failure::TooLate) => return Reply::TooLate,
            Err(Failure::Refused(refusal)) => (Reply::Refused, Trouble::Refused(refusal)),
            Err(Failure::NoConnection { cause, waited }) => {
                (Reply::Unsent, Trouble::NoConnection { cause, waited })
            }
            Err(Failure::Lost(error)) => {
                let (key, command) = (self.key, command.name());
                self.engine.observer.tell(&Event::Trouble { key, command, error: &error });
                if command != Command::Get.name() {
                    self.unanswered = Some((command, error.clone()));
                }
                (Reply::Lost, Trouble::Lost { command, error })
            }
        };
        self.trouble = Some(trouble);
        reply
    }

    /// Makes the user's error: a doubt about the key comes first, then what went wrong last.
    fn error(self, reason: GiveUp, advice: &'static str) -> Error {
        let key = self.key.clone();
        match (self.unanswered, self.trouble) {
            (Some((command, cause)), _) if reason == GiveUp::Unknown => {
                Error::Unknown { key, command, advice, cause }
            }
            (_, Some(Trouble::Refused(refusal))) => Error::Refused { key, refusal: Box::new(refusal) },
            (_, Some(Trouble::Lost { command, error })) => Error::Io { key, command, source: error },
            (_, Some(Trouble::NoConnection { cause, waited })) => Error::Pool { key, waited, cause },
            (_, None) => Error::Pool { key, waited: Duration::ZERO, cause: NoConnection::PoolExhausted },
        }
    }
}

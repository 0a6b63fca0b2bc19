//! The only loop: asks the rules what to do, does it through the windows, and brings the answer and the time back to the
//! rules, until there is a lease or an error.

mod call;

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;
use std::{process, thread};

use crate::clock::{self, Now, Uptime};
use crate::error::{Contention, Error, NoAnswer};
use crate::event::{Event, Observer};
use crate::identity::Identity;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::acquire::{Acquiring, Action, Note, Terms};
use crate::protocol::lease::Lease;
use crate::protocol::release::{Release, Releasing, Step};
use crate::protocol::{Command, GiveUp, Reply, Request};
use crate::server::{Failure, Limits, Server, Window};
use crate::value::Content;
use call::Call;

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
    pub(crate) protocol: Protocol,
    pub(crate) lease: Lease,
    pub(crate) at: Now,
    pub(crate) tries: u32,
    pub(crate) waited: Duration,
}

impl Engine {
    /// Tries until there is a lease, or an error; contention until the deadline is an [`Error::Timeout`].
    pub(crate) fn acquire(&self, key: &Key, options: &LockOptions) -> Result<Acquired, Error> {
        self.refuse_after_a_fork(key)?;
        let began = clock::now();
        let deadline = options.timeout.map(|timeout| began.uptime.after(timeout));
        let terms = Terms {
            protocol: options.protocol,
            expiration: options.expiration,
            deadline,
            polling: options.polling,
            takeover: options.takeover,
            takeover_margin: options.takeover_margin,
            patience: self.window.patience(),
            nonce: self.identity.next_nonce(),
        };
        let mut call = Call::new(self, key, options.protocol);
        let mut now = began;
        let (mut attempt, mut action) = Acquiring::start(terms, now);
        loop {
            match action {
                Action::Send(_) => {}
                // Leaving takes a trip, and the lease runs; so this connection is given up (I3).
                Action::Held(_) => call.burst = None,
                Action::Sleep(_) | Action::GiveUp(_) => call.leave_the_burst(),
            }
            // An observer may want a connection for itself.
            self.report(key, &mut attempt.notes);
            action = match action {
                Action::Send(request) => {
                    let reply = call.send(&request, now, deadline);
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
                    return Ok(Acquired {
                        protocol: options.protocol,
                        lease,
                        at,
                        tries: attempt.tries,
                        waited,
                    });
                }
                Action::GiveUp(reason) => {
                    let details = Box::new(Contention {
                        tries: attempt.tries,
                        waited: now.uptime.since(began.uptime),
                        seen: attempt.seen.take(),
                        expiring: options.expiration.is_some(),
                        takeover_margin: options.takeover_margin,
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

    /// Gives a lease back by the rules that it was got by, with a few commands and no sleep.
    pub(crate) fn release(
        &self,
        key: &Key,
        protocol: Protocol,
        lease: &Lease,
        began: Now,
    ) -> Result<Release, Error> {
        let mut call = Call::new(self, key, protocol);
        let mut now = began;
        let (mut releasing, mut step) = Releasing::start(protocol, lease, now);
        loop {
            if !matches!(step, Step::Send(_)) {
                call.leave_the_burst();
            }
            let request = match step {
                Step::Send(request) => request,
                Step::Done(release) => return Ok(release),
                Step::GiveUp(reason) => {
                    let advice = match lease.end {
                        Some(_) => "if it was not released, it frees itself when its lease has passed",
                        None => "it has no expiration, so look at the key, and clear it if it is still there",
                    };
                    return Err(call.error(reason, advice));
                }
            };
            let reply = call.send(&request, now, Some(began.uptime));
            now = clock::now();
            step = releasing.reply(&reply, now);
        }
    }

    /// Reads what the key holds, with one GET.
    pub(crate) fn peek(&self, key: &Key) -> Result<Content, Error> {
        match self.once(key, Command::Get)? {
            Reply::Bulk(found) => Ok(Content::read(found.as_deref())),
            _ => unreachable!("a window answers GET with a bulk"),
        }
    }

    /// Deletes the key, whoever holds it, with one DEL.
    pub(crate) fn clear(&self, key: &Key) -> Result<bool, Error> {
        match self.once(key, Command::Del)? {
            Reply::Integer(deleted) => Ok(deleted > 0),
            _ => unreachable!("a window answers DEL with an integer"),
        }
    }

    /// Asks the server what it is and can do.
    pub(crate) fn survey(&self) -> Result<Server, Error> {
        if !self.identity.is_this_process() {
            return Err(Error::Server { cause: Box::new(NoAnswer::Forked) });
        }
        let nonce = self.identity.next_nonce();
        let probe = Key::from(format!("setnx-lock:probe:{}:{nonce}", process::id()));
        let now = clock::now();
        let limits = self.limits(Protocol::Classic, now, None);
        self.window.survey(&probe, &limits).map_err(|failure| {
            let cause = Box::new(match failure {
                Failure::NoConnection { cause, waited } => NoAnswer::NoConnection { cause, waited },
                Failure::Refused(refusal) => NoAnswer::Refused(refusal),
                Failure::Lost(error) => NoAnswer::Lost(error),
                Failure::TooLate | Failure::TooOld(_) => unreachable!("any time and any server will do"),
            });
            Error::Server { cause }
        })
    }

    fn once(&self, key: &Key, command: Command) -> Result<Reply, Error> {
        self.refuse_after_a_fork(key)?;
        let now = clock::now();
        let mut call = Call::new(self, key, Protocol::Classic);
        let request = Request::at_any_time(command);
        let reason = match call.send(&request, now, Some(now.uptime)) {
            reply @ (Reply::Integer(_) | Reply::Bulk(_) | Reply::Executed(_)) => return Ok(reply),
            Reply::Refused => GiveUp::Refused,
            Reply::Unsent | Reply::TooLate => GiveUp::Unsent,
            Reply::Lost if request.command == Command::Del => GiveUp::Unknown,
            Reply::Lost => GiveUp::Io,
        };
        Err(call.error(reason, "look at the key again"))
    }

    /// I10: a child has its parent's connections, and both would read each other's answers.
    fn refuse_after_a_fork(&self, key: &Key) -> Result<(), Error> {
        if self.identity.is_this_process() { Ok(()) } else { Err(Error::Forked { key: key.clone() }) }
    }

    /// A call ends within its timeout and the time of one command, which is also how long a connection is waited for: the
    /// last try comes at the deadline, and needs one. A server that cannot be reached is not waited for beyond the deadline.
    fn limits(&self, needs: Protocol, now: Now, deadline: Option<Uptime>) -> Limits {
        let command = self.window.command_timeout();
        let (reachable_by, answered_by) = match deadline {
            Some(deadline) => (deadline, deadline.after(command)),
            None => (now.uptime.after(self.window.patience()), Uptime::MAX),
        };
        let connected_by = if deadline.is_some() { answered_by } else { reachable_by };
        Limits { needs, asked: now, reachable_by, connected_by, answered_by }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use crate::protocol::lease::End;
    use crate::server::Burst;
    use crate::{Lock, Locker};

    /// Holds an expired value, grants everything, and keeps what it was asked.
    #[derive(Debug, Default)]
    struct Dead(Mutex<Vec<(&'static str, Now, Option<End>)>>);

    impl Window for Dead {
        fn call(&self, _: &Key, request: &Request, limits: &Limits) -> Result<Reply, Failure> {
            self.0.lock().unwrap().push((request.command.name(), limits.asked, request.before));
            Ok(match &request.command {
                Command::SetNx(_) => Reply::Integer(0),
                Command::Del => Reply::Integer(1),
                _ => Reply::Bulk(Some(b"1532000016.5".to_vec())),
            })
        }

        fn watch(&self, _: &Key, _: &Limits) -> Result<(Reply, Box<dyn Burst>), Failure> {
            unreachable!("Classic watches nothing")
        }

        fn survey(&self, _: &Key, _: &Limits) -> Result<Server, Failure> {
            unreachable!("it is not asked what it is")
        }

        fn command_timeout(&self) -> Duration {
            Duration::from_secs(2)
        }

        fn patience(&self) -> Duration {
            Duration::from_secs(5)
        }
    }

    #[test]
    fn what_may_overwrite_or_delete_another_s_key_is_bound_in_time() {
        let window = Arc::new(Dead::default());
        let options = LockOptions::expiring_after(Duration::from_secs(10));
        drop(Lock::new(&Locker::through(window.clone()), "k", options).unwrap().lock().unwrap());
        let asked = window.0.lock().unwrap();
        let names: Vec<&str> = asked.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["SETNX", "GET", "GETSET", "DEL"]);
        for (name, at, before) in asked.iter() {
            let remaining = before.map(|end| end.remaining(*at));
            match *name {
                "GETSET" => assert_eq!(remaining, Some(Duration::from_millis(250)), "well within the guard"),
                "DEL" => assert!(remaining.is_some_and(|time| time <= Duration::from_secs(10)), "the lease"),
                _ => assert_eq!(remaining, None),
            }
        }
    }
}

//! Drives the rules: asks them what to do, does it through the windows, and brings the answer and the time back to them, until
//! there is an end.

mod acquire;
mod call;
mod give_back;
mod wake_ups;

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{self, Now, Uptime};
use crate::error::{Error, NoAnswer};
use crate::event::Observer;
use crate::identity::Identity;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Command, GiveUp, Reply, Request};
use crate::server::{Failure, Limits, Over, Server, Window};
use crate::value::Content;
use crate::waiting::{Lines, News};
pub(crate) use acquire::Acquired;
use call::Call;
pub(crate) use give_back::Held;
pub(crate) use wake_ups::WakeUps;

/// The windows that an attempt is made through.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    pub(crate) window: Arc<dyn Window>,
    pub(crate) observer: Observer,
    pub(crate) identity: Arc<Identity>,
    /// Shared by all clones of a locker.
    pub(crate) lines: Arc<Lines>,
    pub(crate) wake_ups: Arc<WakeUps>,
    /// When a wait was last given up because the server could not be reached, in microseconds of uptime; 0 is never.
    pub(crate) unreachable: Arc<AtomicU64>,
    /// Whether threads share trips to the server.
    pub(crate) combines: bool,
}

/// How long a connection is waited for that is worth little: of a server that another has just been patient with in vain, or for a
/// token.
const LITTLE_PATIENCE: Duration = Duration::from_millis(50);

// A panic in the user's code finds nothing here half done: pool and observer are only reached through locks that are let
// go of between two calls, and a connection that was in the middle of a command is not used again (I8).
impl UnwindSafe for Engine {}
impl RefUnwindSafe for Engine {}

impl Engine {
    pub(crate) fn new(window: Arc<dyn Window>, observer: Observer, identity: Identity) -> Self {
        let lines = Arc::<Lines>::default();
        let bell = identity.next_nonce().seed();
        let wake_ups = Arc::new(WakeUps::new(Arc::clone(&window), Arc::clone(&lines), bell));
        Self {
            window,
            observer,
            identity: Arc::new(identity),
            lines,
            wake_ups,
            unreachable: Arc::default(),
            combines: true,
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
            Reply::Integer(deleted) => {
                if deleted > 0 {
                    self.lines.tell(key, News::Freed);
                }
                Ok(deleted > 0)
            }
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

    fn note_unreachable(&self) {
        let now = clock::uptime().0.as_micros();
        self.unreachable.store(u64::try_from(now).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How long a wait that began then puts up with a server that cannot be reached: hardly at all where another has just given up
    /// while this one stood in line behind it. Otherwise the last of a line would wait as many times as there are before him.
    fn patience(&self, began: Uptime) -> Duration {
        let full = self.window.patience();
        let found = Uptime(Duration::from_micros(self.unreachable.load(Ordering::Relaxed)));
        let just_now = began < found && clock::uptime().since(found) < full;
        if just_now { LITTLE_PATIENCE.min(full) } else { full }
    }

    /// A call ends within its timeout and the time of one command, which is also how long a connection is waited for: the
    /// last try comes at the deadline, and needs one. A server that cannot be reached is not waited for beyond the deadline.
    fn limits(&self, needs: Protocol, now: Now, deadline: Option<Uptime>) -> Limits<'static> {
        let command = self.window.command_timeout();
        let (reachable_by, answered_by) = match deadline {
            Some(deadline) => (deadline, deadline.after(command)),
            None => (now.uptime.after(self.window.patience()), Uptime::MAX),
        };
        let connected_by = if deadline.is_some() { answered_by } else { reachable_by };
        Limits {
            needs,
            asked: now,
            reachable_by,
            connected_by,
            answered_by,
            over: Over::NEVER,
            combines: self.combines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    use crate::protocol::lease::End;
    use crate::server::Burst;
    use crate::{Lock, LockOptions, Locker};

    /// Holds an expired value, grants everything, and keeps what it was asked.
    #[derive(Debug, Default)]
    struct Dead(Mutex<Vec<(&'static str, Now, Option<End>)>>);

    impl Window for Dead {
        fn call(&self, _: &Key, request: &Request, limits: &Limits<'_>) -> Result<Reply, Failure> {
            self.0.lock().unwrap().push((request.command.name(), limits.asked, request.before));
            Ok(match &request.command {
                Command::SetNx(_) => Reply::Integer(0),
                Command::Del => Reply::Integer(1),
                _ => Reply::Bulk(Some(b"1532000016.5".to_vec())),
            })
        }

        fn watch(&self, _: &Key, _: &Limits<'_>) -> Result<(Reply, Box<dyn Burst>), Failure> {
            unreachable!("Classic watches nothing")
        }

        fn survey(&self, _: &Key, _: &Limits<'_>) -> Result<Server, Failure> {
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
                "GETSET" => assert_eq!(remaining, Some(Duration::from_millis(100)), "well within the guard"),
                "DEL" => assert!(remaining.is_some_and(|time| time <= Duration::from_secs(10)), "the lease"),
                _ => assert_eq!(remaining, None),
            }
        }
    }
}

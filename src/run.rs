//! Runs one acquisition or release: asks the rules what to do, performs it through the backend, the wait queue and the clock, and
//! returns the reply and the time to the rules, until they end. Knows no rule of its own.

mod acquire;
mod drive;
mod ending;
mod gems;
pub(crate) mod hold;
mod holder_name;
mod keeper;
mod maybe_held;
mod notifications;
mod outbox;
mod owner;
mod permits;
mod release;
mod reports;
mod session;
mod several;
pub(crate) mod thread_holds;
pub(crate) mod timer;
mod unfinished;

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::net::{Backend, Budget};
use crate::report::error::Error;
use crate::report::sink::{EventSink, Reporter, noticing};
use crate::rules::lease::Lease;
use crate::rules::{Command, Cue, GiveUp, Replies, Reply, Trip};
use crate::run::hold::Changes;
use crate::run::thread_holds::HoldKind;
use crate::run::timer::Timer;
use crate::values::clock::{self, Uptime};
use crate::values::identity::Identity;
use crate::values::key::Key;
use crate::values::options::{LockOptions, Protocol};
use crate::values::value::LockState;
use crate::wait::{Hint, WaitQueue};
pub(crate) use acquire::{Acquired, ReaderCount};
use acquire::{Answer, ComparedReaders};
pub(crate) use ending::{Ended, Leaving};
use gems::Gems;
use keeper::Kept;
pub(crate) use maybe_held::MaybeHeld;
use notifications::NotificationsByNode;
pub(crate) use permits::Permits;
pub(crate) use reports::Reports;
use session::Session;
pub(crate) use several::Several;
pub(crate) use unfinished::Unfinished;

/// A lock that a holder hands over to a thread which waits for it.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) key: Key,
    pub(crate) lease: Lease,
    /// True if only the key can tell if the lock was handed over.
    pub(crate) in_doubt: bool,
}

impl Delivery {
    /// Returns how the attempt of the thread goes on that gets it.
    fn cue(self) -> Cue {
        let Self { lease, in_doubt, .. } = self;
        Cue::HandedOver { lease, in_doubt }
    }
}

/// What the locks of a locker share.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) observer: EventSink,
    /// What tells people who holds a lock.
    pub(crate) holder_name: Option<Arc<str>>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) queue: Arc<WaitQueue<Delivery>>,
    notifications: Arc<NotificationsByNode>,
    keeper: Arc<Timer<Kept>>,
    /// Releases that are tried again.
    pub(crate) unfinished: Arc<Timer<Unfinished>>,
    pub(crate) reports: Arc<Reports>,
    gems: Arc<Gems>,
    /// Wakes the threads that wait for a loss.
    changes: Arc<Changes>,
    compared_readers: Arc<ComparedReaders>,
    /// When a wait last ended because the server was unreachable, in microseconds of uptime; 0 is never.
    unreachable_since: Arc<AtomicU64>,
}

/// How long a connection is waited for that matters little: of a server that another thread has just found unreachable, or for a
/// notification.
const SHORT_CONNECT_WAIT: Duration = Duration::from_millis(50);

// A panic in the user's code leaves nothing here half done: pool and observer are reached only through mutexes that are
// released between two calls, and a connection that was in the middle of a command is not used again (I8).
impl UnwindSafe for Engine {}
impl RefUnwindSafe for Engine {}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn Backend>, identity: Identity) -> Self {
        let queue = Arc::<WaitQueue<Delivery>>::default();
        let random = identity.next_nonce().seed();
        let notifications =
            Arc::new(NotificationsByNode::new(Arc::clone(&backend), Arc::clone(&queue), random));
        let reports = Arc::new(Reports::new());
        Self {
            backend,
            observer: EventSink::default().reporting_by(Arc::clone(&reports) as Arc<dyn Reporter>),
            holder_name: None,
            identity: Arc::new(identity),
            queue,
            notifications,
            keeper: Arc::new(Timer::new("setnx-lock keeper", keeper::work)),
            unfinished: Arc::new(Timer::new("setnx-lock release", unfinished::work)),
            reports,
            gems: Arc::default(),
            changes: Arc::default(),
            compared_readers: Arc::default(),
            unreachable_since: Arc::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn refuse_threads(&self, refuse: bool) {
        self.keeper.refuse_threads(refuse);
    }

    /// Reads what the key holds, and when the server removes it, in one trip.
    pub(crate) fn state(&self, key: &Key) -> Result<LockState, Error> {
        if !self.backend.is_known() {
            // Then it is, and servers that lack PTTL are not asked for it.
            self.once(key, Command::Get)?;
        }
        let removes = |version| version >= Protocol::Ttl.min_version();
        let asks = self.backend.server_version().is_some_and(removes);
        let (found, left) = self.once_with(key, Command::Get, asks.then_some(Command::TimeToLive))?;
        let Reply::Bulk(found) = found else { unreachable!("a backend answers GET with a bulk") };
        let state = LockState::of_value(found.as_deref());
        let left = if let Some(Reply::Integer(left)) = left { u64::try_from(left).ok() } else { None };
        Ok(match left {
            Some(left) => state.removed_at(clock::now().wall.after(Duration::from_millis(left))),
            None => state,
        })
    }

    /// Deletes the key, whatever it holds, with one DEL.
    pub(crate) fn clear(&self, key: &Key) -> Result<bool, Error> {
        match self.once(key, Command::Del)? {
            Reply::Integer(deleted) => {
                if deleted > 0 {
                    self.queue.notify(key, Hint::Freed);
                }
                Ok(deleted > 0)
            }
            _ => unreachable!("a backend answers DEL with an integer"),
        }
    }

    fn once(&self, key: &Key, command: Command) -> Result<Reply, Error> {
        self.once_with(key, command, None).map(|(reply, _)| reply)
    }

    /// Returns true if it is known what the options mean on this server, as far as that can be known.
    fn knows_meaning_of(&self, options: &LockOptions) -> bool {
        options.protocol != Protocol::Auto || self.backend.is_known()
    }

    /// Returns the protocol that the options mean on this server, as far as its version is known.
    fn protocol_of(&self, options: &LockOptions) -> Protocol {
        let is_auto = options.protocol == Protocol::Auto;
        options.protocol_on(if is_auto { self.backend.server_version() } else { None })
    }

    /// Returns true if a release of a lock with these options wakes other processes, and waiting ones are to be woken.
    fn notifies(&self, options: &LockOptions) -> bool {
        options.notifies.unwrap_or_else(|| options.protocol == Protocol::Auto && self.backend.notifies())
    }

    /// Sends a command, and another behind it, whose failure does not matter. Returns both replies.
    fn once_with(
        &self,
        key: &Key,
        command: Command,
        behind: Option<Command>,
    ) -> Result<(Reply, Option<Reply>), Error> {
        self.refuse_after_fork(key)?;
        let now = clock::now();
        let mut session = Session::new(self, key, Protocol::Classic, Some(now.uptime));
        let trip = Trip { behind: behind.map(Box::new), ..Trip::of(command) };
        let Replies { reply, behind, .. } = session.send(&trip, now);
        let reason = match reply.unwrap_or(Reply::TooLate) {
            reply @ (Reply::Integer(_)
            | Reply::Bulk(_)
            | Reply::Expiring(..)
            | Reply::Bulks(_)
            | Reply::Executed(_)) => return Ok((reply, behind)),
            Reply::Refused(_) => GiveUp::Refused,
            Reply::Unsent | Reply::TooLate => GiveUp::Unsent,
            Reply::Lost if !trip.command.only_reads() => GiveUp::Unknown,
            Reply::Lost => GiveUp::Io,
        };
        Err(session.error(reason, "look at the key again"))
    }

    /// I10: a child shares its parent's connections, and each would read the other's replies.
    pub(crate) fn refuse_after_fork(&self, key: &Key) -> Result<(), Error> {
        if self.identity.is_this_process() { Ok(()) } else { Err(Error::Forked { key: key.clone() }) }
    }

    /// Fails inside a `with` of this thread on this key.
    fn refuse_nested(&self, key: &Key) -> Result<(), Error> {
        match thread_holds::by_this_thread(&self.identity, key) {
            Some(HoldKind::Scoped) => Err(Error::Nested { key: key.clone() }),
            Some(HoldKind::Movable) | None => Ok(()),
        }
    }

    fn note_unreachable(&self) {
        self.unreachable_since.store(clock::uptime().micros(), Ordering::Relaxed);
    }

    /// How long a wait that began then retries while the server is unreachable: only briefly where another thread has just given up
    /// while this one was queued behind it. Otherwise the waits of a queue would add up.
    fn retry_for(&self, began: Uptime) -> Duration {
        let full = self.backend.retry_for();
        let found = Uptime::of(Duration::from_micros(self.unreachable_since.load(Ordering::Relaxed)));
        let just_now = began < found && clock::uptime().since(found) < full;
        if just_now { SHORT_CONNECT_WAIT.min(full) } else { full }
    }

    /// Has events go to this observer.
    pub(crate) fn observe(&mut self, observer: EventSink) {
        self.observer = observer.reporting_by(Arc::clone(&self.reports) as Arc<dyn Reporter>);
    }

    pub(crate) fn budget(&self, deadline: Option<Uptime>) -> Budget {
        Budget {
            deadline,
            retry_for: self.backend.retry_for(),
            command_timeout: self.backend.command_timeout(),
        }
    }
}

/// Does the work of a timer's thread, for each locker with its own settings. What it notices is reported later.
fn for_each_engine<T>(mut due: Vec<T>, of: impl Fn(&T) -> &Arc<Engine>, work: impl Fn(&Arc<Engine>, Vec<T>)) {
    while let Some(last) = due.last() {
        let engine = Arc::clone(of(last));
        let (own, others) = due.into_iter().partition(|other| Arc::ptr_eq(of(other), &engine));
        due = others;
        noticing(|| work(&engine, own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::net::scripted::ScriptedBackend;
    use crate::{Lock, LockOptions, Locker};

    #[test]
    fn commands_that_may_change_another_s_key_are_bound_in_time() {
        let backend = ScriptedBackend::replying(|command| match command {
            Command::SetNx(_) => Reply::Integer(0),
            Command::Del => Reply::Integer(1),
            _ => Reply::Bulk(Some(b"1532000016.5".to_vec())),
        });
        let options = LockOptions::expiring_after(Duration::from_secs(10));
        drop(Lock::new(&Locker::over(backend.clone()), "k", options).unwrap().lock().unwrap());
        let sent = backend.sent.lock().unwrap();
        let names: Vec<&str> = sent.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["SETNX", "GET", "GETSET", "DEL"]);
        for (name, at, before) in sent.iter() {
            let remaining = before.map(|end| end.remaining(*at));
            match *name {
                "GETSET" => assert_eq!(remaining, Some(Duration::from_millis(100)), "well within the guard"),
                "SETNX" | "DEL" => {
                    assert!(remaining.is_some_and(|time| time <= Duration::from_secs(10)), "the lease");
                }
                _ => assert_eq!(remaining, None),
            }
        }
    }
}

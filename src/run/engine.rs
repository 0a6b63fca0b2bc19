//! What the locks of a locker share, and small questions to it.
//! What calls do with it stands in the files that know more.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use proto::lease::Lease;
use proto::values::{Key, Protocol, Tag, Uptime, can_share_slot, classic_time, hash_tag};

use super::changes::Changes;
use super::held::{Holder, Queue, Queues};
use super::hold::Hold;
use super::open_debts::{DebtId, OpenDebts};
use super::reports::Reports;
use super::thread_holds::{self, HoldKind};
use super::timer::{Timer, Work};
use super::turns::{Name, Turn, Turns};
use crate::net::{Backend, NodeId};
use crate::report::error::Error;
use crate::run::identity::Identity;
use crate::run::sink::{EventSink, noticing};
use crate::system::clock;
use crate::system::random::HashMap;
use crate::system::sync::Mutex;
use crate::system::thread;
use crate::values::options::LockOptions;
use crate::wait::Waiters;

/// How long a connection is waited for of a server that another thread has just found unreachable.
const SHORT_CONNECT_WAIT: Duration = Duration::from_millis(50);

/// What the locks of a locker share.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) observer: EventSink,
    name: Name,
    /// What tells people who holds a lock.
    pub(crate) holder_name: Option<Arc<str>>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) queue: Arc<Queue>,
    /// How many calls acquire locks.
    acquiring: Arc<AtomicUsize>,
    turns: Arc<Turns>,
    pub(super) keeper: Arc<Timer<Kept>>,
    pub(crate) debts: Arc<Timer<Debt>>,
    pub(super) open_debts: Arc<OpenDebts>,
    pub(crate) reports: Arc<Reports>,
    pub(super) gems: Arc<Gems>,
    /// Wakes the threads that wait for a loss.
    pub(super) changes: Arc<Changes>,
    /// The numbers of readers that callers have compared, by their keys.
    pub(super) compared_readers: Arc<Mutex<HashMap<Key, usize>>>,
    /// When a wait last ended because the server was unreachable, in microseconds of uptime; 0 is never.
    unreachable_since: Arc<AtomicU64>,
}

// A panic in the user's code leaves nothing here half done: pool and observer are reached only through mutexes that are
// released between two calls, and a connection that was in the middle of a command is not used again (I8).
impl UnwindSafe for Engine {}
impl RefUnwindSafe for Engine {}

/// A call that acquires locks.
pub(crate) struct Acquiring<'a>(&'a AtomicUsize);

impl Drop for Acquiring<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A lock that the keeper works on.
pub(crate) struct Kept {
    pub(super) engine: Arc<Engine>,
    pub(super) hold: Arc<Hold>,
    /// Which node had the key when it was scheduled.
    pub(super) node: NodeId,
}

/// A lock that is held, or may be, although it was given up.
pub(crate) struct Debt {
    pub(super) engine: Arc<Engine>,
    pub(super) key: Key,
    pub(super) options: LockOptions,
    /// The values that may be in the key, and until when that matters.
    pub(super) lease: Lease,
    /// Its place in the queue, so that threads of this process wait for the release; `None` until the key has shown that
    /// the lock is held.
    pub(super) holder: Option<Holder>,
    /// If a program has ended its hold, and wants to hear how that ends: then this has the lease.
    pub(super) hold: Option<Arc<Hold>>,
    pub(super) owed: DebtId,
    /// True if it was not paid before: its lock is to be released for the first time.
    pub(super) is_first: bool,
    /// True if the key could be read last time, and did not show the lock.
    pub(super) is_absent: bool,
}

impl Engine {
    /// `lines`: the queues of threads that wait for one of several locks. The last two do the work of the timers.
    pub(super) fn new(
        backend: Arc<dyn Backend>,
        identity: Identity,
        lines: Arc<dyn Waiters>,
        keep: Work<Kept>,
        pay: Work<Debt>,
    ) -> Self {
        let queue = Arc::<Queue>::default();
        let name = Name { prefix: Key::from(""), random: identity.next_nonce().seed() };
        let queues = Queues { locks: Arc::clone(&queue), lines };
        let turns = Arc::new(Turns::new(Arc::clone(&backend), queues, name.clone()));
        let reports = Arc::new(Reports::new());
        Self {
            backend,
            observer: EventSink::default().reporting_by(Arc::clone(&reports)),
            name,
            holder_name: None,
            identity: Arc::new(identity),
            queue,
            acquiring: Arc::default(),
            turns,
            keeper: Arc::new(Timer::new("setnx-lock keeper", keep)),
            debts: Arc::new(Timer::new("setnx-lock debts", pay)),
            open_debts: Arc::default(),
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

    /// Returns what marks the values of the next holder.
    #[inline]
    pub(super) fn tag(&self) -> Tag {
        Tag { nonce: self.identity.next_nonce(), name: self.holder_name.clone() }
    }

    /// Returns true if it is known what the options mean on this server, as far as that can be known.
    pub(crate) fn knows_meaning_of(&self, options: &LockOptions) -> bool {
        options.protocol == Protocol::Classic || self.backend.knows(options.protocol)
    }

    /// Returns the protocol that the options mean on this server, as far as is known what that has.
    pub(crate) fn protocol_of(&self, options: &LockOptions) -> Protocol {
        match options.protocol {
            Protocol::Auto if options.terms.expiration.is_none() => match self.backend.best_protocol() {
                // The server would free it.
                Protocol::Ttl => Protocol::Watched,
                best => best,
            },
            Protocol::Auto => self.backend.best_protocol(),
            protocol => protocol,
        }
    }

    /// Returns true if a release of a lock with these options wakes other processes, and waiting ones are to be woken.
    pub(super) fn notifies(&self, options: &LockOptions, key: &Key) -> bool {
        let asked = options.notifies;
        asked.unwrap_or_else(|| options.protocol == Protocol::Auto && self.backend.notifies())
            && self.has_side_keys(key)
    }

    /// Returns true if releases of locks that have this name wake other processes. In a cluster, one trip reaches all of
    /// them and their waiting list only if they have a slot in common.
    pub(crate) fn notifies_at_name(&self, options: &LockOptions, name: &Key) -> bool {
        self.notifies(options, name) && self.have_one_slot(name)
    }

    /// Returns true if all keys that begin with this name are on one node.
    pub(crate) fn have_one_slot(&self, name: &Key) -> bool {
        !self.backend.has_slots() || hash_tag(name.as_bytes()).is_some()
    }

    /// Returns the turns at a key, for a lock that has notifications if it `notifies`.
    #[inline]
    pub(super) fn turn<'a>(&'a self, notifies: bool, options: &LockOptions, key: &'a Key) -> Turn<'a> {
        self.turns.at(key, notifies, options.all_notify, &self.observer)
    }

    /// Returns the turns at the name of several locks.
    pub(crate) fn turn_at_name<'a>(
        &'a self,
        notifies: bool,
        options: &LockOptions,
        name: &'a Key,
    ) -> Turn<'a> {
        self.turns.at_name(name, notifies, options.all_notify, &self.observer)
    }

    /// Returns true if the side keys of this key are on its node.
    #[inline]
    pub(crate) fn has_side_keys(&self, key: &Key) -> bool {
        !self.backend.has_slots() || can_share_slot(key.as_bytes())
    }

    /// Returns the locks that threads of this process hold, in the order of their keys.
    pub(crate) fn held(&self) -> Vec<Arc<Hold>> {
        let mut held: Vec<_> = self.holds().filter(|hold| !hold.is_dropped.load(Ordering::Relaxed)).collect();
        held.sort_by(|one, other| one.key.cmp(&other.key));
        held
    }

    /// Returns them, and those that the program has dropped and that are not released yet.
    pub(super) fn holds(&self) -> impl Iterator<Item = Arc<Hold>> + use<> {
        self.queue.held().into_iter().filter_map(|hold| hold.downcast::<Hold>().ok())
    }

    /// Ends all waits, and waits until no call acquires and no lock is held, at most until then.
    pub(crate) fn drain(&self, until: Uptime) {
        /// How late the end of the last is noticed.
        const NOTICED_AFTER: Duration = Duration::from_millis(5);
        self.queue.close();
        self.backend.wake_waiting();
        // A call that began before may still get its lock, and has it before it is counted no more.
        while self.acquiring.load(Ordering::SeqCst) > 0 || !self.held().is_empty() {
            let left = until.since(clock::uptime());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(NOTICED_AFTER));
        }
    }

    /// Counts a call that acquires locks until it has got them, or not.
    #[inline]
    pub(crate) fn acquiring(&self) -> Acquiring<'_> {
        self.acquiring.fetch_add(1, Ordering::SeqCst);
        Acquiring(&self.acquiring)
    }

    /// I10: a child shares its parent's connections, and each would read the other's replies.
    pub(crate) fn refuse_after_fork(&self, key: &Key) -> Result<(), Error> {
        if self.identity.is_this_process() { Ok(()) } else { Err(Error::Forked { key: key.clone() }) }
    }

    /// Fails inside a `with` of this thread on this key.
    pub(crate) fn refuse_nested(&self, key: &Key) -> Result<(), Error> {
        match thread_holds::by_this_thread(&self.identity, key) {
            Some(HoldKind::Scoped) => Err(Error::Nested { key: key.clone() }),
            Some(HoldKind::Movable) | None => Ok(()),
        }
    }

    pub(crate) fn note_unreachable(&self) {
        self.unreachable_since.store(clock::uptime().micros(), Ordering::Relaxed);
    }

    /// How long a wait that began then retries while the server is unreachable: only briefly where another thread has
    /// just given up while this one was queued behind it. Otherwise the waits of a queue would add up.
    pub(crate) fn retry_for(&self, began: Uptime) -> Duration {
        let full = self.backend.retry_for();
        let found = Uptime::of(Duration::from_micros(self.unreachable_since.load(Ordering::Relaxed)));
        let just_now = began < found && clock::uptime().since(found) < full;
        if just_now { SHORT_CONNECT_WAIT.min(full) } else { full }
    }

    /// Has all keys and channels of the locker begin with this. Nothing has been sent before.
    pub(crate) fn begin_keys_with(&mut self, prefix: Key) {
        self.name.prefix = prefix;
        self.turns = Arc::new(self.turns.named(self.name.clone()));
    }

    /// Returns a key of the program with the locker's prefix; an empty one as it is.
    pub(crate) fn whole_key(&self, key: Key) -> Key {
        let prefix = self.key_prefix().as_bytes();
        if prefix.is_empty() || key.as_bytes().is_empty() {
            return key;
        }
        Key::from([prefix, key.as_bytes()].concat())
    }

    pub(crate) fn key_prefix(&self) -> &Key {
        &self.name.prefix
    }

    /// Has events go to this observer.
    pub(crate) fn observe(&mut self, observer: EventSink) {
        self.observer = observer.reporting_by(Arc::clone(&self.reports));
    }
}

/// Does the work of a timer's thread, for each locker with its own settings. What it notices is reported later.
pub(super) fn for_each_engine<T>(
    mut due: Vec<T>,
    of: impl Fn(&T) -> &Arc<Engine>,
    work: impl Fn(&Arc<Engine>, Vec<T>),
) {
    while let Some(last) = due.last() {
        let engine = Arc::clone(of(last));
        let (own, others) = due.into_iter().partition(|other| Arc::ptr_eq(of(other), &engine));
        due = others;
        noticing(|| work(&engine, own));
    }
}

/// For how long a gem's value is remembered.
const GEMS_REMEMBERED: Duration = Duration::from_secs(600);

/// The longest value of a gem has ten digits, a point and seven more. Ours are longer.
const LONGEST_OF_GEMS: usize = 18;

/// Whether gems up to 1.4.1 lock keys of the locker's server, as far as was seen. If they do, the keeper looks at each
/// lock that has just been acquired: a gem that found its key missing, just before, overwrites the new holder's value.
/// It is when a gem's value was last read, in microseconds of uptime; 0 is never.
#[derive(Default)]
pub(super) struct Gems(AtomicU64);

impl Gems {
    /// Notes what a key holds.
    pub(super) fn note(&self, found: &[u8]) {
        if found.len() <= LONGEST_OF_GEMS && classic_time(found).is_some() {
            self.0.store(clock::uptime().micros(), Ordering::Relaxed);
        }
    }

    pub(super) fn were_seen(&self, now: Uptime) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        seen > 0 && now.since(Uptime::of(Duration::from_micros(seen))) < GEMS_REMEMBERED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gems_value_is_remembered_for_ten_minutes() {
        let gems = Gems::default();
        for of_others in ["", "1", "1795153464.2949650000000007", "1795153464", "job 7", "179.5153464.5"] {
            gems.note(of_others.as_bytes());
            assert!(!gems.were_seen(clock::uptime()), "{of_others}");
        }
        gems.note(b"1795153464.2949657");
        let now = clock::uptime();
        assert!(gems.were_seen(now));
        assert!(gems.were_seen(now.after(Duration::from_secs(590))));
        assert!(!gems.were_seen(now.after(Duration::from_secs(600))));
    }
}

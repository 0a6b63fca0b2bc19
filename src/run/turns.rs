//! Turns at a key: two questions, for the threads of this process. *May I ask for the lock now, or when?* And *whose
//! turn is it after me?* The answers come from windows, which leave a busy key to pollers; from slices, for which the
//! lock passes among the threads of one process; and from notifications between processes, where a lock has them. Locks
//! of which any one will do have turns by the name that they share.
//!
//! Nothing here knows of leases, or sends a command for a lock's key. A wrong answer costs a wait, and never lets in
//! two holders.

mod after;
mod met;
mod notifications;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use proto::Reply;
use proto::values::{Key, Now, Uptime, classic_time};
use proto::waiting_list::Waiting;
use proto::window::{self, ASKS, WINDOW, until_look};

use super::held::Queues;
use crate::net::{Backend, Failure, NodeId};
use crate::run::sink::EventSink;
use crate::system::random::HashMap;
use crate::system::sync::Mutex;
use crate::wait::Waiters;
pub(super) use after::Next;
use met::{Met, is_gems};
pub(super) use notifications::Name;
use notifications::Notifications;

/// For how long the lock passes among the threads of a process before it is the turn of another that waits for
/// notifications.
const SLICE: Duration = Duration::from_millis(10);

/// The turns at the keys of a locker.
pub(super) struct Turns {
    backend: Arc<dyn Backend>,
    queues: Queues,
    met: Arc<Met>,
    name: Name,
    /// The notifications of all keys, if there is one server.
    of_one: Arc<Notifications>,
    of_nodes: Mutex<HashMap<NodeId, Arc<Notifications>>>,
}

/// The turns at one key, or at the name of several locks.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    key: &'a Key,
    /// True if it is the name of several locks, of which any one will do.
    of_several: bool,
    /// By what windows are known: the key, or the name of several locks of which it is one.
    busy: &'a Key,
    /// True if there are windows: others than those that are notified may want the lock.
    has_windows: bool,
    /// `None` if no process waits for notifications of this lock, and none is sent.
    notifications: Option<Cow<'a, Arc<Notifications>>>,
    observer: &'a EventSink,
}

/// A thread leaves the lock to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    /// Until then.
    pub(crate) until: Uptime,
    /// True if it is left to pollers, in a window.
    pub(super) in_window: bool,
}

impl Turns {
    pub(super) fn new(backend: Arc<dyn Backend>, queues: Queues, name: Name) -> Self {
        let met = Arc::<Met>::default();
        let of_one = Notifications::new(&backend, &queues, &met, &name, NodeId::ONLY);
        Self { backend, queues, met, name, of_one: Arc::new(of_one), of_nodes: Mutex::default() }
    }

    /// Returns the same for a locker whose channels are called otherwise.
    pub(super) fn named(&self, name: Name) -> Self {
        Self::new(Arc::clone(&self.backend), self.queues.clone(), name)
    }

    /// Returns the turns at a key, for locks that have notifications if it `notifies`. `all_notify`: so do all other
    /// clients, as far as the server can.
    #[inline]
    pub(super) fn at<'a>(
        &'a self,
        key: &'a Key,
        notifies: bool,
        all_notify: bool,
        observer: &'a EventSink,
    ) -> Turn<'a> {
        let notifications = notifies.then(|| self.notifications(key));
        let has_windows = !(all_notify && notifies && self.backend.has_channels());
        Turn { turns: self, key, of_several: false, busy: key, has_windows, notifications, observer }
    }

    /// Returns the turns at the name of several locks.
    pub(super) fn at_name<'a>(
        &'a self,
        name: &'a Key,
        notifies: bool,
        all_notify: bool,
        observer: &'a EventSink,
    ) -> Turn<'a> {
        Turn { of_several: true, ..self.at(name, notifies, all_notify, observer) }
    }

    /// Returns the notifications of the node that has this key.
    fn notifications(&self, key: &Key) -> Cow<'_, Arc<Notifications>> {
        let node = self.backend.node_of(key);
        if node == NodeId::ONLY {
            return Cow::Borrowed(&self.of_one);
        }
        let mut of_nodes = self.of_nodes.lock();
        let of_node = of_nodes.entry(node).or_insert_with(|| {
            Arc::new(Notifications::new(&self.backend, &self.queues, &self.met, &self.name, node))
        });
        Cow::Owned(Arc::clone(of_node))
    }
}

impl Leave {
    /// Returns when a thread looks at the lock meanwhile. `random` is any number.
    pub(super) fn next_look(self, random: u64, now: Now) -> Uptime {
        now.uptime.after(until_look(random)).min(self.until)
    }
}

impl<'a> Turn<'a> {
    /// Returns the turns at a lock that is one of several with this name: it is left to pollers with the others.
    #[inline]
    pub(crate) fn of(self, name: Option<&'a Key>) -> Self {
        Self { busy: name.unwrap_or(self.busy), ..self }
    }
}

/// May I ask now, or when?
impl Turn<'_> {
    /// Returns until when a thread leaves the lock to others: in a window unless a thread of this process has the lock,
    /// and as it `begins` also to a process that was just notified. `None` if it may ask now.
    pub(crate) fn leave(&self, begins: bool, now: Now) -> Option<Leave> {
        let window = if self.is_held() { None } else { self.window(now) };
        match window {
            Some(until) => Some(Leave { until, in_window: true }),
            None if begins => self.head_start().map(|until| Leave { until, in_window: false }),
            None => None,
        }
    }

    /// Returns until when a thread leaves a lock to pollers that might have been taken over for so long: they have waited
    /// for as long as its holder was dead, and this process may not know of them.
    pub(super) fn leave_expired(&self, since: Duration, now: Now) -> Option<Leave> {
        let left = WINDOW.checked_sub(since).filter(|left| !left.is_zero() && self.has_windows)?;
        Some(Leave { until: now.uptime.after(left), in_window: false })
    }

    /// Returns the end of the window in which this process leaves the lock to pollers, if it does so now.
    pub(super) fn window(&self, now: Now) -> Option<Uptime> {
        if !self.has_windows {
            return None;
        }
        let of_threads = || self.waiters().activity(self.key)?.window(self.busy, now);
        self.window_of_one(now).or_else(of_threads)
    }

    /// Returns the end of the window that this process leaves even if one thread of it alone keeps the lock busy: others
    /// were met there, and are not notified.
    #[inline]
    fn window_of_one(&self, now: Now) -> Option<Uptime> {
        self.turns.met.window(self.busy, self.notifications.is_some(), now).filter(|_| self.has_windows)
    }

    /// Returns until when a thread that comes now leaves the lock to others, though no thread of its process waits.
    #[inline]
    pub(crate) fn left_until(&self, now: Now) -> Option<Uptime> {
        self.head_start().or_else(|| self.window_of_one(now))
    }

    /// Returns true if pollers get their turn now, and this process is one of them.
    pub(crate) fn is_of_pollers(&self, now: Now) -> bool {
        self.notifications.is_none() && window::is_open(self.busy, now)
    }

    /// Notes what the key, or one of several, was found to hold. What this process has there is no other's.
    pub(crate) fn met(&self, found: &[u8], now: Uptime) {
        if !self.turns.queues.locks.is_held(self.key) {
            self.turns.met.note(self.busy, is_gems(found), now);
        }
    }

    /// Notes what all of several locks were found to hold.
    pub(crate) fn met_at(&self, locks: &[Key], found: &[Option<Vec<u8>>], now: Uptime) {
        let mut is_new = !self.turns.met.has_just_met(self.busy, now);
        for (key, found) in locks.iter().zip(found).filter_map(|(key, found)| Some((key, found.as_deref()?)))
        {
            if (is_new || is_gems(found)) && !self.turns.queues.locks.is_held(key) {
                self.turns.met.note(self.busy, is_gems(found), now);
                is_new = false;
            }
        }
    }

    /// Notes that a hold of this process has ended: of this lock, or of one of several with this name.
    #[inline]
    pub(super) fn ended(&self, name: Option<&Key>, now: Uptime) {
        self.turns.met.ended(name.unwrap_or(self.key), now);
    }

    fn waiters(&self) -> &dyn Waiters {
        if self.of_several { &*self.turns.queues.lines } else { &*self.turns.queues.locks }
    }

    /// Returns true if a thread of this process has the lock, whose release is the next. One of several is not.
    fn is_held(&self) -> bool {
        !self.of_several && self.turns.queues.locks.is_held(self.key)
    }

    /// Until when a thread that begins leaves the lock to a process that was just notified.
    pub(crate) fn head_start(&self) -> Option<Uptime> {
        self.notifications.as_ref()?.head_start(self.key)
    }

    /// Judges what a look in a window has found. If a poller has the lock, which would keep the others out, returns
    /// until when the thread asks for it without a pause. What another process of this library has, it leaves by
    /// itself.
    pub(super) fn takes_back(&self, found: Option<&[u8]>, now: Now) -> Option<Uptime> {
        // One that has died has it no longer.
        let lasts = |found: &[u8]| classic_time(found).is_none_or(|until| until >= now.wall);
        found.is_some_and(|found| is_gems(found) && lasts(found)).then(|| {
            self.turns.met.met_poller(self.busy, now.uptime);
            self.waiters().met_poller(self.key, now.uptime);
            now.uptime.after(ASKS)
        })
    }

    /// Notes that a thread of this process has acquired the lock.
    #[inline]
    pub(crate) fn acquired(&self) {
        if let Some(notifications) = &self.notifications {
            notifications.acquired(self.key);
        }
    }

    /// Returns what enters this process in the key's waiting list along with a look at the key, if it is to be entered:
    /// a thread of it waits, and none has the lock, whose release would wake this one.
    pub(super) fn enter(&self) -> Option<Waiting> {
        let notifications = self.notifications.as_ref()?;
        notifications.want(self.key, self.observer);
        if self.is_held() { None } else { notifications.enter(self.key) }
    }

    /// Notes what came of entering the list; `None` is that nothing was sent. Returns what enters it anew, if it must
    /// be.
    pub(super) fn entered(
        &self,
        waiting: &Waiting,
        reply: Option<Result<Reply, Failure>>,
    ) -> Option<Waiting> {
        let notifications = self.notifications.as_ref()?;
        let again = notifications.entered(self.key, waiting, reply, self.observer);
        if again { notifications.enter(self.key) } else { None }
    }

    /// Notes that a thread does not wait any more, without the lock. `notified` says whether it had learned of a
    /// release that it did not act upon. `ends`: when its call is to return.
    pub(crate) fn gone(&self, notified: bool, ends: Uptime) {
        if let Some(notifications) = &self.notifications {
            notifications.note_gone(self.key, notified, ends);
        }
    }
}

#[cfg(test)]
mod tests {
    use proto::values::Wall;

    use super::*;
    use crate::net::scripted::ScriptedBackend;
    use crate::run::held::Queue;
    use crate::values::options::LockOptions;
    use crate::wait::{Hint, Observation, WaitMode, Wake, no_hold};

    fn at(millis: u64) -> Now {
        let uptime = Uptime::of(Duration::from_millis(5100));
        Now { wall: Wall(1_795_000_000_000_000 + millis * 1000), uptime }
    }

    #[test]
    fn a_hot_process_leaves_a_key_that_it_does_not_hold_and_takes_it_back_from_a_poller() {
        let (queue, key, sink) = (Arc::<Queue>::default(), Key::from("k"), EventSink::default());
        let name = Name { prefix: Key::from(""), random: 1 };
        let queues = Queues { locks: Arc::clone(&queue), lines: Arc::<Queue>::default() };
        let turns = Turns::new(ScriptedBackend::granting(), queues, name);
        let turn = turns.at(&key, false, false, &sink);
        let hold = |millis| {
            let at = Uptime::of(Duration::from_millis(millis));
            queue.hold(&key, &Observation { seen: None, at }, no_hold())
        };
        let options = LockOptions::expiring_after(Duration::from_secs(1));
        let _waiting = queue.join(&key, WaitMode::of(&options, false));
        for millis in [1000, 5000, 5050] {
            hold(millis).finish(Wake::Hint(Hint::Changed), Uptime::of(Duration::from_millis(millis)));
        }
        let left = |millis: &u64| turn.leave(false, at(*millis)).is_some_and(|leave| leave.in_window);
        let window: Vec<u64> = (0..1000).filter(left).collect();
        assert_eq!(window.len(), 110, "{window:?}");
        let all_notify = turns.at(&key, true, true, &sink);
        assert!((0..1000).all(|millis| all_notify.leave(false, at(millis)).is_none()), "nobody polls");
        let expired = |turn: &Turn<'_>, millis| {
            let leave = turn.leave_expired(Duration::from_millis(millis), at(0))?;
            Some(leave.until.since(at(0).uptime))
        };
        assert_eq!(expired(&turn, 30), Some(Duration::from_millis(80)));
        assert_eq!((expired(&turn, 110), expired(&all_notify, 30)), (None, None));
        let now = at(window[0]);
        for (found, is_pollers) in [
            (Some(&b"1795153464.2949657"[..]), true),
            (Some(b""), true),
            (Some(b"1795153464.2949650123456789"), false),
            (Some(b"1"), false),
            (None, false),
        ] {
            assert_eq!(turn.takes_back(found, now), is_pollers.then(|| now.uptime.after(ASKS)), "{found:?}");
        }
        let _held = hold(5100);
        assert_eq!(turn.leave(false, now), None, "a thread of the process has it");
    }
}

//! Turns at a key: two questions, for the threads of this process. *May I ask for the lock now, or when?* And *whose
//! turn is it after me?* The answers come from windows, which leave a busy key to pollers; from slices, for which the
//! lock passes among the threads of one process; and from notifications between processes, where a lock has them. Locks
//! of which any one will do have turns by the name that they share.
//!
//! Nothing here knows of leases, or sends a command for a lock's key. A wrong answer costs a wait, and never lets in
//! two holders.

mod notifications;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use proto::Reply;
use proto::values::{Key, Now, Uptime, classic_time};
use proto::waiting_list::Waiting;
use proto::window::{ASKS, until_look};

use super::held::{Holder, Queues};
use crate::net::{Backend, Budget, Failure, NodeId};
use crate::run::sink::EventSink;
use crate::system::random::HashMap;
use crate::system::sync::Mutex;
use crate::wait::{Hint, Waiters, Wake};
pub(super) use notifications::Name;
use notifications::{Notifications, Passed};

/// For how long the lock passes among the threads of a process before it is the turn of another that waits for
/// notifications.
const SLICE: Duration = Duration::from_millis(10);

/// The turns at the keys of a locker.
pub(super) struct Turns {
    backend: Arc<dyn Backend>,
    queues: Queues,
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

/// Whose turn it is after a holder.
pub(super) enum Next {
    /// A thread of this process that is queued.
    Thread,
    /// Any client: no thread of this process is queued.
    Any,
    /// Other processes poll: the lock is left to them for a while.
    Pollers,
    /// Other processes are in the waiting list, from which the first is taken.
    Listed(Waiting),
}

impl Turns {
    pub(super) fn new(backend: Arc<dyn Backend>, queues: Queues, name: Name) -> Self {
        let of_one = Notifications::new(Arc::clone(&backend), queues.clone(), &name, NodeId::ONLY);
        Self { backend, queues, name, of_one: Arc::new(of_one), of_nodes: Mutex::default() }
    }

    /// Returns the same for a locker whose channels are called otherwise.
    pub(super) fn named(&self, name: Name) -> Self {
        Self::new(Arc::clone(&self.backend), self.queues.clone(), name)
    }

    /// Returns the turns at a key, for locks that have notifications if it `notifies`.
    #[inline]
    pub(super) fn at<'a>(&'a self, key: &'a Key, notifies: bool, observer: &'a EventSink) -> Turn<'a> {
        let notifications = notifies.then(|| self.notifications(key));
        Turn { turns: self, key, of_several: false, notifications, observer }
    }

    /// Returns the turns at the name of several locks.
    pub(super) fn at_name<'a>(&'a self, name: &'a Key, notifies: bool, observer: &'a EventSink) -> Turn<'a> {
        Turn { of_several: true, ..self.at(name, notifies, observer) }
    }

    /// Returns the notifications of the node that has this key.
    fn notifications(&self, key: &Key) -> Cow<'_, Arc<Notifications>> {
        let node = self.backend.node_of(key);
        if node == NodeId::ONLY {
            return Cow::Borrowed(&self.of_one);
        }
        let mut of_nodes = self.of_nodes.lock();
        let of_node = of_nodes.entry(node).or_insert_with(|| {
            Arc::new(Notifications::new(Arc::clone(&self.backend), self.queues.clone(), &self.name, node))
        });
        Cow::Owned(Arc::clone(of_node))
    }
}

impl Next {
    /// Returns what takes the first process from the waiting list.
    pub(super) fn listed(&self) -> Option<&Waiting> {
        if let Self::Listed(taking) = self { Some(taking) } else { None }
    }
}

impl Leave {
    /// Returns when a thread looks at the lock meanwhile. `random` is any number.
    pub(super) fn next_look(self, random: u64, now: Now) -> Uptime {
        now.uptime.after(until_look(random)).min(self.until)
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

    /// Returns the end of the window in which this process leaves the lock to pollers, if it does so now.
    pub(super) fn window(&self, now: Now) -> Option<Uptime> {
        self.waiters().activity(self.key)?.window(self.key, now)
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
        let has_poller = found.is_some_and(|found| found.is_empty() || classic_time(found).is_some());
        has_poller.then(|| {
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

/// Whose turn is it after me?
impl Turn<'_> {
    /// Returns whose turn it is after this holder.
    #[inline]
    pub(super) fn after(&self, holder: &Holder, now: Now) -> Next {
        let yields = holder.of_next(|key, activity| activity.window(key, now).is_some());
        if yields == Some(true) {
            return Next::Pollers;
        }
        if let Some(notifications) = &self.notifications {
            let slice = holder.slice();
            if slice.is_some_and(|since| now.uptime.since(since) < SLICE) {
                return Next::Thread;
            }
            if let Some(taking) = notifications.next(self.key, slice.is_some()) {
                return Next::Listed(taking);
            }
        }
        if yields.is_some() { Next::Thread } else { Next::Any }
    }

    /// Returns whose turn it is after one of several locks, which no thread of this process gets handed over.
    pub(super) fn after_one(&self, now: Now) -> Next {
        if self.window(now).is_some() {
            return Next::Pollers;
        }
        let follows = self.waiters().is_waited_for(self.key);
        let next = self.notifications.as_ref().and_then(|all| all.next(self.key, follows));
        next.map_or(Next::Any, Next::Listed)
    }

    /// Returns true if the locks of this name pass among the threads of this process, in its slice since then: no other
    /// process is to be notified yet.
    pub(crate) fn is_in_slice(&self, since: Option<Uptime>, now: Now) -> bool {
        self.notifications.is_none() || since.is_some_and(|since| now.uptime.since(since) < SLICE)
    }

    /// Notifies the next process, if it is its turn, after the lock was `released` or not. `taken`: what came of taking
    /// it from the list. Returns how the threads of this process learn of the release.
    #[inline]
    pub(super) fn pass_on(
        &self,
        next: &Next,
        released: bool,
        taken: Option<Result<Reply, Failure>>,
        now: Uptime,
    ) -> Wake {
        match (next, &self.notifications) {
            (Next::Listed(taking), Some(notifications)) => {
                let passed = self.notify_next(notifications, taking, released, taken, now);
                if released { passed } else { Wake::Hint(Hint::Changed) }
            }
            _ if !released => Wake::Hint(Hint::Changed),
            (Next::Pollers, _) => Wake::NextSlice(Hint::Freed),
            _ => Wake::Hint(Hint::Freed),
        }
    }

    #[inline(never)]
    fn notify_next(
        &self,
        notifications: &Arc<Notifications>,
        taking: &Waiting,
        released: bool,
        taken: Option<Result<Reply, Failure>>,
        now: Uptime,
    ) -> Wake {
        notifications.sent_next(self.key, taking, taken.as_ref());
        let passed = match taken {
            // Even if the key holds another's value: the process that is
            // notified then looks, and enters the list again.
            Some(taken) if released || taken.is_ok() => {
                let backend = &self.turns.backend;
                let (retry_for, command_timeout) = (backend.retry_for(), backend.command_timeout());
                let budget = Budget { deadline: Some(now), retry_for, command_timeout };
                notifications.pass_on(self.key, taken, budget, self.observer)
            }
            _ => Passed::ToNone,
        };
        match passed {
            Passed::ToNone => Wake::NextSlice(Hint::Freed),
            Passed::ToOther if notifications.is_listed(self.key) => Wake::Notification(Hint::Freed),
            // A thread that has come meanwhile, or whose entry was taken, is to look, and to enter the list.
            Passed::ToOther => Wake::NextSlice(Hint::Changed),
        }
    }

    /// A lock was released, and its waiting list was left alone. If the threads that it was left to have given up
    /// meanwhile, it is the turn of the next process.
    #[inline]
    pub(super) fn was_left(&self, next: &Next) {
        if let Some(notifications) = &self.notifications
            && !matches!(next, Next::Listed(_))
            && !self.waiters().is_waited_for(self.key)
        {
            notifications.was_left_to_none(self.key);
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
    use crate::wait::{Observation, WaitMode, no_hold};

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
        let turn = turns.at(&key, false, &sink);
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

//! Release notifications between processes, on one server or node. Each key has a waiting list on the server, with the
//! channels of the processes that wait for it. A release takes the first channel in the trip of its DEL, and publishes
//! the key there; the process that listens wakes the head of its queue for the key. A failure here costs a waiter a
//! poll interval and no more.
//!
//! Each node of a cluster has its own, since a node knows its own listeners only.

mod listener;

use std::sync::Arc;
use std::time::Duration;

use proto::values::{Key, Uptime, Version};
use proto::waiting_list::{ListEntry, Owed, Waiting};
use proto::{Command, Reply};

use super::met::Met;
use crate::net::{Backend, Failure, KeyTrip, Limits, NodeId};
use crate::run::held::Queues;
use crate::run::sink::EventSink;
use crate::system::clock;
use crate::system::random::HashMap;
use crate::system::sync::Mutex;
use crate::wait::Hint;
use listener::concerns_all_keys;

/// How long a server is left alone that has refused, and how often it is reported at most.
const REFUSED: Duration = Duration::from_secs(60);

/// How long a process leaves a key to one that it has notified, which may have to
/// wait for a processor. The other may also be done already, and have notified no
/// process, since this one was not listed then: in this case the time is lost.
const HEAD_START: Duration = Duration::from_millis(10);

/// With less time left until its call returns, a reply would be lost, and the connection with it.
const SHORTEST: Duration = Duration::from_millis(10);

/// How long a connection is waited for by what does little harm if it is not sent.
const SHORT_CONNECT_WAIT: Duration = Duration::from_millis(50);

/// Of how many keys it is noted at most that another process was notified, before old notes are dropped.
const MANY: usize = 128;

/// Before this version, a push removes a list that has a time to live.
const PUSHES_KEEP_A_LIST: Version = Version::new(2, 2, 0);

/// The notifications of a server.
pub(super) struct Notifications {
    backend: Arc<dyn Backend>,
    queues: Queues,
    met: Arc<Met>,
    /// Which server, where there are several.
    node: NodeId,
    /// What this process listens on.
    channel: Vec<u8>,
    state: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    /// The keys that threads of this process wait for, or waited for lately.
    keys: HashMap<Key, Waited>,
    /// When this process notified another that may not have asked yet.
    notified: HashMap<Key, Uptime>,
    /// True if there is a thread that listens, or tries to.
    running: bool,
    /// True if it is subscribed.
    listening: bool,
    /// Until when it does not listen, since the server refuses it.
    listening_paused_until: Option<Uptime>,
    /// Until when no list is used and nothing is published, for the same reason.
    sending_paused_until: Option<Uptime>,
    /// True if it has been reported that it cannot listen, and it could not since.
    listening_reported: bool,
    /// When it was last reported that something cannot be sent.
    sending_reported: Option<Uptime>,
}

struct Waited {
    /// When it was last waited for.
    at: Uptime,
    entry: ListEntry,
}

/// How the last part of a channel's name begins.
const WAKE_UP: &str = "wake-up:";

/// Who was notified of a release.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// The process that has waited longest, and is another.
    ToOther,
    /// No other process waits, or it is the turn of this one.
    ToNone,
}

impl Notifications {
    pub(super) fn new(
        backend: &Arc<dyn Backend>,
        queues: &Queues,
        met: &Arc<Met>,
        name: &Name,
        node: NodeId,
    ) -> Self {
        // What is published on one node of a cluster is heard on all.
        let of_node = if node == NodeId::ONLY { String::new() } else { format!(":{node}") };
        let own = format!("setnx-lock:{WAKE_UP}{:x}{of_node}", name.random);
        let channel = [name.prefix.as_bytes(), own.as_bytes()].concat();
        let (backend, queues, met) = (Arc::clone(backend), queues.clone(), Arc::clone(met));
        Self { backend, queues, met, node, channel, state: Mutex::default() }
    }

    /// Returns what goes with a look at a key; `None` if the process is listed there, or cannot be notified.
    pub(super) fn enter(&self, key: &Key) -> Option<Waiting> {
        let now = clock::uptime();
        let mut state = self.state.lock();
        if !state.listening || !self.may_send(&state, now) {
            return None;
        }
        state.keys.get_mut(key)?.entry.enter(&self.channel, self.lists_expire(), now)
    }

    /// Notes what came of entering the list; `None` is that nothing was sent. Returns whether to enter anew.
    pub(super) fn entered(
        &self,
        key: &Key,
        waiting: &Waiting,
        reply: Option<Result<Reply, Failure>>,
        observer: &EventSink,
    ) -> bool {
        match (waiting, reply) {
            (Waiting::Check { channel, .. }, Some(Ok(Reply::Bulks(listed)))) => {
                let is_there = listed.iter().any(|entry| entry.as_ref() == Some(channel));
                self.change_entry(key, |entry| entry.found(is_there)).unwrap_or_default()
            }
            (_, Some(Ok(_))) => false,
            (_, failed) => {
                self.forget_entry(key);
                // A broken connection is reported by the look.
                if let Some(Err(failure @ Failure::Refused(_))) = failed {
                    self.failed(&failure, observer);
                }
                false
            }
        }
    }

    /// Returns what a release sends behind the command that deletes the key; `None` if it sends nothing. `follows` says
    /// whether a thread of this process waits its turn.
    pub(super) fn next(&self, key: &Key, follows: bool) -> Option<Waiting> {
        let now = clock::uptime();
        let mut state = self.state.lock();
        if !self.may_send(&state, now) {
            return None;
        }
        let (listening, expires) = (state.listening, self.lists_expire());
        Some(match state.keys.get_mut(key).filter(|_| follows && listening) {
            Some(waited) => waited.entry.next_behind(&self.channel, expires, now),
            None => Waiting::Next,
        })
    }

    /// Notes whether what [`next`](Self::next) returned was sent; `None` is that it was not.
    pub(super) fn sent_next(&self, key: &Key, waiting: &Waiting, taken: Option<&Result<Reply, Failure>>) {
        match (waiting, taken) {
            (Waiting::NextAfter { .. }, None | Some(Err(Failure::Refused(_)))) => self.forget_entry(key),
            (_, Some(Err(_))) => drop(self.change_entry(key, ListEntry::doubt)),
            _ => {}
        }
    }

    /// Notifies the process of the channel that a release has taken from the list, or the next if that is gone.
    pub(super) fn pass_on(
        &self,
        key: &Key,
        taken: Result<Reply, Failure>,
        limits: &Limits<'_>,
        observer: &EventSink,
    ) -> Passed {
        self.notify_first(key, taken, limits).unwrap_or_else(|failure| {
            self.failed(&failure, observer);
            Passed::ToNone
        })
    }

    fn notify_first(
        &self,
        key: &Key,
        mut taken: Result<Reply, Failure>,
        limits: &Limits<'_>,
    ) -> Result<Passed, Failure> {
        loop {
            let Reply::Bulk(Some(channel)) = taken? else { return Ok(Passed::ToNone) };
            if channel == self.channel {
                // In this order: a thread that leaves passes it on from then on.
                self.change_entry(key, |entry| *entry = ListEntry::Notified);
                if self.queues.is_waited_for(key) {
                    return Ok(Passed::ToNone);
                }
                self.forget_entry(key);
            } else {
                let now = clock::uptime();
                // Before it is sent: the answer may be fast.
                self.state.lock().note_notified(key, now);
                let polled = self.met.knows(key, true, now);
                let wake = Waiting::Wake { channel, polled };
                if self.change_list(key, wake, limits)? != Reply::Integer(0) {
                    return Ok(Passed::ToOther);
                }
                self.state.lock().notified.remove(key);
            }
            taken = self.change_list(key, Waiting::Next, limits);
        }
    }

    /// A lock was released to this process, in which no thread waits for it any more: it is another's turn.
    pub(super) fn was_left_to_none(&self, key: &Key) {
        if self.may_send(&self.state.lock(), clock::uptime()) {
            self.pass_on_unused(key, Uptime::MAX);
        }
    }

    /// A notification has come for a thread that has given up, or none: it goes to the next thread or process.
    fn pass_on_unused(&self, key: &Key, ends: Uptime) {
        if self.queues.notify(key, Hint::Freed) {
            return;
        }
        self.forget_entry(key);
        // If it fails, the others wait for a poll interval; a busy pool is no reason for that.
        let Some(limits) = self.limits(ends) else { return };
        let first = self.change_list(key, Waiting::Next, &limits);
        if let Ok(Passed::ToNone) = self.notify_first(key, first, &limits) {
            // A thread may have come meanwhile.
            self.queues.notify(key, Hint::Freed);
        }
    }

    /// Returns true if this process will be notified of a release to come.
    pub(super) fn is_listed(&self, key: &Key) -> bool {
        let state = self.state.lock();
        state.listening && state.keys.get(key).is_some_and(|waited| waited.entry.is_listed())
    }

    /// Notes that a thread of this process has acquired the lock.
    pub(super) fn acquired(&self, key: &Key) {
        let mut state = self.state.lock();
        state.notified.remove(key);
        if let Some(waited) = state.keys.get_mut(key) {
            waited.entry.acquired();
        }
    }

    /// Notes that a thread of this process does not wait any more, without the lock. `notified` says whether it had
    /// learned of a release that it did not act upon. `ends`: when its call is to return.
    pub(super) fn note_gone(&self, key: &Key, notified: bool, ends: Uptime) {
        let mut state = self.state.lock();
        let entry = state.keys.get(key).map(|waited| waited.entry).unwrap_or_default();
        let owed = entry.owes(notified, self.queues.is_waited_for(key));
        if owed == Owed::Entry {
            state.keys.remove(key);
        }
        drop(state);
        match owed {
            Owed::Nothing => {}
            // If that fails, a notification will show that no thread waits here.
            Owed::Entry => drop(self.leave(key, ends)),
            Owed::Notification => self.pass_on_unused(key, ends),
        }
    }

    /// Removes this process from the list. A thread that has come meanwhile may have entered it anew, and checks that.
    fn leave(&self, key: &Key, ends: Uptime) -> Result<(), Failure> {
        let limits = self.limits(ends);
        let brief = limits.map(|limits| {
            let most = limits.decided_at.uptime.after(SHORT_CONNECT_WAIT);
            Limits { connected_by: limits.connected_by.min(most), ..limits }
        });
        let removed = brief.map(|brief| self.change_list(key, Waiting::Leave(self.channel.clone()), &brief));
        self.change_entry(key, ListEntry::doubt);
        self.queues.notify(key, Hint::Changed);
        removed.map_or(Ok(()), |removed| removed.map(drop))
    }

    /// Until when a thread that comes now leaves the key to another process, which this one has just notified.
    pub(super) fn head_start(&self, key: &Key) -> Option<Uptime> {
        let now = clock::uptime();
        let state = self.state.lock();
        let until = state.notified.get(key)?.after(HEAD_START);
        // One that cannot listen has no turn to wait for.
        let listens = state.listening_paused_until.is_none_or(|paused| now >= paused);
        (listens && now < until).then_some(until)
    }

    /// Has the process listen, and notes that the key is waited for.
    pub(super) fn want(self: &Arc<Self>, key: &Key, observer: &EventSink) {
        let now = clock::uptime();
        let mut state = self.state.lock();
        if state.listening_paused_until.is_some_and(|until| now < until) {
            return;
        }
        match state.keys.get_mut(key) {
            Some(waited) => waited.at = now,
            None => drop(state.keys.insert(key.clone(), Waited { at: now, entry: ListEntry::Out })),
        }
        let start = !state.running;
        state.running = true;
        drop(state);
        if start {
            self.start(observer);
        }
    }

    /// Returns true if other processes can be notified, as far as is known.
    pub(super) fn can_send(&self) -> bool {
        self.may_send(&self.state.lock(), clock::uptime())
    }

    fn may_send(&self, state: &Lists, now: Uptime) -> bool {
        state.sending_paused_until.is_none_or(|until| now >= until) && self.backend.has_channels()
    }

    fn lists_expire(&self) -> bool {
        self.backend.server_version().is_none_or(|version| version >= PUSHES_KEEP_A_LIST)
    }

    fn forget_entry(&self, key: &Key) {
        self.change_entry(key, |entry| *entry = ListEntry::Out);
    }

    fn change_entry<T>(&self, key: &Key, change: impl FnOnce(&mut ListEntry) -> T) -> Option<T> {
        self.state.lock().keys.get_mut(key).map(|waited| change(&mut waited.entry))
    }

    fn change_list(&self, key: &Key, waiting: Waiting, limits: &Limits<'_>) -> Result<Reply, Failure> {
        self.backend.send(&KeyTrip::of(key, &Command::Waiting(waiting)), limits).plain()
    }

    /// Reports why something could not be sent, from time to time.
    fn failed(&self, failure: &Failure, observer: &EventSink) {
        let now = clock::uptime();
        let mut state = self.state.lock();
        if concerns_all_keys(failure) {
            state.sending_paused_until = Some(now.after(REFUSED));
        }
        if state.sending_reported.is_some_and(|at| now.since(at) < REFUSED) {
            return;
        }
        state.sending_reported = Some(now);
        drop(state);
        let reason =
            format!("cannot send them, so waiters in other processes poll: {}", self.describe(failure));
        observer.no_notifications(&reason);
    }

    /// For what is sent after a wait, and may fail: less time than a command has, and none once the call is over.
    fn limits(&self, ends: Uptime) -> Option<Limits<'static>> {
        let now = clock::now();
        let left = ends.since(now.uptime);
        let command_timeout = (self.backend.command_timeout() / 4).min(left);
        let limits = || Limits::within(Some(now.uptime), Duration::ZERO, command_timeout, now);
        (left >= SHORTEST).then(limits)
    }
}

impl Lists {
    fn note_notified(&mut self, key: &Key, now: Uptime) {
        if self.notified.len() >= MANY {
            self.notified.retain(|_, at| now < at.after(HEAD_START));
        }
        self.notified.insert(key.clone(), now);
    }
}

/// What the channels of a locker are called by.
#[derive(Clone, Debug)]
pub(in crate::run) struct Name {
    /// What they begin with, and all keys of the locker.
    pub(in crate::run) prefix: Key,
    /// That of no other locker.
    pub(in crate::run) random: u64,
}

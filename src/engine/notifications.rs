//! Release notifications between processes: one thread of a locker waits for them, on one connection, for all keys that threads of this
//! process wait for, and wakes the head of the key's queue. A failure here costs a waiter a poll interval and no more.
//!
//! The thread is started when the first waiter asks for it, and ends when no thread has waited for a while. A key that is new to it
//! interrupts its BLPOP by an entry in a list of the locker's own.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, mem, thread};

use super::{Answer, SHORT_CONNECT_WAIT};
use crate::backend::{Backend, Budget, Failure, Limits, Listener, RefusalKind};
use crate::clock::{self, Uptime};
use crate::event::{Event, Observer};
use crate::key::Key;
use crate::queue::{Hint, WaitQueue};

/// How long a key is listened for after it was last waited for, so that a key in constant use is not added anew each time.
const LINGER: Duration = Duration::from_secs(5);

/// How long the thread pauses after it could not connect, at first and at most.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// A BLPOP that ends sooner than this without a notification did not wait: one that finds nothing takes seconds.
const AT_ONCE: Duration = Duration::from_millis(500);

/// How long a server is left alone that has refused, or is too old.
const REFUSED: Duration = Duration::from_secs(60);

/// The notifications of a locker.
pub(super) struct Notifications {
    backend: Arc<dyn Backend>,
    queue: Arc<WaitQueue<Answer>>,
    /// The list that interrupts the thread.
    interrupt_list: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The keys that notifications are waited for, by their wake channels.
    wanted: HashMap<Vec<u8>, Wanted>,
    /// Whether there is a thread.
    running: bool,
    /// Whether it has a connection.
    listening: bool,
    /// Whether keys were added that it does not listen for yet.
    stale: bool,
    /// Until when the thread does not listen, since the server refuses it.
    listening_paused_until: Option<Uptime>,
    /// Until when no notifications are sent, for the same reason.
    sending_paused_until: Option<Uptime>,
    /// What has been reported as not working, and has not worked since.
    reported: Reported,
}

#[derive(Default)]
struct Reported {
    listening: bool,
    /// And into which list.
    sending: Option<Vec<u8>>,
}

struct Wanted {
    key: Key,
    /// When it was last asked for.
    at: Uptime,
    /// When this process last sent a notification there, unless one has come since.
    sent: Option<Uptime>,
}

impl Notifications {
    /// `random` names this locker's own list.
    pub(super) fn new(backend: Arc<dyn Backend>, queue: Arc<WaitQueue<Answer>>, random: u64) -> Self {
        let interrupt_list = format!("setnx-lock:interrupt:{random:x}").into_bytes();
        Self { backend, queue, interrupt_list, state: Mutex::default() }
    }

    /// Leaves a notification for a waiter of the key in any process. Returns whether there is one now.
    pub(super) fn send(&self, key: &Key, budget: Budget, observer: &Observer) -> bool {
        let list = wake_channel(key);
        let mut state = self.lock();
        if state.sending_paused_until.is_some_and(|until| clock::uptime() < until) {
            return false;
        }
        // Before it is there: it may come back at once.
        if let Some(wanted) = state.wanted.get_mut(&list) {
            wanted.sent = Some(clock::uptime());
        }
        drop(state);
        let sent = self.backend.send_notification(&list, &Limits::within(budget, clock::now()));
        let mut state = self.lock();
        let Err(failure) = sent else {
            if state.reported.sending.as_ref() == Some(&list) {
                state.reported.sending = None;
            }
            return true;
        };
        // No thread is to wait for its effect.
        if let Some(wanted) = state.wanted.get_mut(&list) {
            wanted.sent = None;
        }
        if let Failure::Refused(refusal) = &failure
            && !(refusal.passes_by_waiting()
                || refusal.ends_blocking()
                || refusal.kind() == RefusalKind::WrongType)
        {
            state.sending_paused_until = Some(clock::uptime().after(REFUSED));
        }
        let reported = state.reported.sending.is_some();
        state.reported.sending.get_or_insert(list);
        drop(state);
        if !reported {
            let reason =
                format!("cannot send them, so waiters in other processes poll: {}", describe(&failure));
            observer.notify(&Event::NotificationsUnavailable { reason: &reason });
        }
        false
    }

    /// Returns when this process sent a notification for the key that another process may be acting upon, if this process would learn
    /// of the next release. A thread that comes next waits its turn among the processes.
    pub(super) fn sent(&self, key: &Key) -> Option<Uptime> {
        let state = self.lock();
        state.wanted.get(&wake_channel(key)).filter(|_| state.listening)?.sent
    }

    /// Whether this process waits for notifications for the key.
    pub(super) fn listens_for(&self, key: &Key) -> bool {
        let state = self.lock();
        state.listening && !state.stale && state.wanted.contains_key(&wake_channel(key))
    }

    /// Has notifications for the key waited for, from now on and for a while after the last such call.
    pub(super) fn want(self: &Arc<Self>, key: &Key, observer: &Observer) {
        let now = clock::uptime();
        let mut state = self.lock();
        if state.listening_paused_until.is_some_and(|until| now < until) {
            return;
        }
        let mut added = false;
        let wanted = state.wanted.entry(wake_channel(key)).or_insert_with(|| {
            added = true;
            Wanted { key: key.clone(), at: now, sent: None }
        });
        wanted.at = now;
        let interrupt = added && state.listening && !state.stale;
        state.stale |= added;
        let start = !state.running;
        state.running = true;
        drop(state);
        if start {
            self.start(observer);
        }
        if interrupt {
            // If that fails, the thread adds the key when its BLPOP ends.
            let _ = self.backend.send_notification(&self.interrupt_list, &self.limits());
        }
    }

    fn start(self: &Arc<Self>, observer: &Observer) {
        let (this, of_thread) = (Arc::clone(self), observer.clone());
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| this.run(&of_thread))).is_err() {
                this.end(Some(REFUSED));
            }
        };
        if let Err(error) = thread::Builder::new().name("setnx-lock notifications".to_owned()).spawn(body) {
            observer.notify(&Event::NotificationsUnavailable {
                reason: &format!("cannot start a thread, so waiters of this process poll: {error}"),
            });
            self.end(Some(REFUSED));
        }
    }

    /// Waits for notifications, until no thread wants any.
    fn run(&self, observer: &Observer) {
        let mut listener: Option<Box<dyn Listener>> = None;
        let mut pause = RETRY[0];
        while let Some(lists) = self.wanted_lists(listener.is_some()) {
            let asked = clock::uptime();
            let received = match &mut listener {
                Some(listener) => {
                    listener.next_notification(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>())
                }
                None => match self.backend.listen() {
                    Ok(opened) => {
                        listener = Some(opened);
                        continue;
                    }
                    Err(failure) => Err(failure),
                },
            };
            let failure = match received {
                Ok(list) => {
                    pause = RETRY[0];
                    self.lock().reported.listening = false;
                    match list {
                        Some(list) => self.pass_on(&list),
                        // A server that answers at once that there is nothing must not be asked in a loop.
                        None if clock::uptime().since(asked) < AT_ONCE => thread::sleep(pause),
                        None => {}
                    }
                    continue;
                }
                Err(failure) => failure,
            };
            listener = None;
            if !mem::replace(&mut self.lock().reported.listening, true) {
                let reason =
                    format!("cannot wait for them, so waiters of this process poll: {}", describe(&failure));
                observer.notify(&Event::NotificationsUnavailable { reason: &reason });
            }
            match failure {
                Failure::Refused(refusal) if !(refusal.passes_by_waiting() || refusal.ends_blocking()) => {
                    return self.end(Some(REFUSED));
                }
                Failure::TooOld(_) => return self.end(Some(REFUSED)),
                _ => {}
            }
            self.forget_sent();
            thread::sleep(pause);
            pause = RETRY[1].min(pause * 2);
        }
    }

    /// Returns the lists to wait for; `None` if no thread wants any, and the notification thread ends.
    fn wanted_lists(&self, listening: bool) -> Option<Vec<Vec<u8>>> {
        let now = clock::uptime();
        let mut state = self.lock();
        state
            .wanted
            .retain(|_, wanted| now.since(wanted.at) < LINGER || self.queue.is_waited_for(&wanted.key));
        state.stale = false;
        state.listening = listening;
        if state.wanted.is_empty() {
            (state.running, state.listening) = (false, false);
            return None;
        }
        let mut lists = vec![self.interrupt_list.clone()];
        lists.extend(state.wanted.keys().cloned());
        Some(lists)
    }

    /// Notifications under way may be lost with the connection, or with the server.
    fn forget_sent(&self) {
        let mut state = self.lock();
        state.listening = false;
        for wanted in state.wanted.values_mut() {
            wanted.sent = None;
        }
    }

    /// Passes a notification to the head of the key's queue. One that no thread here waits for any more belongs to another process.
    fn pass_on(&self, list: &[u8]) {
        let key = self.lock().wanted.get_mut(list).map(|wanted| {
            wanted.sent = None;
            wanted.key.clone()
        });
        let Some(key) = key else { return };
        if !self.queue.notify(&key, Hint::Freed) {
            let mut state = self.lock();
            // A thread that was queued since wants the notification that is put back.
            if !self.queue.is_waited_for(&key) {
                state.wanted.remove(list);
            }
            drop(state);
            // If that fails, the next waiter waits for a poll interval.
            let _ = self.backend.send_notification(list, &self.limits());
        }
    }

    fn end(&self, pause: Option<Duration>) {
        let listening_paused_until = pause.map(|time| clock::uptime().after(time));
        let mut state = self.lock();
        let State { sending_paused_until, reported, .. } = mem::take(&mut *state);
        *state = State { listening_paused_until, sending_paused_until, reported, ..State::default() };
    }

    /// For a notification sent by a waiter, which is about to sleep: a moment for a connection, and a reply.
    fn limits(&self) -> Limits<'static> {
        let now = clock::now();
        let command_timeout = self.backend.command_timeout();
        let budget =
            Budget { deadline: Some(now.uptime), unreachable_timeout: Duration::ZERO, command_timeout };
        Limits { connected_by: now.uptime.after(SHORT_CONNECT_WAIT), ..Limits::within(budget, now) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The list beside a key.
fn wake_channel(key: &Key) -> Vec<u8> {
    [key.as_bytes(), b":setnx-lock:wake-up"].concat()
}

fn describe(failure: &Failure) -> String {
    match failure {
        Failure::NoConnection { cause, .. } => cause.to_string(),
        Failure::Refused(refusal) => {
            let text = refusal.text().trim_end_matches('.');
            match refusal.kind() {
                RefusalKind::NotPermitted => format!(
                    "the server refused: {text}: the user needs BLPOP, RPUSH, LTRIM, EXPIRE, MULTI and EXEC, on KEY:setnx-lock:wake-up and \
                     setnx-lock:interrupt:*"
                ),
                RefusalKind::WrongType => {
                    format!(
                        "the server refused: {text}: for one of the keys, KEY:setnx-lock:wake-up holds no list"
                    )
                }
                _ => refusal.to_string(),
            }
        }
        Failure::Lost(error) => error.to_string(),
        Failure::TooOld(version) => format!("the server is Redis {version}, and notifications need 2.0"),
        Failure::TooLate => "there was no time left".to_owned(),
    }
}

impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifications").finish_non_exhaustive()
    }
}

//! The thread that listens: for all keys that threads of the process wait for, on one connection and one channel. It
//! starts when the first waiter asks for it, and ends when no thread has waited for a while. Also what is said where
//! notifications do not work.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use proto::values::{Key, Uptime};
use proto::waiting_list::{self, ListEntry};

use super::{Lists, Notifications, REFUSED, WAKE_UP};
use crate::net::{Failure, Heard, Refusal, RefusalKind};
use crate::run::sink::{EventSink, noticing};
use crate::system::clock;
use crate::system::thread;
use crate::wait::Hint;

/// How long the thread listens after a key was last waited for, so that it does not start anew for each wait.
const LINGER: Duration = Duration::from_secs(5);

/// How often it looks which keys are still waited for.
const SWEPT_EVERY: Duration = Duration::from_secs(1);

/// How long the thread pauses after it could not connect, at first and at most.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

impl Notifications {
    pub(super) fn start(self: &Arc<Self>, observer: &EventSink) {
        let (this, of_thread) = (Arc::clone(self), observer.clone());
        let body = move || {
            let run = || noticing(|| this.run(&of_thread));
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                this.stop(Some(REFUSED));
            }
        };
        if let Err(error) = thread::named("setnx-lock notifications").spawn(body) {
            self.stop(Some(REFUSED));
            observer.no_notifications(&format_args!(
                "cannot start a thread, so waiters of this process poll: {error}"
            ));
        }
    }

    /// Listens until no thread waits.
    fn run(&self, observer: &EventSink) {
        let mut pause = RETRY[0];
        let mut swept_at = clock::uptime();
        loop {
            let listened = self.backend.listen(self.node, &self.channel, &mut |heard| {
                match heard {
                    Heard::Subscribed => self.subscribed(),
                    Heard::Message(message) => self.notified(message),
                    Heard::Silence => {}
                }
                // A server that accepts a client and closes the connection at once does not work.
                if !matches!(heard, Heard::Subscribed) {
                    pause = RETRY[0];
                    self.state.lock().listening_reported = false;
                }
                self.goes_on(&mut swept_at)
            });
            let failure = match listened {
                Ok(()) => return,
                Err(failure) => failure,
            };
            self.state.lock().listening = false;
            // Other nodes may have the keys by now.
            if !self.sweep(clock::uptime()) {
                return;
            }
            // A node that has left the cluster is no reason to say so.
            let is_gone = matches!(failure, Failure::TooLate);
            if !is_gone && !mem::replace(&mut self.state.lock().listening_reported, true) {
                let reason = format!(
                    "cannot wait for them, so waiters of this process poll: {}",
                    self.describe(&failure)
                );
                observer.no_notifications(&reason);
            }
            match failure {
                Failure::Refused(refusal) if !refusal.is_transient() => return self.stop(Some(REFUSED)),
                _ => {}
            }
            thread::sleep(pause);
            pause = RETRY[1].min(pause * 2);
            if !self.goes_on(&mut swept_at) {
                return;
            }
        }
    }

    /// Returns what is the matter, and what a user needs.
    pub(super) fn describe(&self, failure: &Failure) -> String {
        let Failure::Refused(refusal) = failure else { return failure.to_string() };
        let text = refusal.text().trim_end_matches('.');
        let advice = match refusal.kind() {
            RefusalKind::NotPermitted => {
                let channel = String::from_utf8_lossy(&self.channel);
                let channels = channel.rfind(WAKE_UP).map_or("", |at| &channel[..at + WAKE_UP.len()]);
                format!(
                    "the user needs RPUSH, LPOP, LRANGE, LREM and EXPIRE on KEY:setnx-lock:waiters:{{KEY}}, and PUBLISH and SUBSCRIBE on the \
                     channels {channels}*"
                )
            }
            RefusalKind::WrongType => {
                "for one of the keys, KEY:setnx-lock:waiters:{KEY} holds no list".to_owned()
            }
            _ => return refusal.to_string(),
        };
        format!("the server refused: {text}: {advice}")
    }

    /// Has the heads of all queues look, and enter their lists: what was published before is lost.
    fn subscribed(&self) {
        let mut state = self.state.lock();
        state.listening = true;
        for waited in state.keys.values_mut() {
            waited.entry.doubt();
        }
        let keys: Vec<Key> = state.keys.keys().cloned().collect();
        drop(state);
        for key in &keys {
            self.queues.notify(key, Hint::Changed);
        }
    }

    /// It is the turn of this process for a key.
    fn notified(&self, message: &[u8]) {
        let (key, polled) = waiting_list::read(message);
        let (key, now) = (&Key::from(key), clock::uptime());
        if polled {
            self.met.note(key, polled, now);
        }
        // That of the process which has sent it.
        self.met.ended(key, now);
        let mut state = self.state.lock();
        state.notified.remove(key);
        if let Some(waited) = state.keys.get_mut(key) {
            waited.entry = ListEntry::Notified;
        }
        drop(state);
        self.pass_on_unused(key, Uptime::MAX);
    }

    /// Looks from time to time which keys are still waited for. Returns whether some are; if not, the thread ends.
    fn goes_on(&self, swept_at: &mut Uptime) -> bool {
        let now = clock::uptime();
        if now.since(*swept_at) < SWEPT_EVERY {
            return true;
        }
        *swept_at = now;
        self.sweep(now)
    }

    /// Forgets the keys that no thread waits for any more, or that another
    /// node has. Returns whether some are left; if not, the thread ends.
    fn sweep(&self, now: Uptime) -> bool {
        let (mut unwanted, mut moved) = (Vec::new(), Vec::new());
        let mut state = self.state.lock();
        state.keys.retain(|key, waited| {
            let is_here = self.backend.node_of(key) == self.node;
            if !is_here {
                moved.push(key.clone());
            }
            let stays = is_here && (now.since(waited.at) < LINGER || self.queues.is_waited_for(key));
            if !stays && waited.entry.is_listed() {
                unwanted.push(key.clone());
            }
            stays
        });
        let ends = state.keys.is_empty();
        if ends {
            (state.running, state.listening) = (false, false);
        }
        drop(state);
        for key in &moved {
            // Its head enters the list as a listener of the other node.
            self.queues.notify(key, Hint::Changed);
        }
        // If that fails, a release finds out that no client listens.
        let _ = unwanted.iter().try_for_each(|key| self.leave(key, Uptime::MAX));
        !ends
    }

    fn stop(&self, pause: Option<Duration>) {
        let listening_paused_until = pause.map(|time| clock::uptime().after(time));
        let mut state = self.state.lock();
        let Lists { sending_paused_until, listening_reported, sending_reported, .. } = mem::take(&mut *state);
        *state = Lists {
            listening_paused_until,
            sending_paused_until,
            listening_reported,
            sending_reported,
            ..Lists::default()
        };
    }
}

/// Returns true if the server will refuse the same for each key, and for some time.
pub(super) fn concerns_all_keys(failure: &Failure) -> bool {
    // One list may be something else, or on a node of its own.
    let of_one = [RefusalKind::WrongType, RefusalKind::OtherNode];
    let of_all = |refusal: &Refusal| !refusal.is_transient() && !of_one.contains(&refusal.kind());
    matches!(failure, Failure::Refused(refusal) if of_all(refusal))
}

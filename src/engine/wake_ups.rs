//! Wake-ups between processes: one thread of a locker waits for tokens, on one connection, for all keys that somebody of this
//! process waits for, and lets the head of the line know. Everything that goes wrong here costs a poll interval and no more.
//!
//! The thread is started when the first waiter asks for it, and ends when nobody has waited for a while. A key that is new to it
//! interrupts its BLPOP by a token in a list of the locker's own.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, mem, thread};

use super::LITTLE_PATIENCE;
use crate::clock::{self, Uptime};
use crate::event::{Event, Observer};
use crate::key::Key;
use crate::options::Protocol;
use crate::server::refusal::RefusalKind;
use crate::server::{Ear, Failure, Limits, Over, Window};
use crate::waiting::{Lines, News};

/// How long a key is listened for after it was last waited for: whoever works with a key again and again does not have it taken in
/// anew each time.
const LINGER: Duration = Duration::from_secs(5);

/// How long it takes to try again where connecting failed, at first and at most.
const RETRY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// What takes no longer was not waited for: a BLPOP that finds nothing takes seconds.
const AT_ONCE: Duration = Duration::from_millis(500);

/// How long a server is left alone that has said no, or is too old.
const REFUSED: Duration = Duration::from_secs(60);

/// The tokens of a locker.
pub(crate) struct WakeUps {
    window: Arc<dyn Window>,
    lines: Arc<Lines>,
    /// The list that interrupts the thread.
    bell: Vec<u8>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The keys that tokens are waited for, by their lists.
    wanted: HashMap<Vec<u8>, Wanted>,
    /// Whether there is a thread.
    running: bool,
    /// Whether it has a connection.
    listening: bool,
    /// Whether keys were added that it has not taken in.
    stale: bool,
    /// Until when nobody listens, since the server refuses it.
    deaf_until: Option<Uptime>,
    /// Until when no tokens are left, for the same reason.
    mute_until: Option<Uptime>,
    /// What has been told of what does not work, and has not worked since.
    told: Told,
}

#[derive(Default)]
struct Told {
    /// That nobody listens.
    deaf: bool,
    /// That no token could be left, and in which list.
    mute: Option<Vec<u8>>,
}

struct Wanted {
    key: Key,
    /// When it was last asked for.
    at: Uptime,
    /// When this process last left a token there, unless one has come since.
    left: Option<Uptime>,
}

impl WakeUps {
    /// `random` names this locker's bell.
    pub(crate) fn new(window: Arc<dyn Window>, lines: Arc<Lines>, random: u64) -> Self {
        let bell = format!("setnx-lock:bell:{random:x}").into_bytes();
        Self { window, lines, bell, state: Mutex::default() }
    }

    /// Leaves a token for whoever waits for the key in another process, or in this one. Returns whether there is one now.
    pub(super) fn leave(&self, key: &Key, limits: &Limits<'_>, observer: &Observer) -> bool {
        let list = list_of(key);
        let mut state = self.lock();
        if state.mute_until.is_some_and(|until| clock::uptime() < until) {
            return false;
        }
        // Before it is there: it may come back at once.
        if let Some(wanted) = state.wanted.get_mut(&list) {
            wanted.left = Some(clock::uptime());
        }
        drop(state);
        let left = self.window.leave_token(&list, limits);
        let mut state = self.lock();
        let Err(failure) = left else {
            if state.told.mute.as_ref() == Some(&list) {
                state.told.mute = None;
            }
            return true;
        };
        // Nobody is to wait for what comes of it.
        if let Some(wanted) = state.wanted.get_mut(&list) {
            wanted.left = None;
        }
        if let Failure::Refused(refusal) = &failure
            && !(refusal.may_pass() || refusal.sends_away() || refusal.kind() == RefusalKind::WrongType)
        {
            state.mute_until = Some(clock::uptime().after(REFUSED));
        }
        let told = state.told.mute.is_some();
        state.told.mute.get_or_insert(list);
        drop(state);
        if !told {
            let why =
                format!("cannot leave tokens, so waiters in other processes poll: {}", in_words(&failure));
            observer.tell(&Event::NoWakeUps { why: &why });
        }
        false
    }

    /// Returns when this process left a token for the key that others may be acting upon, if it would get to know what comes of
    /// that. Whoever comes next waits his turn among the processes.
    pub(super) fn left(&self, key: &Key) -> Option<Uptime> {
        let state = self.lock();
        state.wanted.get(&list_of(key)).filter(|_| state.listening)?.left
    }

    /// Whether tokens for the key are being waited for by this process.
    pub(super) fn hears(&self, key: &Key) -> bool {
        let state = self.lock();
        state.listening && !state.stale && state.wanted.contains_key(&list_of(key))
    }

    /// Has tokens for the key waited for, from now on and for a while after it was last asked for.
    pub(super) fn want(self: &Arc<Self>, key: &Key, observer: &Observer) {
        let now = clock::uptime();
        let mut state = self.lock();
        if state.deaf_until.is_some_and(|until| now < until) {
            return;
        }
        let mut added = false;
        let wanted = state.wanted.entry(list_of(key)).or_insert_with(|| {
            added = true;
            Wanted { key: key.clone(), at: now, left: None }
        });
        wanted.at = now;
        let ring = added && state.listening && !state.stale;
        state.stale |= added;
        let start = !state.running;
        state.running = true;
        drop(state);
        if start {
            self.start(observer);
        }
        if ring {
            // If that fails, the thread takes the key in when its BLPOP is over.
            let _ = self.window.leave_token(&self.bell, &self.limits());
        }
    }

    fn start(self: &Arc<Self>, observer: &Observer) {
        let (this, told) = (Arc::clone(self), observer.clone());
        let body = move || {
            if catch_unwind(AssertUnwindSafe(|| this.run(&told))).is_err() {
                this.end(None);
            }
        };
        if let Err(error) = thread::Builder::new().name("setnx-lock wake-ups".to_owned()).spawn(body) {
            observer.tell(&Event::NoWakeUps {
                why: &format!("cannot start a thread, so waiters of this process poll: {error}"),
            });
            self.end(Some(REFUSED));
        }
    }

    /// Waits for tokens, until nobody wants any.
    fn run(&self, observer: &Observer) {
        let mut ear: Option<Box<dyn Ear>> = None;
        let mut pause = RETRY[0];
        while let Some(lists) = self.take_in(ear.is_some()) {
            let asked = clock::uptime();
            let heard = match &mut ear {
                Some(ear) => ear.hear(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>()),
                None => match self.window.listen() {
                    Ok(opened) => {
                        ear = Some(opened);
                        continue;
                    }
                    Err(failure) => Err(failure),
                },
            };
            let failure = match heard {
                Ok(list) => {
                    pause = RETRY[0];
                    self.lock().told.deaf = false;
                    match list {
                        Some(list) => self.pass_on(&list),
                        // Who says at once that there is nothing, is not to be asked again and again.
                        None if clock::uptime().since(asked) < AT_ONCE => thread::sleep(pause),
                        None => {}
                    }
                    continue;
                }
                Err(failure) => failure,
            };
            ear = None;
            if !mem::replace(&mut self.lock().told.deaf, true) {
                let why = format!(
                    "cannot wait for tokens, so waiters of this process poll: {}",
                    in_words(&failure)
                );
                observer.tell(&Event::NoWakeUps { why: &why });
            }
            match failure {
                Failure::Refused(refusal) if !(refusal.may_pass() || refusal.sends_away()) => {
                    return self.end(Some(REFUSED));
                }
                Failure::TooOld(_) => return self.end(Some(REFUSED)),
                _ => {}
            }
            self.forget_tokens();
            thread::sleep(pause);
            pause = RETRY[1].min(pause * 2);
        }
    }

    /// Returns the lists to wait for; `None` if nobody wants any, and the thread is to end.
    fn take_in(&self, listening: bool) -> Option<Vec<Vec<u8>>> {
        let now = clock::uptime();
        let mut state = self.lock();
        state
            .wanted
            .retain(|_, wanted| now.since(wanted.at) < LINGER || self.lines.is_waited_for(&wanted.key));
        state.stale = false;
        state.listening = listening;
        if state.wanted.is_empty() {
            (state.running, state.listening) = (false, false);
            return None;
        }
        let mut lists = vec![self.bell.clone()];
        lists.extend(state.wanted.keys().cloned());
        Some(lists)
    }

    /// Tokens that are under way may be lost with the connection, or with the server.
    fn forget_tokens(&self) {
        let mut state = self.lock();
        state.listening = false;
        for wanted in state.wanted.values_mut() {
            wanted.left = None;
        }
    }

    /// Gives a token to the head of the key's line. One that nobody here waits for any more is somebody else's.
    fn pass_on(&self, list: &[u8]) {
        let key = self.lock().wanted.get_mut(list).map(|wanted| {
            wanted.left = None;
            wanted.key.clone()
        });
        let Some(key) = key else { return };
        if !self.lines.tell(&key, News::Freed) {
            let mut state = self.lock();
            // Who has joined since wants the token that is put back.
            if !self.lines.is_waited_for(&key) {
                state.wanted.remove(list);
            }
            drop(state);
            // If that fails, the next waits for a poll interval.
            let _ = self.window.leave_token(list, &self.limits());
        }
    }

    fn end(&self, quiet: Option<Duration>) {
        let deaf_until = quiet.map(|time| clock::uptime().after(time));
        let mut state = self.lock();
        let State { mute_until, told, .. } = mem::take(&mut *state);
        *state = State { deaf_until, mute_until, told, ..State::default() };
    }

    /// What a token is worth waiting for, who may be a waiter that wants to sleep: a moment for a connection, and an answer.
    fn limits(&self) -> Limits<'static> {
        let asked = clock::now();
        let answered_by = asked.uptime.after(self.window.command_timeout());
        Limits {
            needs: Protocol::Classic,
            asked,
            reachable_by: asked.uptime,
            connected_by: asked.uptime.after(LITTLE_PATIENCE),
            answered_by,
            over: Over::NEVER,
            combines: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The list beside a key.
fn list_of(key: &Key) -> Vec<u8> {
    [key.as_bytes(), b":setnx-lock:wake-up"].concat()
}

fn in_words(failure: &Failure) -> String {
    match failure {
        Failure::NoConnection { cause, .. } => cause.to_string(),
        Failure::Refused(refusal) => {
            let text = refusal.text().trim_end_matches('.');
            match refusal.kind() {
                RefusalKind::NotPermitted => format!(
                    "the server refused: {text}: the user needs BLPOP, RPUSH, LTRIM, EXPIRE, MULTI and EXEC, on KEY:setnx-lock:wake-up and \
                     setnx-lock:bell:*"
                ),
                RefusalKind::WrongType => {
                    format!(
                        "the server refused: {text}: what is in KEY:setnx-lock:wake-up, for one of the keys, is no list"
                    )
                }
                _ => refusal.to_string(),
            }
        }
        Failure::Lost(error) => error.to_string(),
        Failure::TooOld(version) => format!("the server is Redis {version}, and wake-ups need 2.0"),
        Failure::TooLate => "there was no time left".to_owned(),
    }
}

impl fmt::Debug for WakeUps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeUps").finish_non_exhaustive()
    }
}

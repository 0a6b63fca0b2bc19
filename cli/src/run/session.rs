//! A locker, and the signals that come while it waits for a lock.

use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use setnx_lock::{CancelToken, Contention, Error, Key, LockState, LockToken, Locker};

use super::event::{Event, Status};
use super::events::RunEvent;
use super::signals::{self, Waiting};
use super::spinner::Spinner;
use super::wanted::{Held, Wanted, names};
use crate::arguments::{Acquisition, Condition};
use crate::failure::Failure;
use crate::keys::{self, Found, KeyReport};
use crate::output;
use crate::server::Target;

/// A wait that is not mentioned.
const SHORT: Duration = Duration::from_millis(50);
/// A lock needs a connection only while a command is on its way; the keeper thread and the display need one as well.
const CONNECTIONS: u32 = 3;
/// The longest name of a holder, in bytes.
const LONGEST_NAME: usize = 64;

/// What is open while the tool acquires a lock and holds it.
pub(crate) struct Session {
    pub(crate) locker: Locker,
    pub(crate) cancel: CancelToken,
    pub(super) events: Sender<Event>,
    pub(super) received: Receiver<Event>,
    pub(super) waiting: Waiting,
    target: Target,
    /// The keys whose releases have failed and were not carried out since; `None` if none has failed.
    not_released: Arc<Mutex<Option<BTreeSet<Key>>>>,
    /// The keys, for people.
    names: String,
    shows_wait: bool,
}

impl Session {
    /// Connects to nothing. From now on signals are received.
    pub(crate) fn open(
        arguments: &Acquisition,
        keys: &[Key],
        token: Option<&LockToken>,
        leads: bool,
    ) -> Result<Self, Failure> {
        let (events, received) = mpsc::channel();
        let cancel = CancelToken::new();
        let waiting = signals::listen(&cancel, events.clone(), leads)?;
        let target = Target::of(&arguments.server)?;
        let builder = target.locker().pool_size(CONNECTIONS);
        let (keys, builder) = match token {
            // Its key has the prefix already.
            Some(token) => (vec![token.key().clone()], builder),
            None => (target.keys(keys), builder.key_prefix(target.key(&Key::from("")))),
        };
        let builder = arguments.outages.apply(builder, &arguments.server.url)?;
        let not_released = Arc::<Mutex<Option<BTreeSet<Key>>>>::default();
        let failed = Arc::clone(&not_released);
        let builder = builder.observer(move |event: &setnx_lock::Event<'_>| {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                setnx_lock::Event::ReleaseFailed { key, .. } => {
                    failed.get_or_insert_default().insert((*key).clone());
                }
                setnx_lock::Event::Settled { key, outcome: setnx_lock::Settlement::Released, .. } => {
                    if let Some(failed) = &mut *failed {
                        failed.remove(*key);
                    }
                }
                _ => {}
            }
            drop(failed);
            if output::is_json()
                && let Some((key, event)) = RunEvent::of(event)
            {
                output::event(key, &event);
            }
        });
        let locker = match &arguments.name {
            Some(name) if !name.is_empty() => builder.holder_name(name),
            Some(_) => builder.holder_name(own_name()?),
            None => builder,
        };
        let shows_wait = !arguments.quiet && !arguments.json;
        let locker = locker.build()?;
        let names = names(keys.iter());
        Ok(Self { locker, cancel, events, received, waiting, target, not_released, names, shows_wait })
    }

    /// Waits for what is wanted. A signal that would end this process ends the wait.
    pub(crate) fn acquire(&self, wanted: &Wanted) -> Result<Held, Failure> {
        let acquired = {
            let _display = Spinner::start(&self.names, wanted, self.shows_wait);
            wanted.acquire()
        };
        self.waiting.set(false);
        if let Some(signal) = self.ending_signal() {
            return Err(Failure::silent(Status::Signaled(signal as i32).code()));
        }
        acquired.map_err(|error| match error {
            Error::Cancelled { .. } => Failure::silent(Status::Signaled(Signal::SIGINT as i32).code()),
            Error::Contended { key, details, .. } => self.contended(wanted, &key, *details),
            error => error.into(),
        })
    }

    /// The first signal that has come and ends programs which do not handle it.
    fn ending_signal(&self) -> Option<Signal> {
        self.received.try_iter().find_map(|event| event.ending_signal())
    }

    /// Fails if a signal has come that tells programs to end.
    pub(super) fn told_to_end(&self) -> Result<(), Failure> {
        match self.received.try_iter().find(Event::tells_to_end).and_then(|event| event.ending_signal()) {
            Some(signal) => Err(Failure::silent(Status::Signaled(signal as i32).code())),
            None => Ok(()),
        }
    }

    /// Has failed releases be tried once more. Returns true if all locks were released.
    pub(super) fn releases_late(&self) -> bool {
        self.locker.shut_down();
        let failed = self.not_released.lock().unwrap_or_else(PoisonError::into_inner);
        failed.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// That another holder has the lock, until when, and which; or that the key holds what never frees itself.
    fn contended(&self, wanted: &Wanted, key: &Key, details: Contention) -> Failure {
        let Contention { waited, seen, .. } = details;
        let now = keys::now();
        let permits = wanted.any_of(key);
        let keys = if permits.is_empty() { std::slice::from_ref(key) } else { permits };
        // They are read once more, for the time to live.
        let read = keys::details_of_each(&self.target, keys).unwrap_or_default();
        let read: Vec<KeyReport> = read.into_iter().flatten().collect();
        let is_held = |report: &KeyReport| report.found != Found::State(LockState::Absent);
        let is_free = !read.is_empty() && !read.iter().any(is_held);
        let left = |report: &KeyReport| report.seconds_left(now).unwrap_or(f64::INFINITY);
        let next = read.into_iter().filter(is_held).min_by(|one, other| left(one).total_cmp(&left(other)));
        let report = next
            .unwrap_or_else(|| KeyReport::of(key.clone(), Found::State(seen.unwrap_or(LockState::Absent))));
        let is_stuck = !is_free && report.is_stuck();
        let within = if waited < SHORT { String::new() } else { format!(" in {}", keys::rounded(waited)) };
        let by = report.held_by(now).map(|holder| format!(", by {holder}")).unwrap_or_default();
        let all = match permits {
            [] => String::new(),
            [_] => "its permit is ".into(),
            permits => format!("all {} permits are held, {} is ", permits.len(), report.key),
        };
        Failure::of(
            if is_stuck { Condition::Stuck } else { Condition::Contended },
            format!("lock {key}: not acquired{within}: {all}{}{by}", report.words(now)),
        )
    }
}

/// The host and the process id.
fn own_name() -> Result<String, Failure> {
    let host =
        nix::unistd::gethostname().map_err(|error| Failure::system("cannot read the host's name", error))?;
    Ok(name_of(&host.to_string_lossy(), std::process::id()))
}

/// The name of a process. Of a host with a long name it has the
/// end, which tells the pods of a deployment from each other.
fn name_of(host: &str, process: u32) -> String {
    let process = format!(":{process}");
    let mut begin = host.len().saturating_sub(LONGEST_NAME - process.len());
    while !host.is_char_boundary(begin) {
        begin += 1;
    }
    host[begin..].to_owned() + &process
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_is_as_long_as_a_holders_at_most() {
        assert_eq!(name_of("web1", 77), "web1:77");
        assert_eq!(name_of("", 77), ":77");
        for length in [61, 62, 63, 64] {
            let host = "x".repeat(length - 1) + "y";
            let name = name_of(&host, 77);
            assert!(name.ends_with("y:77") && name.len() == (length + 3).min(64), "{name}");
        }
        // A character is not cut.
        assert_eq!(name_of(&"é".repeat(32), 77).len(), 63);
    }
}

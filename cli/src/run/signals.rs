//! The signals that this process receives, as events.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use setnx_lock::CancelToken;

use super::event::Event;
use super::terminal;
use crate::failure::Failure;

/// What is passed on to the command, beside the stop of a job.
const PASSED_ON: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
];

/// Unblocks the signals that tell programs to end. Whoever starts this
/// one may have blocked them, as a thread that waits for signals does.
pub(crate) fn unblock_ending() {
    unblock([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
}

/// Unblocks signals for this thread, and for threads and processes that it starts from now on.
fn unblock(signals: impl IntoIterator<Item = Signal>) {
    // It cannot fail.
    let _ = SigSet::from_iter(signals).thread_unblock();
}

/// True while a lock is waited for: a signal that stops a job then stops this process at once.
pub(super) struct Waiting(Arc<AtomicBool>);

impl Waiting {
    pub(super) fn set(&self, waits: bool) {
        self.0.store(waits, Ordering::SeqCst);
    }
}

/// Sends the signals that come from now on as events; one that ends programs ends the wait for the lock.
///
/// While a process that is to lead has no command, only those tell it anything that tell programs to end.
pub(super) fn listen(cancel: &CancelToken, events: Sender<Event>, leads: bool) -> Result<Waiting, Failure> {
    let problem = |error: &dyn std::fmt::Display| Failure::system("cannot wait for signals", error);
    let ignored = ignored();
    let heard = PASSED_ON.into_iter().filter(|signal| ignored >> (*signal as i32 - 1) & 1 == 0);
    let mut signals = signal_hook::iterator::Signals::new(heard.map(|signal| signal as i32))
        .map_err(|error| problem(&error))?;
    // If it was ignored, the system would tell nothing of the command's end.
    signal_hook::flag::register(Signal::SIGCHLD as i32, Arc::default()).map_err(|error| problem(&error))?;
    terminal::note_resumptions().map_err(|error| problem(&error))?;
    // Not before they are listened for.
    unblock(PASSED_ON.into_iter().chain([Signal::SIGCHLD, Signal::SIGCONT]));
    let waiting = Arc::new(AtomicBool::new(true));
    let (is_waiting, cancel) = (Arc::clone(&waiting), cancel.clone());
    let receive = move || {
        for signal in signals.forever() {
            let Ok(signal) = Signal::try_from(signal) else { continue };
            let event = Event::Signal(signal);
            let waits = is_waiting.load(Ordering::SeqCst);
            if waits && signal == Signal::SIGTSTP {
                terminal::stop(false);
                continue;
            }
            if leads && waits && !event.tells_to_end() {
                continue;
            }
            // The command of a leader may not end by any other.
            let ends = event.tells_to_end() || !leads && event.ending_signal().is_some();
            if events.send(event).is_err() {
                return;
            }
            // Last, so that the end of the wait finds why.
            if ends {
                cancel.cancel();
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(receive).map_err(|error| problem(&error))?;
    Ok(Waiting(waiting))
}

/// The signals that were ignored when this process began, a bit each: by nohup, or in the background of a shell without
/// job control. They stay so, here and in the command. Linux says so; elsewhere none are known.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

//! Who holds the lock, shown on a terminal while it is waited for.

use std::io::{self, IsTerminal as _};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use setnx_lock::{Lock, LockState};

use super::terminal;
use crate::keys::{now, span};

/// A lock that is acquired sooner shows nothing.
const BEFORE: Duration = Duration::from_millis(300);
/// How often it is drawn.
const TICK: Duration = Duration::from_millis(100);
/// Every how many times the key is read.
const TICKS: u32 = 5;

/// A display that ends when this is dropped.
pub(super) struct Spinner(Option<ProgressBar>);

impl Spinner {
    pub(super) fn start(lock: &Lock, is_quiet: bool) -> Self {
        if is_quiet || !io::stderr().is_terminal() {
            return Self(None);
        }
        let (bar, lock) = (ProgressBar::new_spinner(), lock.clone());
        let shown = bar.clone();
        // Without a thread nothing is shown.
        let _ = thread::Builder::new().name("display".into()).spawn(move || {
            thread::sleep(BEFORE);
            for n in 0_u32.. {
                if shown.is_finished() {
                    return;
                }
                // In the background it would draw over what the shell shows.
                if terminal::is_ours() {
                    if n.is_multiple_of(TICKS) {
                        shown.set_message(message(&lock));
                    }
                    shown.tick();
                }
                thread::sleep(TICK);
            }
        });
        Self(Some(bar))
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn message(lock: &Lock) -> String {
    let key = lock.key();
    let Ok(state) = lock.state() else { return format!("waiting for {key}: no reply from the server") };
    let left = match &state {
        LockState::Until { expiry, holder, .. } => expiry.date().map(|until| {
            let by = holder.as_ref().map(|holder| format!(", by {holder}")).unwrap_or_default();
            format!("held for {} more{by}", span(until - now()))
        }),
        _ => None,
    };
    format!("waiting for {key}: {}", left.unwrap_or_else(|| state.to_string()))
}

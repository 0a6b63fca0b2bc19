//! Who holds the lock, shown on a terminal while it is waited for.

use std::io::{self, IsTerminal as _};
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use setnx_lock::LockState;

use super::terminal;
use super::wanted::Wanted;
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
    pub(super) fn start(names: &str, wanted: &Wanted, is_wanted: bool) -> Self {
        if !is_wanted || !io::stderr().is_terminal() {
            return Self(None);
        }
        let (bar, names, wanted) = (ProgressBar::new_spinner(), names.to_owned(), wanted.clone());
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
                        shown.set_message(message(&names, &wanted));
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

fn message(names: &str, wanted: &Wanted) -> String {
    let text = match wanted.states() {
        Err(_) => "no reply from the server".to_owned(),
        Ok(states) => {
            let left = |state: &LockState| match state {
                LockState::Until { expiry, holder, .. } => expiry.date().map(|until| {
                    let by = holder.as_ref().map(|holder| format!(", by {holder}")).unwrap_or_default();
                    (until, format!("held for {} more{by}", span(until - now())))
                }),
                _ => None,
            };
            let held = states.iter().filter_map(left).min();
            let words = held.map(|(_, words)| words).or_else(|| states.first().map(ToString::to_string));
            words.unwrap_or_default()
        }
    };
    format!("waiting for {names}: {text}")
}

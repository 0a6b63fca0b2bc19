//! What the library promises to settle after a failed call, and what it settles.

use std::collections::BTreeSet;
use std::iter;
use std::sync::Mutex;

use setnx_lock::{Error, Event, Observer, Settlement};
use world::run;

use crate::laws::broken;

/// Which keys the library has promised to settle, and which it has settled.
#[derive(Default)]
pub(super) struct Settled {
    promised: Mutex<BTreeSet<String>>,
    done: Mutex<BTreeSet<String>>,
    left: Mutex<BTreeSet<String>>,
}

impl Settled {
    /// Notes what an error promises.
    pub(super) fn note(&self, error: &Error) {
        if let Error::Several { cause, others, .. } = error {
            return iter::once(&**cause).chain(others).for_each(|error| self.note(error));
        }
        let text = error.to_string();
        if let Some(key) = error.key()
            && (text.contains("a background thread releases") || text.contains("the release is tried again"))
        {
            self.promised.lock().unwrap().insert(key.to_string());
        }
    }

    /// Returns true if the library has said that this key is left to expire.
    pub(super) fn is_left_to_expire(&self, key: &str) -> bool {
        self.left.lock().unwrap().contains(key)
    }

    pub(super) fn is_whole(&self) {
        let settled = self.done.lock().unwrap();
        if let Some(key) = self.promised.lock().unwrap().iter().find(|key| !settled.contains(*key)) {
            broken(&format!("{key} is not settled, as an error has promised"));
        }
    }
}

impl Observer for Settled {
    fn event(&self, event: &Event<'_>) {
        run::note(&format!("event: {event:?}"));
        match event {
            Event::ReleaseFailed { error, .. } => self.note(error),
            Event::Settled { key, outcome, .. } => {
                self.done.lock().unwrap().insert(key.to_string());
                if *outcome == Settlement::LeftToExpire {
                    self.left.lock().unwrap().insert(key.to_string());
                }
            }
            _ => {}
        }
    }
}

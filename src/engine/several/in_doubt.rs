//! A command on all keys that may have acquired locks: what it has acquired is found out and released, or reported by key.

use std::io;

use super::{Several, WaitAll};
use crate::backend::{RefusalKind, TransportError};
use crate::clock;
use crate::engine::call::Call;
use crate::engine::release::HeldLock;
use crate::engine::wait::Wait;
use crate::error::Error;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::acquire::Observation;
use crate::protocol::acquire_all::Unresolved;
use crate::protocol::lease::Lease;
use crate::protocol::{Command, Reply};
use crate::value::LockState;

/// A command on all keys that may have acquired locks, or may still.
pub(super) struct InDoubt {
    pub(super) unresolved: Unresolved,
    pub(super) protocol: Protocol,
    /// The command, and why it has no reply; a transaction that was carried out in part has one.
    pub(super) unanswered: Option<(&'static str, TransportError)>,
}

impl InDoubt {
    /// Returns the lease that the command may have begun of the lock with this number, and what it took over.
    pub(super) fn of(&self, index: usize) -> (Lease, Option<LockState>) {
        let Unresolved { lease, from } = &self.unresolved;
        let from = from.get(index).filter(|from| **from != LockState::Absent);
        (lease.clone(), from.cloned())
    }
}

impl WaitAll<'_> {
    /// Releases what a command on all keys has acquired of these, which were not waited for to the end. Returns what is not known to be
    /// released.
    pub(super) fn undo(&self, in_doubt: &InDoubt, keys: &[Key]) -> Vec<Error> {
        let (engine, Several { options, shared, .. }) = (self.engine, self.wanted);
        let InDoubt { unresolved: Unresolved { lease, .. }, protocol, unanswered } = in_doubt;
        let began = clock::now();
        if keys.is_empty() || lease.has_passed(began) {
            return Vec::new();
        }
        let (ours, unread) = self.find_ours(&lease.value, keys);
        let held = |key| {
            let holder = engine.queue.hold(key, shared, &Observation::of(lease, began));
            HeldLock { key, options, protocol: *protocol, lease, holder }
        };
        let mut failed = engine.release_all_unwanted(ours.into_iter().map(held).collect(), clock::now());
        failed.extend(self.unknown(unread.into_iter(), unanswered.clone()));
        failed
    }

    /// Returns those of these keys that hold this value, and those that could not be read.
    fn find_ours<'k>(&self, value: &[u8], keys: &'k [Key]) -> (Vec<&'k Key>, Vec<&'k Key>) {
        let engine = self.engine;
        let is_ours = |found: &Option<Vec<u8>>| found.as_deref() == Some(value);
        if let Ok(found) = engine.states(&keys[0], &keys.into()) {
            let ours = keys.iter().zip(&found).filter(|(_, found)| is_ours(found));
            return (ours.map(|(key, _)| key).collect(), Vec::new());
        }
        // Some servers refuse commands on several keys.
        let (mut ours, mut unread) = (Vec::new(), Vec::new());
        let until = clock::uptime().after(engine.backend.command_timeout());
        for key in keys {
            if clock::uptime() >= until {
                unread.push(key);
                continue;
            }
            match engine.once(key, Command::Get) {
                Ok(Reply::Bulk(found)) if is_ours(&found) => ours.push(key),
                Err(error) if !is_no_lock(&error) => unread.push(key),
                _ => {}
            }
        }
        (ours, unread)
    }

    /// Returns an error for each of these locks, of a command that may have acquired them; a transaction that was carried out in part has no
    /// reason.
    fn unknown<'k>(
        &self,
        keys: impl Iterator<Item = &'k Key>,
        unanswered: Option<(&'static str, TransportError)>,
    ) -> Vec<Error> {
        let (command, cause) = unanswered.unwrap_or_else(|| ("EXEC", carried_out_in_part()));
        let advice = Wait::advice(self.wanted.options);
        let unknown = |key: &Key| Error::InDoubt { key: key.clone(), command, advice, cause: cause.clone() };
        keys.map(unknown).collect()
    }

    /// Returns the error of a command that may have acquired all.
    pub(super) fn all_unknown(&self, mut call: Call<'_>) -> Error {
        let mut errors = self.unknown(self.wanted.keys.iter(), call.take_unanswered());
        errors.remove(0).and(errors)
    }
}

/// Whether the key was not read because what it holds is not a string, and so no lock.
fn is_no_lock(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::WrongType)
}

fn carried_out_in_part() -> TransportError {
    TransportError::new(
        io::ErrorKind::Other,
        "the transaction was carried out in part, and the key could not be read",
    )
}

//! A lock that may be held: the reply to a command that asked for it was lost, and that may still arrive, whatever the key showed since.

use std::slice;
use std::sync::Arc;

use super::acquire::{Call, Want};
use super::engine::Engine;
use super::held::{Acquired, HeldLock, MaybeHeld};
use crate::report::error::Error;
use crate::rules::{Command, Reply};
use crate::values::clock;
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::wait::Observation;

impl Engine {
    /// Asks for the lock once, without waiting for its holder. If a reply was lost, returns the lock that may be held as well.
    /// The hold is noted for no thread.
    pub(crate) fn acquire_once(
        self: &Arc<Self>,
        key: &Key,
        options: &LockOptions,
    ) -> (Result<Acquired, Error>, Option<MaybeHeld>) {
        match Call::new(self, options, None).ask_or_wait(Want::Lock(key)) {
            Ok((_, acquired)) => {
                self.note_begun(slice::from_ref(&acquired), None);
                (Ok(acquired), None)
            }
            Err((error, unresolved)) => {
                let (key, options) = (key.clone(), *options);
                (Err(error), (!unresolved.is_empty()).then_some(MaybeHeld { key, options, unresolved }))
            }
        }
    }

    /// Releases the lock if its key holds the value of a command without a reply. Returns true if there is nothing left to do, since each
    /// lease is released or has ended.
    pub(super) fn release_if_held(self: &Arc<Self>, maybe: &mut MaybeHeld) -> bool {
        let MaybeHeld { key, options, unresolved } = maybe;
        if !unresolved.may_hold(0, clock::now()) {
            return true;
        }
        let Ok(Reply::Bulk(Some(found))) = self.once(key, Command::Get) else { return false };
        // Until it is there, the command may still arrive.
        if let Some((lease, _)) = unresolved.take(0, Some(&found)) {
            let now = clock::now();
            let holder = self.queue.hold(key, None, &Observation::of(&lease, now));
            self.release_all_unwanted(vec![HeldLock::new(key, options, lease, holder)], now);
        }
        unresolved.is_empty()
    }
}

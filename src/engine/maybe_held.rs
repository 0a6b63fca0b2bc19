//! A lock that may be held: the reply to the command that asked for it was lost, and reading the key did not settle it.

use std::sync::Arc;

use super::release::HeldLock;
use super::wait::Wait;
use super::{Acquired, Engine};
use crate::clock;
use crate::error::Error;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::lease::Lease;
use crate::protocol::{Command, Reply};
use crate::queue::Observation;
use crate::thread_holds::HoldKind;

/// A lock that may be held.
#[derive(Debug)]
pub(crate) struct MaybeHeld {
    key: Key,
    options: LockOptions,
    protocol: Protocol,
    lease: Lease,
}

impl Engine {
    /// Asks for the lock once, without waiting for its holder. If the reply was lost, returns the lock that may be held as well.
    pub(crate) fn acquire_once(
        self: &Arc<Self>,
        key: &Key,
        options: &LockOptions,
    ) -> (Result<Acquired, Error>, Option<MaybeHeld>) {
        let wait = Wait::new(self, key, options, None, clock::now());
        let acquired = self.acquire_by(&wait, options, HoldKind::Movable);
        let maybe = wait.take_in_doubt().map(|(lease, protocol)| {
            let (key, options) = (key.clone(), *options);
            MaybeHeld { key, options, protocol, lease }
        });
        (acquired, maybe)
    }

    /// Releases the lock if its key holds the value of the command without a reply. Returns true if there is nothing left to do: it was
    /// released, or its lease has ended.
    pub(crate) fn release_if_held(&self, maybe: &MaybeHeld) -> bool {
        let MaybeHeld { key, options, protocol, lease } = maybe;
        if lease.has_passed(clock::now()) {
            return true;
        }
        match self.once(key, Command::Get) {
            Ok(Reply::Bulk(Some(found))) if found == lease.value => {}
            // The command may still arrive.
            _ => return false,
        }
        let now = clock::now();
        let holder = self.queue.hold(key, None, &Observation::of(lease, now));
        self.release_unwanted(HeldLock { key, options, protocol: *protocol, lease, holder }, now);
        true
    }
}

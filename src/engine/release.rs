//! Releasing: to the next queued thread of this process, where the options allow a handoff and one waits, else to all contenders.

use super::Engine;
use super::call::Call;
use crate::clock::{self, Now, Uptime};
use crate::error::Error;
use crate::event::Event;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::GiveUp;
use crate::protocol::lease::Lease;
use crate::protocol::release::{Release, Releasing};
use crate::protocol::renew::{Renewal, Renewed, Renewing};
use crate::queue::{Handoff, Hint, HolderTicket, Observation};

/// A held lock, to be released.
#[derive(Debug)]
pub(crate) struct HeldLock<'a> {
    pub(crate) key: &'a Key,
    pub(crate) options: &'a LockOptions,
    /// The protocol that it was acquired by.
    pub(crate) protocol: Protocol,
    pub(crate) lease: &'a Lease,
    /// How often in a row it has been handed off.
    pub(crate) handoffs: u32,
    pub(crate) holder: HolderTicket,
}

impl Engine {
    /// Releases a lock by the rules that it was acquired by, with a few commands and no sleep, and notifies the next waiter.
    pub(crate) fn release(&self, lock: HeldLock<'_>, began: Now) -> Result<Release, Error> {
        let HeldLock { key, options, protocol, lease, handoffs, ref holder } = lock;
        let deadline = began.uptime;
        let successor = if handoffs < options.handoff { holder.successor() } else { None };
        let successor =
            successor.filter(|(_, mode)| mode.accepts(protocol, lease, self.backend.server_version()));
        let Some((successor, mode)) = successor else { return self.free(lock, began, deadline) };
        let mut call = Call::new(self, key, options.protocol, Some(deadline));
        let nonce = self.identity.next_nonce();
        let renewal = call.run(Renewing::start(protocol, lease, mode.expiration(), nonce, began), began);
        match renewal.map_err(|reason| not_released(call, reason, lease))? {
            // The attempt has taken time, and the lease may have passed meanwhile (I5).
            Renewal::NotRenewed => self.free(lock, clock::now(), deadline),
            Renewal::Lost { overwrote } => {
                self.observer.notify(&Event::ValueOverwritten { key, winner: &overwrote });
                Ok(Release::Lost)
            }
            Renewal::Renewed(Renewed { lease, found }) => {
                let observation = Observation::of(&lease, clock::now());
                let handoff = Handoff { lease, protocol, observation, handoffs: handoffs + 1 };
                let HeldLock { holder, .. } = lock;
                let outcome = match holder.hand_off(successor, &handoff) {
                    None => Release::HandedOff { certified: true },
                    // The successor has given up meanwhile.
                    Some(holder) => {
                        let lease = &handoff.lease;
                        let lock = HeldLock { key, options, protocol, lease, handoffs, holder };
                        self.free(lock, clock::now(), deadline)?
                    }
                };
                Ok(found.confirms(outcome))
            }
        }
    }

    /// Deletes the key by the rules. All replies come within the time of one command after the deadline.
    fn free(&self, lock: HeldLock<'_>, now: Now, deadline: Uptime) -> Result<Release, Error> {
        let HeldLock { key, options, protocol, lease, holder, .. } = lock;
        let mut call = Call::new(self, key, options.protocol, Some(deadline));
        let outcome = call.run(Releasing::start(protocol, options.protocol, lease, now), now);
        let outcome = outcome.map_err(|reason| not_released(call, reason, lease));
        if !matches!(outcome, Ok(Release::Released { .. })) {
            holder.end(Hint::Changed, false);
            return outcome;
        }
        // Where this process listens as others do, its next thread is woken when it is its turn among the processes.
        let listens = options.notifies && self.notifications.listens_for(key);
        let by_notification = listens && self.send_notification(key, deadline);
        holder.end(Hint::Freed, by_notification);
        if options.notifies && !listens {
            self.send_notification(key, deadline);
        }
        outcome
    }

    /// Leaves a notification for the next waiter in any process, within the time of one command since then. Returns whether there is
    /// one now.
    pub(super) fn send_notification(&self, key: &Key, since: Uptime) -> bool {
        self.notifications.send(key, self.budget(Some(since)), &self.observer)
    }
}

fn not_released(call: Call<'_>, reason: GiveUp, lease: &Lease) -> Error {
    let advice = match lease.end {
        Some(_) => "if it was not released, it frees itself when its lease has passed",
        None => "it has no expiration, so look at the key, and clear it if it is still there",
    };
    call.error(reason, advice)
}

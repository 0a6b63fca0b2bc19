//! Releasing, and who learns of it: the next queued thread of this process, or the next process that waits.

use std::time::Duration;

use super::call::Call;
use super::{Answer, Engine};
use crate::clock::{Now, Uptime};
use crate::error::Error;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::GiveUp;
use crate::protocol::lease::Lease;
use crate::protocol::release::{Release, Releasing};
use crate::queue::{Ending, Hint, HolderTicket};

/// How often the gem polls.
const GEM_INTERVAL: Duration = Duration::from_millis(100);

/// A held lock, to be released.
#[derive(Debug)]
pub(crate) struct HeldLock<'a> {
    pub(crate) key: &'a Key,
    pub(crate) options: &'a LockOptions,
    /// The protocol that it was acquired by.
    pub(crate) protocol: Protocol,
    pub(crate) lease: &'a Lease,
    pub(crate) holder: HolderTicket<Answer>,
}

impl Engine {
    /// Releases a lock by the rules that it was acquired by, with a few commands and no sleep, and asks for the lock for the next thread of
    /// this process, or notifies the next waiter. All replies come within the time of one command.
    pub(crate) fn release(&self, lock: HeldLock<'_>, now: Now) -> Result<Release, Error> {
        let HeldLock { key, options, protocol, lease, holder } = lock;
        let deadline = now.uptime;
        let call = Call::new(self, key, options.protocol, Some(deadline));
        // Other processes that poll would not get a key that is never idle in this one. With notifications the processes take turns.
        let yields = if options.notifies { None } else { yields(&holder, options, now.uptime) };
        let mut call = if options.notifies || yields.is_some() { call } else { call.releasing(&holder) };
        let outcome = call.run(Releasing::start(protocol, options.protocol, lease, now), now);
        let has_answered = call.has_answered;
        let outcome = outcome.map_err(|reason| not_released(call, reason, lease));
        let released = matches!(outcome, Ok(Release::Released { .. }));
        if has_answered || !released {
            holder.end(if has_answered { Ending::Answer } else { Ending::Hint(Hint::Changed) });
            return outcome;
        }
        if let Some(until) = yields {
            holder.end(Ending::Hint(Hint::Yielded(until)));
            return outcome;
        }
        // Where this process listens as others do, its next thread is woken when it is its turn among the processes.
        let listens = options.notifies && self.notifications.listens_for(key);
        let by_notification = listens && self.send_notification(key, deadline);
        let ending = if by_notification { Ending::Notification } else { Ending::Hint };
        holder.end(ending(Hint::Freed));
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

/// Returns until when the lock is left to other processes: for the poll interval of the gem, so that each of them looks once.
fn yields(holder: &HolderTicket<Answer>, options: &LockOptions, now: Uptime) -> Option<Uptime> {
    let before = |time| Uptime(now.0.saturating_sub(time));
    let since = [before(options.yields_every), before(options.yields_every / 2)];
    holder.yields(now, since, now.after(GEM_INTERVAL))
}

fn not_released(call: Call<'_>, reason: GiveUp, lease: &Lease) -> Error {
    let advice = match lease.end {
        Some(_) => "if it was not released, it frees itself when its lease has passed",
        None => "it has no expiration, so look at the key, and clear it if it is still there",
    };
    call.error(reason, advice)
}

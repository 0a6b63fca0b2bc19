//! The threads of this process that wait for a key, whatever a holder delivers to them.

use proto::values::{Key, Uptime};
use proto::window::Activity;

use super::{Hint, WaitQueue};

/// What is asked of the wait queues of a locker, and told to them, by the name that their threads wait for.
pub(crate) trait Waiters: Send + Sync {
    /// See [`WaitQueue::notify`].
    fn notify(&self, key: &Key, hint: Hint) -> bool;
    /// See [`WaitQueue::is_waited_for`].
    fn is_waited_for(&self, key: &Key) -> bool;
    /// See [`WaitQueue::activity`].
    fn activity(&self, key: &Key) -> Option<Activity>;
    /// See [`WaitQueue::met_poller`].
    fn met_poller(&self, key: &Key, now: Uptime);
}

impl<A: Send> Waiters for WaitQueue<A> {
    fn notify(&self, key: &Key, hint: Hint) -> bool {
        self.notify(key, hint)
    }

    fn is_waited_for(&self, key: &Key) -> bool {
        self.is_waited_for(key)
    }

    fn activity(&self, key: &Key) -> Option<Activity> {
        self.activity(key)
    }

    fn met_poller(&self, key: &Key, now: Uptime) {
        self.met_poller(key, now);
    }
}

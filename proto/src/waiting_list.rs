//! The waiting list of a key: the channels of the processes that wait for the lock, in the order in which they came. It
//! is another key, `KEY:setnx-lock:waiters:{KEY}`; the rules of the lock do not depend on it.
//!
//! Why no release is missed: a process enters its channel, and then looks at the key. A release deletes the key, and
//! then takes a channel. If the look finds the lock held, its release comes after the look, so it finds the channel, or
//! that of a process that came before. A process that was notified asks for the lock, and its own release notifies the
//! next. If it does not want it any more, it notifies the next itself. If another was faster, it enters again, as the
//! last. A process that is in the list twice is woken once for nothing. `tests/models` searches all schedules of some
//! processes for one in which this fails.
//!
//! What is not covered, a killed process, a lost reply, a lost message, a list that was removed, costs the waiters a
//! poll interval: their polls check that they are listed. That no client receives a message shows that its process is
//! gone, and the next is notified at once.

use alloc::vec::Vec;
use core::time::Duration;

use crate::values::Uptime;

/// How old what a process knows of its entry may be before a poll checks that it is still there.
const CHECKED_EVERY: Duration = Duration::from_secs(5);

/// How long a list lives that is not refreshed, in seconds: a process that crashes leaves its entry.
pub const LIST_TTL: u32 = 600;

/// What is done with a waiting list, or with a channel that it contains. Where a list can have a time to live, what
/// enters or checks it renews that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// Enters a channel as the last.
    Enter {
        /// The channel of the process.
        channel: Vec<u8>,
        /// True if the list can have a time to live.
        expires: bool,
    },
    /// Removes the first channel. The reply is that, or nothing.
    Next,
    /// Enters a channel as the last, and removes the first.
    NextAfter {
        /// The channel of the process.
        channel: Vec<u8>,
        /// True if the list can have a time to live.
        expires: bool,
    },
    /// The reply is what is in the list.
    Check {
        /// The channel of the process.
        channel: Vec<u8>,
        /// True if the list can have a time to live.
        expires: bool,
    },
    /// Removes the first entry of a channel: another thread of the process may have entered it anew.
    Leave(Vec<u8>),
    /// Sends a [`message`] on a channel. The reply is how many clients have received it.
    Wake {
        /// The channel of the process.
        channel: Vec<u8>,
        /// True if clients are known that only poll.
        polled: bool,
    },
}

/// What stands behind the key in a message if clients are known that only poll.
const POLLED: &[u8] = b":setnx-lock:polled";

/// Returns what notifies a process that it is its turn at this key.
pub fn message(key: &[u8], polled: bool) -> Vec<u8> {
    if polled { [key, POLLED].concat() } else { key.to_vec() }
}

/// Returns the key of a message, and whether clients are known that only poll.
pub fn read(message: &[u8]) -> (&[u8], bool) {
    message.strip_suffix(POLLED).map_or((message, false), |key| (key, true))
}

impl Waiting {
    /// The name of its command, or of the first.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Waiting::Enter { .. } | Waiting::NextAfter { .. } => "RPUSH",
            Waiting::Next => "LPOP",
            Waiting::Check { .. } => "LRANGE",
            Waiting::Leave(_) => "LREM",
            Waiting::Wake { .. } => "PUBLISH",
        }
    }
}

/// What a process knows of its entry in the waiting list of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ListEntry {
    /// The process is not in the list.
    #[default]
    Out,
    /// The process is in the list.
    In {
        /// When it was last known to be; `None` if messages may have been lost since.
        checked: Option<Uptime>,
    },
    /// This process was notified, and has not acquired the lock or entered the list again since.
    Notified,
}

/// What a thread that leaves owes to other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owed {
    /// Nothing.
    Nothing,
    /// To remove the entry.
    Entry,
    /// The notification that it has not acted upon.
    Notification,
}

impl ListEntry {
    /// Returns what goes before a look at the key; `None` if the process is listed.
    pub fn enter(&mut self, channel: &[u8], expires: bool, now: Uptime) -> Option<Waiting> {
        let channel = channel.to_vec();
        let waiting = match *self {
            ListEntry::In { checked: Some(checked) } if now.since(checked) < CHECKED_EVERY => return None,
            ListEntry::In { .. } => Waiting::Check { channel, expires },
            ListEntry::Out | ListEntry::Notified => Waiting::Enter { channel, expires },
        };
        // Before it is there: a notification may come at once.
        *self = ListEntry::In { checked: Some(now) };
        Some(waiting)
    }

    /// Notes whether the entry was found. Returns true if it must be entered again.
    pub fn found(&mut self, is_there: bool) -> bool {
        let is_missing = self.is_listed() && !is_there;
        if is_missing {
            *self = ListEntry::Out;
        }
        is_missing
    }

    /// Returns what a release sends behind its deletion if another thread of the process waits its turn.
    pub fn next_behind(&mut self, channel: &[u8], expires: bool, now: Uptime) -> Waiting {
        if self.is_listed() {
            return Waiting::Next;
        }
        *self = ListEntry::In { checked: Some(now) };
        Waiting::NextAfter { channel: channel.to_vec(), expires }
    }

    /// Notes that messages may have been lost, so that the next look checks the entry.
    pub fn doubt(&mut self) {
        if let ListEntry::In { checked } = self {
            *checked = None;
        }
    }

    /// Notes that a thread of the process has acquired the lock.
    pub fn acquired(&mut self) {
        if *self == ListEntry::Notified {
            *self = ListEntry::Out;
        }
    }

    /// Returns what the thread owes that leaves without the lock. `notified` says whether it had learned of a release
    /// that it did not act upon, `followed` whether others of its process wait.
    pub fn owes(self, notified: bool, followed: bool) -> Owed {
        match self {
            _ if notified || self == ListEntry::Notified => Owed::Notification,
            ListEntry::In { .. } if !followed => Owed::Entry,
            _ => Owed::Nothing,
        }
    }

    /// Returns true if the process is in the list, as far as it knows.
    pub fn is_listed(self) -> bool {
        matches!(self, ListEntry::In { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_whether_clients_are_known_that_only_poll() {
        for key in [&b"k"[..], b"", b"a:setnx-lock:waiters", b"\xff"] {
            for polled in [false, true] {
                assert_eq!(read(&message(key, polled)), (key, polled));
            }
        }
    }
}

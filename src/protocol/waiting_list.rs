//! The waiting list of a key: the wake channels of the processes that wait for the lock, in the order in which they came. It is another
//! key, `KEY:setnx-lock:waiters`; the rules of the lock do not depend on it.

/// How long a list lives that is not refreshed, in seconds: a process that crashes leaves its entry.
pub(crate) const LIST_TTL: u32 = 600;

/// What is done with a waiting list, or with a channel that it contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Enters a channel as the last. The reply is the length of the list.
    Enter(Vec<u8>),
    /// Enters a channel as the first.
    EnterFirst(Vec<u8>),
    /// Removes the first channel. The reply is that, or nothing.
    Next,
    /// Enters a channel as the last, and removes the first.
    NextAfter(Vec<u8>),
    /// The reply is how often the channel is there. The list lives on, where it can have a time to live.
    Check { channel: Vec<u8>, expires: bool },
    /// Gives the list its time to live.
    Expire,
    /// Removes a channel, wherever it is.
    Leave(Vec<u8>),
    /// Removes so many entries of a channel from the end.
    Thin(Vec<u8>, usize),
    /// Sends the key on a channel. The reply is how many clients have received it.
    Wake(Vec<u8>),
}

impl Waiting {
    /// The name of its command, or of the first.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Waiting::Enter(_) | Waiting::NextAfter(_) => "RPUSH",
            Waiting::EnterFirst(_) => "LPUSH",
            Waiting::Next => "LPOP",
            Waiting::Check { .. } => "LRANGE",
            Waiting::Expire => "EXPIRE",
            Waiting::Leave(_) | Waiting::Thin(..) => "LREM",
            Waiting::Wake(_) => "PUBLISH",
        }
    }
}

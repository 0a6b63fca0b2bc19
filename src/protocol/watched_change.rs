//! The rules of changing a key by a transaction that fails if any client has written it since it was read: WATCH, GET and MULTI, a
//! judgement of what the key holds, then the change and EXEC. Releasing, extending and counting do it.

use super::lease::Lease;
use super::ownership::{LossReason, Ownership};
use super::{Change, Command, GiveUp, Reply, Request};
use crate::clock::Now;
use crate::options::Protocol;
use crate::value::LockState;

/// How often in a row the key is read again because it was written after it had been read.
const LOOKS: u32 = 3;

/// What the key held when it was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Our own bytes: no other client had the lock meanwhile.
    Ours,
    /// What proves nothing: the value of a loser of the classic takeover over ours, say.
    Unproven,
}

/// What comes next, or how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Send(Request),
    /// Carried out. With how many keys the change found to change.
    Changed {
        found: Found,
        count: i64,
    },
    /// The key holds something else, or was written each time after it had been read. It was not changed.
    NotOurs(LossReason),
    /// The key is no lock. It was not changed.
    NoLock,
    /// The server refused the transaction. The key was not changed.
    Refused,
    /// There was no reply to the look, or it was not sent, or refused. The key was not changed.
    NotLooked(GiveUp),
    /// The transaction was not sent.
    Unsent,
    /// The reply to the transaction was lost, and the key holds this since.
    Checked {
        found: Found,
        holds: Option<Vec<u8>>,
    },
    /// The reply was lost, and reading the key did not settle it.
    Unknown,
}

/// Changes a key that holds our value.
///
/// | state | reply | next |
/// |---|---|---|
/// | start | | WATCH, GET, MULTI → `Looking` |
/// | `Looking` | our own bytes | change, EXEC → `Changing`: also after our lease has passed |
/// | | the bytes of a loser of the classic takeover, lease not passed | the same, not proven |
/// | | anything else | not ours |
/// | | refused, since the key is no lock | no lock |
/// | | no reply, refused, or not sent | not looked |
/// | `Changing` | carried out | changed |
/// | | not carried out, since the key was written | WATCH, GET, MULTI → `Looking`, three times in a row at most, then not ours |
/// | | refused, or not sent | refused, unsent |
/// | | no reply | GET → `Checking`; nothing is sent again (I6) |
/// | `Checking` | what the key holds | checked |
/// | | anything else | unknown |
#[derive(Clone, Debug)]
pub(super) struct WatchedChange {
    lease: Lease,
    change: Change,
    looks: u32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Looking,
    Changing(Found),
    Checking(Found),
}

impl WatchedChange {
    /// Begins to apply `change` to a key that should hold the value of this lease.
    pub(super) fn start(lease: Lease, change: Change) -> (Self, Request) {
        let mut watched = Self { lease, change, looks: 0, state: State::Looking };
        let request = watched.look();
        (watched, request)
    }

    /// Reads the key again, which changes nothing.
    pub(super) fn look(&mut self) -> Request {
        self.looks += 1;
        self.state = State::Looking;
        Request::at_any_time(Command::WatchGet)
    }

    /// The change that follows the first look, if that finds our own bytes.
    pub(super) fn intended(&self) -> Option<(&[u8], &Change)> {
        let is_first = matches!(self.state, State::Looking) && self.looks == 1;
        is_first.then_some((self.lease.value.as_slice(), &self.change))
    }

    /// Returns what the key held when the change was sent.
    pub(super) fn found(&self) -> Option<Found> {
        match self.state {
            State::Looking => None,
            State::Changing(found) | State::Checking(found) => Some(found),
        }
    }

    pub(super) fn reply(&mut self, reply: &Reply, now: Now) -> Progress {
        match (self.state, reply) {
            (State::Looking, Reply::Bulk(found)) => self.judge(found.as_deref(), now),
            (State::Looking, Reply::NoLock) => Progress::NoLock,
            (State::Looking, Reply::Refused) => Progress::NotLooked(GiveUp::Refused),
            (State::Looking, Reply::Unsent | Reply::TooLate) => Progress::NotLooked(GiveUp::Unsent),
            (State::Looking, _) => Progress::NotLooked(GiveUp::Io),
            (State::Changing(found), Reply::Executed(Some(count))) => {
                Progress::Changed { found, count: *count }
            }
            (State::Changing(_), Reply::Executed(None)) if self.looks < LOOKS => Progress::Send(self.look()),
            (State::Changing(_), Reply::Executed(None)) => {
                Progress::NotOurs(LossReason::Taken(LockState::of_value(Some(&self.lease.value))))
            }
            (State::Changing(_), Reply::Refused | Reply::NoLock) => Progress::Refused,
            (State::Changing(_), Reply::Unsent | Reply::TooLate) => Progress::Unsent,
            (State::Changing(found), _) => {
                self.state = State::Checking(found);
                Progress::Send(Request::at_any_time(Command::Get))
            }
            (State::Checking(found), Reply::Bulk(holds)) => Progress::Checked { found, holds: holds.clone() },
            (State::Checking(_), _) => Progress::Unknown,
        }
    }

    fn judge(&mut self, found: Option<&[u8]>, now: Now) -> Progress {
        let found = match Ownership::judge(&self.lease, Protocol::Watched, found, now) {
            Ownership::Ours => Found::Ours,
            Ownership::Unproven => Found::Unproven,
            Ownership::Lost(reason) => return Progress::NotOurs(reason),
        };
        self.state = State::Changing(found);
        // At any time: it changes what was watched, or nothing.
        Progress::Send(Request::at_any_time(Command::Exec(self.change.clone())))
    }
}

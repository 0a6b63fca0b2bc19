//! One time that a lock was held, as the logs show it afterwards.

use super::moment::Moment;

/// A hold. Its times are read so that it never seems longer than it was: `enter` after the lock was granted, the leave
/// before it is released, and `valid_until` not later than the lease that the holder was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The process; each has a number of its own, also those that were started later.
    pub(crate) worker: u32,
    /// Counts the process's holds.
    pub(crate) number: u64,
    pub(crate) key: u64,
    pub(crate) enter: Moment,
    /// Until when the holder may rely on the lock.
    pub(crate) valid_until: Moment,
    /// Whether it was taken over from a holder whose lease had expired.
    pub(crate) taken_over: bool,
    pub(crate) end: End,
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It lasts, as far as is known.
    Open,
    /// The process was killed by then, and had not begun to release.
    Killed(Moment),
    /// The process began to release. The outcome is unknown if it was killed meanwhile.
    Left(Moment, Option<Outcome>),
}

/// What the release reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Released,
    /// The lock passed to another thread of the process.
    Expired,
    Lost,
    /// Nothing: the gem's release reports nothing.
    Silent,
    /// An error: the outcome is unknown.
    Failed,
}

impl Hold {
    /// When it ended, valid or not; `None` if that is not known yet.
    pub(crate) fn ended(&self) -> Option<Moment> {
        match self.end {
            End::Open => None,
            End::Killed(at) | End::Left(at, _) => Some(at),
        }
    }

    /// Whether work under the lock went on after its lease.
    pub(crate) fn outlived_lease(&self) -> bool {
        matches!(self.end, End::Left(at, _) if at > self.valid_until)
    }

    /// Whether the release reported nothing of another holder.
    pub(crate) fn reported_no_problem(&self) -> bool {
        matches!(self.end, End::Left(_, Some(Outcome::Released | Outcome::Silent)))
    }
}

//! One time that a lock was held, as it is known afterwards.

use super::moment::Moment;

/// A hold. Its times are read so that it never seems longer than it was: `enter` after the lock was granted, `leave`
/// before it was given back, and `valid_until` not later than what the holder was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Which process; each has a number of its own, also those that were started later.
    pub(crate) worker: u32,
    /// Which of its holds.
    pub(crate) number: u64,
    pub(crate) key: u64,
    pub(crate) enter: Moment,
    /// Until when the holder may believe that nobody else is inside.
    pub(crate) valid_until: Moment,
    /// Whether it was taken over from a holder whose time had passed.
    pub(crate) took_over: bool,
    pub(crate) end: End,
}

/// How a hold ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It lasts, as far as is known.
    Open,
    /// The holder was dead by then, and had not begun to give it back.
    Killed(Moment),
    /// The holder began to give it back; what came of that is not known if he was killed over it.
    Left(Moment, Option<Outcome>),
}

/// What the holder was told when he gave the lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Certified,
    Released,
    /// It went to another thread of the process.
    HandedOff,
    Expired,
    Lost,
    /// Nothing, which is all that the gem ever says.
    Silent,
    /// An error: he cannot know.
    Failed,
}

impl Hold {
    /// When it ended, whether or not it was valid until then; `None` if that is not known yet.
    pub(crate) fn ended(&self) -> Option<Moment> {
        match self.end {
            End::Open => None,
            End::Killed(at) | End::Left(at, _) => Some(at),
        }
    }

    /// Whether work under the lock went on after its time.
    pub(crate) fn overran(&self) -> bool {
        matches!(self.end, End::Left(at, _) if at > self.valid_until)
    }

    /// Whether the holder went away without having heard that others may have been inside.
    pub(crate) fn left_assured(&self) -> bool {
        matches!(
            self.end,
            End::Left(
                _,
                Some(Outcome::Certified | Outcome::Released | Outcome::HandedOff | Outcome::Silent)
            )
        )
    }
}

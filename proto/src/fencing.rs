//! Fencing numbers: what a counter's number says, and when it may be a token.
//!
//! A failover can lose the last increments of a counter, and for a moment the old master and the new one both count. So
//! where the server's configuration has an epoch, which each failover raises, the upper 21 of 53 bits of a number are
//! an epoch and the lower 32 a count: on the new master a counter is raised to its epoch before it gives a token, and
//! each of its numbers is greater than all of the old master.
//!
//! The epoch is known of a connection, and belongs to the server that it leads to. A counter is never raised to an
//! epoch that was learned elsewhere: that could be the old master's, and both would give the same numbers.

use core::cmp::Ordering;

/// How many bits of a number count.
const COUNT_BITS: u32 = 32;

/// The greatest epoch that a number can have: with it, a number
/// has 53 bits, which JSON and floating-point numbers keep.
pub const LAST_EPOCH: u32 = (1 << 21) - 1;

/// The greatest count that is a token. The rest is left for calls that find no number left, each of which counts on:
/// beyond, the numbers would be those of the next epoch.
pub const LAST_COUNT: u32 = u32::MAX - (1 << 28);

/// The epoch of a server's configuration. One that is larger than a number can have stays one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(pub u32);

impl From<u64> for Epoch {
    fn from(told: u64) -> Self {
        Self(u32::try_from(told).unwrap_or(u32::MAX))
    }
}

/// What a number is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    Token(u64),
    /// The counter has to be raised by this first, over a connection of the same epoch.
    Low {
        by: u64,
        epoch: Epoch,
    },
    Unusable(Unusable),
}

/// Why a number is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// It is not positive, or has more than 53 bits: another program has set the counter.
    Foreign(i64),
    /// The server's epoch is greater than a number can have.
    Epoch(u32),
    /// There are no more in this epoch.
    UsedUp(u32),
    /// Each time, it was below the epoch of the connection: the epoch or the counter changes.
    Changing,
}

impl Number {
    /// Judges what a counter was increased to, over a connection of this epoch.
    pub(crate) fn of(number: i64, epoch: Option<Epoch>) -> Self {
        let Some(token) = u64::try_from(number).ok().filter(|token| (1..1 << 53).contains(token)) else {
            return Self::Unusable(Unusable::Foreign(number));
        };
        let Some(Epoch(own)) = epoch else { return Self::Token(token) };
        let of_number = u32::try_from(token >> COUNT_BITS).unwrap_or(u32::MAX);
        let count = u32::try_from(token & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        match of_number.cmp(&own) {
            _ if own > LAST_EPOCH => Self::Unusable(Unusable::Epoch(own)),
            Ordering::Less => Self::Low { by: (u64::from(own) << COUNT_BITS) - token, epoch: Epoch(own) },
            Ordering::Equal if count > LAST_COUNT => Self::Unusable(Unusable::UsedUp(own)),
            // Epochs that have begun anew are lower than the counter's.
            Ordering::Equal | Ordering::Greater => Self::Token(token),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: i64, epoch: u32) -> Number {
        Number::of(number, Some(Epoch(epoch)))
    }

    #[test]
    fn without_an_epoch_any_positive_number_of_53_bits_is_a_token() {
        let last = (1 << 53) - 1;
        for number in [1, 7, 1 << 32, last] {
            assert_eq!(Number::of(number, None), Number::Token(number.unsigned_abs()));
        }
        for number in [i64::MIN, -5, 0, last + 1, i64::MAX] {
            assert_eq!(Number::of(number, None), Number::Unusable(Unusable::Foreign(number)));
        }
    }

    #[test]
    fn a_number_counts_from_its_epoch_on() {
        let first = 7 << 32;
        let low = |by| Number::Low { by, epoch: Epoch(7) };
        assert_eq!(of(5, 0), Number::Token(5));
        assert_eq!(of(5, 7), low((7 << 32) - 5));
        assert_eq!(of(first - 1, 7), low(1));
        assert_eq!(of(first + 1, 7), Number::Token((7 << 32) + 1));
        assert_eq!(of(first + 1, 6), Number::Token((7 << 32) + 1), "epochs have begun anew");
        let last = i64::from(LAST_EPOCH) << 32;
        assert_eq!(of(last + 1, LAST_EPOCH), Number::Token((1 << 53) - (1 << 32) + 1));
    }

    #[test]
    fn used_up_epochs_and_counts_give_no_token() {
        let (first, last) = (7_i64 << 32, i64::from(LAST_COUNT));
        assert_eq!(of(first + last, 7), Number::Token((first + last).unsigned_abs()));
        assert_eq!(of(first + last + 1, 7), Number::Unusable(Unusable::UsedUp(7)));
        assert_eq!(of(first - 1, 6), Number::Unusable(Unusable::UsedUp(6)));
        for told in [1 << 21, u64::from(u32::MAX), u64::MAX] {
            let epoch = Epoch::from(told);
            assert_eq!(of(5, epoch.0), Number::Unusable(Unusable::Epoch(epoch.0)));
        }
    }
}

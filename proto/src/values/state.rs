//! What the bytes in a lock's key mean. A time has one form, so that data of other programs is not taken for a lock;
//! the gem reads any text as a number.

mod forms;

use alloc::sync::Arc;
use core::fmt;

use super::clock::Wall;
use super::key::Cut;
use super::named::Named;
pub use forms::{classic_time, looks_like};
use forms::{is_small_number, time};

/// How many bytes of a value are kept: those of a longer one are no lock's.
pub const LONGEST_READ: usize = 4096;

/// What a lock's key holds. Only a time that has passed is taken over (I1).
#[derive(Clone, PartialEq, Eq)]
pub enum State {
    /// No key: the lock is free.
    Absent,
    /// A time.
    Until {
        /// The lock is held until then at the latest, unless it is extended.
        until: Wall,
        /// Who holds it, or held it until then; `None` if the value does not say so.
        holder: Option<Arc<Named>>,
    },
    /// A small number, such as the gem's `1`: held without an expiration.
    Unexpiring,
    /// An empty value: redis-objects 1.4.2 or later holds the lock, and the server frees it.
    Empty,
    /// Bytes that no lock writes. The lock counts as held.
    Unreadable(Arc<[u8]>),
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Absent => f.write_str("Absent"),
            State::Until { until: Wall(micros), holder: None } => write!(f, "Until({micros})"),
            State::Until { until: Wall(micros), holder: Some(holder) } => {
                write!(f, "Until({micros}, {holder:?})")
            }
            State::Unexpiring => f.write_str("Unexpiring"),
            State::Empty => f.write_str("Empty"),
            State::Unreadable(bytes) => write!(f, "Unreadable(\"{}\")", Cut(bytes)),
        }
    }
}

impl State {
    /// Returns the state that a value stands for, given the reply to GET; `None` if there is no such key.
    pub fn of_value(value: Option<&[u8]>) -> Self {
        let Some(bytes) = value else { return State::Absent };
        if bytes.is_empty() {
            return State::Empty;
        }
        if let Some((until, behind)) = time(bytes) {
            return State::Until { until, holder: behind.and_then(Named::read).map(Arc::new) };
        }
        if is_small_number(bytes) { State::Unexpiring } else { State::Unreadable(bytes.into()) }
    }

    /// Returns the state of a key that the server removes at this time: a lock with a time is held until then, whatever
    /// its holder's clock has shown.
    pub fn removed_at(self, at: Wall) -> Self {
        match self {
            State::Until { holder, .. } => State::Until { until: at, holder },
            other => other,
        }
    }

    /// Returns true if waiting does not help by itself: the key holds what is not taken over.
    pub(crate) fn never_expires(&self) -> bool {
        matches!(self, State::Unexpiring | State::Empty | State::Unreadable(_))
    }

    /// Returns true if not all of the value may have been kept.
    pub(crate) fn is_long(&self) -> bool {
        matches!(self, State::Unreadable(bytes) if bytes.len() >= LONGEST_READ)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::values::{Nonce, ValueBytes};

    fn read(bytes: &[u8]) -> State {
        State::of_value(Some(bytes))
    }

    fn until(micros: u64) -> State {
        State::Until { until: Wall(micros), holder: None }
    }

    #[test]
    fn values_of_every_known_writer_are_classified() {
        assert_eq!(State::of_value(None), State::Absent);
        assert_eq!(read(b"1795153464.2949657"), until(1_795_153_464_294_965));
        assert_eq!(read(b"1532000016.0"), until(1_532_000_016_000_000));
        assert_eq!(read(b"1795157376.4923038374650192"), until(1_795_157_376_492_303));
        assert_eq!(read(b"1795157376.4923038374650192:1795157361:web 7:\xff"), until(1_795_157_376_492_303));
        assert_eq!(read(b"1795157376.4923038374650192:"), until(1_795_157_376_492_303));
        assert_eq!(read(b"1795153464"), until(1_795_153_464_000_000));
        assert_eq!(read(b"9999999999.5"), until(9_999_999_999_500_000));
        assert_eq!(read(b"1"), State::Unexpiring);
        assert_eq!(read(b"0"), State::Unexpiring);
        assert_eq!(read(b"15.0"), State::Unexpiring);
        assert_eq!(read(b""), State::Empty);
        for odd in [
            "abc",
            "nan",
            "2018-07-10 12:00",
            "-1795157376.5",
            "1x",
            "0x1A",
            " ",
            "1\0",
            "1.",
            "15.0\n",
            "1.79E9",
            "17e8c0ffee",
        ] {
            assert_eq!(read(odd.as_bytes()), State::Unreadable(odd.as_bytes().into()), "{odd:?}");
        }
    }

    #[test]
    fn data_of_other_programs_is_no_time() {
        for text in [
            "1531999999-4a5b-11e8",
            "1795154048.25:host:pid",
            "1795157376.49230383746501921:name",
            "1531999999000",
            "10000000000",
            "1795154048.5\n",
            "+1795154048.5",
            "1.79E9",
        ] {
            assert_eq!(read(text.as_bytes()), State::Unreadable(text.as_bytes().into()), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back_exactly(micros in 1_000_000_000_000_000_u64..10_000_000_000_000_000, random: u64) {
            let value = ValueBytes::until(Wall(micros), Nonce::from_random(random));
            prop_assert_eq!(read(&value), until(micros));
        }

        #[test]
        fn before_now_means_the_same_for_a_gems_float_and_for_whole_microseconds(
            seconds in 1_500_000_000_u64..4_000_000_000, fraction in "[0-9]{1,7}", now in 0..10_000_000_u64
        ) {
            let text = format!("{seconds}.{fraction}");
            let State::Until { until, .. } = read(text.as_bytes()) else { panic!("{text} was not read as a time") };
            let digits = format!("{fraction:0<7}").parse::<u64>().unwrap();
            // In tenths of a microsecond, where both are whole numbers.
            let exact = u128::from(seconds) * 10_000_000 + u128::from(digits);
            let now = Wall(seconds * 1_000_000 + now % 1_000_000);
            prop_assert_eq!(until < now, exact < u128::from(now.0) * 10);
        }

        #[test]
        fn reading_never_fails(bytes: Vec<u8>) {
            prop_assert!(!matches!(read(&bytes), State::Absent));
        }
    }
}

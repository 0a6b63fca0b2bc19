//! What the bytes in a lock's key mean, and how this library writes them. The bytes are classified here, so that the rules never look at
//! bytes. A time has one form, so that data of other programs is not taken for a lock; the gem reads any text as a number.

mod forms;
mod holder;
mod written;

use std::fmt;
use std::sync::Arc;

use crate::values::clock::Wall;
use crate::values::key::Cut;
pub(crate) use forms::classic_time;
use forms::{is_small_number, looks_like, time};
pub use holder::Holder;
pub(crate) use holder::is_name;
pub(crate) use written::{Nonce, Tag, ValueBytes};

/// The value of a lock without an expiration, the gem's. It names no holder.
pub(crate) const UNEXPIRING: &[u8] = b"1";

/// What a lock's key holds.
///
/// Of these values, only a [time](Self::Until) that has passed is taken over.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockState {
    /// No key: the lock is free.
    Absent,
    /// A point in time: the lock is held until then at the latest, unless it is extended. Afterwards it can be
    /// taken over.
    ///
    /// The value has the form `SECONDS` or `SECONDS.DECIMALS`, with seconds since 1970 from 10⁹ to 10¹⁰. After 16
    /// decimals, `:SINCE:NAME` may follow, or a colon and any other text.
    ///
    /// In [`Ttl`](crate::Protocol::Ttl) the server frees the lock of a crashed holder up to 9.5 s before the time
    /// in the value.
    #[non_exhaustive]
    Until {
        /// The time in the value.
        expiry: Expiry,
        /// Who holds the lock, or held it until then; `None` if the value does not say so.
        holder: Option<Arc<Holder>>,
    },
    /// A small number, usually `1`: the lock is held without an expiration. It names no holder.
    Unexpiring,
    /// An empty value: redis-objects 1.4.2 or later holds the lock, and the server frees it.
    Empty,
    /// Bytes that no lock writes, for example a time in milliseconds. The lock counts as held.
    ///
    /// Of a longer value a lock keeps the first 4096 bytes (all of it over TLS and on your own pool), and it polls such a
    /// key once a second at most.
    Unreadable(Arc<[u8]>),
}

/// How many bytes of a value are kept: those of a longer one are no lock's.
pub(crate) const LONGEST_READ: usize = 4096;

/// The point in time that a lock's value names, by the wall clock, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry(pub(crate) Wall);

impl Expiry {
    /// Returns the time as a date in UTC; `None` if it is beyond the calendar's end.
    #[must_use]
    pub fn date(self) -> Option<chrono::DateTime<chrono::Utc>> {
        self.0.date()
    }
}

impl fmt::Debug for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expiry({})", self.0)
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl LockState {
    /// Returns the state that a lock's value stands for, given the reply to `GET`; `None` if there is no such key.
    ///
    /// For programs that read many keys at once. For one lock, use [`Lock::state`](crate::Lock::state).
    ///
    /// ```
    /// use setnx_lock::LockState;
    ///
    /// assert_eq!(LockState::of_value(None), LockState::Absent);
    /// assert!(matches!(LockState::of_value(Some(b"1795153464.2949657")), LockState::Until { .. }));
    ///
    /// let named = LockState::of_value(Some(b"1795157376.4923038374650192:1795157361:worker:7"));
    /// assert_eq!(named.holder().map(|holder| holder.name()), Some("worker:7"));
    /// ```
    #[must_use]
    pub fn of_value(value: Option<&[u8]>) -> LockState {
        let Some(bytes) = value else { return LockState::Absent };
        if bytes.is_empty() {
            return LockState::Empty;
        }
        if let Some((time, behind)) = time(bytes) {
            let holder = behind.and_then(Holder::read).map(Arc::new);
            return LockState::Until { expiry: Expiry(time), holder };
        }
        if is_small_number(bytes) { LockState::Unexpiring } else { LockState::Unreadable(bytes.into()) }
    }
}

impl LockState {
    /// Returns the state of a key that the server removes at this time: a lock with a time is held until then, whatever its holder's clock
    /// has shown.
    pub(crate) fn removed_at(self, at: Wall) -> Self {
        match self {
            LockState::Until { holder, .. } => LockState::Until { expiry: Expiry(at), holder },
            other => other,
        }
    }

    /// Returns who holds the lock, or held it until it expired; `None` if the value does not say so, or there is none.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        if let LockState::Until { holder, .. } = self { holder.as_deref() } else { None }
    }

    /// Returns true if not all of the value may have been kept.
    pub(crate) fn is_long(&self) -> bool {
        matches!(self, LockState::Unreadable(bytes) if bytes.len() >= LONGEST_READ)
    }

    /// Returns in words what a value that no lock writes looks like, if it begins with a number as large as a time, for example "a time in
    /// milliseconds".
    #[must_use]
    pub fn looks_like(&self) -> Option<&'static str> {
        if let LockState::Unreadable(bytes) = self { looks_like(bytes) } else { None }
    }

    /// Returns what to do about a value that never expires; `None` if waiting helps.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match self {
            LockState::Absent | LockState::Until { .. } => None,
            LockState::Empty => Some(
                "which is not taken over: the server frees it when its time to live ends; if it has none, clear it by hand",
            ),
            LockState::Unexpiring | LockState::Unreadable(_) => {
                Some("which is not taken over: if its holder has crashed, clear it by hand")
            }
        }
    }
}

impl fmt::Debug for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockState::Absent => f.write_str("Absent"),
            LockState::Until { expiry, holder: None } => write!(f, "Until({expiry})"),
            LockState::Until { expiry, holder: Some(holder) } => write!(f, "Until({expiry}, {holder:?})"),
            LockState::Unexpiring => f.write_str("Unexpiring"),
            LockState::Empty => f.write_str("Empty"),
            LockState::Unreadable(bytes) => write!(f, "Unreadable(\"{}\")", Cut(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> LockState {
        LockState::of_value(Some(bytes))
    }

    fn until(micros: u64) -> LockState {
        LockState::Until { expiry: Expiry(Wall(micros)), holder: None }
    }

    #[test]
    fn a_written_value_is_the_time_and_ten_digits() {
        let value = ValueBytes::until(Wall(1_795_157_376_492_303), Nonce::from_random(8_374_650_192));
        assert_eq!(&*value, b"1795157376.4923038374650192");
        assert_eq!(&*value.with_nonce(Nonce::from_random(7)), b"1795157376.4923030000000007");
        let value = ValueBytes::until(Wall(1_795_157_376_000_007), Nonce::from_random(10_000_000_042));
        assert_eq!(&*value, b"1795157376.0000070000000042");
    }

    #[test]
    fn a_holders_name_stands_behind_the_value_and_stays_when_that_is_written_again() {
        let since = Wall(1_795_157_361_999_999);
        let value = ValueBytes::until(Wall(1_795_157_376_492_303), Nonce::from_random(8_374_650_192));
        let value = value.named("worker:7", since);
        assert_eq!(&*value, b"1795157376.4923038374650192:1795157361:worker:7");
        let again = value.with_nonce(Nonce::from_random(7));
        assert_eq!(&*again, b"1795157376.4923030000000007:1795157361:worker:7");
        let later = ValueBytes::until(Wall(1_795_157_386_000_000), Nonce::from_random(8));
        assert_eq!(&*later.named_as(&value), b"1795157386.0000000000000008:1795157361:worker:7");
        let state = read(&value);
        assert_eq!(state.holder(), value.holder().as_deref());
        let holder = state.holder().expect("it is named");
        assert_eq!((holder.name(), holder.since().timestamp()), ("worker:7", 1_795_157_361));
    }

    #[test]
    fn values_of_every_known_writer_are_classified() {
        assert_eq!(LockState::of_value(None), LockState::Absent);
        assert_eq!(read(b"1795153464.2949657"), until(1_795_153_464_294_965));
        assert_eq!(read(b"1532000016.0"), until(1_532_000_016_000_000));
        assert_eq!(read(b"1795157376.4923038374650192"), until(1_795_157_376_492_303));
        assert_eq!(read(b"1795157376.4923038374650192:1795157361:web 7:\xff"), until(1_795_157_376_492_303));
        assert_eq!(read(b"1795157376.4923038374650192:"), until(1_795_157_376_492_303));
        assert_eq!(read(b"1795153464"), until(1_795_153_464_000_000));
        assert_eq!(read(b"9999999999.5"), until(9_999_999_999_500_000));
        assert_eq!(read(b"1"), LockState::Unexpiring);
        assert_eq!(read(b"0"), LockState::Unexpiring);
        assert_eq!(read(b"15.0"), LockState::Unexpiring);
        assert_eq!(read(b""), LockState::Empty);
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
            assert_eq!(read(odd.as_bytes()), LockState::Unreadable(odd.as_bytes().into()), "{odd:?}");
        }
    }

    #[test]
    fn data_of_other_programs_is_no_time() {
        for (text, form) in [
            ("1531999999-4a5b-11e8", "a number with text behind it"),
            ("1795154048.25:host:pid", "a number with text behind it"),
            ("1795157376.49230383746501921:name", "a number with text behind it"),
            ("1531999999000", "a time in milliseconds"),
            ("1531999999000000", "a time in microseconds"),
            ("1531999999000000000", "a time in nanoseconds"),
            ("10000000000", "a number and not a time"),
            ("10000000000.5", "a number and not a time"),
            ("1795154048.5\n", "a number with text behind it"),
        ] {
            let state = read(text.as_bytes());
            assert_eq!(state, LockState::Unreadable(text.as_bytes().into()), "{text:?}");
            assert!(state.to_string().ends_with(&format!(", which looks like {form}")), "{text:?}: {state}");
        }
    }

    #[test]
    fn a_state_is_displayed_in_words() {
        assert_eq!(until(1_532_000_016_492_303).to_string(), "expired at 2018-07-19T11:33:36.492Z");
        assert_eq!(
            until(32_503_680_000_492_303).to_string(),
            "held until 3000-01-01T00:00:00.492Z at the latest"
        );
        let expired = read(b"1532000016.5000000000000001:1532000000:worker:7").to_string();
        assert_eq!(expired, "expired at 2018-07-19T11:33:36.500Z, last held by worker:7");
        let held = read(b"9999999999.5000000000000001:1532000000:worker:7").to_string();
        let (by, until) = held.split_once(", ").unwrap();
        assert!(by.starts_with("held by worker:7 for "), "{held}");
        assert_eq!(until, "until 2286-11-20T17:46:39.500Z at the latest");
        assert_eq!(read(b"\x00oops").to_string(), "held with a value that no lock writes: \"\\u{0}oops\"");
        assert_eq!(format!("{:?}", read(b"abc")), "Unreadable(\"abc\")");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back_exactly(micros in 1_000_000_000_000_000_u64..10_000_000_000_000_000, random: u64) {
            let value = ValueBytes::until(Wall(micros), Nonce::from_random(random));
            prop_assert_eq!(read(&value), until(micros));
        }

        #[test]
        fn ruby_reads_what_is_written_to_within_two_microseconds(
            micros in 1_500_000_000_000_000_u64..4_000_000_000_000_000, random: u64
        ) {
            // Both read a plain decimal as the nearest double.
            let written = ValueBytes::until(Wall(micros), Nonce::from_random(random));
            let value: f64 = str::from_utf8(&written).unwrap().parse().unwrap();
            #[expect(clippy::cast_precision_loss)]
            let written = micros as f64 / 1e6;
            // Ten digits more add less than one, and a double is good to a half at the end of this century.
            prop_assert!((value - written).abs() < 2e-6, "{value} {written}");
        }

        #[test]
        fn two_holders_never_write_the_same_bytes(micros: u64, a in 0..10_000_000_000_u64, b in 0..10_000_000_000_u64) {
            prop_assume!(a != b);
            prop_assert_ne!(ValueBytes::until(Wall(micros), Nonce::from_random(a)), ValueBytes::until(Wall(micros), Nonce::from_random(b)));
        }

        #[test]
        fn before_now_means_the_same_for_a_gems_float_and_for_whole_microseconds(
            seconds in 1_500_000_000_u64..4_000_000_000, fraction in "[0-9]{1,7}", now in 0..10_000_000_u64
        ) {
            let text = format!("{seconds}.{fraction}");
            let LockState::Until { expiry, .. } = read(text.as_bytes()) else { panic!("{text} was not read as a time") };
            let digits = format!("{fraction:0<7}").parse::<u64>().unwrap();
            // In tenths of a microsecond, where both are whole numbers.
            let exact = u128::from(seconds) * 10_000_000 + u128::from(digits);
            let now = Wall(seconds * 1_000_000 + now % 1_000_000);
            prop_assert_eq!(expiry.0 < now, exact < u128::from(now.0) * 10);
        }

        #[test]
        fn reading_never_fails(bytes: Vec<u8>) {
            let content = read(&bytes);
            prop_assert_ne!(content.to_string(), "");
            prop_assert!(!matches!(content, LockState::Absent));
        }
    }
}

//! The bytes that this library writes into a key: a time, digits that identify the holder, and perhaps its name.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

use super::clock::Wall;
use super::named::Named;

/// The value of a lock without an expiration, the gem's. It names no holder.
pub(crate) const UNEXPIRING: &[u8] = b"1";

/// How many nonces there are: ten random digits follow the six decimals of a timestamp.
const NONCES: u64 = 10_000_000_000;
const NONCE_DIGITS: u8 = 10;

/// How many of them a hold has.
const OF_HOLD: u64 = 1000;

/// Random digits that name one holder in the values it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(u64);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Nonce {
    /// Makes a nonce of any random number.
    #[inline]
    pub fn from_random(random: u64) -> Self {
        Self(random % NONCES)
    }

    /// Returns a number that differs between holders, for random choices that should differ as well.
    #[inline]
    pub fn seed(self) -> u64 {
        self.0
    }

    /// Returns the next one. Each value gets one of its own, so two values differ even if they are written in the same
    /// microsecond, or by a clock that was set back.
    #[inline]
    pub(crate) fn next(self) -> Self {
        Self((self.0 + 1) % NONCES)
    }

    /// Returns it as a nonce of the hold that has written this value: its values have the first seven digits in common,
    /// by which it knows those that it has replaced.
    pub(crate) fn of_hold(self, value: &ValueBytes) -> Self {
        let own = value.parts().map_or(0, |(_, nonce)| nonce.0);
        Self(own / OF_HOLD * OF_HOLD + self.0 % OF_HOLD)
    }
}

/// Whose a value is: digits that no other value has, and the holder's name if it has one.
#[derive(Clone, Debug)]
pub struct Tag {
    /// The digits.
    pub nonce: Nonce,
    /// The holder's name.
    pub name: Option<Arc<str>>,
}

/// The bytes of a value that this library writes.
#[derive(Clone)]
pub struct ValueBytes(Bytes);

/// A lease and its command have one each.
const _: () = assert!(size_of::<ValueBytes>() == 32);

#[derive(Clone)]
enum Bytes {
    /// In place.
    Short(Short),
    /// With the holder's name.
    Named(Arc<[u8]>),
}

#[derive(Clone, Copy, Default)]
struct Short {
    bytes: [u8; LONGEST],
    length: u8,
}

/// The digits of each number below a hundred.
const PAIRS: [[u8; 2]; 100] = {
    let (mut pairs, mut number) = ([[b'0'; 2]; 100], 0);
    while number < 100 {
        pairs[number as usize] = [b'0' + number / 10, b'0' + number % 10];
        number += 1;
    }
    pairs
};

/// The latest point in time that is written. A lease ends in ten years at most.
const END_OF_TIME: u64 = 9_999_999_999_999;
/// Those of the time, and the nonce.
const DECIMALS: usize = 16;
/// Without a name.
const LONGEST: usize = 13 + 1 + DECIMALS;

impl ValueBytes {
    /// Writes a value: seconds with six decimals, then ten random digits, `1795157376.4923038374650192`. Every reader
    /// of numbers reads the time; the digits beyond its precision distinguish the bytes of holders (I2).
    #[inline]
    pub(crate) fn until(until: Wall, nonce: Nonce) -> Self {
        let (seconds, micros) = ((until.0 / 1_000_000).min(END_OF_TIME), until.0 % 1_000_000);
        let mut written = Short::default();
        let length = seconds.checked_ilog10().map_or(1, |log| log + 1);
        written.digits(seconds, u8::try_from(length).unwrap_or(u8::MAX));
        written.push(b'.');
        let rest = micros * NONCES + nonce.0;
        written.eight_digits(rest / 100_000_000);
        written.eight_digits(rest % 100_000_000);
        Self(Bytes::Short(written))
    }

    /// Returns the value with the name of a holder behind it, that has had the lock since then.
    pub(crate) fn named(&self, name: &str, since: Wall) -> Self {
        self.followed_by(format!(":{}:{name}", since.0 / 1_000_000).as_bytes())
    }

    /// Returns the value with what names the holder in an earlier one.
    pub(crate) fn named_as(self, earlier: &Self) -> Self {
        match &earlier.0 {
            Bytes::Short(_) => self,
            Bytes::Named(_) => self.followed_by(&earlier[earlier.time()..]),
        }
    }

    /// Returns who holds the lock, if the value says so.
    #[inline]
    pub(crate) fn holder(&self) -> Option<Arc<Named>> {
        match &self.0 {
            Bytes::Short(_) => None,
            Bytes::Named(_) => Named::read(self.get(self.time() + 1..)?).map(Arc::new),
        }
    }

    /// Returns another value with the same time and name.
    pub(crate) fn with_nonce(&self, nonce: Nonce) -> Self {
        let shared = self.time().saturating_sub(NONCE_DIGITS.into());
        let mut written = Short::of(&self[..shared]);
        written.digits(nonce.0, NONCE_DIGITS);
        Self(Bytes::Short(written)).named_as(self)
    }

    /// Returns the time in a value that the same hold has written; `None` of another.
    pub(crate) fn time_of_same_hold(&self, found: &[u8]) -> Option<Wall> {
        let found = Self::from(found);
        let ((_, own), (time, nonce)) = (self.parts()?, found.parts()?);
        let has_all_digits = found.iter().position(|byte| *byte == b'.')? + 1 + DECIMALS == found.time();
        // A GETSET of an earlier second, whose reply was lost, may have come late.
        let has_same_name = found.name() == self.name();
        (own.0 / OF_HOLD == nonce.0 / OF_HOLD && has_all_digits && has_same_name).then_some(time)
    }

    /// Returns the time and the nonce; `None` of a value without an expiration.
    pub(crate) fn parts(&self) -> Option<(Wall, Nonce)> {
        let (seconds, decimals) = str::from_utf8(&self[..self.time()]).ok()?.split_once('.')?;
        let (seconds, decimals): (u64, u64) = (seconds.parse().ok()?, decimals.parse().ok()?);
        Some((Wall(seconds * 1_000_000 + decimals / NONCES), Nonce(decimals % NONCES)))
    }

    /// Returns the length of the time in front of the name.
    fn time(&self) -> usize {
        self.iter().position(|byte| *byte == b':').unwrap_or(self.len())
    }

    /// Returns the name, behind the time and since when it holds the lock.
    fn name(&self) -> Option<&[u8]> {
        self[self.time()..].splitn(3, |byte| *byte == b':').nth(2)
    }

    fn followed_by(&self, suffix: &[u8]) -> Self {
        Self(Bytes::Named([self, suffix].concat().into()))
    }
}

impl Short {
    /// Of bytes that are no longer than a value.
    fn of(text: &[u8]) -> Self {
        let mut written = Self::default();
        written.bytes[..text.len()].copy_from_slice(text);
        written.length = u8::try_from(text.len()).unwrap_or(u8::MAX);
        written
    }

    fn digits(&mut self, number: u64, count: u8) {
        let mut rest = number;
        let (begin, end) = (usize::from(self.length), usize::from(self.length + count));
        for digit in self.bytes[begin..end].iter_mut().rev() {
            // Below ten.
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
        }
        self.length += count;
    }

    /// Writes the digits of a number below a hundred millions, in pairs.
    fn eight_digits(&mut self, number: u64) {
        let pair = |number: u64| PAIRS[usize::try_from(number % 100).unwrap_or_default()];
        let begin = usize::from(self.length);
        let pairs = [pair(number / 1_000_000), pair(number / 10_000), pair(number / 100), pair(number)];
        self.bytes[begin..begin + 8].copy_from_slice(pairs.as_flattened());
        self.length += 8;
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.length)] = byte;
        self.length += 1;
    }
}

impl From<&[u8]> for ValueBytes {
    fn from(bytes: &[u8]) -> Self {
        Self(if bytes.len() <= LONGEST { Bytes::Short(Short::of(bytes)) } else { Bytes::Named(bytes.into()) })
    }
}

impl Default for ValueBytes {
    #[inline]
    fn default() -> Self {
        Self(Bytes::Short(Short::default()))
    }
}

impl Deref for ValueBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short(Short { bytes, length }) => &bytes[..usize::from(*length)],
            Bytes::Named(bytes) => bytes,
        }
    }
}

impl PartialEq for ValueBytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for ValueBytes {}

impl PartialEq<[u8]> for ValueBytes {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl PartialEq<Vec<u8>> for ValueBytes {
    fn eq(&self, other: &Vec<u8>) -> bool {
        **self == **other
    }
}

impl PartialEq<ValueBytes> for Vec<u8> {
    fn eq(&self, other: &ValueBytes) -> bool {
        other == self
    }
}

impl fmt::Debug for ValueBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self), f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        let holder = value.holder().expect("it is named");
        assert_eq!((&*holder.name, holder.since), ("worker:7", Wall(1_795_157_361_000_000)));
    }

    proptest! {
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
    }
}

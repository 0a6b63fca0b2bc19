//! The bytes that this library writes into a key: a time, and digits that name the holder.

use std::fmt;
use std::ops::Deref;

use crate::values::clock::Wall;

/// How many nonces there are: ten random digits follow the six decimals of a timestamp.
const NONCES: u64 = 10_000_000_000;

/// Random digits that name one holder in the values it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nonce(u64);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Nonce {
    /// Makes a nonce of any random number.
    pub(crate) fn from_random(random: u64) -> Self {
        Self(random % NONCES)
    }

    /// Returns a number that differs between holders, for random choices that should differ as well.
    pub(crate) fn seed(self) -> u64 {
        self.0
    }

    /// Returns the next one. Each value gets one of its own, so two values differ even if they are written in the same microsecond, or by
    /// a clock that was set back.
    pub(crate) fn next(self) -> Self {
        Self((self.0 + 1) % NONCES)
    }

    /// Returns one behind those that an attempt which does not wait may use.
    pub(crate) fn behind_an_attempt(self) -> Self {
        Self((self.0 + 1000) % NONCES)
    }
}

/// The bytes of a value that this library writes. In place, since a lease and its command have one each.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ValueBytes {
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

/// The latest point in time has 14 digits of seconds.
const LONGEST: usize = 14 + 1 + 16;

impl ValueBytes {
    /// Writes a value: seconds with six decimals, then ten random digits, `1795157376.4923038374650192`. Every reader of
    /// numbers reads the time; the digits beyond its precision distinguish the bytes of holders (I2).
    pub(crate) fn until(until: Wall, nonce: Nonce) -> Self {
        let (seconds, micros) = (until.0 / 1_000_000, until.0 % 1_000_000);
        let mut written = Self::default();
        let length = seconds.checked_ilog10().map_or(1, |log| log + 1);
        written.digits(seconds, u8::try_from(length).unwrap_or(u8::MAX));
        written.push(b'.');
        let rest = micros * NONCES + nonce.0;
        written.eight_digits(rest / 100_000_000);
        written.eight_digits(rest % 100_000_000);
        written
    }

    /// Returns the value of another holder with the same time.
    pub(crate) fn with_nonce(&self, nonce: Nonce) -> Self {
        let mut written = Self { length: self.length.saturating_sub(10), ..*self };
        written.digits(nonce.0, 10);
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

    /// The same quicker, of a number below a hundred millions.
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
    /// Of bytes that are no longer than a value.
    fn from(bytes: &[u8]) -> Self {
        let mut written = Self::default();
        written.bytes[..bytes.len()].copy_from_slice(bytes);
        written.length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
        written
    }
}

impl Deref for ValueBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

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

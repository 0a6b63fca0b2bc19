//! A token: what another process has to know to go on with a lock that was handed over. It is one word of text.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};
use core::time::Duration;

use crate::values::{Key, Nonce, Protocol, ValueBytes, Wall};

/// What a token begins with. The number is that of its form.
const NAME: &str = "setnx";
const VERSION: &str = "1";

/// What a token says of a lock on its way to another process.
///
/// Displayed, it is one word of letters, digits, `.`, `-` and `_`, which [`read`](Self::read) reads again. For a key of
/// 100 bytes it has at most 320 characters.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The lock's key.
    pub key: Key,
    /// What the key holds.
    pub value: ValueBytes,
    /// The protocol that it was written by.
    pub protocol: Protocol,
    /// The end of the lease.
    pub end: Wall,
    /// When the hold began.
    pub acquired: Wall,
    /// The length of a lease.
    pub expiration: Duration,
    /// How long after its acquisition the lock stays held at least.
    pub hold_at_least: Duration,
    /// For how long in total the lease is extended, if it is.
    pub auto_extend: Option<Duration>,
    /// The fencing token of the hold, if it has taken one.
    pub fencing_token: Option<u64>,
    /// How long after the last fencing token the server forgets their
    /// counter, if it does. The text has it only with a fencing token.
    pub forget_after: Option<Duration>,
    /// True if it is proven that no other client has had the lock since it was acquired.
    pub proven: bool,
    /// True if a release wakes waiters of other processes.
    pub notifies: bool,
}

impl Token {
    /// Reads a token.
    ///
    /// # Errors
    ///
    /// What is wrong with any other text, in words for the user.
    pub fn read(text: &str) -> Result<Self, String> {
        let numbered = text.trim().strip_prefix(NAME).and_then(|rest| rest.split_once('.'));
        let Some((version, coded)) = numbered else {
            return Err("this is no lock token; one begins with `setnx1.`".into());
        };
        if version != VERSION {
            let shown: String = version.chars().take(20).collect();
            return Err(format!(
                "the lock token is of version {shown:?}, and this release of setnx-lock reads version {VERSION}: use one release on both sides"
            ));
        }
        let token = decoded(coded).and_then(|bytes| Self::of_bytes(&bytes));
        token.ok_or_else(|| "the lock token is damaged or cut off; pass it on unchanged".into())
    }

    fn to_bytes(&self) -> Vec<u8> {
        let number = |of: u128| u64::try_from(of).unwrap_or(u64::MAX);
        let since = |earlier: Wall, later: Wall| number(later.since(earlier).as_micros());
        let millis = |time: Duration| number(time.as_millis());
        let (time, nonce) = self.value.parts().unwrap_or((self.end, Nonce::from_random(0)));
        let holder = self.value.holder();
        let flags = [
            self.protocol == Protocol::Watched,
            self.protocol == Protocol::Ttl,
            self.proven,
            self.notifies,
            self.auto_extend.is_some(),
            self.fencing_token.is_some(),
            holder.is_some(),
        ];
        let flags = flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
        let mut bytes = vec![flags];
        put_bytes(&mut bytes, self.key.as_bytes());
        let (after_end, lasted) = (since(self.end, time), since(self.acquired, self.end));
        for number in
            [time.0, nonce.seed(), after_end, lasted, millis(self.expiration), millis(self.hold_at_least)]
        {
            put(&mut bytes, number);
        }
        // For ever is 0.
        let forget_after = self.forget_after.map_or(0, |time| number(time.as_millis().div_ceil(1000)));
        let forget_after = self.fencing_token.map(|_| forget_after);
        for number in [self.auto_extend.map(millis), self.fencing_token, forget_after].into_iter().flatten() {
            put(&mut bytes, number);
        }
        if let Some(holder) = holder {
            put(&mut bytes, holder.since.0 / 1_000_000);
            put_bytes(&mut bytes, holder.name.as_bytes());
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (bytes, sum) = bytes.split_last_chunk()?;
        if checksum(bytes) != *sum {
            return None;
        }
        let (flags, mut rest) = bytes.split_first()?;
        let flag = |bit: u8| flags >> bit & 1 == 1;
        let key = take_bytes(&mut rest)?;
        let mut next = || take(&mut rest);
        let (time, nonce) = (Wall(next()?), Nonce::from_random(next()?));
        let value = ValueBytes::until(time, nonce);
        let end = time.before(Duration::from_micros(next()?));
        let acquired = end.before(Duration::from_micros(next()?));
        let (expiration, hold_at_least) = (Duration::from_millis(next()?), Duration::from_millis(next()?));
        let auto_extend = if flag(4) { Some(Duration::from_millis(next()?)) } else { None };
        let fencing_token = if flag(5) { Some(next()?) } else { None };
        let forget_after = if flag(5) { Some(next()?).filter(|time| *time > 0) } else { None };
        let forget_after = forget_after.map(Duration::from_secs);
        let value = if flag(6) {
            let since = Wall(next()?.checked_mul(1_000_000)?);
            value.named(str::from_utf8(take_bytes(&mut rest)?).ok()?, since)
        } else {
            value
        };
        let protocol = match (flag(0), flag(1)) {
            (false, false) => Protocol::Classic,
            (true, false) => Protocol::Watched,
            (false, true) => Protocol::Ttl,
            (true, true) => return None,
        };
        // A later release may write more.
        if flag(7) || !rest.is_empty() {
            return None;
        }
        let (key, proven, notifies) = (Key::from(key), flag(2), flag(3));
        Some(Self {
            key,
            value,
            protocol,
            end,
            acquired,
            expiration,
            hold_at_least,
            auto_extend,
            fencing_token,
            forget_after,
            proven,
            notifies,
        })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{NAME}{VERSION}.")?;
        encode(&self.to_bytes(), f)
    }
}

impl fmt::Debug for Token {
    /// Leaves out what gives power over the lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Token");
        shown.field("key", &self.key).field("protocol", &self.protocol).field("end", &self.end);
        shown.finish_non_exhaustive()
    }
}

/// Writes a number, seven bits in each byte; the highest bit says that more follow.
fn put(bytes: &mut Vec<u8>, number: u64) {
    let [low, ..] = number.to_le_bytes();
    if number < 0x80 {
        return bytes.push(low);
    }
    bytes.push(low | 0x80);
    put(bytes, number >> 7);
}

fn put_bytes(bytes: &mut Vec<u8>, part: &[u8]) {
    put(bytes, part.len() as u64);
    bytes.extend_from_slice(part);
}

/// Takes a number off the front.
fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(take(rest)?).ok()?;
    let (bytes, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(bytes)
}

/// FNV-1a, of 32 bits: it notices what was cut off or mistyped.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    let step = |sum: u32, byte: &u8| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    bytes.iter().fold(0x811c_9dc5, step).to_le_bytes()
}

/// Base64 for URLs and file names (RFC 4648, section 5), without padding.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encode(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for chunk in bytes.chunks(3) {
        let bits = [0, 1, 2].iter().fold(0, |bits, n| bits << 8 | usize::from(*chunk.get(*n).unwrap_or(&0)));
        for place in 0..=chunk.len() {
            f.write_char(char::from(LETTERS[bits >> (18 - 6 * place) & 0x3f]))?;
        }
    }
    Ok(())
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0_u32, 0);
    for letter in text.bytes() {
        let number = LETTERS.iter().position(|known| *known == letter)?;
        bits = bits << 6 | u32::try_from(number).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    // What is left over is padding.
    (count < 6 && bits & ((1 << count) - 1) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token(key: &[u8], name: &str) -> Token {
        let (end, hour) = (Wall(1_795_157_375_492_303), Duration::from_secs(3600));
        let value = ValueBytes::until(end.after(Duration::from_secs(10)), Nonce::from_random(9_876_543_210));
        Token {
            key: Key::from(key),
            value: if name.is_empty() { value } else { value.named(name, end.before(hour)) },
            protocol: Protocol::Ttl,
            end,
            acquired: end.before(hour),
            expiration: hour,
            hold_at_least: hour,
            auto_extend: Some(24 * hour),
            fencing_token: Some(1_000_000),
            forget_after: Some(240 * hour),
            proven: true,
            notifies: true,
        }
    }

    #[test]
    fn a_token_of_a_key_of_100_bytes_has_at_most_320() {
        let most = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        let end = Wall(9_999_999_999_000_000);
        let longest = Token {
            value: ValueBytes::until(end.after(most), Nonce::from_random(9_999_999_999))
                .named(&"n".repeat(64), end),
            end,
            acquired: end.before(most),
            expiration: most,
            hold_at_least: most,
            auto_extend: Some(most),
            fencing_token: Some((1 << 53) - 1),
            forget_after: Some(most),
            ..token(&[0xff; 100], "")
        };
        let text = longest.to_string();
        assert!((310..=320).contains(&text.len()), "{}: {text}", text.len());
        assert_eq!(Token::read(&text), Ok(longest));
        assert!(token(b"orders:7", "").to_string().len() < 100);
    }

    #[test]
    fn what_is_no_token_is_told_apart() {
        let problem = |text: &str| Token::read(text).unwrap_err();
        let text = token(b"k", "web:7").to_string();
        for other in ["", "setnx", "1795157376.4923038374650192", "token", "setnx.abc.def"] {
            let problem = problem(other);
            assert!(problem.contains("no lock token") || problem.contains("version"), "{other}: {problem}");
        }
        assert!(problem(&text.replacen('1', "2", 1)).contains("version \"2\", and"), "{text}");
        for damaged in [&text[..text.len() - 1], &text[..8], "setnx1.", "setnx1.a b", &format!("{text}A")] {
            assert!(problem(damaged).contains("damaged or cut off"), "{damaged}");
        }
        assert_eq!(Token::read(&format!(" {text}\n")), Ok(token(b"k", "web:7")), "as a file ends");
    }

    proptest! {
        #[test]
        fn any_token_is_read_again(
            key in prop::collection::vec(any::<u8>(), 1..200),
            (time, nonce, lease) in (0..1_u64 << 50, any::<u64>(), 0..1_u64 << 48),
            (flags, hold, extend) in (0..64_u8, 0..1_u64 << 40, any::<u64>()),
            (fencing_token, forget_after) in any::<(Option<u64>, Option<u32>)>(),
            name in "[a-z:é]{0,20}",
        ) {
            let value = ValueBytes::until(Wall(time), Nonce::from_random(nonce));
            let token = Token {
                key: Key::from(key),
                value: if name.is_empty() { value } else { value.named(&name, Wall(time)) },
                protocol: [Protocol::Classic, Protocol::Watched, Protocol::Ttl][usize::from(flags % 3)],
                end: Wall(time),
                acquired: Wall(time.saturating_sub(lease)),
                expiration: Duration::from_millis(lease),
                hold_at_least: Duration::from_millis(hold),
                auto_extend: (flags & 8 > 0).then(|| Duration::from_millis(extend)),
                fencing_token,
                forget_after: fencing_token
                    .and(forget_after)
                    .filter(|time| *time > 0)
                    .map(|time| Duration::from_secs(time.into())),
                proven: flags & 16 > 0,
                notifies: flags & 32 > 0,
            };
            prop_assert_eq!(Token::read(&token.to_string()), Ok(token));
        }

        #[test]
        fn a_mistyped_letter_is_noticed(place in 7..100_usize, letter in "[A-Za-z0-9_-]") {
            let text = token(b"orders:7", "web:7").to_string();
            let place = place.min(text.len() - 1);
            let mistyped = format!("{}{letter}{}", &text[..place], &text[place + 1..]);
            prop_assume!(mistyped != text);
            prop_assert!(Token::read(&mistyped).is_err());
        }
    }
}

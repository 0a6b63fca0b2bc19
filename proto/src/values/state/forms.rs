//! The forms of the numbers in values: a time as locks write it, a gem's, and what looks like a time and is none.

use alloc::format;

use crate::values::{FIRST_PLAUSIBLE_SECOND, Wall};

/// Smaller numbers are taken for points in time (before November 2286): larger ones are in another unit.
const END_OF_SECONDS: u64 = 10_000_000_000;
/// How many digits seconds have.
const DIGITS: usize = 10;
/// How many decimals this library writes. Behind them the name of the holder may follow.
const DECIMALS: usize = 16;

/// Reads a time: `SECONDS` or `SECONDS.DECIMALS`. After all the decimals that this library writes, a colon and more may
/// follow, which it returns too.
pub(super) fn time(bytes: &[u8]) -> Option<(Wall, Option<&[u8]>)> {
    let (number, behind) = match bytes.iter().position(|byte| *byte == b':') {
        Some(colon) => {
            let number = bytes.get(..colon).filter(|number| decimals(number) == Some(DECIMALS))?;
            (number, bytes.get(colon + 1..))
        }
        None => (bytes, None),
    };
    if decimals(number) == Some(0) {
        return None;
    }
    let time = plain_decimal(number)?;
    let is_plausible = (FIRST_PLAUSIBLE_SECOND.into()..END_OF_SECONDS).contains(&(time.0 / 1_000_000));
    is_plausible.then_some((time, behind))
}

/// Returns how many decimals follow the first point; `None` if there is none.
fn decimals(number: &[u8]) -> Option<usize> {
    let point = number.iter().position(|byte| *byte == b'.')?;
    Some(number.len() - point - 1)
}

/// Returns true for a number that is too small to be a time, as the gem's `1`.
pub(super) fn is_small_number(bytes: &[u8]) -> bool {
    let is_small = |time: Wall| time.0 / 1_000_000 < FIRST_PLAUSIBLE_SECOND.into();
    decimals(bytes) != Some(0) && plain_decimal(bytes).is_some_and(is_small)
}

/// Returns in words what a value that is no time looks like, if it
/// begins with as many digits as a time has; `None` of any other.
pub fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    let zeros = bytes.iter().take_while(|byte| **byte == b'0').count();
    let number = &bytes[zeros..];
    let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_whole = number.len() == digits;
    Some(match digits {
        ..DIGITS => return None,
        13 if is_whole => "a time in milliseconds",
        16 if is_whole => "a time in microseconds",
        19 if is_whole => "a time in nanoseconds",
        _ if is_whole || is_fraction(&number[digits..]) => "a number and not a time",
        _ => "a number with text behind it",
    })
}

/// Returns true for a point and digits.
fn is_fraction(bytes: &[u8]) -> bool {
    matches!(bytes, [b'.', decimals @ ..] if !decimals.is_empty() && decimals.iter().all(u8::is_ascii_digit))
}

/// Reads `DIGITS` or `DIGITS.DIGITS` exactly; `None` for any other form.
fn plain_decimal(bytes: &[u8]) -> Option<Wall> {
    let text = str::from_utf8(bytes).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = whole.parse().ok()?;
    let micros: u64 = format!("{fraction:0<6.6}").parse().ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros).map(Wall)
}

/// Returns the time in a value that looks like a gem's, a plain decimal
/// of at most seven decimals; `None` for every other, ours among them.
pub fn classic_time(bytes: &[u8]) -> Option<Wall> {
    let decimals = bytes.split(|byte| *byte == b'.').nth(1)?;
    (1..=7).contains(&decimals.len()).then(|| plain_decimal(bytes)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gems_time_differs_in_form_from_ours() {
        assert_eq!(classic_time(b"1795153464.2949657"), Some(Wall(1_795_153_464_294_965)));
        assert_eq!(classic_time(b"1532000016.0"), Some(Wall(1_532_000_016_000_000)));
        for other in
            ["1795157376.4923038374650192", "1795153464", "1795153464.", "1", "", "1.2.3", "17951.25:host"]
        {
            assert_eq!(classic_time(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn every_time_that_ruby_writes_is_read_as_the_same_microsecond() {
        let file = include_str!("../../../../compat/golden/floats.tsv");
        let (mut times, mut larger) = (0, 0);
        for line in file.lines().filter(|line| !line.starts_with('#')) {
            let (bits, text) = line.split_once('\t').expect("two columns");
            let float = f64::from_bits(u64::from_str_radix(bits, 16).expect("bits"));
            let Some((time, _)) = time(text.as_bytes()) else {
                assert!(float >= 1e10, "{text}");
                larger += 1;
                continue;
            };
            #[expect(clippy::cast_precision_loss)]
            let read = time.0 as f64 / 1e6;
            assert!((0.0..1.1e-6).contains(&(float - read)), "{text}: {read}");
            times += 1;
        }
        assert!(times > 250 && larger == 2, "{times} and {larger}");
    }
}

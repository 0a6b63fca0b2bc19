//! The forms of the numbers in values: a time as locks write it, a gem's, and what looks like a time and is none.

use super::float::{Float, to_f};
use crate::values::clock::{FIRST_PLAUSIBLE_SECOND, Wall};

/// Smaller numbers are taken for points in time (before November 2286): larger ones are in another unit.
const END_OF_SECONDS: u64 = 10_000_000_000;
/// How many decimals this library writes. Behind them the name of the holder may follow.
const DECIMALS: usize = 16;

/// Reads a time: `SECONDS` or `SECONDS.DECIMALS`. After all the decimals that this library writes, a colon and more may follow, which it
/// returns too.
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

/// Returns the time that the gem reads in any text.
pub(crate) fn gem_time(bytes: &[u8]) -> Wall {
    let micros = to_f(bytes).value * 1e6;
    // `as` saturates, which is what an absurdly distant time asks for.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Wall(micros as u64)
}

/// Returns in words what a number as large as a time looks like that is none; `None` for a smaller one.
pub(super) fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    let Float { value, whole } = to_f(bytes);
    let is_digits = bytes.iter().all(u8::is_ascii_digit);
    Some(match value {
        _ if value < FIRST_PLAUSIBLE_SECOND.into() => return None,
        1e12..1e13 if is_digits => "a time in milliseconds",
        1e15..1e16 if is_digits => "a time in microseconds",
        1e18..1e19 if is_digits => "a time in nanoseconds",
        _ if whole && bytes.iter().any(|byte| matches!(byte, b'e' | b'E')) => "a number with an exponent",
        _ if whole => "a number and not a time",
        _ => "a number with text behind it",
    })
}

/// Reads `DIGITS.DIGITS` exactly; `None` for any other form.
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

/// Returns the time in a value that looks like a gem's, a plain decimal of at most seven decimals; `None` for every
/// other, ours among them.
pub(crate) fn classic_time(bytes: &[u8]) -> Option<Wall> {
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
}

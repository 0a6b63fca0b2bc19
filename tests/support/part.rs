//! A part of the tests, for runs side by side: `SETNX_LOCK_TEST_PART=2/4` names the second of four.

use std::env;

const PART: &str = "SETNX_LOCK_TEST_PART";

/// Returns every fourth of these, beginning with the second, if that is the part to run; all of them if none is named.
pub(crate) fn of<T>(all: Vec<T>) -> Result<Vec<T>, String> {
    let Ok(part) = env::var(PART) else { return Ok(all) };
    let number = |text: &str| text.parse::<usize>().ok();
    let numbers = part.split_once('/').and_then(|(n, of)| Some((number(n)?, number(of)?)));
    match numbers {
        Some((n, of)) if 1 <= n && n <= of => Ok(all.into_iter().skip(n - 1).step_by(of).collect()),
        _ => Err(format!("{PART} is {part:?}; expected the part and the number of parts, as 2/4")),
    }
}

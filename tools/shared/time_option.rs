//! How a time is typed.

use std::time::Duration;

/// Reads a time with its unit that lies within these two, which are texts of times as well.
pub(crate) fn between(shortest: &str, longest: &str, text: &str) -> Result<Duration, String> {
    let [from, to, time] = [shortest, longest, text].map(humantime::parse_duration);
    match (from, to, time) {
        (Ok(from), Ok(to), Ok(time)) if (from..=to).contains(&time) => Ok(time),
        _ => Err(format!("expected a time from {shortest} to {longest}, with its unit")),
    }
}

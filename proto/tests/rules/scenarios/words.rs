//! The words of a scenario: times, and whose something is.

use std::time::Duration;

use super::ScriptResult;
use setnx_lock_proto::values::Wall;

pub(super) fn possessor(name: &str) -> ScriptResult<&str> {
    name.strip_suffix("'s").ok_or_else(|| format!("of which client? {name}"))
}

pub(super) fn time(text: &str) -> ScriptResult<Duration> {
    humantime::parse_duration(text).map_err(|error| format!("{text}: {error}"))
}

/// A time with a sign, in microseconds.
pub(super) fn signed(text: &str) -> ScriptResult<i64> {
    let (sign, text) = match text.strip_prefix('-') {
        Some(text) => (-1, text),
        None => (1, text.strip_prefix('+').ok_or("a time needs its sign here")?),
    };
    Ok(sign * i64::try_from(time(text)?.as_micros()).map_err(|error| error.to_string())?)
}

pub(super) fn shifted(wall: Wall, micros: i64) -> Wall {
    Wall(wall.0.saturating_add_signed(micros))
}

pub(super) fn relative(micros: i128) -> String {
    let sign = if micros < 0 { "-" } else { "+" };
    format!("{sign}{:?}", Duration::from_micros(u64::try_from(micros.unsigned_abs()).unwrap_or(u64::MAX)))
}

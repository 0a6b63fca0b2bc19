//! Reads single arguments.

use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use setnx_lock::{Key, LockOptions};

/// Reads a time: with units (`1m 30s`, `100ms`), or a number of seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let time = match text.parse::<f64>() {
        Ok(seconds) if seconds >= LockOptions::MAX_EXPIRATION.as_secs_f64() => Ok(Duration::MAX),
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => humantime::parse_duration(text).map_err(|error| error.to_string()),
    };
    match time {
        Ok(time) if time > LockOptions::MAX_EXPIRATION => Err("longer than ten years".into()),
        time => time.map_err(|error| format!("{error}; write 30s, 1m 30s or 250ms")),
    }
}

/// The same for a time that has to be longer than zero.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match time(text)? {
        short if short < Duration::from_millis(1) => Err("must be at least one millisecond".into()),
        time => Ok(time),
    }
}

/// Reads a key: any bytes, but at least one.
pub(super) fn key() -> impl TypedValueParser<Value = Key> {
    OsStringValueParser::new().try_map(|given| match given.as_bytes() {
        [] => Err("the key is empty; is a variable not set?"),
        bytes => Ok(Key::from(bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_or_are_seconds() {
        assert_eq!(time("5"), Ok(Duration::from_secs(5)));
        assert_eq!(time("0.25"), Ok(Duration::from_millis(250)));
        assert_eq!(time("1m 30s"), Ok(Duration::from_secs(90)));
        for wrong in ["-1", "nan", "", "soon", "5 parsecs"] {
            assert!(time(wrong).unwrap_err().contains("write 30s"), "{wrong}");
        }
        for long in ["1e19", "1e400", "11y", "100000000000 years"] {
            assert!(time(long).is_err(), "{long}");
        }
        assert!(interval("0").is_err() && interval("1ms").is_ok());
    }
}

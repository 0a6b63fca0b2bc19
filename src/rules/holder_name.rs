//! The name of a holder, for people: it stands in another key, `KEY:setnx-lock:holder`, behind the value that the holder has written. So it
//! is shown only while the lock's key holds that value, and one that was left behind is not shown. No rule of the lock depends on it.

use std::time::Duration;

use super::lease::GUARD;

/// How much of a name is read, in bytes: any program may have written it.
const LONGEST: usize = 256;

/// What is done with the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HolderName {
    /// Writes it, for so many seconds: as long as the value says that the lock is held.
    Write {
        entry: Vec<u8>,
        seconds: u64,
    },
    Read,
}

impl HolderName {
    pub(crate) fn write(name: &str, value: &[u8], lease: Duration) -> Self {
        let seconds = lease.saturating_add(GUARD).as_micros().div_ceil(1_000_000);
        let entry = [value, b" ", name.as_bytes()].concat();
        Self::Write { entry, seconds: u64::try_from(seconds).unwrap_or(u64::MAX) }
    }

    /// The name of its command.
    pub(super) fn name(&self) -> &'static str {
        match self {
            HolderName::Write { .. } => "SETEX",
            HolderName::Read => "GET",
        }
    }
}

/// Returns the name in an entry, if it is that of the holder that has written this value.
pub(crate) fn named(entry: &[u8], value: &[u8]) -> Option<String> {
    let name = entry.strip_prefix(value)?.strip_prefix(b" ")?;
    Some(String::from_utf8_lossy(&name[..name.len().min(LONGEST)]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_the_value_that_it_was_written_with() {
        let HolderName::Write { entry, seconds } =
            HolderName::write("worker 7", b"17.25", Duration::from_millis(2001))
        else {
            panic!("it is written")
        };
        assert_eq!((entry.as_slice(), seconds), (b"17.25 worker 7".as_slice(), 4));
        assert_eq!(named(&entry, b"17.25").as_deref(), Some("worker 7"));
        for other in [b"17.2".as_slice(), b"17.251", b"1", b""] {
            assert_eq!(named(&entry, other), None);
        }
    }
}

//! A version of Redis.

use std::fmt;
use std::str::FromStr;

/// A version of Redis, as a server reports it in `INFO`. Newer versions compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u16,
    minor: u16,
    patch: u16,
}

impl Version {
    /// Returns the version `major.minor.patch`.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// Returns the version as a number, which is never 0.
    pub(crate) fn packed(self) -> u64 {
        let Self { major, minor, patch } = self;
        1 << 48 | u64::from(major) << 32 | u64::from(minor) << 16 | u64::from(patch)
    }

    /// Returns the version of such a number; `None` for 0.
    pub(crate) fn of_packed(packed: u64) -> Option<Self> {
        let [_, major, minor, patch] = [48, 32, 16, 0].map(|shift| (packed >> shift & 0xFFFF) as u16);
        (packed > 0).then_some(Self { major, minor, patch })
    }
}

/// The error for a text that is not a version, because it does not begin with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a version begins with a number, as 2.4.18")]
#[non_exhaustive]
pub struct InvalidVersion {}

impl FromStr for Version {
    type Err = InvalidVersion;

    /// Parses a version such as `2.4.18`. Text after a number is ignored, as in `6.2-rc1`, and a missing number is
    /// 0.
    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let mut numbers = text.trim().split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        });
        let major = numbers.next().flatten().ok_or(InvalidVersion {})?;
        let mut rest = || numbers.next().flatten().unwrap_or(0);
        Ok(Self { major, minor: rest(), patch: rest() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_is_read_and_compared_by_its_numbers() {
        let read = |text: &str| text.parse::<Version>().unwrap();
        assert_eq!(read("2.4.18"), Version::new(2, 4, 18));
        assert_eq!(read("1.1.94\r"), Version::new(1, 1, 94));
        assert_eq!(read("6.2-rc1"), Version::new(6, 2, 0));
        assert_eq!(read("7"), Version::new(7, 0, 0));
        assert!(read("2.10.0") > read("2.6.17") && read("2.6.9") < read("2.6.12"));
        assert_eq!(read("2.6.12").to_string(), "2.6.12");
        for version in [Version::new(0, 0, 0), Version::new(2, 6, 12), Version::new(1, u16::MAX, 65)] {
            assert_eq!(Version::of_packed(version.packed()), Some(version));
        }
        assert_eq!(Version::of_packed(0), None);
        for text in ["", "unstable", ".2.4"] {
            assert_eq!(text.parse::<Version>(), Err(InvalidVersion {}), "{text:?}");
        }
    }
}

//! A version of Redis.

use core::fmt;
use core::str::FromStr;

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

    /// Returns the major number: 6 for `6.2.1`.
    #[must_use]
    pub const fn major(self) -> u16 {
        self.major
    }

    /// Returns the minor number: 2 for `6.2.1`.
    #[must_use]
    pub const fn minor(self) -> u16 {
        self.minor
    }

    /// Returns the patch number: 1 for `6.2.1`.
    #[must_use]
    pub const fn patch(self) -> u16 {
        self.patch
    }
}

/// The error for a text that is not a version, because it does not begin with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidVersion {}

impl fmt::Display for InvalidVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid version: expected a number first, for example 2.4.18")
    }
}

impl core::error::Error for InvalidVersion {}

impl FromStr for Version {
    type Err = InvalidVersion;

    /// Parses a version such as `2.4.18`. Text after a number is ignored, as in `6.2-rc1`, and a missing number is 0.
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
        let version = Version::new(6, 2, 1);
        assert_eq!([version.major(), version.minor(), version.patch()], [6, 2, 1]);
        for text in ["", "unstable", ".2.4"] {
            assert_eq!(text.parse::<Version>(), Err(InvalidVersion {}), "{text:?}");
        }
    }
}

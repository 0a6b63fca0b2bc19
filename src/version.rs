//! Which Redis a server is.

use std::fmt;

/// A version of Redis, as a server tells it in INFO. Later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u16,
    minor: u16,
    patch: u16,
}

impl Version {
    /// Returns the version of these numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// Reads what a server says of itself, `2.4.18` say; `None` if that begins with no number. Whatever follows a number is left out,
    /// and a number that is missing is 0.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        });
        let major = numbers.next()??;
        let mut rest = || numbers.next().flatten().unwrap_or(0);
        Some(Self { major, minor: rest(), patch: rest() })
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
        let read = |text| Version::read(text).unwrap();
        assert_eq!(read("2.4.18"), Version::new(2, 4, 18));
        assert_eq!(read("1.1.94\r"), Version::new(1, 1, 94));
        assert_eq!(read("6.2-rc1"), Version::new(6, 2, 0));
        assert_eq!(read("7"), Version::new(7, 0, 0));
        assert!(read("2.10.0") > read("2.6.17") && read("2.6.9") < read("2.6.12"));
        assert_eq!(read("2.6.12").to_string(), "2.6.12");
        for text in ["", "unstable", ".2.4"] {
            assert_eq!(Version::read(text), None, "{text:?}");
        }
    }
}

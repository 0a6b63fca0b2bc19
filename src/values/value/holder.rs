//! Who holds a lock, as its value says: `TIME:SINCE:NAME`. For people; no rule of the lock depends on it.

use std::fmt;
use std::time::Duration;

use crate::values::clock::{self, Wall};

/// The longest name, in bytes.
const LONGEST_NAME: usize = 64;

/// The holder of a lock: the [name](crate::LockerBuilder::holder_name) that its locker has, and since when it holds the lock.
///
/// Displayed as `worker:7 for 12 min`.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder {
    name: Box<str>,
    pub(crate) since: Wall,
}

impl Holder {
    /// Reads `SINCE:NAME`, which stands behind the time in a value; `None` if it is anything else.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (since, name) = str::from_utf8(text).ok()?.split_once(':')?;
        // Until November 2286.
        let is_time = since.len() <= 10 && since.bytes().all(|byte| byte.is_ascii_digit());
        let seconds: u64 = since.parse().ok().filter(|_| is_time)?;
        let since = Wall(seconds * 1_000_000);
        is_name(name).then(|| Self { name: name.into(), since })
    }

    /// Returns the holder's name, 1 to 64 bytes of printable characters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns since when it holds the lock, in whole seconds by the holder's clock.
    #[must_use]
    pub fn since(&self) -> chrono::DateTime<chrono::Utc> {
        // Ten digits are within the calendar.
        self.since.date().unwrap_or_default()
    }

    /// Returns for how long it has held the lock, by this machine's clock; zero if the holder's is ahead.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        clock::now().wall.since(self.since)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.held_for().as_secs();
        write!(f, "{} for ", self.name)?;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3600 => write!(f, "{} min", seconds / 60),
            3600..86_400 => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({:?} since {})", self.name, self.since)
    }
}

/// Returns true if a text can be a holder's name: at most 64 bytes, and each of its characters is visible or a space.
pub(crate) fn is_name(text: &str) -> bool {
    // These are visible, but are escaped in strings.
    let unquoted = text.replace(['"', '\'', '\\'], "x");
    (1..=LONGEST_NAME).contains(&text.len()) && unquoted.escape_debug().eq(unquoted.chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_shows_as_it_is() {
        for name in ["worker:7", "web 7", "Zürich \"7\" 'b' \\", "作業員", "नमस्ते", &"x".repeat(64)]
        {
            assert!(is_name(name), "{name}");
        }
        for odd in ["", "a\nb", "a\tb", "a\u{1b}[31m", "a\u{202e}b", "a\u{7f}", "a\u{a0}b", &"x".repeat(65)] {
            assert!(!is_name(odd), "{odd:?}");
        }
    }

    #[test]
    fn what_this_library_does_not_write_names_no_holder() {
        let read = |text: &str| Holder::read(text.as_bytes()).map(|holder| holder.name);
        assert_eq!(read("1795157361:worker:7").as_deref(), Some("worker:7"));
        for odd in
            ["worker:7", "1795157361", "1795157361:", ":worker", "+1:a", "1.5:a", "99999999999:a", "1:a\nb"]
        {
            assert_eq!(read(odd), None, "{odd:?}");
        }
        assert_eq!(Holder::read(b"1795157361:\xff"), None);
    }

    #[test]
    fn it_is_displayed_with_how_long_it_has_held_the_lock() {
        let shown = |seconds: u64| {
            let since = clock::now().wall.before(Duration::from_secs(seconds));
            Holder { name: "worker:7".into(), since }.to_string()
        };
        assert!(["worker:7 for 5 s", "worker:7 for 6 s"].contains(&shown(5).as_str()), "{}", shown(5));
        assert_eq!(shown(750), "worker:7 for 12 min");
        assert_eq!(shown(7510), "worker:7 for 2 h 5 min");
        assert_eq!(shown(2 * 86_400 + 3 * 3600 + 10), "worker:7 for 2 d 3 h");
        let ahead = Holder { name: "w".into(), since: clock::now().wall.after(Duration::from_secs(60)) };
        assert_eq!(ahead.to_string(), "w for 0 s", "its clock is ahead");
    }
}

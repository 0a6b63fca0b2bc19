//! Who holds a lock, as its value says: `TIME:SINCE:NAME`. For people. The rules only compare it, to recognize a
//! holder's own earlier value.

use alloc::boxed::Box;

use super::clock::Wall;

/// The longest name, in bytes.
const LONGEST_NAME: usize = 64;

/// The holder of a lock, by the name that its locker has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// 1 to 64 bytes of printable characters.
    pub name: Box<str>,
    /// Since when it has the lock, in whole seconds.
    pub since: Wall,
}

impl Named {
    /// Reads `SINCE:NAME`, which stands behind the time in a value; `None` if it is anything else.
    pub(super) fn read(text: &[u8]) -> Option<Self> {
        let (since, name) = str::from_utf8(text).ok()?.split_once(':')?;
        // Until November 2286.
        let is_time = since.len() <= 10 && since.bytes().all(|byte| byte.is_ascii_digit());
        let seconds: u64 = since.parse().ok().filter(|_| is_time)?;
        let since = Wall(seconds * 1_000_000);
        is_name(name).then(|| Self { name: name.into(), since })
    }
}

/// Returns true if a text can be a holder's name: at most 64 bytes, and each of its characters is visible or a space.
pub fn is_name(text: &str) -> bool {
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
        let read = |text: &str| Named::read(text.as_bytes()).map(|named| named.name);
        assert_eq!(read("1795157361:worker:7").as_deref(), Some("worker:7"));
        for odd in
            ["worker:7", "1795157361", "1795157361:", ":worker", "+1:a", "1.5:a", "99999999999:a", "1:a\nb"]
        {
            assert_eq!(read(odd), None, "{odd:?}");
        }
        assert_eq!(Named::read(b"1795157361:\xff"), None);
    }
}

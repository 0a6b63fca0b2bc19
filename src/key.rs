//! A key: the bytes that name a lock on the server. Knows how parts are joined; knows nothing of what the key holds.

use std::fmt::{self, Write as _};
use std::sync::Arc;

/// The name of a lock on the server: any bytes, as Redis allows.
///
/// Cheap to clone. Printed as text, with bytes that are not text escaped; errors and logs cut a long one. An empty key is refused by
/// [`Lock::new`](crate::Lock::new), because an empty name is nearly always a variable that was not set.
///
/// ```
/// use setnx_lock::Key;
///
/// assert_eq!(Key::from("serialize_stuff").to_string(), "serialize_stuff");
/// assert_eq!(Key::joined(["team", "7", "trade_players_lock"]).to_string(), "team:7:trade_players_lock");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// Returns the key made of `parts` joined by `:`, as the gem joins the array `[:team, 7, :trade_players_lock]`.
    /// An empty part stays, as two colons in a row.
    pub fn joined<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let mut bytes = Vec::new();
        for (n, part) in parts.into_iter().enumerate() {
            if n > 0 {
                bytes.push(b':');
            }
            bytes.extend_from_slice(part.as_ref());
        }
        Self(bytes.into())
    }

    /// Returns the bytes as they go over the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether the key has no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self(text.into_bytes().into())
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Text(&self.0), f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{}\")", Cut(&self.0))
    }
}

/// Bytes shown to a person: text as it is, control characters and what is not UTF-8 escaped.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    /// Writes the text piece by piece, a character or an escape at a time, as long as `write` returns `true`.
    fn pieces(&self, mut write: impl FnMut(fmt::Arguments<'_>) -> bool) {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                let goes_on = if c.is_control() {
                    write(format_args!("{}", c.escape_default()))
                } else {
                    write(format_args!("{c}"))
                };
                if !goes_on {
                    return;
                }
            }
            for byte in chunk.invalid() {
                if !write(format_args!("\\x{byte:02x}")) {
                    return;
                }
            }
        }
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut outcome = Ok(());
        self.pieces(|piece| {
            outcome = f.write_fmt(piece);
            outcome.is_ok()
        });
        outcome
    }
}

/// The same for errors and logs: what is longer than [`LONGEST_SHOWN`] is cut, with its length.
pub(crate) struct Cut<'a>(pub(crate) &'a [u8]);

/// How much of a key, a value or a server's text errors and logs show, in bytes of text.
const LONGEST_SHOWN: usize = 256;

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&CutAt(self.0, LONGEST_SHOWN), f)
    }
}

/// The same with another limit.
pub(crate) struct CutAt<'a>(pub(crate) &'a [u8], pub(crate) usize);

impl fmt::Display for CutAt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes, longest) = *self;
        let (mut shown, mut is_cut) = (String::new(), false);
        Text(bytes).pieces(|piece| {
            let whole = shown.len();
            let written = shown.write_fmt(piece).is_ok();
            is_cut = shown.len() > longest;
            if is_cut {
                shown.truncate(whole);
            }
            written && !is_cut
        });
        f.write_str(&shown)?;
        if is_cut { write!(f, "… ({} bytes)", bytes.len()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_parts_as_the_gem_does() {
        assert_eq!(Key::joined(["a", "1", "", "b"]).as_bytes(), b"a:1::b");
        assert_eq!(Key::joined(["alone"]).as_bytes(), b"alone");
        assert!(Key::joined(Vec::<&str>::new()).is_empty());
    }

    #[test]
    fn shows_text_as_it_is_and_escapes_the_rest() {
        assert_eq!(Key::from("clé:7").to_string(), "clé:7");
        assert_eq!(Key::from(&b"a\xff\nb"[..]).to_string(), "a\\xff\\nb");
        assert_eq!(format!("{:?}", Key::from("k")), "Key(\"k\")");
        assert_eq!(AsRef::<[u8]>::as_ref(&Key::from("k")), b"k");
    }

    #[test]
    fn long_bytes_are_cut_with_their_length() {
        assert_eq!(Cut(&[b'a'; 256]).to_string(), "a".repeat(256));
        assert_eq!(Cut(&[b'a'; 257]).to_string(), format!("{}… (257 bytes)", "a".repeat(256)));
        assert_eq!(Cut("é".repeat(200).as_bytes()).to_string(), format!("{}… (400 bytes)", "é".repeat(128)));
        let escaped = Cut(&vec![0xff; 20_000_000]).to_string();
        assert_eq!(escaped, format!("{}… (20000000 bytes)", "\\xff".repeat(64)));
        let text = format!("a{}", "\u{1}".repeat(300));
        assert_eq!(
            Cut(text.as_bytes()).to_string(),
            format!("a{}… (301 bytes)", "\\u{1}".repeat(51)),
            "no half escape"
        );
        assert_eq!(CutAt(b"abc", 2).to_string(), "ab… (3 bytes)");
    }
}

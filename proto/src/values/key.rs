//! A key: the bytes that name a lock on the server. Also shows bytes to people.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};

/// The name of a lock on the server, which can be any bytes.
///
/// Cheap to clone. Displayed as text, in which invisible characters and invalid UTF-8 are escaped; errors and logs cut
/// long keys. [`Lock::new`](https://docs.rs/setnx-lock/latest/setnx_lock/struct.Lock.html#method.new) refuses an empty
/// key, which is nearly always a variable that was not set.
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
    /// Returns the key made of `parts`, joined by `:`. An empty part is kept, and leaves two colons in a row.
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

    /// Returns the bytes of the key, as they are sent to the server.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl From<&String> for Key {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
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

impl PartialEq<str> for Key {
    fn eq(&self, text: &str) -> bool {
        *self.0 == *text.as_bytes()
    }
}

impl PartialEq<&str> for Key {
    fn eq(&self, text: &&str) -> bool {
        self == *text
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

/// Bytes shown to a person. Valid UTF-8 is shown unchanged,
/// except characters that a terminal acts upon or does not show.
struct Text<'a>(&'a [u8]);

/// Returns true if a character is shown unescaped. In a text the standard library's `Debug` escapes all of
/// Unicode's categories Cc and Cf, and other characters that are not visible.
fn is_visible(c: char) -> bool {
    if c.is_ascii() { !c.is_control() } else { String::from_iter(['a', c]).escape_debug().count() == 2 }
}

impl Text<'_> {
    /// Writes the text piece by piece, a character or an escape at a time, as long as `write` returns `true`.
    fn pieces(&self, mut write: impl FnMut(fmt::Arguments<'_>) -> bool) {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                let goes_on = if is_visible(c) {
                    write(format_args!("{c}"))
                } else {
                    write(format_args!("{}", c.escape_default()))
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

/// Bytes as text for errors and logs: those of more than 256 bytes of text are cut, with their length.
#[derive(Debug)]
pub struct Cut<'a>(pub &'a [u8]);

/// How much of a key, a value or a server's text errors and logs show, in bytes of text.
const LONGEST_SHOWN: usize = 256;

impl fmt::Display for Cut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&CutAt(self.0, LONGEST_SHOWN), f)
    }
}

/// Bytes as text, cut at this length.
#[derive(Debug)]
pub struct CutAt<'a>(pub &'a [u8], pub usize);

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
        assert_eq!(Key::joined(Vec::<&str>::new()).as_bytes(), b"");
    }

    #[test]
    fn shows_text_as_it_is_and_escapes_the_rest() {
        assert_eq!(Key::from("clé:7").to_string(), "clé:7");
        assert_eq!(Key::from(&b"a\xff\nb"[..]).to_string(), "a\\xff\\nb");
        assert_eq!(format!("{:?}", Key::from("k")), "Key(\"k\")");
        assert_eq!(AsRef::<[u8]>::as_ref(&Key::from("k")), b"k");
    }

    #[test]
    fn controls_and_format_characters_are_escaped() {
        // Cf of Unicode 16, as DerivedGeneralCategory.txt lists it.
        let formats = [
            0xad..=0xad,
            0x600..=0x605,
            0x61c..=0x61c,
            0x6dd..=0x6dd,
            0x70f..=0x70f,
            0x890..=0x891,
            0x8e2..=0x8e2,
            0x180e..=0x180e,
            0x200b..=0x200f,
            0x202a..=0x202e,
            0x2060..=0x2064,
            0x2066..=0x206f,
            0xfeff..=0xfeff,
            0xfff9..=0xfffb,
            0x110bd..=0x110bd,
            0x110cd..=0x110cd,
            0x13430..=0x1343f,
            0x1bca0..=0x1bca3,
            0x1d173..=0x1d17a,
            0xe0001..=0xe0001,
            0xe0020..=0xe007f,
        ];
        for c in [0..=0x1f, 0x7f..=0x9f].into_iter().chain(formats).flatten().filter_map(char::from_u32) {
            let shown = Key::from(format!("a{c}b")).to_string();
            assert_eq!(shown, format!("a{}b", c.escape_default()));
        }
        // Also letters that a mark belongs to, and what Debug escapes as a part of its own quotes.
        for text in ["clé", "cle\u{301}", "鍵", "مفتاح", "a 'b' \"c\" \\d", "🔒"] {
            assert_eq!(Key::from(text).to_string(), text);
        }
        assert_eq!(Cut("\u{202e}gnp.lock".as_bytes()).to_string(), "\\u{202e}gnp.lock");
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

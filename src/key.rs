//! A key: the bytes that name a lock on the server. Knows how parts are joined; knows nothing of what the key holds.

use std::fmt;
use std::sync::Arc;

/// The name of a lock on the server: any bytes, as Redis allows.
///
/// Cheap to clone. Printed as text, with bytes that are not text escaped. An empty key is refused by
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

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Text(&self.0), f)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{self}\")")
    }
}

/// Bytes shown to a person: text as it is, control characters and what is not UTF-8 escaped.
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
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
    }
}

//! The names of a lock's side keys. A name begins with the lock's key, and so with its prefix, and is the same on every
//! server. In a cluster it has the slot of the lock's key.

use alloc::vec::Vec;

/// A side key of a lock, or of a reader-writer lock by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideKey {
    /// Counts fencing tokens.
    Fence,
    /// Lists the processes that wait for notifications.
    Waiters,
    /// Holds the number of readers of a reader-writer lock.
    Readers,
    /// A lock of the writer that is next, by which it is known to readers.
    NextWriter,
}

impl SideKey {
    /// Returns what follows the lock's key, before a tag.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Fence => ":setnx-lock:fence",
            Self::Waiters => ":setnx-lock:waiters",
            Self::Readers => ":setnx-lock:readers",
            Self::NextWriter => ":setnx-lock:next-writer",
        }
    }

    /// Returns the name of the side key: `KEY:setnx-lock:fence:{KEY}`, without the last part if the key has a brace. If
    /// it has a brace and no hash tag, no such name has its slot.
    #[must_use]
    pub fn of(self, key: &[u8]) -> Vec<u8> {
        let mut name = Vec::with_capacity(2 * key.len() + self.suffix().len() + 3);
        name.extend_from_slice(key);
        name.extend_from_slice(self.suffix().as_bytes());
        if !has_brace(key) {
            name.extend_from_slice(b":{");
            name.extend_from_slice(key);
            name.push(b'}');
        }
        name
    }
}

/// Returns true if in a cluster the side keys of this key have its slot.
#[must_use]
pub fn can_share_slot(key: &[u8]) -> bool {
    !has_brace(key) || hash_tag(key).is_some()
}

/// Returns the hash tag of a key: what is between its first brace and the next closing one, if that is anything.
#[must_use]
pub fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let start = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[start..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[start..start + length])
}

fn has_brace(key: &[u8]) -> bool {
    key.iter().any(|byte| matches!(byte, b'{' | b'}'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_keys_have_the_tag_of_their_key_or_the_key_as_one() {
        for (key, name, shares) in [
            ("foo", "foo:setnx-lock:fence:{foo}", true),
            ("{foo}:1", "{foo}:1:setnx-lock:fence", true),
            ("b{c}}", "b{c}}:setnx-lock:fence", true),
            ("job{7", "job{7:setnx-lock:fence", false),
            ("a}", "a}:setnx-lock:fence", false),
            ("{}{a}", "{}{a}:setnx-lock:fence", false),
        ] {
            assert_eq!(SideKey::Fence.of(key.as_bytes()), name.as_bytes());
            assert_eq!(can_share_slot(key.as_bytes()), shares, "{key}");
            let tag = hash_tag(name.as_bytes()).unwrap_or(name.as_bytes());
            let own = hash_tag(key.as_bytes()).unwrap_or(key.as_bytes());
            assert_eq!(tag == own, shares, "{key}: its slot is that of its key");
        }
    }
}

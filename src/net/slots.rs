//! The slot of a key, and names of other keys in the same slot.

use crate::values::key::Key;

/// How many slots a cluster has.
pub(in crate::net) const SLOTS: u16 = 16384;

/// Returns the slot of a key: that of its tag if it has one.
#[must_use]
pub fn slot_of(key: &Key) -> u16 {
    crc16(tag(key.as_bytes()).unwrap_or(key.as_bytes())) % SLOTS
}

/// Returns what the names of a key's side keys end with, so that they have its slot: `:{KEY}`, or nothing if the key has a tag. They begin with the
/// key, and so with its prefix. A key with a brace and no tag is left as it is: no such name has the same slot.
#[must_use]
pub fn side_tag(key: &Key) -> Vec<u8> {
    let bytes = key.as_bytes();
    if bytes.iter().any(|byte| matches!(byte, b'{' | b'}')) {
        return Vec::new();
    }
    [b":{", bytes, b"}"].concat()
}

/// Returns what is between the first brace and the next closing one, if that is anything.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let start = key.iter().position(|byte| *byte == b'{')? + 1;
    let length = key[start..].iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &key[start..start + length])
}

/// XMODEM, as the specification of Redis Cluster has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc: u16, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in [("foo", 12182), ("{foo}:bar", 12182), ("a{foo}{bar}", 12182), ("", 0)] {
            assert_eq!(slot_of(&Key::from(key)), slot, "{key}");
        }
        assert_ne!(slot_of(&Key::from("{}foo")), slot_of(&Key::from("foo")), "an empty tag is none");
    }

    #[test]
    fn side_keys_have_the_slot_of_their_key() {
        for (key, tag) in [("foo", ":{foo}"), ("{foo}:1", ""), ("a{", ""), ("a}", ""), ("{}a", "")] {
            let key = Key::from(key);
            assert_eq!(side_tag(&key), tag.as_bytes(), "{key}");
        }
        for key in ["foo", "app1:foo", "{foo}:1"].map(Key::from) {
            let tag = String::from_utf8(side_tag(&key)).unwrap();
            assert_eq!(slot_of(&Key::from(format!("{key}:setnx-lock:fence{tag}"))), slot_of(&key), "{key}");
        }
    }
}

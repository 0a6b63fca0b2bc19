//! The slot of a key in a cluster.

use super::key::Key;
use super::side_key::hash_tag;

/// How many slots a cluster has.
pub const SLOTS: u16 = 16384;

/// Returns the slot of a key: that of its tag if it has one.
pub fn slot_of(key: &Key) -> u16 {
    crc16(hash_tag(key.as_bytes()).unwrap_or(key.as_bytes())) % SLOTS
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
}

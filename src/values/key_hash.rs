//! Hashes of keys for the maps of a process: quick, and different in each process, so that nobody can choose keys that collide.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Makes the hashes of one map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHash(u64);

impl Default for KeyHash {
    fn default() -> Self {
        Self(RandomState::new().hash_one(0))
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.0)
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        self.write_u64(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }

    /// Each bit of the product depends on the lower ones of both; the shift has the highest come down.
    fn write_u64(&mut self, word: u64) {
        let product = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    fn write_usize(&mut self, length: usize) {
        self.0 = self.0.rotate_left(7) ^ length as u64;
    }

    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::values::key::Key;

    #[test]
    fn keys_that_differ_little_are_spread_over_a_map() {
        let hash = KeyHash::default();
        for name in ["k", "orders:", "a_rather_long_name_of_a_lock_that_has_a_number:"] {
            let hashes: Vec<u64> =
                (0..4096).map(|n| hash.hash_one(Key::from(format!("{name}{n}")))).collect();
            assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 4096);
            // A map takes its place from the low bits, and compares the seven highest first.
            let low: HashSet<u64> = hashes.iter().map(|hash| hash % 4096).collect();
            let high: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            // At random it is 63 % of the places.
            assert!(low.len() > 2300 && high.len() == 128, "{name}: {} {}", low.len(), high.len());
        }
    }

    #[test]
    fn two_maps_hash_differently() {
        let key = Key::from("k");
        assert_ne!(KeyHash::default().hash_one(&key), KeyHash::default().hash_one(&key));
    }
}

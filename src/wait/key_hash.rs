//! The hash of a key in maps, quicker than the standard library's and as hard to guess.

use std::hash::{BuildHasher, Hasher};

use crate::system::random::RandomState;

/// Makes the hashes of one map, by two secret numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHash([u64; 2]);

impl Default for KeyHash {
    #[inline]
    fn default() -> Self {
        let random = RandomState::new();
        Self([0, 1].map(|number| random.hash_one(number)))
    }
}

impl BuildHasher for KeyHash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        let [state, factor] = self.0;
        KeyHasher { state, factor: factor | 1 }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHasher {
    state: u64,
    factor: u64,
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        self.write_u64(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        let folded = (product ^ product >> 64) & u128::from(u64::MAX);
        self.state = u64::try_from(folded).unwrap_or_default();
    }

    fn write_usize(&mut self, length: usize) {
        self.state = self.state.rotate_left(7) ^ length as u64;
    }

    /// Mixes each bit into all others, whatever the factor is: a map uses the low bits and the seven highest. One to
    /// one, so it adds no collision.
    fn finish(&self) -> u64 {
        let mut hash = self.state;
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ hash >> 33
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use proto::values::Key;

    #[test]
    fn keys_that_differ_little_are_spread_over_a_map() {
        // The same numbers in each run.
        let mut seed = 0_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed ^ seed >> 31
        };
        (0..100).for_each(|_| spreads(KeyHash([next(), next()])));
    }

    fn spreads(hash: KeyHash) {
        for name in ["k", "orders:", "a_rather_long_name_of_a_lock_that_has_a_number:"] {
            let hashes: Vec<u64> =
                (0..4096).map(|n| hash.hash_one(Key::from(format!("{name}{n}")))).collect();
            assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), 4096);
            // A map takes its place from the low bits, and compares the seven highest first.
            let low: HashSet<u64> = hashes.iter().map(|hash| hash % 4096).collect();
            let high: HashSet<u64> = hashes.iter().map(|hash| hash >> 57).collect();
            // At random it is 63 % of the places.
            assert!(low.len() > 2300 && high.len() == 128, "{hash:?} {name}: {} {}", low.len(), high.len());
        }
    }

    #[test]
    fn two_maps_hash_differently() {
        let key = Key::from("k");
        assert_ne!(KeyHash::default().hash_one(&key), KeyHash::default().hash_one(&key));
    }
}

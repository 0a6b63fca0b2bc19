//! Randomness of the system, and maps that use it.

pub(crate) use super::source::hash::RandomState;

/// A map whose order differs from process to process, and in a simulation from seed to seed.
pub(crate) type HashMap<K, V, S = RandomState> = std::collections::HashMap<K, V, S>;

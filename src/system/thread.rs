//! How the library's threads begin, and how they wait.

pub(crate) use super::source::thread::{Builder, park, park_timeout, scope, sleep, yield_now};

/// Enough for callbacks of the program, whatever it has set for
/// threads of its own. Memory is only used for what is needed.
const STACK: usize = 2 * 1024 * 1024;

/// Returns what starts a thread of this name.
pub(crate) fn named(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK)
}

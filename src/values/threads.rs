//! How the library's threads begin.

use std::thread::Builder;

/// Enough for callbacks of the program, whatever it has set for threads of its own. Memory is only used for what is needed.
const STACK: usize = 2 * 1024 * 1024;

/// Returns what starts a thread of this name.
pub(crate) fn named(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK)
}

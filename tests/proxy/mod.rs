//! The proxy of compat/testkit, which other tests rely on.
//!
//! | file | what it tests |
//! |---|---|
//! | `faults` | it injects faults correctly |
//! | `versions` | it emulates old versions correctly |
//!
//! Add a test when the proxy learns something.

pub(crate) mod faults;
pub(crate) mod versions;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [faults::trials(), versions::trials()].into_iter().flatten().collect()
}

//! Ruby and Rust on the same keys, by the port of the gem in compat/ruby, or by a real gem that `REDIS_OBJECTS_LIB` and
//! `REDIS_OBJECTS_VERSION` name.
//!
//! | file | what it tests |
//! |---|---|
//! | `crowds` | Ruby processes that wait for a Rust holder that crashes |
//! | `families` | each family of the gem with each protocol |
//! | `golden` | the files in compat/golden are what Ruby writes |
//! | `late_getset` | a gem whose GETSET overwrites the value of a new holder |
//! | `matrix` | which lock takes over which, of the gem's and of this library's |
//!
//! Add a test to `families` with a `RubyPeer`; it runs with each family of the gem.

pub(crate) mod crowds;
pub(crate) mod families;
pub(crate) mod golden;
pub(crate) mod late_getset;
pub(crate) mod matrix;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [crowds::trials(), golden::trials(), late_getset::trials(), matrix::trials()]
        .into_iter()
        .flatten()
        .collect()
}

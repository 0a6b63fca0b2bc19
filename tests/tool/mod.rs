//! The command-line tool, as the real program on real servers.
//!
//! | file | what it tests |
//! |---|---|
//! | `keys` | what the tool shows and clears |
//! | `manual` | man pages and shell completions |
//! | `recipes` | the recipes in `contrib/` |
//! | `run` | commands under a lock |
//!
//! Add a test with a `Scenario` of the part; it asserts exit code, output and what is left on the server.

pub(crate) mod keys;
pub(crate) mod manual;
pub(crate) mod recipes;
pub(crate) mod run;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [keys::trials(), manual::trials(), recipes::trials(), run::trials()].into_iter().flatten().collect()
}

//! `setnx-lock status`, `list`, `clear`, `fence`, `watch`, `doctor` and `key`: what they print and how they exit.
//!
//! | file | what it tests |
//! |---|---|
//! | `status`, `list`, `clear`, `fence`, `watch`, `doctor` | a command |
//! | `cluster` | all of them on a cluster |
//! | `general` | help, errors of usage, outputs that are closed, colours; `key` |
//! | `refused` | servers that refuse, and what is said of them |
//! | `passwords` | where a password comes from, and that it is never printed |
//! | `schema` | the JSON of all commands, by `docs/cli.schema.json` |
//! | `program` | runs the program |
//! | `values` | writes keys as locks and other programs do |

mod clear;
mod cluster;
mod doctor;
mod fence;
mod general;
mod list;
mod passwords;
mod program;
mod refused;
pub(crate) mod schema;
mod status;
mod values;
mod watch;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    let parts = [
        ("status", status::TESTS),
        ("list", list::TESTS),
        ("clear", clear::TESTS),
        ("cluster", cluster::TESTS),
        ("fence", fence::TESTS),
        ("watch", watch::TESTS),
        ("doctor", doctor::TESTS),
        ("general", general::TESTS),
        ("refused", refused::TESTS),
        ("passwords", passwords::TESTS),
        ("schema", schema::TESTS),
    ];
    let trials =
        parts.into_iter().map(|(part, tests)| crate::support::trials(&format!("tool_keys::{part}"), tests));
    trials.flatten().collect()
}

//! `setnx-lock status`, `list`, `clear`, `watch`, `doctor`, `key` and `bench`: what they print and how they exit.
//!
//! | file | what it tests |
//! |---|---|
//! | `status`, `list`, `clear`, `sweep`, `watch`, `doctor`, `key`, `bench` | a command; `sweep` is `clear --expired` |
//! | `general` | help, errors of usage, outputs that are closed, colours |
//! | `refused` | servers that refuse, and what is said of them |
//! | `passwords` | where a password comes from, and that it is never printed |
//! | `schema` | the JSON of all commands, by `docs/cli.schema.json` |
//! | `program` | runs the program |
//! | `values` | writes keys as locks and other programs do |

mod bench;
mod clear;
mod doctor;
mod general;
mod key;
mod list;
mod passwords;
mod program;
mod refused;
mod schema;
mod status;
mod sweep;
mod twemproxy;
mod values;
mod watch;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    let parts = [
        ("status", status::TESTS),
        ("list", list::TESTS),
        ("clear", clear::TESTS),
        ("sweep", sweep::TESTS),
        ("watch", watch::TESTS),
        ("doctor", doctor::TESTS),
        ("key", key::TESTS),
        ("bench", bench::TESTS),
        ("general", general::TESTS),
        ("refused", refused::TESTS),
        ("passwords", passwords::TESTS),
        ("schema", schema::TESTS),
        ("twemproxy", twemproxy::TESTS),
    ];
    let trials =
        parts.into_iter().map(|(part, tests)| crate::support::trials(&format!("tool_keys::{part}"), tests));
    trials.flatten().collect()
}

//! The commands that go to the server, where docs/internals.md promises them, and the connections they use.
//!
//! | file | what it tests |
//! |---|---|
//! | `commands` | the commands that a server executes |
//! | `comparing` | servers that compare and change a key in one command |
//! | `connections` | addresses, passwords, sockets, TLS, reuse |
//! | `epochs` | the epoch of a master, as fencing tokens have it |
//! | `logins` | passwords that change, those of Sentinels, and that none is shown |
//! | `pools` | pools of the user's own, too few connections |
//! | `prefixes` | lockers with a key prefix |
//! | `sentinels` | a master that Sentinels know |
//! | `refused_connections` | servers that refuse the connection, or are no Redis servers |
//!
//! Add a test when docs/internals.md gets a row. A `TestServer` records what it receives.

pub(crate) mod commands;
pub(crate) mod comparing;
pub(crate) mod connections;
pub(crate) mod epochs;
pub(crate) mod logins;
pub(crate) mod pools;
pub(crate) mod prefixes;
pub(crate) mod refused_connections;
pub(crate) mod sentinels;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [
        commands::trials(),
        comparing::trials(),
        connections::trials(),
        epochs::trials(),
        logins::trials(),
        pools::trials(),
        prefixes::trials(),
        sentinels::trials(),
        refused_connections::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

//! A stress test for locks. Processes of many threads take a few keys for short and different times, outlive their
//! leases, are killed and stopped, behind a network that delays what they send. Each thread logs when it entered and
//! left, and a checker that knows nothing of locks looks for two that overlap.
//!
//! Used by the program `stress` and by the tests, which start the server and the network. Both are started again as
//! workers: their `main` begins with [`as_worker`].

pub(crate) mod check;
mod client;
pub(crate) mod contender;
mod gem;
pub(crate) mod hold;
mod library;
pub(crate) mod moment;
pub(crate) mod network;
pub(crate) mod own_keys;
pub(crate) mod random;
mod record;
pub(crate) mod remote;
mod results;
pub(crate) mod run;
pub(crate) mod servers;
mod worker;
mod workers;

use std::error::Error;

pub(crate) use check::{Findings, check};
pub(crate) use contender::Contender;
pub(crate) use remote::Remote;
pub(crate) use run::{Harness, Run};
pub(crate) use servers::Servers;
pub(crate) use worker::as_worker;

/// The prefix of the keys on a private server.
pub(crate) const PREFIX: &str = "stress";

/// The key of a lock.
pub(crate) fn key(prefix: &str, number: u64) -> String {
    format!("{prefix}:{number}")
}

/// Why the run failed, for its last line of output.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

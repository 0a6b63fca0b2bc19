//! Where locks are put under stress: processes of many threads take a few keys for short and different times, overrun them,
//! are killed and stopped, behind a network that delays what they send. Everybody writes down when he was inside, and a
//! checker that knows nothing of locks looks for two at once.
//!
//! Used by the program `stress` and by the tests, which start the server and the network. Their programs play the workers as
//! well: `main` begins with [`as_worker`].

pub(crate) mod chance;
pub(crate) mod check;
pub(crate) mod conduct;
pub(crate) mod contender;
mod gem;
pub(crate) mod hold;
pub(crate) mod moment;
pub(crate) mod network;
mod ours;
mod record;
mod results;
#[path = "../../shared/tail.rs"]
mod tail;
mod worker;
mod workers;

use std::error::Error;

pub(crate) use check::{Findings, check};
pub(crate) use conduct::{Account, Harness};
pub(crate) use contender::Contender;
pub(crate) use worker::as_worker;

/// Why something did not work out, for the reader of the last line.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

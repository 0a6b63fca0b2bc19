//! What the library asks of the system: threads and what they wait with, the two clocks, sockets, the process,
//! randomness.
//!
//! All of it comes through here, so that a simulation can stand in for the system:
//! `tests/simulate/library/clippy.toml` lists what nothing else may use. Three things stay
//! outside, and are in no simulation: TLS, pools of the user's own, and sockets of files.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

pub(crate) mod clock;
pub(crate) mod net;
mod per_process;
pub(crate) mod random;
pub(crate) mod sync;
pub(crate) mod thread;

#[cfg(not(simulate))]
pub(crate) use setnx_lock_fork::Process;
#[cfg(simulate)]
pub(crate) use setnx_lock_world::process::Process;

#[cfg(simulate)]
use setnx_lock_world as source;
#[cfg(not(simulate))]
use std as source;

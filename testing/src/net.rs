//! The server's port: connections, faults, the log.

mod fault;
pub(crate) mod inside;
mod port;
mod proxy;
mod received;
mod resp;
mod serving;
mod session;
mod twemproxy;

pub use fault::{Fault, PauseHandle, Paused};
pub use port::free_port;
pub use proxy::Proxy;
pub use received::{Position, Received};

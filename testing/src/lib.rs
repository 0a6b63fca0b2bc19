#![doc = include_str!("../README.md")]

mod net;
#[doc = include_str!("real_servers.md")]
pub mod real_servers {}
mod server;
mod test_server;

pub use net::{Fault, PauseHandle, Paused, Position, Proxy, Received, free_port};
pub use server::{ClientId, ClusterNode, Output, Server, ServerVersion, Snapshot, WatchedMaster};
pub use test_server::{TestServer, TestServerBuilder};

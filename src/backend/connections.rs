//! Connections to one server: opening them, pooling them, sending bytes and receiving replies. Knows Redis replies; knows neither
//! locks nor which commands go together.

mod connection;
#[cfg(test)]
pub(super) mod fake;
mod handshake;
mod health;
mod lock_connection;
mod manager;
mod pool;
mod server_info;

pub use connection::Connection;
pub(super) use connection::TRUSTED_WHILE_IDLE;
pub use lock_connection::LockConnection;
pub(super) use lock_connection::{Exchange, ask, exchange};
pub(super) use manager::DEFAULT_COMMAND_TIMEOUT;
pub use manager::Manager;
pub(super) use pool::{Pool, invalidate};
pub use server_info::Role;
pub(super) use server_info::ServerInfo;

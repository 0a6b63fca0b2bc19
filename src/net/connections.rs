//! Connections to one server: opening them, pooling them, sending bytes and receiving replies. Knows Redis replies; knows neither
//! locks nor which commands go together.

mod connection;
mod dialing;
#[cfg(test)]
pub(super) mod fake;
mod handshake;
mod health;
mod in_turn;
mod lock_connection;
mod opener;
mod sentinels;
mod server_info;
mod shared;
mod socket;
mod source;
mod subscription;
mod transport;

pub(super) use connection::Connection;
pub(super) use dialing::Dialing;
pub(super) use handshake::Handshake;
pub(super) use in_turn::{Group, ask_in_turn};
pub(crate) use lock_connection::LockConnection;
pub(super) use lock_connection::{ask, exchange};
pub(super) use opener::{Address, panicked};
pub(crate) use opener::{DEFAULT_COMMAND_TIMEOUT, Opener, address_of, logging_in};
pub(crate) use sentinels::Sentinels;
pub(super) use server_info::Known;
pub(crate) use shared::SharedPool;
pub(crate) use source::{Checkout, Source};
pub(crate) use subscription::Heard;
pub(super) use subscription::NEEDS as NEEDED_TO_PUBLISH;

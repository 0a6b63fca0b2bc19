//! Connections to one server: opening them, pooling them, sending bytes and receiving replies. Knows Redis replies;
//! knows neither locks nor which commands go together.

mod addresses;
mod client;
mod connection;
mod dialing;
#[cfg(test)]
pub(super) mod fake;
mod handshake;
mod health;
mod lender;
mod opener;
mod sentinels;
mod server_info;
mod socket;
mod subscription;
mod transport;

pub(super) use client::{Address, panicked};
pub(super) use client::{address_of, logging_in};
pub(super) use connection::Connection;
pub(super) use dialing::Dialing;
pub(super) use handshake::Handshake;
pub(super) use lender::Lender;
pub(in crate::net) use opener::HANG_UPS;
pub(super) use opener::{DEFAULT_COMMAND_TIMEOUT, Opener, PROBE};
pub(super) use sentinels::Sentinels;
pub(super) use sentinels::{Group, ask_in_turn};
pub(super) use server_info::Known;
pub(super) use socket::Spin;
pub(crate) use subscription::Heard;
pub(super) use subscription::NEEDS as NEEDED_TO_PUBLISH;
#[cfg(test)]
pub(super) use transport::Transport;

//! Servers that are asked one after the other, until one answers: Sentinels, nodes of a cluster.

use std::io;
use std::sync::Arc;

use redis::Client;

use super::client::logging_in;
use super::handshake::{self, Handshake};
use super::socket::in_steps;
use crate::net::errors::{Failure, TransportError};
use crate::net::patience::Looks;
use crate::values::clock::{self, Uptime};
use crate::values::credentials::CredentialSource;

/// Servers that know the same.
#[derive(Clone, Copy)]
pub(in crate::net) struct Group<'a> {
    pub(in crate::net) clients: &'a [Client],
    /// Who logs in to them now, if that is not their clients' login.
    pub(in crate::net) credentials: Option<&'a CredentialSource>,
    /// Their name, for the error if none answers.
    pub(in crate::net) name: &'a str,
    /// What goes before the address of one, in its errors.
    pub(in crate::net) one: &'a str,
}

/// Returns what one of these has answered, beginning at this place, counted on without end. `ask` is told the place of each.
///
/// # Errors
///
/// A refusal if all refuse, and that does not pass.
pub(in crate::net) fn ask_in_turn<T>(
    Group { clients, credentials, name, one }: Group<'_>,
    first: usize,
    deadline: Uptime,
    looks: &Arc<Looks>,
    ask: impl Fn(&Client, usize, Handshake<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (mut refusal, mut passes, mut failures) = (None, false, Vec::new());
    for (left, at) in (1..=clients.len()).rev().zip(first..) {
        let at = at % clients.len();
        let client = &logging_in(&clients[at], credentials)?;
        let address = format!("{one}{}", client.get_connection_info().addr());
        // One that hangs leaves time for the others, and for what is done with the answer.
        let share = u32::try_from(left + 1).unwrap_or(u32::MAX);
        let limit = in_steps(deadline.since(clock::uptime()) / share);
        match handshake::log_in(client, &address, limit, looks).and_then(|session| ask(client, at, session)) {
            Ok(answer) => return Ok(answer),
            Err(error) => {
                failures.push(error.to_string());
                match error {
                    Failure::Refused(refused) if !refused.is_transient() => refusal = Some(refused),
                    _ => passes = true,
                }
            }
        }
    }
    Err(match refusal {
        Some(refusal) if !passes => Failure::Refused(refusal),
        _ => {
            let text = format!("none of {name} answers: {}", failures.join("; "));
            Failure::unreachable(TransportError::new(io::ErrorKind::NotConnected, &text))
        }
    })
}

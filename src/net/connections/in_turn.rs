//! Servers that are asked one after the other, until one answers: Sentinels, nodes of a cluster.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::Client;

use super::handshake::{self, Handshake};
use crate::net::errors::{ConnectError, TransportError};
use crate::net::patience::Looks;
use crate::values::clock::{self, Uptime};

/// Which of several servers is asked first, counted on without end: the one that answered last.
#[derive(Debug, Default)]
pub(in crate::net) struct InTurn(AtomicUsize);

impl InTurn {
    /// Returns what one of these has answered, and which. `all` names them, for the error if none answers.
    ///
    /// # Errors
    ///
    /// A refusal if there is one that does not pass.
    pub(in crate::net) fn ask<T>(
        &self,
        (all, clients): (&str, &[Client]),
        deadline: Uptime,
        looks: &Arc<Looks>,
        ask: impl Fn(&Client, Handshake<'_>) -> Result<T, ConnectError>,
    ) -> Result<(T, usize), ConnectError> {
        let first = self.0.load(Ordering::Relaxed);
        let (mut refusal, mut failures) = (None, Vec::new());
        for (left, at) in (1..=clients.len()).rev().zip(first..) {
            let client = &clients[at % clients.len()];
            let address = client.get_connection_info().addr().to_string();
            // One that hangs leaves time for the others, and for what is done with the answer.
            let share = u32::try_from(left + 1).unwrap_or(u32::MAX);
            let limit = deadline.since(clock::uptime()) / share;
            match handshake::log_in(client, &address, limit, looks).and_then(|session| ask(client, session)) {
                Ok(answer) => return Ok((answer, at)),
                Err(ConnectError::Refused(refused)) if !refused.may_pass() => refusal = Some(refused),
                Err(error) => failures.push(error.to_string()),
            }
            self.pass_over(at);
        }
        Err(match refusal {
            Some(refusal) => ConnectError::Refused(refusal),
            None => {
                let text = format!("none of {all} answers: {}", failures.join("; "));
                ConnectError::Failed(TransportError::new(io::ErrorKind::NotConnected, &text))
            }
        })
    }

    /// Has the one after this asked first.
    pub(super) fn pass_over(&self, at: usize) {
        let _ = self.0.compare_exchange(at, at + 1, Ordering::Relaxed, Ordering::Relaxed);
    }
}

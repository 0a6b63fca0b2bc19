//! Sentinels: they know which server is the master, and since when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use redis::{Client, ConnectionAddr, Value, cmd};

use super::handshake::Handshake;
use super::in_turn::InTurn;
use super::opener::Address;
use crate::net::errors::{ConnectError, Refusal, RefusalKind, TransportError};
use crate::net::patience::Looks;
use crate::values::clock::Uptime;

/// The Sentinels of one master.
pub(crate) struct Sentinels {
    clients: Vec<Client>,
    /// The master's, as the Sentinels know it.
    name: String,
    in_turn: InTurn,
    /// Where a master was found last.
    found: Mutex<Option<Address>>,
}

/// A server that a Sentinel calls the master.
pub(super) struct Master {
    pub(super) address: Address,
    /// For how long, if it was asked and knows.
    pub(super) since: Option<Duration>,
    /// Which Sentinel says so.
    asked: usize,
}

impl Sentinels {
    pub(crate) fn new(clients: Vec<Client>, name: String) -> Self {
        Self { clients, name, in_turn: InTurn::default(), found: Mutex::default() }
    }

    /// Asks where the master is; with `since`, also for how long it has been that.
    pub(super) fn master(
        &self,
        deadline: Uptime,
        since: bool,
        looks: &Arc<Looks>,
    ) -> Result<Master, ConnectError> {
        let all = format!("the Sentinels of \"{}\"", self.name);
        let ask = |client: &Client, session: Handshake<'_>| self.ask(client, session, since);
        let ((address, since), asked) =
            self.in_turn.ask((&all, self.clients.as_slice()), deadline, looks, ask)?;
        Ok(Master { address, since, asked })
    }

    /// Returns what one Sentinel says.
    fn ask(
        &self,
        client: &Client,
        mut session: Handshake<'_>,
        since: bool,
    ) -> Result<(Address, Option<Duration>), ConnectError> {
        let address = || client.get_connection_info().addr().to_string();
        let reply = session.send(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name));
        let reply = reply.map_err(|error| match error {
            ConnectError::Refused(refusal) if refusal.kind() == RefusalKind::UnknownCommand => {
                ConnectError::Refused(Refusal::of_no_sentinel(&address()))
            }
            error => error,
        })?;
        let found = redis::from_redis_value::<Option<Address>>(reply).map_err(|error| {
            ConnectError::Failed(TransportError::on(&address(), Duration::ZERO, &error.into()))
        })?;
        let ignorant = || ConnectError::Refused(Refusal::of_ignorant(&address(), &self.name));
        let found = found.ok_or_else(ignorant)?;
        if !since {
            return Ok((found, None));
        }
        // In a failover it calls the new master so before it counts from there.
        let told = session.send(cmd("SENTINEL").arg("MASTER").arg(&self.name))?;
        let since = since_when(told, &found);
        Ok((found, since))
    }

    /// Has another one asked first the next time.
    pub(super) fn doubt(&self, master: &Master) {
        self.in_turn.pass_over(master.asked);
    }

    /// Describes why the server is no master, or cannot be reached, and has another Sentinel asked next.
    pub(super) fn was_wrong(&self, master: &Master, error: ConnectError) -> ConnectError {
        self.doubt(master);
        match error {
            // A failover is under way, which passes.
            ConnectError::Replica { address, .. } => {
                let what = " is a replica, although a Sentinel calls it the master, as in a failover";
                ConnectError::Failed(TransportError::at(&address, io::ErrorKind::NotConnected, what))
            }
            error => error,
        }
    }

    /// Notes where the master is. Returns true if another server was, before.
    pub(super) fn was_right(&self, master: &Master) -> bool {
        let address = master.address.clone();
        let before = self.found.lock().unwrap_or_else(PoisonError::into_inner).replace(address);
        before.is_some_and(|before| before != master.address)
    }

    /// Returns where the master was found last, or its name.
    pub(super) fn address(&self) -> String {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        match &*found {
            Some((host, port)) => ConnectionAddr::Tcp(host.clone(), *port).to_string(),
            None => format!("the master \"{}\"", self.name),
        }
    }
}

/// Returns for how long the server at this address has been the master, as a Sentinel describes it.
fn since_when(told: Value, address: &Address) -> Option<Duration> {
    let told: HashMap<String, String> = redis::from_redis_value(told).ok()?;
    let is_other = (told.get("ip")?, told.get("port")?) != (&address.0, &address.1.to_string());
    if is_other {
        return Some(Duration::ZERO);
    }
    // Counted from the switch to this address, or from the Sentinel's own start.
    Some(Duration::from_millis(told.get("role-reported-time")?.parse().ok()?))
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.clients.iter().map(|client| client.get_connection_info().addr().to_string());
        f.debug_struct("Sentinels")
            .field("name", &self.name)
            .field("addresses", &addresses.collect::<Vec<_>>())
            .field("found", &self.address())
            .finish_non_exhaustive()
    }
}

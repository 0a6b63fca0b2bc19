//! Sentinels: they know which server is the master, and since when.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use redis::{Client, ConnectionAddr, RedisError, cmd};

use super::handshake::Handshake;
use super::in_turn::ask_in_turn;
use super::opener::Address;
use crate::net::errors::{ConnectError, Refusal, RefusalKind, TransportError};
use crate::net::patience::Looks;
use crate::values::clock::Uptime;

/// The Sentinels of one master.
pub(crate) struct Sentinels {
    clients: Vec<Client>,
    /// The master's, as the Sentinels know it.
    name: String,
    /// Which is asked first, counted on without end: the one that was right last.
    first: AtomicUsize,
    /// The highest epoch of the configuration that one has told: those with a lower one have not heard of a failover.
    epoch: AtomicU64,
    /// Where a master was found last.
    found: Mutex<Option<Address>>,
}

/// A server that a Sentinel calls the master.
pub(super) struct Master {
    pub(super) address: Address,
    /// For how long, if it knows.
    pub(super) since: Option<Duration>,
    /// Which Sentinel says so.
    asked: usize,
}

impl Sentinels {
    pub(crate) fn new(clients: Vec<Client>, name: String) -> Self {
        Self {
            clients,
            name,
            first: AtomicUsize::default(),
            epoch: AtomicU64::default(),
            found: Mutex::default(),
        }
    }

    /// Asks where the master is, and for how long it has been there.
    pub(super) fn master(&self, deadline: Uptime, looks: &Arc<Looks>) -> Result<Master, ConnectError> {
        let all = format!("the Sentinels of \"{}\"", self.name);
        let first = self.first.load(Ordering::Relaxed);
        let outdated = Cell::new(0);
        let ask = |client: &Client, session: Handshake<'_>| self.ask(client, session, &outdated);
        let asked = ask_in_turn((&all, self.clients.as_slice()), first, deadline, looks, ask);
        if outdated.get() == self.clients.len() {
            // All have been told of the master anew, and count from the beginning.
            self.epoch.store(0, Ordering::Relaxed);
        }
        let ((address, since), asked) = asked?;
        self.first.store(asked, Ordering::Relaxed);
        Ok(Master { address, since, asked })
    }

    /// Returns what one Sentinel says.
    fn ask(
        &self,
        client: &Client,
        mut session: Handshake<'_>,
        outdated: &Cell<usize>,
    ) -> Result<(Address, Option<Duration>), ConnectError> {
        let address = || client.get_connection_info().addr().to_string();
        let failed =
            |error: &RedisError| ConnectError::Failed(TransportError::on(&address(), Duration::ZERO, error));
        let reply = session.send(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name));
        let reply = reply.map_err(|error| match error {
            ConnectError::Refused(refusal) if refusal.kind() == RefusalKind::UnknownCommand => {
                ConnectError::Refused(Refusal::of_no_sentinel(&address()))
            }
            error => error,
        })?;
        let found = redis::from_redis_value::<Option<Address>>(reply);
        let ignorant = || ConnectError::Refused(Refusal::of_ignorant(&address(), &self.name));
        let found = found.map_err(|error| failed(&error.into()))?.ok_or_else(ignorant)?;
        // In a failover it calls the new master so before it counts from there.
        let told = match session.send(cmd("SENTINEL").arg("MASTER").arg(&self.name)) {
            // Before 2.8 it tells less.
            Err(ConnectError::Refused(_)) => return Ok((found, None)),
            told => redis::from_redis_value::<HashMap<String, String>>(told?),
        };
        let told = told.map_err(|error| failed(&error.into()))?;
        let epoch = told.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(u64::MAX);
        if epoch < self.epoch.fetch_max(if epoch == u64::MAX { 0 } else { epoch }, Ordering::Relaxed) {
            outdated.set(outdated.get() + 1);
            let what = " has not heard of the last failover yet";
            return Err(ConnectError::Failed(TransportError::at(
                &address(),
                io::ErrorKind::NotConnected,
                what,
            )));
        }
        let since = since_when(&told, &found);
        Ok((found, since))
    }

    /// Describes why the server is no master, or cannot be reached, and has another Sentinel asked next.
    pub(super) fn was_wrong(&self, master: &Master, error: ConnectError) -> ConnectError {
        self.first.store(master.asked + 1, Ordering::Relaxed);
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
fn since_when(told: &HashMap<String, String>, address: &Address) -> Option<Duration> {
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

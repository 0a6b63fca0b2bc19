//! Sentinels: they know which server is the master, and since when.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use redis::{Client, ConnectionAddr, RedisError, Value, cmd};

use super::handshake;
use crate::net::errors::{ConnectError, Refusal, RefusalKind, TransportError};
use crate::net::patience::Looks;
use crate::values::clock::{self, Uptime};

/// The Sentinels of one master.
pub(crate) struct Sentinels {
    clients: Vec<Client>,
    /// The master's, as the Sentinels know it.
    name: String,
    /// Which is asked first, counted on without end: the one that was right last.
    first: AtomicUsize,
    /// Where a master was found last.
    found: Mutex<Option<Address>>,
}

type Address = (String, u16);

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
        Self { clients, name, first: AtomicUsize::default(), found: Mutex::default() }
    }

    /// Asks one after the other until one knows the master; with `since`, also for how long it has been that.
    pub(super) fn master(
        &self,
        deadline: Uptime,
        since: bool,
        looks: &Arc<Looks>,
    ) -> Result<Master, ConnectError> {
        let first = self.first.load(Ordering::Relaxed);
        let (mut ignorant, mut refusal, mut failures) = (Vec::new(), None, Vec::new());
        for (left, at) in (1..=self.clients.len()).rev().zip(first..) {
            let client = &self.clients[at % self.clients.len()];
            let share = u32::try_from(left + 1).unwrap_or(u32::MAX);
            // One that hangs leaves time for the others, and for the master.
            let limit = deadline.since(clock::uptime()) / share;
            match self.ask(client, limit, since, looks) {
                Ok(Some((address, since))) => return Ok(Master { address, since, asked: at }),
                Ok(None) => ignorant.push(client.get_connection_info().addr().to_string()),
                Err(ConnectError::Refused(refused)) if !refused.may_pass() => refusal = Some(refused),
                Err(error) => failures.push(error),
            }
            self.pass_over(at);
        }
        if !ignorant.is_empty() {
            return Err(ConnectError::Refused(Refusal::of_ignorant(&ignorant.join(", "), &self.name)));
        }
        match (failures.as_slice(), refusal) {
            ([], Some(refusal)) => Err(ConnectError::Refused(refusal)),
            (failures, refusal) => {
                let all = failures.iter().map(ToString::to_string).chain(refusal.map(|r| r.to_string()));
                let all = all.collect::<Vec<_>>().join("; ");
                let text = format!("no Sentinel knows where the master \"{}\" is: {all}", self.name);
                Err(ConnectError::Failed(TransportError::new(io::ErrorKind::NotConnected, &text)))
            }
        }
    }

    /// Returns what one Sentinel says; `None` if it knows no such master.
    fn ask(
        &self,
        client: &Client,
        limit: Duration,
        since: bool,
        looks: &Arc<Looks>,
    ) -> Result<Option<(Address, Option<Duration>)>, ConnectError> {
        let address = client.get_connection_info().addr().to_string();
        let mut session = handshake::log_in(client, &address, limit, looks)?;
        let unreadable =
            |error: RedisError| ConnectError::Failed(TransportError::on(&address, limit, &error));
        let reply = session.send(cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name));
        let reply = reply.map_err(|error| match error {
            ConnectError::Refused(refusal) if refusal.kind() == RefusalKind::UnknownCommand => {
                ConnectError::Refused(Refusal::of_no_sentinel(&address))
            }
            error => error,
        })?;
        let found: Option<Address> =
            redis::from_redis_value(reply).map_err(|error| unreadable(error.into()))?;
        let Some(found) = found else { return Ok(None) };
        if !since {
            return Ok(Some((found, None)));
        }
        // In a failover it calls the new master so before it counts from there.
        let told = session.send(cmd("SENTINEL").arg("MASTER").arg(&self.name))?;
        let since = since_when(told, &found);
        Ok(Some((found, since)))
    }

    /// Has another one asked first, since this one does not answer, or is wrong.
    fn pass_over(&self, asked: usize) {
        let _ = self.first.compare_exchange(asked, asked + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Has another one asked first the next time.
    pub(super) fn doubt(&self, master: &Master) {
        self.pass_over(master.asked);
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

//! A cluster: which node has which key, for what a lock does not do.

use setnx_lock::redis::{Client, ConnectionAddr, Value, cmd};
use setnx_lock::{Key, Refusal, RefusalKind};
use setnx_lock_proto::values::slot_of;

use crate::arguments::Condition;
use crate::failure::Failure;
use crate::raw::Raw;

/// The masters of a cluster, with the slots that each has.
pub(crate) struct Masters {
    clients: Vec<Client>,
    /// From one slot to another, and the place of their master.
    ranges: Vec<(u16, u16, usize)>,
}

impl Masters {
    /// Asks a node, to which `client` connects.
    pub(crate) fn ask(raw: &mut Raw, client: &Client) -> Result<Self, Failure> {
        let told = match raw.carry(&cmd("CLUSTER").arg("SLOTS").get_packed_command())? {
            Value::Array(told) => told,
            Value::ServerError(error) => {
                let refusal = Refusal::from(error);
                let failure = match refusal.kind() {
                    RefusalKind::UnknownCommand | RefusalKind::Other => Failure::of(
                        Condition::Refused,
                        "the server is no node of a cluster; use redis:// in --url",
                    ),
                    _ => refusal.into(),
                };
                return Err(failure.at(client));
            }
            _ => Vec::new(),
        };
        let mut masters = Self { clients: Vec::new(), ranges: Vec::new() };
        for (first, last, host, port) in told.into_iter().filter_map(range) {
            let client = at(client, host, port)?;
            let address = |client: &Client| client.get_connection_info().addr().clone();
            let known = masters.clients.iter().position(|known| address(known) == address(&client));
            let place = known.unwrap_or_else(|| {
                masters.clients.push(client);
                masters.clients.len() - 1
            });
            masters.ranges.push((first, last, place));
        }
        if masters.clients.is_empty() {
            let text = "no node of the cluster has slots; check its state with CLUSTER INFO";
            return Err(Failure::of(Condition::Unreachable, text).at(client));
        }
        Ok(masters)
    }

    pub(crate) fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Returns the place of the master that has this key.
    pub(crate) fn of(&self, key: &Key) -> Result<usize, Failure> {
        let slot = slot_of(key);
        let range = self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        let missing = || {
            let text = format!("no node of the cluster has slot {slot}; check its state with CLUSTER INFO");
            Failure::of(Condition::Unreachable, text).about(key)
        };
        range.map(|(_, _, place)| *place).ok_or_else(missing)
    }
}

/// Reads one range: its slots, and host and port of its master. A node that does not know its own host leaves it out.
fn range(told: Value) -> Option<(u16, u16, Option<String>, u16)> {
    let Value::Array(parts) = told else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = master.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => String::from_utf8(host.clone()).ok(),
        _ => None,
    };
    Some(((*first).try_into().ok()?, (*last).try_into().ok()?, host, (*port).try_into().ok()?))
}

/// Returns a client that logs in as this one does, at another host and port.
fn at(client: &Client, host: Option<String>, port: u16) -> Result<Client, Failure> {
    let info = client.get_connection_info();
    let address = match info.addr().clone() {
        ConnectionAddr::TcpTls { host: own, insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: host.unwrap_or(own), port, insecure, tls_params }
        }
        ConnectionAddr::Tcp(own, _) => ConnectionAddr::Tcp(host.unwrap_or(own), port),
        other => other,
    };
    Ok(Client::open(info.clone().set_addr(address))?)
}

//! Which node has which slot.

use std::io;

use proto::values::SLOTS;
use redis::{Client, Value, cmd};

use crate::net::connections::{Address, Handshake, address_of};
use crate::net::errors::{Failure, Refusal, RefusalKind, TransportError};

/// Slots from one to another, and the address of the node that has them.
pub(super) type Range = (u16, u16, Address);

/// Which node has which slot.
#[derive(Clone)]
pub(super) struct SlotMap<N> {
    /// For each slot the place of its node.
    nodes_of_slots: Vec<Option<u16>>,
    nodes: Vec<(Address, N)>,
}

impl<N> Default for SlotMap<N> {
    fn default() -> Self {
        Self { nodes_of_slots: Vec::new(), nodes: Vec::new() }
    }
}

impl<N: Clone> SlotMap<N> {
    /// Returns the map of these ranges, with the node that `node` returns for each address.
    pub(super) fn of(ranges: &[Range], node: impl Fn(&Address) -> N) -> Self {
        let mut map = Self { nodes_of_slots: vec![None; SLOTS.into()], nodes: Vec::new() };
        for (first, last, address) in ranges {
            let place = map.place(address, || node(address));
            let slots = usize::from(*first)..=usize::from((*last).min(SLOTS - 1));
            if let Some(nodes_of_slots) = map.nodes_of_slots.get_mut(slots) {
                nodes_of_slots.fill(place);
            }
        }
        map
    }

    /// Makes this node the one that has the slot.
    pub(super) fn set_node_of(&mut self, slot: u16, address: &Address, node: N) {
        self.nodes_of_slots.resize(SLOTS.into(), None);
        self.nodes_of_slots[usize::from(slot)] = self.place(address, || node);
    }

    fn place(&mut self, address: &Address, node: impl FnOnce() -> N) -> Option<u16> {
        let known = self.nodes.iter().position(|(known, _)| known == address);
        let place = known.unwrap_or_else(|| {
            self.nodes.push((address.clone(), node()));
            self.nodes.len() - 1
        });
        u16::try_from(place).ok()
    }

    pub(super) fn node_of(&self, slot: u16) -> Option<N> {
        self.of_slot(slot).map(|(_, node)| node.clone())
    }

    pub(super) fn address_of(&self, slot: u16) -> Option<&Address> {
        self.of_slot(slot).map(|(address, _)| address)
    }

    fn of_slot(&self, slot: u16) -> Option<&(Address, N)> {
        let place = (*self.nodes_of_slots.get(usize::from(slot))?)?;
        self.nodes.get(usize::from(place))
    }

    /// Returns the nodes that have slots which were another's. Their epoch has been raised.
    pub(super) fn gaining_since(&self, before: &Self) -> Vec<&N> {
        let gains = |(address, _): &&(Address, N)| {
            (0..SLOTS).any(|slot| {
                let old = before.address_of(slot);
                self.address_of(slot) == Some(address) && old.is_some_and(|old| old != address)
            })
        };
        self.nodes.iter().filter(gains).map(|(_, node)| node).collect()
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = &N> {
        self.nodes.iter().map(|(_, node)| node)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &Address> {
        self.nodes.iter().map(|(address, _)| address)
    }
}

/// Asks a node which has which slot.
pub(super) fn ask(client: &Client, _: usize, mut node: Handshake<'_>) -> Result<Vec<Range>, Failure> {
    let told = node.ask(cmd("CLUSTER").arg("SLOTS"));
    let told = told.map_err(|error| match error {
        Failure::Refused(refusal)
            if matches!(refusal.kind(), RefusalKind::UnknownCommand | RefusalKind::Other)
                && !node.refuses_connection(&refusal) =>
        {
            Failure::Refused(Refusal::of_no_cluster(&client.get_connection_info().addr().to_string()))
        }
        error => error,
    })?;
    // A node that does not know its own host leaves it out.
    let own = address_of(client).map(|(host, _)| host).unwrap_or_default();
    let ranges = if let Value::Array(ranges) = told { ranges } else { Vec::new() };
    let ranges: Vec<Range> = ranges.into_iter().filter_map(|range| read(range, &own)).collect();
    if ranges.is_empty() {
        let (address, what) =
            (client.get_connection_info().addr().to_string(), " knows no node that has slots");
        return Err(Failure::unreachable(TransportError::at(&address, io::ErrorKind::NotConnected, what)));
    }
    Ok(ranges)
}

/// Reads one range: its first slot, its last one, the node that has them, and its replicas.
fn read(range: Value, own: &str) -> Option<Range> {
    let Value::Array(mut parts) = range else { return None };
    parts.truncate(3);
    let [Value::Int(first), Value::Int(last), Value::Array(node)] = parts.as_slice() else { return None };
    let (host, port) = match node.as_slice() {
        [Value::BulkString(host), Value::Int(port), ..] if !host.is_empty() && host != b"?" => {
            (String::from_utf8(host.clone()).ok()?, *port)
        }
        [_, Value::Int(port), ..] => (own.to_owned(), *port),
        _ => return None,
    };
    Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, (host, u16::try_from(port).ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn a_node_without_a_host_has_the_one_that_was_asked() {
        let address = |host: Value| read(range(5, 9, host, 6379), "own").map(|(_, _, (host, _))| host);
        assert_eq!(address(text("10.0.0.1")).as_deref(), Some("10.0.0.1"));
        for unknown in [text(""), text("?"), Value::Nil] {
            assert_eq!(address(unknown).as_deref(), Some("own"));
        }
        assert_eq!(read(range(5, 99_999, text("a"), 1), "own"), None);
        assert_eq!(read(Value::Int(1), "own"), None);
    }

    #[test]
    fn a_slot_has_the_node_of_its_range_until_it_has_moved() {
        let address = |port| ("a".to_owned(), port);
        let mut map = SlotMap::of(&[(0, 99, address(1)), (200, 16383, address(2))], |(_, port)| *port);
        let nodes_of_slots = |map: &SlotMap<u16>| [0, 99, 100, 200, 16383].map(|slot| map.node_of(slot));
        assert_eq!(nodes_of_slots(&map), [Some(1), Some(1), None, Some(2), Some(2)]);
        map.set_node_of(99, &address(2), 7);
        assert_eq!(map.node_of(99), Some(2), "the node that is known");
        map.set_node_of(100, &address(3), 3);
        assert_eq!((map.node_of(100), map.address_of(100)), (Some(3), Some(&address(3))));
        let gaining = |map: &SlotMap<u16>, before: &SlotMap<u16>| {
            map.gaining_since(before).into_iter().copied().collect::<Vec<_>>()
        };
        let before = SlotMap::of(&[(0, 99, address(1)), (200, 16383, address(2))], |(_, port)| *port);
        assert_eq!(gaining(&map, &before), [2], "slot 99; slot 100 had no node");
        assert_eq!(gaining(&before, &before), [0; 0]);
        let mut empty = SlotMap::default();
        assert_eq!(empty.node_of(0), None);
        empty.set_node_of(0, &address(1), 1);
        assert_eq!((empty.node_of(0), empty.node_of(1)), (Some(1), None));
    }
}

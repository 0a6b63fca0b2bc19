//! A node of a cluster: which slots it has, as it knows, and where it sends what it has not.

use std::collections::{BTreeMap, BTreeSet};

use super::Server;
use super::call::{Call, upper};
use super::client::ClientId;
use super::commands::{self, Spec};
use super::reply::{Answer, OK, Refusal, Reply};

/// How many slots a cluster has.
const SLOTS: u16 = 16384;

/// What a node of a cluster knows of it.
#[derive(Clone, Debug, Default)]
pub struct ClusterNode {
    /// Its own host and port.
    pub address: (String, u16),
    /// The epoch of its configuration.
    pub epoch: u64,
    /// Which nodes have which slots: the first slot, the last one, and host and port.
    pub slots: Vec<(u16, u16, (String, u16))>,
    /// Its slots that are moving to another node: a key that it has no more is there.
    pub migrating: BTreeMap<u16, (String, u16)>,
    /// Slots that are moving to it: it executes what comes behind ASKING.
    pub importing: BTreeSet<u16>,
}

impl ClusterNode {
    /// Returns the slot of a key: that of its hash tag, if it has one.
    #[must_use]
    pub fn slot_of(key: &[u8]) -> u16 {
        let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
            let rest = &key[open + 1..];
            rest.iter()
                .position(|byte| *byte == b'}')
                .filter(|length| *length > 0)
                .map(|length| &rest[..length])
        });
        // CRC16 as XMODEM has it.
        let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
            (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            })
        });
        crc % SLOTS
    }

    fn owner(&self, slot: u16) -> Option<&(String, u16)> {
        let range = self.slots.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, address)| address)
    }
}

impl Server {
    /// Makes it a node of a cluster, or tells it what has changed there; `None`: it is one no more.
    pub fn set_cluster(&mut self, node: Option<ClusterNode>) {
        self.settings.cluster = node;
    }

    /// Returns why it does not execute a command on these keys, if so.
    pub(super) fn redirection(&mut self, id: ClientId, spec: &Spec, words: &[Vec<u8>]) -> Option<Refusal> {
        let asks = std::mem::take(&mut self.client(id).asks);
        let keys: Vec<Vec<u8>> = match spec.name {
            "EXEC" => self.queued_keys(id),
            _ => spec.keys(words).into_iter().map(<[u8]>::to_vec).collect(),
        };
        let node = self.settings.cluster.as_ref()?;
        let slot = ClusterNode::slot_of(keys.first()?);
        if keys.iter().any(|key| ClusterNode::slot_of(key) != slot) {
            return Some(Refusal::new("CROSSSLOT Keys in request don't hash to the same slot"));
        }
        let there = keys.iter().filter(|key| self.databases[0].get(key).is_some()).count();
        let try_again = || Some(Refusal::new("TRYAGAIN Multiple keys request during rehashing of slot"));
        let Some(owner) = node.owner(slot) else {
            return Some(Refusal::new("CLUSTERDOWN Hash slot not served"));
        };
        if *owner != node.address {
            return match asks && node.importing.contains(&slot) {
                true if keys.len() > 1 && there < keys.len() => try_again(),
                true => None,
                false => Some(Refusal(format!("MOVED {slot} {}:{}", owner.0, owner.1))),
            };
        }
        let (host, port) = node.migrating.get(&slot)?;
        match there {
            0 => Some(Refusal(format!("ASK {slot} {host}:{port}"))),
            some if some < keys.len() => try_again(),
            _ => None,
        }
    }

    fn queued_keys(&mut self, id: ClientId) -> Vec<Vec<u8>> {
        let client = self.client(id);
        let table = commands::of(client.version);
        let queue = client.queue.iter().flat_map(|queue| &queue.commands);
        let keys = queue.filter_map(|words| Some(table.get(upper(&words[0]).as_str())?.keys(words)));
        keys.flatten().map(<[u8]>::to_vec).collect()
    }
}

/// EXEC itself is answered so.
pub(super) fn is_redirection(refusal: &Refusal) -> bool {
    let words = ["MOVED ", "ASK ", "TRYAGAIN ", "CROSSSLOT ", "CLUSTERDOWN "];
    words.iter().any(|word| refusal.0.starts_with(word))
}

pub(super) fn asking(call: &mut Call<'_>) -> Answer {
    own(call)?;
    let id = call.id;
    call.server.client(id).asks = true;
    Ok(OK)
}

pub(super) fn cluster(call: &mut Call<'_>) -> Answer {
    let node = own(call)?;
    match call.upper(1).as_str() {
        "INFO" => {
            let (epoch, size) = (node.epoch, node.slots.len());
            Ok(Reply::Verbatim(format!(
                "cluster_enabled:1\r\ncluster_state:ok\r\ncluster_slots_assigned:{SLOTS}\r\ncluster_size:{size}\r\n\
                 cluster_current_epoch:{epoch}\r\ncluster_my_epoch:{epoch}\r\n"
            )))
        }
        "KEYSLOT" => Ok(Reply::Integer(ClusterNode::slot_of(call.word(2)).into())),
        "SLOTS" => Ok(Reply::Array(
            node.slots
                .iter()
                .map(|(first, last, (host, port))| {
                    let owner = [Reply::bulk(host.as_str()), Reply::Integer((*port).into())];
                    let range = [Reply::Integer((*first).into()), Reply::Integer((*last).into())];
                    Reply::Array(range.into_iter().chain([Reply::Array(owner.to_vec())]).collect())
                })
                .collect(),
        )),
        _ => Err(super::call::syntax_error()),
    }
}

fn own(call: &Call<'_>) -> Result<ClusterNode, Refusal> {
    let node = call.server.settings.cluster.clone();
    node.ok_or_else(|| Refusal::new("ERR This instance has cluster support disabled"))
}

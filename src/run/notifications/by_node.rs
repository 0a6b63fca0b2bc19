//! The notifications of a locker: of each node of a cluster by itself, since a node knows its own listeners only.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::Notifications;
use crate::net::{Backend, NodeId};
use crate::run::held::Delivery;
use crate::values::key::Key;
use crate::values::sync::Mutex;
use crate::wait::WaitQueue;

pub(in crate::run) struct NotificationsByNode {
    /// Those of all keys, if there is one server.
    of_one: Arc<Notifications>,
    of_nodes: Mutex<HashMap<NodeId, Arc<Notifications>>>,
    /// Names the channels of this locker.
    random: u64,
}

impl NotificationsByNode {
    pub(in crate::run) fn new(
        backend: Arc<dyn Backend>,
        queue: Arc<WaitQueue<Delivery>>,
        random: u64,
    ) -> Self {
        let of_one = Arc::new(Notifications::new(backend, queue, random, NodeId::ONLY));
        Self { of_one, of_nodes: Mutex::default(), random }
    }

    /// Returns those of the node that has this key.
    pub(in crate::run) fn of(&self, key: &Key) -> Cow<'_, Arc<Notifications>> {
        let Notifications { backend, queue, .. } = &*self.of_one;
        let node = backend.node_of(key);
        if node == NodeId::ONLY {
            return Cow::Borrowed(&self.of_one);
        }
        let mut of_nodes = self.of_nodes.lock();
        let of_node = of_nodes.entry(node).or_insert_with(|| {
            Arc::new(Notifications::new(Arc::clone(backend), Arc::clone(queue), self.random, node))
        });
        Cow::Owned(Arc::clone(of_node))
    }
}

//! What a locker is opened on: one server, the master that Sentinels know, a cluster, or where a pool of the user leads.

mod problem;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use proto::values::Key;
use redis::Client;

use super::Backend;
use super::cluster::ClusterBackend;
use super::connections::{DEFAULT_COMMAND_TIMEOUT, Lender, Opener, PROBE, Sentinels, address_of, logging_in};
use super::errors::Failure;
use super::server::OneServer;
use crate::values::credentials::CredentialSource;

/// The most connections that are opened to a server unless set. A lock needs one only while a command is under way, so
/// this serves thousands of threads.
const DEFAULT_POOL_SIZE: u32 = 16;
/// How long a call retries while the server is unreachable unless set.
const DEFAULT_RETRY_FOR: Duration = Duration::from_secs(5);

/// Servers to open, with the settings of their connections.
#[derive(Clone)]
pub(crate) struct Deployment {
    topology: Topology,
    pub(crate) pool_size: Option<u32>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) command_timeout: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) max_connection_age: Option<Duration>,
    pub(crate) retry_for: Duration,
    pub(crate) checks_server: bool,
    /// How long after its restart, and after a failover, a server grants no locks.
    pub(crate) settles: Duration,
    pub(crate) settles_after_failover: Duration,
    pub(crate) credentials: Option<CredentialSource>,
    pub(crate) sentinel_credentials: Option<CredentialSource>,
    /// True if threads look for a reply before they sleep.
    pub(crate) spins: bool,
    /// With what the keys begin that may be used.
    pub(crate) key_prefix: Key,
}

/// What is one server to the user.
#[derive(Clone)]
enum Topology {
    One(Box<Client>),
    /// Sentinels, and a client that logs in to the master, in place of whose host it has the master's name.
    Sentinels(Vec<Client>, Box<Client>),
    /// Some nodes of a cluster.
    Cluster(Vec<Client>),
    /// A pool of the user's, of any manager.
    Pool(Arc<dyn Lender>),
}

impl Deployment {
    fn on(topology: Topology) -> Self {
        Self {
            topology,
            pool_size: None,
            connect_timeout: None,
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            idle_timeout: None,
            max_connection_age: None,
            retry_for: DEFAULT_RETRY_FOR,
            checks_server: true,
            settles: Duration::ZERO,
            settles_after_failover: Duration::ZERO,
            credentials: None,
            sentinel_credentials: None,
            spins: true,
            key_prefix: Key::from(""),
        }
    }

    pub(crate) fn one(client: Client) -> Self {
        Self::on(Topology::One(Box::new(client)))
    }

    /// `master` logs in to the master, and has its name in place of a host.
    pub(crate) fn sentinels(sentinels: Vec<Client>, master: Client) -> Self {
        Self::on(Topology::Sentinels(sentinels, Box::new(master)))
    }

    pub(crate) fn cluster(nodes: Vec<Client>) -> Self {
        Self::on(Topology::Cluster(nodes))
    }

    pub(crate) fn pool<M>(pool: r2d2::Pool<M>) -> Self
    where
        M: r2d2::ManageConnection<Connection = redis::Connection>,
    {
        Self::on(Topology::Pool(Arc::new(pool)))
    }

    /// Returns true if connections are borrowed from a pool of the user's.
    #[cfg(any(feature = "tls-native-tls", feature = "tls-rustls"))]
    pub(crate) fn borrows(&self) -> bool {
        matches!(self.topology, Topology::Pool(_))
    }

    /// Returns the client that logs in to the server; `None` if a pool does.
    pub(crate) fn login(&self) -> Option<&Client> {
        match &self.topology {
            Topology::One(client) | Topology::Sentinels(_, client) => Some(client),
            Topology::Cluster(nodes) => nodes.first(),
            Topology::Pool(_) => None,
        }
    }

    /// Returns the clients that connect; none if a pool does.
    #[cfg(any(feature = "tls-native-tls", feature = "tls-rustls"))]
    pub(crate) fn clients(&mut self) -> Vec<&mut Client> {
        match &mut self.topology {
            Topology::One(client) => vec![client],
            Topology::Sentinels(sentinels, master) => sentinels.iter_mut().chain([&mut **master]).collect(),
            Topology::Cluster(nodes) => nodes.iter_mut().collect(),
            Topology::Pool(_) => Vec::new(),
        }
    }

    /// Returns them as a backend. Contacts none.
    pub(crate) fn open(&self) -> Arc<dyn Backend> {
        let opener = self.opener();
        let size = match &self.topology {
            Topology::Pool(pool) => pool.size(),
            _ => self.pool_size.unwrap_or(DEFAULT_POOL_SIZE),
        };
        match &self.topology {
            Topology::Cluster(nodes) => {
                let nodes = nodes.iter().filter_map(address_of).collect();
                Arc::new(ClusterBackend::new(opener, nodes, size, self.retry_for))
            }
            _ => Arc::new(OneServer::new(opener, size, self.retry_for)),
        }
    }

    /// Returns clients of the servers to try in turn, logged in; for a cluster, of the named nodes.
    pub(crate) fn find(&self) -> Result<Vec<Client>, Failure> {
        let logged_in = |node| logging_in(node, self.credentials.as_ref()).map(Cow::into_owned);
        match &self.topology {
            Topology::Cluster(nodes) => nodes.iter().map(logged_in).collect(),
            _ => self.opener().find_server().map(|client| vec![client]),
        }
    }

    /// Returns what opens the connections, or borrows them.
    fn opener(&self) -> Opener {
        let mut opener = match &self.topology {
            Topology::One(client) => Opener::new((**client).clone(), None),
            Topology::Sentinels(clients, master) => {
                let mut sentinels = Sentinels::new(clients.clone(), name_of(master));
                sentinels.credentials.clone_from(&self.sentinel_credentials);
                Opener::new((**master).clone(), Some(sentinels))
            }
            Topology::Cluster(nodes) => match nodes.first() {
                Some(first) => Opener::new(first.clone(), None),
                None => unreachable!("a cluster without nodes is a problem"),
            },
            Topology::Pool(pool) => Opener::borrowing(Arc::clone(pool)),
        };
        opener.credentials.clone_from(&self.credentials);
        opener.connect_timeout = self.connect_timeout.unwrap_or(opener.connect_timeout);
        opener.command_timeout = self.command_timeout;
        opener.idle_timeout = self.idle_timeout.unwrap_or(opener.idle_timeout);
        opener.max_connection_age = self.max_connection_age;
        opener.checks_server = self.checks_server;
        opener.probe_key = Key::from([self.key_prefix.as_bytes(), PROBE.as_bytes()].concat());
        opener.settles = self.settles;
        opener.settles_after_failover = self.settles_after_failover;
        if !self.spins {
            opener.never_spin();
        }
        opener
    }
}

/// Returns the name of a master, which stands in place of the host that its client connects to.
fn name_of(master: &Client) -> String {
    address_of(master).map(|(name, _)| name).unwrap_or_default()
}

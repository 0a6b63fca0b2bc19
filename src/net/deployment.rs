//! What a locker is opened on: one server, the master that Sentinels know, a cluster, or where a pool of the user leads.

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

/// What is one server to the user.
#[derive(Clone)]
pub(crate) enum Deployment {
    One(Box<Client>),
    /// Sentinels, and a client that logs in to the master, in place of whose host it has the master's name.
    Sentinels(Vec<Client>, Box<Client>),
    /// Some nodes of a cluster.
    Cluster(Vec<Client>),
    /// A pool of the user's, of any manager.
    Pool(Arc<dyn Lender>),
}

/// How connections are opened, and how long calls wait for them.
#[derive(Clone)]
pub(crate) struct Opening {
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

impl Default for Opening {
    fn default() -> Self {
        Self {
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
}

impl Deployment {
    pub(crate) fn of_pool<M>(pool: r2d2::Pool<M>) -> Self
    where
        M: r2d2::ManageConnection<Connection = redis::Connection>,
    {
        Self::Pool(Arc::new(pool))
    }

    /// Returns the client that logs in to the server; `None` if a pool does.
    pub(crate) fn login(&self) -> Option<&Client> {
        match self {
            Self::One(client) | Self::Sentinels(_, client) => Some(client),
            Self::Cluster(nodes) => nodes.first(),
            Self::Pool(_) => None,
        }
    }

    /// Returns the clients that connect; none if a pool does.
    #[cfg(any(feature = "tls-native-tls", feature = "tls-rustls"))]
    pub(crate) fn clients(&mut self) -> Vec<&mut Client> {
        match self {
            Self::One(client) => vec![client],
            Self::Sentinels(sentinels, master) => sentinels.iter_mut().chain([&mut **master]).collect(),
            Self::Cluster(nodes) => nodes.iter_mut().collect(),
            Self::Pool(_) => Vec::new(),
        }
    }

    /// Returns why there is nothing to connect to, in words for the user.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        match self {
            Self::Cluster(nodes) if nodes.iter().all(|node| address_of(node).is_none()) => {
                Some("no node of the cluster is given; give host and port of some")
            }
            Self::Sentinels(clients, _) if clients.is_empty() => {
                Some("no Sentinel is given; give the addresses of all of them")
            }
            Self::Sentinels(_, master) if name_of(master).is_empty() => {
                Some("the master has no name; give the name in the Sentinels' configuration")
            }
            _ => None,
        }
    }

    /// Returns them as a backend. Contacts none.
    pub(crate) fn open(self, opening: &Opening) -> Arc<dyn Backend> {
        let opener = self.opener(opening);
        let size = match &self {
            Self::Pool(pool) => pool.size(),
            _ => opening.pool_size.unwrap_or(DEFAULT_POOL_SIZE),
        };
        match self {
            Self::Cluster(nodes) => {
                let nodes = nodes.iter().filter_map(address_of).collect();
                Arc::new(ClusterBackend::new(opener, nodes, size, opening.retry_for))
            }
            _ => Arc::new(OneServer::new(opener, size, opening.retry_for)),
        }
    }

    /// Returns clients of the servers to try in turn, logged in; for a cluster, of the named nodes.
    pub(crate) fn find(&self, opening: &Opening) -> Result<Vec<Client>, Failure> {
        let logged_in = |node| logging_in(node, opening.credentials.as_ref()).map(Cow::into_owned);
        match self {
            Self::Cluster(nodes) => nodes.iter().map(logged_in).collect(),
            _ => self.opener(opening).find_server().map(|client| vec![client]),
        }
    }

    /// Returns what opens the connections, or borrows them.
    fn opener(&self, opening: &Opening) -> Opener {
        let mut opener = match self {
            Self::One(client) => Opener::new((**client).clone(), None),
            Self::Sentinels(clients, master) => {
                let mut sentinels = Sentinels::new(clients.clone(), name_of(master));
                sentinels.credentials.clone_from(&opening.sentinel_credentials);
                Opener::new((**master).clone(), Some(sentinels))
            }
            Self::Cluster(nodes) => match nodes.first() {
                Some(first) => Opener::new(first.clone(), None),
                None => unreachable!("a cluster without nodes is a problem"),
            },
            Self::Pool(pool) => Opener::borrowing(Arc::clone(pool)),
        };
        opener.credentials.clone_from(&opening.credentials);
        opener.connect_timeout = opening.connect_timeout.unwrap_or(opener.connect_timeout);
        opener.command_timeout = opening.command_timeout;
        opener.idle_timeout = opening.idle_timeout.unwrap_or(opener.idle_timeout);
        opener.max_connection_age = opening.max_connection_age;
        opener.checks_server = opening.checks_server;
        opener.probe_key = Key::from([opening.key_prefix.as_bytes(), PROBE.as_bytes()].concat());
        opener.settles = opening.settles;
        opener.settles_after_failover = opening.settles_after_failover;
        if !opening.spins {
            opener.never_spin();
        }
        opener
    }
}

/// Returns the name of a master, which stands in place of the host that its client connects to.
fn name_of(master: &Client) -> String {
    address_of(master).map(|(name, _)| name).unwrap_or_default()
}

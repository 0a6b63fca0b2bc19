//! The contenders: this library by each of its protocols and in several set-ups, and Classic as the gem does it.

use std::fmt;
use std::str::FromStr;

use setnx_lock::Protocol;

use super::client::ThreadClient;
use super::{Failure, gem, library};

/// Threads per connection where commands are pipelined. With many
/// more, the delayed ones leave no connections to the others.
const THREADS_PER_CONNECTION: u32 = 4;

/// What takes the locks in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Library(Protocol),
    /// Watched, with release notifications between processes.
    Notified,
    /// Watched, with few connections, so that commands of several threads are pipelined together.
    Pipelined,
    Gem,
    /// Watched on three servers, two of which restart now and then.
    Quorum,
}

/// What stands between the URLs of a quorum's servers.
pub(crate) const BETWEEN_URLS: &str = "+";

impl Contender {
    pub(crate) const ALL: [(&str, Self); 7] = [
        ("watched", Self::Library(Protocol::Watched)),
        ("notified", Self::Notified),
        ("pipelined", Self::Pipelined),
        ("gem", Self::Gem),
        ("classic", Self::Library(Protocol::Classic)),
        ("ttl", Self::Library(Protocol::Ttl)),
        ("quorum", Self::Quorum),
    ];

    /// Whether it guarantees that no two leases are valid at once, with any delays and expirations.
    pub(crate) fn excludes(self) -> bool {
        match self {
            Self::Library(protocol) => protocol != Protocol::Classic,
            Self::Notified | Self::Pipelined | Self::Quorum => true,
            Self::Gem => false,
        }
    }

    /// Whether it is known to have overlaps under this stress, so that the checker must find some.
    pub(crate) fn must_overlap(self) -> bool {
        self == Self::Gem
    }

    /// Opens what the threads of a worker share.
    pub(crate) fn client(self, url: &str, threads: u32) -> Result<ProcessClient, Failure> {
        let watched = |connections| library::Library::open(url, Protocol::Watched, connections);
        Ok(match self {
            Self::Library(protocol) => {
                ProcessClient::Library(library::Library::open(url, protocol, threads)?)
            }
            Self::Notified => ProcessClient::Library(watched(threads)?.with_notifications()),
            Self::Pipelined => ProcessClient::Library(watched(threads.div_ceil(THREADS_PER_CONNECTION))?),
            Self::Gem => ProcessClient::Gem(url.to_owned()),
            Self::Quorum => ProcessClient::Quorum(library::OnQuorum::open(url.split(BETWEEN_URLS))?),
        })
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::ALL.iter().find(|(_, contender)| contender == self).map_or("", |(name, _)| name))
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(|(name, _)| name).join(", ");
        let contender = Self::ALL.iter().find(|(name, _)| *name == text);
        contender.map(|(_, contender)| *contender).ok_or(format!("the contenders are {names}"))
    }
}

/// What the threads of a worker share.
#[derive(Debug)]
pub(crate) enum ProcessClient {
    Library(library::Library),
    /// Each thread of a gem connects for itself, to this URL.
    Gem(String),
    Quorum(library::OnQuorum),
}

impl ProcessClient {
    /// Returns what one thread takes locks with.
    pub(crate) fn for_thread(&self) -> Result<Box<dyn ThreadClient + '_>, Failure> {
        Ok(match self {
            Self::Library(library) => Box::new(library),
            Self::Quorum(quorum) => Box::new(quorum),
            Self::Gem(url) => Box::new(gem::Gem::connect(url)?),
        })
    }
}

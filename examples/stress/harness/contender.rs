//! Who can play: this library by each of its protocols, and Classic as the gem does it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use setnx_lock::Protocol;

use super::hold::Outcome;
use super::{Failure, gem, ours};

/// Where threads share trips: with many more, those that are delayed would leave no connections to the others.
const THREADS_OF_A_CONNECTION: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contender {
    Ours(Protocol),
    /// Watched, with locks that pass from thread to thread, and wake-ups between the processes.
    Passing,
    /// Watched, with few connections, so that threads share trips to the server.
    Sharing,
    /// Watched, with each command going alone.
    Apart,
    Gem,
}

impl Contender {
    pub(crate) const ALL: [(&str, Self); 7] = [
        ("watched", Self::Ours(Protocol::Watched)),
        ("passing", Self::Passing),
        ("sharing", Self::Sharing),
        ("apart", Self::Apart),
        ("gem", Self::Gem),
        ("classic", Self::Ours(Protocol::Classic)),
        ("ttl", Self::Ours(Protocol::Ttl)),
    ];

    /// Whether it promises that no two leases are ever valid at once, whatever the delays and the expirations.
    pub(crate) fn excludes(self) -> bool {
        match self {
            Self::Ours(protocol) => protocol != Protocol::Classic,
            Self::Passing | Self::Sharing | Self::Apart => true,
            Self::Gem => false,
        }
    }

    /// Whether it is known to go wrong under this stress.
    pub(crate) fn goes_wrong(self) -> bool {
        self == Self::Gem
    }

    /// Makes what the threads of a worker take locks by.
    pub(crate) fn table(self, url: &str, threads: u32) -> Result<Table, Failure> {
        let watched = |connections| ours::Ours::open(url, Protocol::Watched, connections);
        Ok(match self {
            Self::Ours(protocol) => Table::Ours(ours::Ours::open(url, protocol, threads)?),
            Self::Passing => Table::Ours(watched(threads)?.passing()),
            Self::Sharing => Table::Ours(watched(threads.div_ceil(THREADS_OF_A_CONNECTION))?),
            Self::Apart => Table::Ours(watched(threads)?.apart()),
            Self::Gem => Table::Gem(url.to_owned()),
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
        contender.map(|(_, contender)| *contender).ok_or(format!("say one of {names}"))
    }
}

/// What the threads of a worker share.
#[derive(Debug)]
pub(crate) enum Table {
    Ours(ours::Ours),
    Gem(String),
}

impl Table {
    /// Makes what one thread takes locks by.
    pub(crate) fn hand(&self) -> Result<Box<dyn Hand + '_>, Failure> {
        Ok(match self {
            Self::Ours(ours) => Box::new(ours),
            Self::Gem(url) => Box::new(gem::Gem::connect(url)?),
        })
    }
}

/// What one thread takes locks by.
pub(crate) trait Hand {
    /// Tries to get a lock with this expiration for so long; `None` if others had it.
    fn take(
        &mut self,
        key: &str,
        expiration: Duration,
        patience: Duration,
    ) -> Result<Option<Box<dyn Held + '_>>, Failure>;

    /// Returns what there is to explain about what went before, in words.
    fn remarks(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// A lock that is held.
pub(crate) trait Held {
    /// How long the holder may still believe in it.
    fn remaining(&self) -> Duration;

    /// Whether it was taken over from a holder whose time had passed.
    fn took_over(&self) -> bool;

    fn release(self: Box<Self>) -> (Outcome, Option<String>);
}

//! By which commands a lock is taken over and released.

use crate::values::version::Version;

/// By which commands a lock is taken over and released. All write the same values and honour each other's, and the
/// gem's, on one key; [`documentation::algorithm`](crate::documentation::algorithm) has the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// [`Watched`](Self::Watched) where the server reported version 2.2 or later when the connection was opened, else
    /// [`Classic`](Self::Classic): on older servers, and where the version is unknown, as on connections of
    /// [`Locker::with_pool`](crate::Locker::with_pool) and without the server check. Decided once for each call. Where the server then
    /// refuses WATCH or MULTI, since this user may not send it, a takeover or a release goes on by the rules of Classic.
    ///
    /// If Ruby programs with redis-objects 1.4.3 or later use the same keys, use [`Ttl`](Self::Ttl): after a crash of a Watched or
    /// Classic holder two such programs may have the lock at the same time, after a crash of a Ttl holder they do not.
    Auto,
    /// SETNX, GET, GETSET and DEL, as the gem from 0.2.3 to 1.4.1. For every server from Redis 1.2 on. The default, since it sends
    /// what the gem sends.
    ///
    /// It rests on clocks: all clients of a key should use the same expiration, and a release that is late on its way deletes the
    /// next holder's key.
    #[default]
    Classic,
    /// The same, but takes over and releases by WATCH, GET, MULTI and EXEC: a contender that loses a takeover never overwrites the
    /// winner's value, and a release compares the value before it deletes the key, and can prove that no other holder had the lock
    /// meanwhile. For servers from Redis 2.2 on. If Ruby programs with redis-objects 1.4.3 or later use the same keys, use
    /// [`Ttl`](Self::Ttl), for the reason given at [`Auto`](Self::Auto).
    Watched,
    /// As [`Watched`](Self::Watched), and the key has a time to live, half a second longer than the expiration, so that the server
    /// itself frees the lock of a crashed holder. Contenders leave that to the server, so the clocks of clients that all use Ttl may differ. For servers from Redis 2.6.12 on, and keys that Ruby programs with redis-objects from
    /// 1.4.2 on use as well. Needs an expiration.
    Ttl,
}

impl Protocol {
    pub(crate) const ALL: [Protocol; 3] = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];

    /// Returns the first version of Redis that has all of its commands.
    #[must_use]
    pub const fn min_version(self) -> Version {
        match self {
            // 1.1.94 is the first version it was measured on, shortly before 1.2.
            Protocol::Auto | Protocol::Classic => Version::new(1, 1, 94),
            Protocol::Watched => Version::new(2, 2, 0),
            Protocol::Ttl => Version::new(2, 6, 12),
        }
    }

    /// Returns the name in lower case, as the command-line tool takes it: `classic`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Auto => "auto",
            Protocol::Classic => "classic",
            Protocol::Watched => "watched",
            Protocol::Ttl => "ttl",
        }
    }

    /// Returns the protocol to use on a server of this version; unknown is `None`.
    pub(crate) fn on(self, server: Option<Version>) -> Self {
        match self {
            Protocol::Auto if server.is_some_and(|version| version >= Protocol::Watched.min_version()) => {
                Protocol::Watched
            }
            Protocol::Auto => Protocol::Classic,
            other => other,
        }
    }

    /// Returns what to do on a server that is older.
    pub(crate) fn instead(self) -> &'static str {
        match self {
            Protocol::Auto | Protocol::Classic => "use a newer server",
            Protocol::Watched => "use the protocol Auto or Classic",
            Protocol::Ttl => "use the protocol Auto",
        }
    }
}

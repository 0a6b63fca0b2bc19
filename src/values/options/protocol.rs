//! By which commands a lock is taken over and released.

use crate::values::version::Version;

/// By which commands a lock is taken over and released. All write times as values and honour each other's, and the
/// gem's, on one key; [the guide](crate::documentation::guide#protocols) says which to select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// The best protocol that the server's version has: [`Ttl`](Self::Ttl) from 2.6.12 on, [`Watched`](Self::Watched) from 2.2 on, else
    /// [`Classic`](Self::Classic). A lock without an expiration is never in Ttl. If the version is unknown, it is Classic: with
    /// [`Locker::with_pool`](crate::Locker::with_pool), without the server check, and where INFO is refused.
    ///
    /// It is decided once for each call, before its first command, so the first call of a locker opens a connection first. If the server refuses a
    /// command to this user, Auto uses another: SETNX for SET; the takeover of Watched without PTTL; the rules of Classic without WATCH or MULTI.
    ///
    /// It also wakes waiters of other processes; [`notify_waiters(false)`](crate::LockOptions::notify_waiters) turns that off.
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
    /// meanwhile. For servers from Redis 2.2 on. Not beside redis-objects 1.4.2 or
    /// later, of which two programs may have the lock after a crash of its holder: use [`Auto`](Self::Auto) or [`Ttl`](Self::Ttl).
    Watched,
    /// As [`Watched`](Self::Watched), and the key has a time to live, half a second longer than the expiration, so that the server
    /// itself frees the lock of a crashed holder. Contenders leave that to the server, so the clocks of clients that all use Ttl may differ.
    /// The time in the value is ten seconds after the lease, so that Ruby programs with redis-objects 1.4.2 or later, which take over by their
    /// clocks, find the key gone before. For servers from Redis 2.6.12 on. Needs an expiration.
    Ttl,
}

impl Protocol {
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

    /// Returns the protocol to use on a server of this version, unknown if `None`, for a lock that `expires` or not.
    pub(crate) fn on(self, server: Option<Version>, expires: bool) -> Self {
        let has = |protocol: Protocol| server.is_some_and(|version| version >= protocol.min_version());
        match self {
            Protocol::Auto if expires && has(Protocol::Ttl) => Protocol::Ttl,
            Protocol::Auto if has(Protocol::Watched) => Protocol::Watched,
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

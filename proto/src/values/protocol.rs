//! The commands that take over and release a lock.

use crate::values::Version;

/// The Redis commands that acquire and release a lock.
///
/// Programs with different protocols exclude each other on a key, within
/// [limits](https://docs.rs/setnx-lock/latest/setnx_lock/documentation/limits/index.html#mixed-protocols).
/// [The guide](https://docs.rs/setnx-lock/latest/setnx_lock/documentation/guide/index.html#protocols)
/// says which protocol to select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// The best protocol that the server supports, with notifications unless they are turned off.
    ///
    /// Selects [`Ttl`](Self::Ttl) on Redis 2.6.12 and newer, [`Watched`](Self::Watched) on 2.2 and newer, and
    /// otherwise [`Classic`](Self::Classic). For a lock without an expiration it selects Watched instead of Ttl.
    ///
    /// If the server's version is unknown, it selects Classic: with `Locker::with_pool`, with `skip_server_check`, or
    /// if the server refuses `INFO`. If the server lacks `PTTL`, `WATCH`, `MULTI`, `EXEC` or `DISCARD`, or refuses one
    /// to this user, it selects a weaker protocol. A locker tries these commands before the first lock that needs them.
    ///
    /// The protocol is selected for each call; `LockGuard::protocol` returns it. If the
    /// server comes back as an older version, for example after a restart or a failover, the call switches to the best
    /// protocol of that version. Locks acquired before are extended and released there within their leases.
    Auto,
    /// `SETNX`, `GET`, `GETSET` and `DEL`, for Redis 1.2 and newer. The default, because these are the commands of
    /// redis-objects 0.2.3 to 1.4.1.
    ///
    /// It relies on clocks, which must agree within a second, and all clients of a key should use the same
    /// expiration. A release that arrives late deletes the next holder's key. **Do not use it alongside
    /// redis-objects 1.4.2 or later**, for the reason given at [`Watched`](Self::Watched).
    #[default]
    Classic,
    /// Transactions with `WATCH`, `GET`, `MULTI` and `EXEC`, for Redis 2.2 and newer.
    ///
    /// A release deletes only this holder's value, or the value that a losing Ruby client has just written over it. It
    /// can prove that no other client had the lock meanwhile. A contender that loses a takeover never overwrites the
    /// winner's value. Clocks must agree within a second.
    ///
    /// **Do not use it alongside redis-objects 1.4.2 or later**: after a holder has crashed, two Ruby programs may
    /// acquire its lock. Use [`Auto`](Self::Auto) or [`Ttl`](Self::Ttl).
    Watched,
    /// Like [`Watched`](Self::Watched), but keys have a time to live, for Redis 2.6.12 and newer. Needs an
    /// expiration.
    ///
    /// The server frees the lock of a crashed holder half a second after the lease ends. Contenders wait for that,
    /// so the clocks of clients that all use Ttl may differ.
    ///
    /// The value names a time ten seconds after the lease. Ruby programs with redis-objects 1.4.2 or later take
    /// over by their own clocks, and find the key gone before that time.
    Ttl,
}

impl Protocol {
    /// Returns the oldest version of Redis that has all commands
    /// of the protocol. For Auto it is the same as for Classic.
    #[must_use]
    pub const fn min_version(self) -> Version {
        match self {
            // 1.1.94 is the first version it was measured on, shortly before 1.2.
            Protocol::Auto | Protocol::Classic => Version::new(1, 1, 94),
            Protocol::Watched => Version::new(2, 2, 0),
            Protocol::Ttl => Version::new(2, 6, 12),
        }
    }

    /// Returns the name in lower case, as the command-line tool takes it, for example `classic`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Auto => "auto",
            Protocol::Classic => "classic",
            Protocol::Watched => "watched",
            Protocol::Ttl => "ttl",
        }
    }

    /// Returns the protocol used on a server of this version: what Auto selects for a lock with an expiration; any
    /// other is returned unchanged. Pass `None` if the version is unknown.
    #[must_use]
    pub fn on(self, server: Option<Version>) -> Self {
        let has = |protocol: Protocol| server.is_some_and(|version| version >= protocol.min_version());
        match self {
            Protocol::Auto if has(Protocol::Ttl) => Protocol::Ttl,
            Protocol::Auto if has(Protocol::Watched) => Protocol::Watched,
            Protocol::Auto => Protocol::Classic,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_watched_from_2_2_on() {
        let auto = |major, minor, patch| Protocol::Auto.on(Some(Version::new(major, minor, patch)));
        assert_eq!(auto(2, 6, 12), Protocol::Ttl);
        assert_eq!(auto(2, 6, 11), Protocol::Watched);
        assert_eq!(auto(2, 2, 0), Protocol::Watched);
        assert_eq!(auto(2, 1, 9), Protocol::Classic);
        assert_eq!(Protocol::Auto.on(None), Protocol::Classic);
        assert_eq!(Protocol::Ttl.on(None), Protocol::Ttl);
    }
}

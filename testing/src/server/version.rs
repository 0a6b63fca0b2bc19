//! The versions that a server can have.

/// A version of Redis or Valkey that [`TestServer`](crate::TestServer) can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ServerVersion {
    /// Redis 1.2.6: no transactions, no channels.
    V1_2,
    /// Redis 2.0.5: MULTI, PUBLISH; no WATCH.
    V2_0,
    /// Redis 2.2.15: WATCH.
    V2_2,
    /// Redis 2.4.18.
    V2_4,
    /// Redis 2.6.17: `SET … NX PX`, TIME.
    V2_6,
    /// Redis 7.0.15, the default.
    V7,
    /// Redis 8.4.0: DELEX, `SET … IFEQ`.
    V8_4,
    /// Valkey 9.0.0: DELIFEQ, `SET … IFEQ`.
    Valkey9,
}

use ServerVersion::{V1_2, V2_0, V2_2, V2_4, V2_6, V7, V8_4, Valkey9};

impl ServerVersion {
    /// All versions, the oldest first.
    pub const ALL: [Self; 8] = [V1_2, V2_0, V2_2, V2_4, V2_6, V7, V8_4, Valkey9];

    /// The versions before 2.8.
    pub const OLD: [Self; 5] = [V1_2, V2_0, V2_2, V2_4, V2_6];

    /// The number that INFO reports as `redis_version`.
    #[must_use]
    pub fn number(self) -> &'static str {
        match self {
            V1_2 => "1.2.6",
            V2_0 => "2.0.5",
            V2_2 => "2.2.15",
            V2_4 => "2.4.18",
            V2_6 => "2.6.17",
            V7 => "7.0.15",
            V8_4 => "8.4.0",
            Valkey9 => "7.2.4",
        }
    }

    /// The name that [`TestServerBuilder::version`](crate::TestServerBuilder::version) takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            V1_2 => "1.2",
            V2_0 => "2.0",
            V2_2 => "2.2",
            V2_4 => "2.4",
            V2_6 => "2.6",
            V7 => "7",
            V8_4 => "8.4",
            Valkey9 => "valkey-9",
        }
    }

    /// Returns the version with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.name() == name)
    }

    /// Returns true if what appeared in that version of Redis is there.
    pub(crate) fn has(self, since: &str) -> bool {
        let parts =
            |number: &str| -> Vec<u32> { number.split('.').map(|part| part.parse().unwrap_or(0)).collect() };
        parts(self.number()) >= parts(since)
    }

    /// Returns true if this version compares a value and changes it in one command.
    pub(crate) fn compares(self) -> bool {
        self >= V8_4
    }
}

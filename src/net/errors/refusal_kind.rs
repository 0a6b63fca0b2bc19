//! What a server's refusal is about, by its words in every version from 1.2 on.

/// What a server's refusal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// The key holds a list, a hash or the like: it is used for something else.
    WrongType,
    /// The server wants a password, and none was sent.
    NoPassword,
    /// The server did not accept the password or the user.
    WrongPassword,
    /// The user may not run this command, or not on this key.
    NotPermitted,
    /// The server is over its `maxmemory`.
    OverMemory,
    /// The server is loading its data.
    Loading,
    /// The server may have lost locks, in a [restart](crate::LockerBuilder::settle_after_restart) or a
    /// [failover](crate::LockerBuilder::settle_after_failover), and grants none for now.
    Settling,
    /// The server runs a script that takes long, and answers nothing else.
    Busy,
    /// The server has as many clients as it takes.
    TooManyClients,
    /// The server is in protected mode: it has no password, and takes clients of its own machine only.
    ProtectedMode,
    /// The server is a replica: it takes no writes, or a lock there would protect nothing.
    ReadOnly,
    /// The server is a Sentinel, which has no keys.
    Sentinel,
    /// The Sentinels know no master of this name.
    NoSuchMaster,
    /// The server is no node of a cluster.
    NoCluster,
    /// The server is too old for the protocol of the options, or behind a proxy that does not forward its commands.
    TooOld,
    /// The server cannot save its data and takes no writes.
    CannotSave,
    /// The master has fewer replicas than its `min-replicas-to-write` and takes no writes, as right after a failover.
    NoReplicas,
    /// The server does not know the command.
    UnknownCommand,
    /// The database number of the address is too high for this server.
    NoSuchDatabase,
    /// The key belongs to another node of the cluster.
    OtherNode,
    /// The keys of one command or transaction have several slots of a cluster.
    CrossSlot,
    /// The cluster, the master of a replica, or the server behind a proxy is down, or a slot moves.
    NotReady,
    /// Another client wrote the key each time between WATCH and EXEC, and left its value. Nothing was changed.
    Rewritten,
    /// Anything else.
    Other,
}

/// How the server's words begin, in lower case, for each kind. Versions up to 2.4 begin nearly every refusal with
/// `ERR`. What the words contain does not count, since they quote keys and arguments.
const WORDS: &[(&str, RefusalKind)] = &[
    ("wrongtype", RefusalKind::WrongType),
    ("err operation against a key holding the wrong kind of value", RefusalKind::WrongType), // up to 2.6
    ("err key should be of string type", RefusalKind::WrongType),                            // to DELEX
    ("noauth", RefusalKind::NoPassword),
    ("err operation not permitted", RefusalKind::NoPassword), // up to 2.6
    ("wrongpass", RefusalKind::WrongPassword),
    ("err invalid password", RefusalKind::WrongPassword), // up to 5
    ("err client sent auth, but no password is set", RefusalKind::WrongPassword), // up to 5
    ("err auth <password> called without any password", RefusalKind::WrongPassword), // from 6
    ("noperm", RefusalKind::NotPermitted),
    ("oom ", RefusalKind::OverMemory),
    ("err command not allowed when used memory", RefusalKind::OverMemory), // up to 2.4
    ("loading", RefusalKind::Loading),
    ("busy redis is busy", RefusalKind::Busy), // running a script, a function or a module's command
    ("err max number of clients", RefusalKind::TooManyClients),
    ("readonly", RefusalKind::ReadOnly),
    ("misconf", RefusalKind::CannotSave),
    ("noreplicas", RefusalKind::NoReplicas),
    ("err invalid db index", RefusalKind::NoSuchDatabase),
    ("err db index is out of range", RefusalKind::NoSuchDatabase), // from 4
    ("err unknown command", RefusalKind::UnknownCommand),
    ("noproto", RefusalKind::UnknownCommand),
    ("denied", RefusalKind::ProtectedMode),
    ("moved ", RefusalKind::OtherNode),
    ("ask ", RefusalKind::OtherNode),
    ("crossslot", RefusalKind::CrossSlot),
    ("clusterdown", RefusalKind::NotReady),
    ("masterdown", RefusalKind::NotReady),
    ("tryagain", RefusalKind::NotReady),
    // What twemproxy says of a server that is away: the system's words.
    ("err connection refused", RefusalKind::NotReady),
    ("err connection timed out", RefusalKind::NotReady),
    ("err connection reset by peer", RefusalKind::NotReady),
    ("err host is down", RefusalKind::NotReady),
    ("err no route to host", RefusalKind::NotReady),
    ("err network is unreachable", RefusalKind::NotReady),
];

impl RefusalKind {
    /// Returns what the server's words are about.
    pub(super) fn of(text: &str) -> Self {
        let lower = text.to_lowercase();
        // From 6.2 on, if EXEC itself is refused.
        let lower = lower.strip_prefix("execabort transaction discarded because of: ").unwrap_or(&lower);
        let known = WORDS.iter().find(|(words, _)| lower.starts_with(words));
        known.map_or(Self::Other, |(_, kind)| *kind)
    }

    /// Returns what to do about it, in words for people.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::WrongType => {
                "the key is used for something else and was left as it is; choose another key for the lock, or remove what is there"
            }
            Self::NoPassword => {
                "the server wants a password; put it into the address, redis://:password@host"
            }
            Self::WrongPassword => "the server did not accept the password or the user; check the login",
            Self::NotPermitted => {
                "the user needs SETNX, GET, GETSET and DEL on the lock's key; with Watched or Ttl also SET, WATCH, MULTI, \
                 EXEC and DISCARD, with Ttl also PTTL; for fencing tokens INCR and EXPIRE on KEY:setnx-lock:fence:{KEY}, with Sentinel or Cluster also \
                 WATCH, GET, MULTI, INCRBY, EXEC and DISCARD; if it may use keys of one \
                 prefix only, set `key_prefix`"
            }
            Self::OverMemory => {
                "the server is over its maxmemory; free memory or raise the limit, then try again"
            }
            Self::Loading => "the server is still loading its data; try again when it has",
            Self::Settling => "try again when it has settled",
            Self::Busy => "the server runs a script that takes long; try again when it has ended",
            Self::TooManyClients => {
                "the server takes no more clients; use smaller pools, or raise its maxclients"
            }
            Self::ProtectedMode => {
                "the server is in protected mode, and takes clients of its own machine only; give it a password (`requirepass`, or a user in its \
                 ACL), or set `protected-mode no` if no stranger can reach it"
            }
            Self::ReadOnly => {
                "the server is a replica; lock on its master, since a lock on a replica protects nothing"
            }
            Self::CannotSave => {
                "the server cannot save its data and takes no writes; repair that on the server"
            }
            Self::UnknownCommand => {
                "the server does not know a command that locks need, or has it renamed; allow it there"
            }
            Self::NoSuchDatabase => {
                "the server has no database of that number; check the address, or the server's `databases`"
            }
            Self::OtherNode => {
                "the key belongs to another node of the cluster; connect to that node, or use a pool of connections that know the cluster"
            }
            Self::CrossSlot => "the keys have several slots of a cluster; give them one tag in braces",
            Self::Sentinel => "lock on the master",
            Self::NoSuchMaster => "give the name in the Sentinels' configuration",
            Self::NoCluster => "give the addresses of nodes of a cluster",
            Self::TooOld => "use a newer server, or another protocol",
            Self::NoReplicas => {
                "the master has fewer replicas than its min-replicas-to-write; try again when they have connected"
            }
            Self::NotReady => {
                "the server behind the address, its cluster or its master is down; try again when it is up"
            }
            Self::Rewritten => "find the client that writes the key, for example with EXPIRE",
            Self::Other => "the command was not carried out",
        }
    }
}

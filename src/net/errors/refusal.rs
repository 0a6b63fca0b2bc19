//! A server's refusal of a command or a connection.

use std::fmt;
use std::time::Duration;

use proto::values::{Cut, Protocol, Version};
use redis::{ErrorKind, RedisError, ServerError};

use super::RefusalKind;

/// A server's refusal: its kind, and its text. The command was not carried out.
#[derive(Clone, PartialEq, Eq)]
pub struct Refusal(Box<RefusalParts>);

/// In a box, since what comes of a command is passed around, and hardly ever is a refusal.
#[derive(Clone, PartialEq, Eq)]
struct RefusalParts {
    kind: RefusalKind,
    text: String,
    /// True if the server has said it; else the text says all.
    is_said: bool,
    /// Host and port, if the connection itself was refused.
    address: Option<String>,
    /// True if it passes, whatever its kind.
    passes: bool,
    /// The strongest protocol of a server whose version is too old for another.
    has: Option<Protocol>,
}

impl Refusal {
    /// Makes a refusal of the server's words as they stood on the wire, without the leading `-`. They may quote a key
    /// or a value of any length.
    pub(crate) fn new(text: impl AsRef<[u8]>) -> Self {
        let text = Cut(text.as_ref()).to_string();
        let (kind, mut text) = (RefusalKind::of(&text), without_arguments(&text));
        // A whole page follows of what to do about it.
        if kind == RefusalKind::ProtectedMode {
            text = text.split_once(". ").map_or(text, |(first, _)| first);
        }
        Self(Box::new(RefusalParts {
            kind,
            text: text.to_owned(),
            is_said: true,
            address: None,
            passes: false,
            has: None,
        }))
    }

    /// What is known of a server without its word.
    fn found(kind: RefusalKind, text: String) -> Self {
        Self(Box::new(RefusalParts { kind, text, is_said: false, address: None, passes: false, has: None }))
    }

    /// The server at this address is a replica of that one.
    pub(crate) fn of_replica(address: &str, of: Option<&str>) -> Self {
        let of = of.map_or(String::new(), |master| format!(" of {}", Cut(master.as_bytes())));
        let text =
            format!("{address} is a replica{of}, and a lock there protects nothing; lock on its master");
        Self::found(RefusalKind::ReadOnly, text)
    }

    /// The server at this address is a Sentinel.
    pub(crate) fn of_sentinel(address: &str) -> Self {
        let text = format!(
            "{address} is a Sentinel, which has no keys; lock on the master, whose address it returns for SENTINEL GET-MASTER-ADDR-BY-NAME"
        );
        Self::found(RefusalKind::Sentinel, text)
    }

    /// The server at this address is no Sentinel.
    pub(crate) fn of_no_sentinel(address: &str) -> Self {
        let text = format!(
            "{address} is no Sentinel: it does not know the command SENTINEL; give the addresses of Sentinels, which listen on port 26379 \
             unless configured otherwise"
        );
        Self::found(RefusalKind::UnknownCommand, text)
    }

    /// The Sentinel at this address knows no master of this name.
    pub(crate) fn of_ignorant(address: &str, name: &str) -> Self {
        let name = Cut(name.as_bytes());
        let text = format!(
            "the Sentinel {address} knows no master named \"{name}\"; give the name in its `sentinel monitor`"
        );
        Self::found(RefusalKind::NoSuchMaster, text)
    }

    /// The server at this address is in no cluster.
    pub(crate) fn of_no_cluster(address: &str) -> Self {
        let text = format!(
            "{address} is no node of a cluster: it refused CLUSTER SLOTS; open the server by `Locker::open`, or give the addresses of nodes"
        );
        Self::found(RefusalKind::NoCluster, text)
    }

    /// No node of the cluster has the slot of a key.
    pub(crate) fn of_no_node(slot: u16) -> Self {
        Self::found(
            RefusalKind::NotReady,
            format!("no node of the cluster has slot {slot}; check its state with CLUSTER INFO"),
        )
    }

    /// While a slot moves, two keys of it are on two nodes.
    pub(crate) fn of_moving(slot: u16) -> Self {
        let text = format!(
            "slot {slot} moves to another node of the cluster, and the lock's key and its fencing counter do not move together; try again when \
             the slot has moved"
        );
        Self::found(RefusalKind::NotReady, text)
    }

    /// A counter of fencing tokens could not be raised to the epoch of the server.
    pub(crate) fn of_changing_counter() -> Self {
        let text = "the fencing counter could not be raised to the epoch of the server's configuration, since one of them changes again and again, as in \
                    a failover; try again";
        Self::found(RefusalKind::NotReady, text.to_owned())
    }

    /// Nodes that answer do not agree which of them has a slot, as when it has just moved or a node has failed.
    pub(crate) fn of_disagreement(slot: u16) -> Self {
        let text = format!(
            "slot {slot} moves, or the nodes of the cluster do not agree which of them has it; try again in a moment, and look at CLUSTER NODES if that lasts"
        );
        Self::found(RefusalKind::NotReady, text)
    }

    /// The key was written each time between WATCH and EXEC, and holds the holder's value still.
    pub(crate) fn of_rewritten(times: u32) -> Self {
        let text = format!(
            "another client wrote the key between WATCH and EXEC {times} times, though it still holds this holder's value, so nothing was changed; \
             try again, and find the client that writes it, for example with EXPIRE"
        );
        Self::found(RefusalKind::Rewritten, text)
    }

    /// The server at this address has been the master for that long, and grants no lock for a time.
    pub(crate) fn settling_after_failover(address: &str, since: Option<Duration>, settles: Duration) -> Self {
        let (kind, text) = match since {
            Some(since) => (
                RefusalKind::Settling,
                format!(
                    "{address} has been the master for {} s, and may not know the last locks of the master before it; it grants locks after \
                     {settles:?}, by `settle_after_failover`",
                    since.as_secs()
                ),
            ),
            None => (
                RefusalKind::TooOld,
                format!(
                    "the Sentinel does not say since when {address} has been the master, which `settle_after_failover` needs to know; \
                     it needs Sentinel 2.8"
                ),
            ),
        };
        Self::found(kind, text)
    }

    /// The server at this address has restarted that long ago, and is left alone for a time.
    pub(crate) fn settling(address: &str, up: Option<Duration>, settles: Duration) -> Self {
        let text = match up {
            Some(up) => format!(
                "{address} has run for about {} s since its restart, in which it may have lost locks; it is used again after {settles:?}, by \
                 `settle_after_restart`",
                up.as_secs()
            ),
            None => format!(
                "{address} does not report how long it has run, which `settle_after_restart` needs to know; permit INFO to this user"
            ),
        };
        let kind = if up.is_some() { RefusalKind::Settling } else { RefusalKind::NotPermitted };
        Self::found(kind, text)
    }

    /// The server is too old for a protocol.
    pub(crate) fn too_old(protocol: Protocol, known_by: TooOld<'_>) -> Self {
        let text = format!(
            "{known_by} protocol {protocol:?}, which needs Redis {}; {}",
            protocol.min_version(),
            instead_of(protocol)
        );
        let mut refusal = Self::found(RefusalKind::TooOld, text);
        if let TooOld::Reported(version) = known_by {
            refusal.0.has = Some(Protocol::Auto.on(Some(version)));
        }
        refusal
    }

    /// Returns the strongest protocol of the server, if its version is why it is too old for another.
    pub(crate) fn protocol_instead(&self) -> Option<Protocol> {
        self.0.has
    }

    /// The server is too old for channels.
    pub(in crate::net) fn without_channels(version: Version) -> Self {
        Self::found(RefusalKind::TooOld, format!("the server is Redis {version}, and notifications need 2.0"))
    }

    /// Returns true if a new connection has led to a replica.
    pub(in crate::net) fn is_of_replica(&self) -> bool {
        self.0.kind == RefusalKind::ReadOnly && !self.0.is_said
    }

    /// Returns true if the server has said that another has the slot.
    pub(in crate::net) fn is_moved(&self) -> bool {
        self.0.kind == RefusalKind::OtherNode && self.text().starts_with("MOVED ")
    }

    /// Notes that the server at this address refused the connection.
    pub(in crate::net) fn of_connecting(mut self, address: &str) -> Self {
        self.0.address = Some(address.to_owned());
        self
    }

    /// Returns it as one that passes.
    pub(in crate::net) fn passing(mut self) -> Self {
        self.0.passes = true;
        self
    }

    /// Returns the refusal in an error, if it is the server's own word and not a failure to read it.
    pub(crate) fn of(error: &RedisError) -> Option<Self> {
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {
                Some(Self::of_parts(error.code().unwrap_or("ERR"), error.detail()))
            }
            _ => None,
        }
    }

    fn of_parts(code: &str, details: Option<&str>) -> Self {
        Self::new(details.map_or_else(|| code.to_owned(), |details| format!("{code} {details}")))
    }

    /// Returns what the refusal is about.
    #[must_use]
    pub fn kind(&self) -> RefusalKind {
        self.0.kind
    }

    /// Returns the server's own words, or what was found out about it, with control characters escaped; a long text is
    /// cut, and arguments that the server repeats are left out, since a password may be among them.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns true if the server may accept the same command later without any change:
    /// while it restarts, is over its memory, has too few replicas, or is a replica; or
    /// if it refuses a login that [can change](crate::LockerBuilder::credentials),
    /// after it has accepted one. A call that waits for a lock goes on then.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        let passes = matches!(
            self.0.kind,
            RefusalKind::Loading
                | RefusalKind::Settling
                | RefusalKind::Busy
                | RefusalKind::TooManyClients
                | RefusalKind::OverMemory
                | RefusalKind::CannotSave
                | RefusalKind::NoReplicas
                | RefusalKind::NotReady
                | RefusalKind::Rewritten
                | RefusalKind::ReadOnly
        );
        passes || self.0.passes
    }

    /// Returns it as what it says of a server that has refused this command: that it is too old, if that is why.
    pub(crate) fn of_command(self, command: &str) -> Self {
        match self.protocol_too_new(command) {
            Some(protocol) => Self::too_old(protocol, TooOld::Refuses(&self)),
            None => self,
        }
    }

    /// Returns the protocol that the server is too old for, if that is why it refused this command.
    fn protocol_too_new(&self, command: &str) -> Option<Protocol> {
        let text = self.0.text.to_lowercase();
        // Before 2.6.12 SET had no options.
        let no_options = text.starts_with("err syntax error") || text.starts_with("err wrong number of arg");
        match command {
            "WATCH" | "EXEC" if self.0.kind == RefusalKind::UnknownCommand => Some(Protocol::Watched),
            "SET" if no_options => Some(Protocol::Ttl),
            _ => None,
        }
    }

    /// Returns true if the server refused this command, and not the client or all commands.
    pub(crate) fn is_about_the_command(&self) -> bool {
        matches!(
            self.0.kind,
            RefusalKind::NotPermitted
                | RefusalKind::UnknownCommand
                | RefusalKind::TooOld
                | RefusalKind::Other
        )
    }

    /// Returns true if the client has not logged in.
    pub(in crate::net) fn is_of_login(&self) -> bool {
        matches!(self.0.kind, RefusalKind::NoPassword | RefusalKind::WrongPassword)
    }

    /// Returns true if the user lacks the right to a key, not that to a command.
    pub(in crate::net) fn is_about_a_key(&self) -> bool {
        self.0.kind == RefusalKind::NotPermitted && self.0.text.contains(" key")
    }

    /// Returns true if the server closes the connection after this refusal.
    pub(crate) fn closes_connection(&self) -> bool {
        matches!(self.0.kind, RefusalKind::TooManyClients | RefusalKind::ProtectedMode)
    }
}

/// How a server is known to be too old.
#[derive(Clone, Copy)]
pub(crate) enum TooOld<'a> {
    Reported(Version),
    Refuses(&'a Refusal),
    /// Connections are closed on WATCH.
    HangsUp,
}

impl fmt::Display for TooOld<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported(version) => write!(f, "the server is Redis {version}, too old for the"),
            Self::Refuses(refusal) => {
                write!(f, "the server refused with \"{}\", so it lacks the commands of the", refusal.text())
            }
            Self::HangsUp => f.write_str(
                "connections are closed on WATCH, as a proxy does (it is tried again after a minute), so the server lacks the commands of the",
            ),
        }
    }
}

/// Leaves out the arguments of an unknown command, which servers from version 5 on repeat: of AUTH, the password.
pub(super) fn without_arguments(text: &str) -> &str {
    text.split_once(", with args beginning with").map_or(text, |(before, _)| before)
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text is escaped already.
        f.debug_struct("Refusal")
            .field("kind", &self.0.kind)
            .field("text", &format_args!("\"{}\"", self.0.text))
            .field("address", &self.0.address)
            .finish_non_exhaustive()
    }
}

impl From<ServerError> for Refusal {
    fn from(error: ServerError) -> Self {
        Self::of_parts(error.code(), error.details())
    }
}

/// What to do if a Sentinel refuses a login.
const OF_SENTINELS: &str =
    "the Sentinels have a login of their own; give it as sentinel_user and sentinel_password in the URL";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_said {
            return f.write_str(&self.0.text);
        }
        if let Some(address) = &self.0.address {
            write!(f, "{address}: ")?;
        }
        let advice = match &self.0.address {
            Some(address) if self.is_of_login() && address.starts_with("Sentinel ") => OF_SENTINELS,
            _ => self.0.kind.advice(),
        };
        write!(f, "the server refused: {}: {advice}", self.0.text.trim_end_matches('.'))
    }
}

/// Returns what to do if the server is too old for a protocol.
fn instead_of(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Ttl => "use the protocol Auto",
        Protocol::Watched => "use the protocol Auto or Classic",
        _ => "use a newer server",
    }
}

#[cfg(test)]
mod tests;

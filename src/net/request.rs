//! What is sent for a key, as a layer above writes it: this one carries the bytes, and counts the replies.

use std::fmt::Debug;

use proto::Expected;
use proto::fencing::Epoch;
use proto::lease::End;
use proto::values::Key;

use super::packed::Packed;

/// A command on a key, or several that belong together.
pub(crate) trait Request: Debug + Sync {
    /// Returns its name in Redis.
    fn name(&self) -> &'static str;

    /// Packs it.
    fn pack(&self, key: &Key, packed: &mut Packed);

    /// Returns the only epoch of a server in which it may be sent; `None` for any.
    fn only_in(&self) -> Option<Epoch> {
        None
    }

    /// Returns the key that must hold what is expected.
    fn watched(&self, key: &Key) -> Key {
        key.clone()
    }

    /// Returns the name of the command by which a server compares what the key holds, and changes it as this one does;
    /// `None` if there is none.
    fn comparing(&self, _compares: Compares) -> Option<&'static str> {
        None
    }

    /// Packs that command, which is answered by a number, or by OK or nil: for a key that must hold these bytes.
    fn pack_comparing(&self, _compares: Compares, _key: &Key, _held: &[u8], _packed: &mut Packed) {}

    /// Returns the keys that it reads, if there may be several.
    fn keys(&self) -> Option<&[Key]> {
        None
    }

    /// Returns true if it changes a counter, whatever that holds: while the slot moves, that may be on another node than
    /// the key, and the node that takes the slot over is of another epoch.
    fn changes_counter(&self) -> bool {
        false
    }

    /// Returns true if it waits until a node has the slot of its key.
    fn waits_for_slot(&self) -> bool {
        true
    }
}

/// The commands by which a server compares what a key holds, and changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compares {
    /// DELEX, and SET with IFEQ: Redis 8.4.
    DelEx,
    /// DELIFEQ, and SET with IFEQ: Valkey 9.
    DelIfEq,
}

/// A trip for a key: what is sent for it in one round trip; in two if the command depends on what the key holds, and
/// the server cannot compare.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyTrip<'a> {
    pub(crate) key: &'a Key,
    /// It is carried out at most once.
    pub(crate) command: &'a dyn Request,
    /// Once this has passed the command is not sent (I4, I5).
    pub(crate) before: Option<&'a End>,
    /// If set, the command is carried out only if the key holds this, and no client writes it meanwhile.
    pub(crate) if_holds: Option<&'a Expected>,
    /// Sent behind the command, if that is sent.
    pub(crate) behind: Option<&'a dyn Request>,
    /// Set if the server compares and changes the key in one command. What goes behind that is sent in any case.
    pub(super) compares: Option<Compares>,
    /// True if the server takes over the slot of the key: without ASKING it refuses commands on it.
    pub(super) asks: bool,
}

impl<'a> KeyTrip<'a> {
    /// Returns the trip of a command alone, at any time.
    pub(crate) fn of(key: &'a Key, command: &'a dyn Request) -> Self {
        Self { key, command, before: None, if_holds: None, behind: None, compares: None, asks: false }
    }

    /// Returns true if it changes the key by a transaction.
    pub(super) fn transacts(&self) -> bool {
        self.if_holds.is_some() && self.compares.is_none()
    }

    /// Returns the name of the command that may change the key, or of the one that reads it.
    pub(super) fn name(&self) -> &'static str {
        match self.changed_by() {
            Some(name) => name,
            None if self.if_holds.is_some() => "EXEC",
            None => self.command.name(),
        }
    }

    /// Returns the name of the command that compares, if it goes as one.
    pub(super) fn changed_by(&self) -> Option<&'static str> {
        self.compares.and_then(|compares| self.command.comparing(compares))
    }
}

/// Reads a key.
#[derive(Debug)]
pub(super) struct Get;

impl Request for Get {
    fn name(&self) -> &'static str {
        "GET"
    }

    fn pack(&self, key: &Key, packed: &mut Packed) {
        packed.bulk().begun(GET, &[key.as_bytes()]);
    }
}

/// How GET begins, which is sent often.
pub(super) const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n";

#[cfg(test)]
pub(super) mod tests;

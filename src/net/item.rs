//! What a trip carries for one command: its bytes, when it may be sent,
//! and what came back. A thread shares it with the one that sends for it.

use std::io;

use proto::Reply;
use proto::fencing::Epoch;
use proto::lease::End;
use proto::values::{Now, Protocol};
use redis::Value;

use super::Undecided;
use super::connections::Known;
use super::errors::{Failure, Refusal, RefusalKind, TooOld, TransportError};
use super::packed::{AwaitedReply, Form, Packed};
use super::replies::{ReadReply, is_refusal, refusal};

/// A command as it goes over the wire, which may be several of the server's. The default is none.
#[derive(Default)]
pub(super) struct Item {
    pub(super) packed: Packed,
    pub(super) name: &'static str,
    before: Option<End>,
    /// A server that is known to be too old for this protocol does not get it.
    needs: Protocol,
    /// If set, it is sent to no server of another epoch.
    pub(super) only_in: Option<Epoch>,
    /// True if it may grant a lock, which a server that settles does not do.
    pub(super) grants: bool,
    /// If one of the first so many commands is refused, the connection is not used again.
    pub(super) strict: usize,
    /// True if it is carried out by a transaction, whose EXEC is another command: each reply says QUEUED.
    pub(super) queues: bool,
    pub(super) state: ItemState,
    /// Of the states that keep a reason.
    withheld: Option<Undecided>,
    lost: Option<Box<TransportError>>,
    pub(super) replies: Vec<Value>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ItemState {
    #[default]
    Unsent,
    /// It is too late to send it, or there is nothing.
    Never,
    /// It was not sent for a reason that is kept, or the server has not read it.
    Withheld,
    Sent,
    Replied,
    /// It may have been carried out. The error is kept.
    Lost,
}

impl Item {
    /// Makes it the item of a command beside those of keys, which was sent and is answered by OK.
    pub(super) fn set_beside(&mut self, name: &'static str, asks: bool) {
        self.begin(name, Protocol::Classic, None);
        if asks {
            self.packed.awaits(Form::Asked);
        }
        self.packed.awaits(Form::Okay);
        self.state = ItemState::Sent;
    }

    /// Makes it an item of what is packed then.
    pub(super) fn begin(&mut self, name: &'static str, needs: Protocol, before: Option<End>) {
        self.clear();
        (self.name, self.needs, self.before, self.grants) = (name, needs, before, false);
        (self.only_in, self.strict, self.queues) = (None, 0, false);
    }

    pub(super) fn clear(&mut self) {
        self.packed.clear();
        self.replies.clear();
        self.state = ItemState::Unsent;
    }

    /// Notes that it is sent now, if there is one and it may be: not to a server that is too old or settles, nor once
    /// its time has passed (I4, I5).
    #[inline]
    pub(super) fn sends(&mut self, server: &Known, now: Now) -> bool {
        self.replies.clear();
        let is_new = server.version.is_none_or(|version| version >= self.needs.min_version());
        let is_settled = !self.grants || server.settles_at(now).is_none();
        let is_in_epoch = self.only_in.is_none() || self.only_in == server.epoch;
        let is_in_time = is_in_epoch && self.before.is_none_or(|end| !end.has_passed(now));
        let sends = is_new && is_settled && is_in_time && !self.packed.awaited.is_empty();
        self.state = if sends { ItemState::Sent } else { self.withhold(server, now) };
        sends
    }

    /// Returns the state of one that may not be sent to this server now.
    #[cold]
    fn withhold(&mut self, server: &Known, now: Now) -> ItemState {
        let why = match (server.settles_at(now), server.version) {
            (Some(refusal), _) if self.grants => Undecided::Settles(Box::new(refusal.clone())),
            (_, Some(version)) if version < self.needs.min_version() => {
                Undecided::TooOld(Box::new(Refusal::too_old(self.needs, TooOld::Reported(version))))
            }
            _ => return ItemState::Never,
        };
        self.withheld = Some(why);
        ItemState::Withheld
    }

    /// Returns why it was not sent, or the server has not read it, if it may go again.
    pub(super) fn unsent(&mut self) -> Option<Undecided> {
        match self.state {
            ItemState::Unsent => Some(Undecided::Unsent),
            ItemState::Withheld => self.withheld.take(),
            _ => None,
        }
    }

    /// Returns why it is unknown what the change would have come to by itself, if a transaction of several keys was not
    /// carried out: unless the server said so of this change.
    pub(super) fn undecided(&self) -> Option<Undecided> {
        match (self.state, self.replies.as_slice()) {
            (ItemState::Replied, _) if self.is_refused_for_slots() => Some(Undecided::CrossSlot),
            (ItemState::Replied, [queued @ .., exec]) if !queued.is_empty() && refused(queued) == 0 => {
                match exec {
                    Value::Nil => Some(Undecided::Together),
                    exec => refusal(exec).map(|_| Undecided::Together),
                }
            }
            _ => None,
        }
    }

    /// Returns true if the server has refused since the keys have several slots.
    pub(super) fn is_refused_for_slots(&self) -> bool {
        self.replies.iter().filter_map(refusal).any(|refusal| refusal.kind() == RefusalKind::CrossSlot)
    }

    pub(super) fn is_sent(&self) -> bool {
        matches!(self.state, ItemState::Sent | ItemState::Replied | ItemState::Lost)
    }

    /// Returns why some of the replies are missing, if so.
    pub(super) fn missing(&self) -> Option<TransportError> {
        match self.state {
            ItemState::Lost => self.lost.as_deref().cloned(),
            ItemState::Sent => Some(lost_in_batch()),
            _ => None,
        }
    }

    /// Notes that more was missing.
    pub(super) fn lose_as(&mut self, other: &Self) {
        if let (ItemState::Replied, ItemState::Lost, Some(error)) = (self.state, other.state, &other.lost) {
            self.lose((**error).clone());
        }
    }

    #[cold]
    pub(super) fn lose(&mut self, error: TransportError) {
        (self.state, self.lost) = (ItemState::Lost, Some(Box::new(error)));
    }

    /// Notes that the server has had no room, and has not read it.
    #[cold]
    pub(super) fn had_no_room(&mut self, refusal: &Refusal) {
        let why = Undecided::NoRoom(Box::new(refusal.clone()));
        (self.state, self.withheld) = (ItemState::Withheld, Some(why));
    }

    /// Returns what form the reply of its command at this place has to have.
    #[inline]
    pub(super) fn form(&self, at: usize) -> Form {
        match self.packed.awaited[at].form {
            form @ (Form::ListOrNil | Form::Asked) => form,
            _ if self.queues => Form::Queued,
            form => form,
        }
    }

    /// Returns what came of the command, once, whose replies are read so. `None`: the server has not read it.
    pub(super) fn outcome(
        &mut self,
        read: impl FnOnce(&str, &mut Vec<Value>, &[AwaitedReply]) -> ReadReply,
    ) -> Option<Result<Reply, Failure>> {
        Some(match self.state {
            ItemState::Unsent | ItemState::Never | ItemState::Withheld => return None,
            // For the thread that receives the replies, which come later, it stays so.
            ItemState::Sent => Err(Failure::Lost(lost_in_batch())),
            ItemState::Lost => {
                self.state = ItemState::Unsent;
                Err(Failure::Lost(self.lost.take().map_or_else(lost_in_batch, |error| *error)))
            }
            ItemState::Replied => {
                self.state = ItemState::Unsent;
                match read(self.name, &mut self.replies, self.packed.read()) {
                    Ok(Ok(reply)) => Ok(reply),
                    Ok(Err(refusal)) => Err(Failure::Refused(refusal)),
                    Err(error) => Err(Failure::Lost(error)),
                }
            }
        })
    }
}

/// Notes that a command is sent now, and what goes behind it,
/// as far as each may be. Without the first the other is not.
pub(super) fn send_both(own: &mut Item, behind: &mut Item, server: &Known, now: Now) -> bool {
    let sends = own.sends(server, now);
    behind.state = ItemState::Never;
    if sends && !behind.packed.awaited.is_empty() {
        behind.sends(server, now);
    }
    sends
}

/// Returns how many could not be queued.
pub(super) fn refused(queued: &[Value]) -> usize {
    queued.iter().filter(|queued| is_refusal(queued)).count()
}

/// The error of a command that another thread has sent, and whose reply it has not received in time.
pub(super) fn lost_in_batch() -> TransportError {
    TransportError::new(io::ErrorKind::TimedOut, "the server gave no reply in time")
}

#[cfg(test)]
mod tests;

//! What a trip carries for one command: its bytes, when it may be sent,
//! and what came back. A thread shares it with the one that sends for it.

use std::{io, mem, slice};

use proto::fencing::Epoch;
use proto::lease::End;
use proto::values::{Key, Now, Protocol};
use proto::{Reply, Trip};
use redis::Value;

use super::Undecided;
use super::codec;
use super::connections::Known;
use super::errors::{Failure, Refusal, RefusalKind, TooOld, TransportError};
use super::resp::{Form, Packed};

/// A command as it goes over the wire, which may be several of the server's. The default is none.
#[derive(Default)]
pub(super) struct Item {
    pub(super) packed: Packed,
    name: &'static str,
    before: Option<End>,
    /// A server that is known to be too old for this protocol does not get it.
    needs: Protocol,
    /// If set, it is sent to no server of another epoch.
    pub(super) only_in: Option<Epoch>,
    /// True if it may grant a lock, which a server that settles does not do.
    pub(super) grants: bool,
    /// If one of the first so many commands is refused, the connection is not used again.
    pub(super) strict: usize,
    state: ItemState,
    /// Of the states that keep a reason.
    withheld: Option<Undecided>,
    lost: Option<Box<TransportError>>,
    pub(super) replies: Vec<Value>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ItemState {
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
            self.packed.forms.push(Form::Asked);
        }
        self.packed.forms.push(Form::Okay);
        self.state = ItemState::Sent;
    }

    /// Makes it the item of a trip's command; in a transaction without the EXEC that carries it out.
    #[inline]
    pub(super) fn set(&mut self, key: &Key, trip: &Trip, needs: Protocol) {
        self.begin(trip.name(), needs, trip.before);
        codec::pack(&mut self.packed, key.as_bytes(), &trip.command);
        if trip.if_holds.is_some() {
            self.packed.forms.fill(Form::Queued);
        }
    }

    /// Makes it an item of what is packed then.
    pub(super) fn begin(&mut self, name: &'static str, needs: Protocol, before: Option<End>) {
        self.clear();
        (self.name, self.needs, self.before, self.grants) = (name, needs, before, false);
        (self.only_in, self.strict) = (None, 0);
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
        let sends = is_new && is_settled && is_in_time && !self.packed.forms.is_empty();
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
    fn lose(&mut self, error: TransportError) {
        (self.state, self.lost) = (ItemState::Lost, Some(Box::new(error)));
    }

    /// Notes that the server has had no room, and has not read it.
    #[cold]
    fn had_no_room(&mut self, refusal: &Refusal) {
        let why = Undecided::NoRoom(Box::new(refusal.clone()));
        (self.state, self.withheld) = (ItemState::Withheld, Some(why));
    }

    /// Returns what came of the command, once, whose replies are read so. `None`: the server has not read it.
    pub(super) fn outcome(
        &mut self,
        read: impl FnOnce(&mut Vec<Value>, &[Form]) -> codec::ReadReply,
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
                match read(&mut self.replies, self.packed.forms_read()) {
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
    if sends && !behind.packed.forms.is_empty() {
        behind.sends(server, now);
    }
    sends
}

/// In what state a trip leaves the connection.
#[derive(Default)]
pub(crate) struct AfterTrip {
    /// It must not be used again (I8).
    pub(super) out_of_order: bool,
    /// The server said that it is no master.
    pub(super) read_only: bool,
    /// The server said that another has a slot: it may be a replica now.
    pub(super) moved: bool,
}

/// The replies of a trip, which go to its items one after the other.
pub(super) struct Incoming<'a> {
    values: slice::IterMut<'a, Value>,
    /// Why there are no more than these.
    ended: Option<TransportError>,
    /// True if there is only one, after which the server hung up.
    /// More may follow one that came in time, as the others did not.
    only: bool,
    /// The refusal of the client for lack of room, if that is what this one is.
    pub(super) no_room: Option<Refusal>,
    /// Set once a reply was missing or of another form than its
    /// command's: which command a later one belongs to is unknown.
    broken: Option<TransportError>,
    pub(super) after: AfterTrip,
}

impl<'a> Incoming<'a> {
    /// Those that were received, and why there are no more.
    pub(super) fn of(replies: &'a mut [Value], ended: Option<TransportError>) -> Self {
        let only = replies.len() == 1 && ended.is_none();
        let (values, after) = (replies.iter_mut(), AfterTrip::default());
        Self { values, ended, only, no_room: None, broken: None, after }
    }

    /// Gives an item that was sent its replies. A refused first reply may be the only one.
    pub(super) fn give(&mut self, item: &mut Item) {
        if !item.is_sent() {
            return;
        }
        if let Some(refusal) = &self.no_room {
            return item.had_no_room(refusal);
        }
        for at in 0..item.packed.forms.len() {
            if self.broken.is_none() {
                match self.values.next().map(|value| mem::replace(value, Value::Nil)) {
                    Some(value) if item.packed.forms[at].fits(&value) => {
                        let refusal = refusal(&value);
                        if item.packed.forms[at] != Form::Asked {
                            item.replies.push(value);
                        }
                        if let Some(refusal) = refusal {
                            self.note(&refusal);
                            self.after.out_of_order |= at < item.strict;
                            if self.no_room.is_some() {
                                return item.had_no_room(&refusal);
                            }
                        }
                        continue;
                    }
                    Some(value) => self.lose(codec::unexpected(item.name, Some(&value))),
                    None if matches!(item.replies.first(), Some(Value::ServerError(_))) => {
                        self.after.out_of_order = true;
                        break;
                    }
                    None => {
                        let error = self.ended.take().unwrap_or_else(hung_up);
                        self.lose(error);
                    }
                }
            }
            if let Some(error) = &self.broken {
                return item.lose(error.clone());
            }
        }
        item.state = ItemState::Replied;
    }

    /// Gives changes of one transaction their replies, and each its
    /// part of the reply to EXEC. Returns whether it may be open still.
    pub(super) fn give_changes(&mut self, items: &mut [&mut Item]) -> bool {
        let mut all = Item { name: "EXEC", state: ItemState::Sent, ..Item::default() };
        all.packed.forms.extend(items.iter().flat_map(|item| &item.packed.forms));
        all.packed.forms.push(Form::ListOrNil);
        self.give(&mut all);
        let exec = all.replies.pop().filter(|_| all.replies.len() + 1 == all.packed.forms.len());
        let mut queued = mem::take(&mut all.replies).into_iter();
        let changes: Vec<Vec<Value>> =
            items.iter().map(|item| queued.by_ref().take(item.packed.forms.len()).collect()).collect();
        let each = match (all.state, exec) {
            (ItemState::Replied, Some(exec)) => split_exec(&changes, exec),
            _ => Err(all.missing().unwrap_or_else(hung_up)),
        };
        let each = match each {
            Ok(each) => each,
            Err(error) => {
                self.lose(error.clone());
                for item in items {
                    item.lose(error.clone());
                }
                return false;
            }
        };
        let may_be_open = each.iter().any(leaves_open);
        for (item, (own, exec)) in items.iter_mut().zip(changes.into_iter().zip(each)) {
            item.replies.extend(own);
            item.replies.push(exec);
            item.state = ItemState::Replied;
        }
        may_be_open
    }

    /// Gives the replies to a single change. Returns true if a transaction may be open.
    pub(super) fn give_change(&mut self, item: &mut Item) -> bool {
        item.packed.forms.push(Form::ListOrNil);
        self.give(item);
        let error = match (item.state, item.replies.split_last()) {
            (ItemState::Replied, Some((exec, queued))) if queued.len() + 1 == item.packed.forms.len() => {
                match exec {
                    Value::Array(results) if results.len() + refused(queued) != queued.len() => {
                        codec::unexpected("EXEC", Some(exec))
                    }
                    exec => return leaves_open(exec),
                }
            }
            _ => item.missing().unwrap_or_else(hung_up),
        };
        self.lose(error.clone());
        item.lose(error);
        false
    }

    fn lose(&mut self, error: TransportError) {
        self.after.out_of_order = true;
        self.broken = Some(error);
    }

    fn note(&mut self, refusal: &Refusal) {
        let read_only = refusal.kind() == RefusalKind::ReadOnly;
        self.after.read_only |= read_only;
        self.after.moved |= refusal.is_moved();
        self.after.out_of_order |= read_only || refusal.closes_connection();
        self.no_room = (self.only && refusal.closes_connection()).then(|| refusal.clone());
    }
}

/// Splits the reply to the EXEC of several changes: returns for each
/// what it would have got alone, behind the replies to its commands.
fn split_exec(changes: &[Vec<Value>], exec: Value) -> Result<Vec<Value>, TransportError> {
    let carried_out = |queued: &Vec<Value>| queued.len() - refused(queued);
    match exec {
        // Before 2.6.5 what could not be queued is left out, and the rest is carried out.
        Value::Array(results) if results.len() == changes.iter().map(carried_out).sum::<usize>() => {
            let mut results = results.into_iter();
            let of = |queued| Value::Array(results.by_ref().take(carried_out(queued)).collect());
            Ok(changes.iter().map(of).collect())
        }
        reply @ (Value::Nil | Value::ServerError(_)) => Ok(changes.iter().map(|_| reply.clone()).collect()),
        other => Err(codec::unexpected("EXEC", Some(&other))),
    }
}

/// Returns true if the transaction may be open after this reply to EXEC:
/// up to 2.4 a server that is over its memory refuses EXEC itself.
fn leaves_open(exec: &Value) -> bool {
    refusal(exec).is_some_and(|refusal| !refusal.text().starts_with("EXECABORT"))
}

/// Returns true if no transaction is open after this reply to DISCARD.
pub(super) fn is_closed_by(discard: &[Value]) -> bool {
    match discard {
        [reply] => {
            *reply == Value::Okay
                || refusal(reply).is_some_and(|refusal| refusal.text().ends_with("without MULTI"))
        }
        _ => false,
    }
}

/// Returns how many could not be queued.
fn refused(queued: &[Value]) -> usize {
    queued.iter().filter(|queued| refusal(queued).is_some()).count()
}

fn refusal(value: &Value) -> Option<Refusal> {
    match value {
        Value::ServerError(error) => Some(error.clone().into()),
        _ => None,
    }
}

/// The error of a command that another thread has sent, and whose reply it has not received in time.
pub(super) fn lost_in_batch() -> TransportError {
    TransportError::new(io::ErrorKind::TimedOut, "the server gave no reply in time")
}

pub(super) fn hung_up() -> TransportError {
    TransportError::new(
        io::ErrorKind::ConnectionReset,
        "the server closed the connection after it had refused an earlier command",
    )
}

#[cfg(test)]
mod tests;

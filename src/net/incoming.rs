//! The replies of a trip, as they are given to its items. What a server has not read, and what may have been carried out,
//! are told apart here.

use std::{io, mem, slice};

use redis::Value;

use super::errors::{Refusal, RefusalKind, TransportError};
use super::item::{Item, ItemState, refused};
use super::packed::{AwaitedReply, Form};
use super::replies::{refusal, unexpected};

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
        for at in 0..item.packed.awaited.len() {
            if self.broken.is_none() {
                match self.values.next().map(|value| mem::replace(value, Value::Nil)) {
                    Some(value) if item.form(at).fits(&value) => {
                        let refusal = refusal(&value);
                        if item.form(at) != Form::Asked {
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
                    Some(value) => self.lose(unexpected(item.name, Some(&value))),
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
        let mut all = Item::default();
        (all.name, all.state, all.queues) = ("EXEC", ItemState::Sent, true);
        all.packed.awaited.extend(items.iter().flat_map(|item| &item.packed.awaited));
        all.packed.awaits(Form::ListOrNil);
        self.give(&mut all);
        let exec = all.replies.pop().filter(|_| all.replies.len() + 1 == all.packed.awaited.len());
        let mut queued = mem::take(&mut all.replies).into_iter();
        let changes: Vec<Vec<Value>> =
            items.iter().map(|item| queued.by_ref().take(item.packed.awaited.len()).collect()).collect();
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
        item.packed.awaited.push(AwaitedReply::of(Form::ListOrNil));
        self.give(item);
        let error = match (item.state, item.replies.split_last()) {
            (ItemState::Replied, Some((exec, queued))) if queued.len() + 1 == item.packed.awaited.len() => {
                match exec {
                    Value::Array(results) if results.len() + refused(queued) != queued.len() => {
                        unexpected("EXEC", Some(exec))
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
        other => Err(unexpected("EXEC", Some(&other))),
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

pub(super) fn hung_up() -> TransportError {
    TransportError::new(
        io::ErrorKind::ConnectionReset,
        "the server closed the connection after it had refused an earlier command",
    )
}

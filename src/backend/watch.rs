//! A connection that watches a key, with a transaction open. It returns to its pool only when nothing is watched and no transaction is
//! open, since its next user's transaction would fail.

use std::fmt;

use redis::{Value, cmd};

use super::connections::{Checkout, Exchange, LockConnection as _, ask, exchange};
use super::errors::Failure;
use super::item::{self, Item, Replies};
use super::limits::Limits;
use super::resp::{Form, Packed};
use super::{Answers, KeyRequest, Next, WatchedConnection};
use crate::clock;
use crate::key::Key;
use crate::protocol::{Command, Request};

/// A pool's connection after WATCH and MULTI.
pub(super) struct PooledWatch<C: Checkout> {
    /// Taken out when it returns to the pool in good order.
    connection: Option<C>,
}

impl<C: Checkout> PooledWatch<C> {
    pub(super) fn on(connection: C) -> Self {
        Self { connection: Some(connection) }
    }

    /// Ends the transaction and the watch, and returns the connection to its pool if the server carried that out.
    fn discard(mut self, limits: &Limits<'_>) {
        let Some(mut connection) = self.connection.take() else { return };
        let left = limits.answered_by.since(clock::uptime());
        if !matches!(ask(&mut *connection, &cmd("DISCARD"), left), Ok(Ok(Value::Okay))) {
            connection.invalidate();
        }
    }
}

impl<C: Checkout> WatchedConnection for PooledWatch<C> {
    fn exec(
        mut self: Box<Self>,
        key: &Key,
        command: &Command,
        next: Option<&Next>,
        limits: &Limits<'_>,
    ) -> Answers {
        let Some(connection) = &mut self.connection else { unreachable!("it is here until the watch ends") };
        let now = clock::now();
        let server = connection.server_version();
        let mut own = Item::new(key, &Request::at_any_time(command.clone()), limits.needs);
        let mut behind = Item::next(key, next);
        // It goes to the server that watches, however old that is.
        own.sends(None, now);
        behind.sends(server, now);
        let limit = limits.answered_by.since(now.uptime);
        let left = item::trip(&mut **connection, &mut [&mut own, &mut behind], limit);
        let answers = Answers::of(&mut own, command, &mut behind, next);
        match &answers {
            // Carried out or not, EXEC ends both the transaction and the watch.
            Answers { own: Ok(_), .. } if !left.out_of_order => drop(self.connection.take()),
            // Up to 2.4 a server that is over its memory refuses EXEC itself, and the transaction stays open.
            Answers { own: Err(Failure::Refused(_)), next: None } => self.discard(limits),
            _ => {}
        }
        answers
    }

    fn exec_all(mut self: Box<Self>, changes: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers> {
        if changes.is_empty() {
            self.discard(limits);
            return Vec::new();
        }
        let Some(connection) = &mut self.connection else { unreachable!("it is here until the watch ends") };
        let (server, now) = (connection.server_version(), clock::now());
        let mut own: Vec<Item> = changes.iter().map(|change| Item::change(change, limits.needs)).collect();
        let mut behind: Vec<Item> =
            changes.iter().map(|change| Item::next(&change.key, change.next.as_ref())).collect();
        let mut packed = Packed::default();
        for item in &mut own {
            item.sends(None, now);
            packed.append(&item.packed);
        }
        packed.command(Form::ListOrNil, &[b"EXEC"]);
        for item in &mut behind {
            if item.sends(server, now) {
                packed.append(&item.packed);
            }
        }
        let left = limits.answered_by.since(now.uptime);
        let Exchange { mut replies, ended } =
            exchange(&mut **connection, &packed.bytes, packed.forms.len(), left);
        let mut replies = Replies::of(&mut replies, ended);
        replies.give_changes(&mut own.iter_mut().collect::<Vec<_>>());
        for item in &mut behind {
            replies.give(item);
        }
        let answers = |((own, behind), change): ((&mut Item, &mut Item), &KeyRequest)| {
            Answers::of(own, &change.request.command, behind, change.next.as_ref())
        };
        let answers: Vec<Answers> = own.iter_mut().zip(&mut behind).zip(changes).map(answers).collect();
        // EXEC ends both the transaction and the watch. Some servers that refuse it leave the transaction open.
        if answers.iter().all(|Answers { own, next }| own.is_ok() && !matches!(next, Some(Err(_)))) {
            drop(self.connection.take());
        }
        answers
    }

    fn unwatch(self: Box<Self>, limits: &Limits<'_>) {
        self.discard(limits);
    }
}

impl<C: Checkout> Drop for PooledWatch<C> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.invalidate();
        }
    }
}

impl<C: Checkout> fmt::Debug for PooledWatch<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledWatch").finish_non_exhaustive()
    }
}

//! A connection that watches a key, with a transaction open. It returns to its pool only when nothing is watched and no transaction is
//! open, since its next user's transaction would fail.

use std::{fmt, iter};

use redis::{Value, cmd};

use super::codec;
use super::connections::{Checkout, Exchange, LockConnection as _, ask, exchange};
use super::errors::Failure;
use super::limits::Limits;
use super::pipelining::{Encoded, Job, JobOutcome, Outcome, PackedNext, hung_up, send};
use super::resp::Packed;
use super::{Answers, KeyRequest, Next, WatchedConnection};
use crate::clock;
use crate::key::Key;
use crate::protocol::{Command, Reply};

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
        let Packed { bytes: packed, count: replies } = codec::packed(key, command);
        let next = next.map(|next| PackedNext::new(key, next));
        let next = next.as_ref().and_then(|next| next.encoded(connection.server_version(), clock::now()));
        let job = Job { own: Encoded { command, packed: &packed, replies }, next };
        let left = limits.answered_by.since(clock::uptime());
        let outcomes = send(&mut **connection, job, iter::empty(), clock::now, left);
        let is_in_order = outcomes.leave_in_order(job.own);
        match &outcomes.own {
            // Carried out or not, EXEC ends both the transaction and the watch.
            JobOutcome { own: Outcome::Reply(_), .. } if is_in_order => drop(self.connection.take()),
            // Up to 2.4 a server that is over its memory refuses EXEC itself, and the transaction stays open.
            JobOutcome { own: Outcome::Refused(_), next: Outcome::Unread } => self.discard(limits),
            _ => {}
        }
        match outcomes.own.answers() {
            Some(answers) => answers,
            None => unreachable!("it is the first of its batch"),
        }
    }

    fn exec_all(mut self: Box<Self>, changes: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers> {
        if changes.is_empty() {
            self.discard(limits);
            return Vec::new();
        }
        let Some(connection) = &mut self.connection else { unreachable!("it is here until the watch ends") };
        let Packed { bytes: mut packed, mut count } = codec::packed_changes(changes);
        let (server, now) = (connection.server_version(), clock::now());
        let behind = |change: &KeyRequest| Some(PackedNext::new(&change.key, change.next.as_ref()?));
        let behind: Vec<Option<PackedNext>> = changes.iter().map(behind).collect();
        let behind = behind.iter().map(|next| next.as_ref()?.encoded(server, now));
        let behind: Vec<Option<Encoded<'_>>> = behind.collect();
        for next in behind.iter().flatten() {
            packed.extend_from_slice(next.packed);
            count += next.replies;
        }
        let left = limits.answered_by.since(now.uptime);
        let (own, nexts) = transaction(exchange(&mut **connection, &packed, count, left), changes, &behind);
        // EXEC ends both the transaction and the watch. Some servers that refuse it leave the transaction open.
        if own.iter().chain(nexts.iter().flatten()).all(Result::is_ok) {
            drop(self.connection.take());
        }
        own.into_iter().zip(nexts).map(|(own, next)| Answers { own, next }).collect()
    }

    fn unwatch(self: Box<Self>, limits: &Limits<'_>) {
        self.discard(limits);
    }
}

/// The outcomes of the commands of a transaction on many keys, and of those behind it.
type Replies = Vec<Result<Reply, Failure>>;

fn transaction(
    exchange: Exchange,
    changes: &[KeyRequest],
    behind: &[Option<Encoded<'_>>],
) -> (Replies, Vec<Option<Result<Reply, Failure>>>) {
    let Exchange { mut replies, ended } = exchange;
    let nexts = replies.split_off(replies.len().min(changes.len() + 1));
    let commands: Vec<&Command> = changes.iter().map(|change| &change.request.command).collect();
    let missing = || ended.clone().unwrap_or_else(hung_up);
    let own =
        if replies.len() > changes.len() { codec::read_changes(&commands, replies) } else { Err(missing()) };
    let own: Replies = match own {
        Ok(own) => own.into_iter().map(|reply| reply.map_err(Failure::Refused)).collect(),
        Err(error) => changes.iter().map(|_| Err(Failure::Lost(error.clone()))).collect(),
    };
    let mut nexts = nexts.into_iter();
    let mut read = |encoded: &Encoded<'_>| {
        let replies: Vec<Value> = nexts.by_ref().take(encoded.replies).collect();
        if replies.len() < encoded.replies {
            return Err(Failure::Lost(missing()));
        }
        codec::read(encoded.command, replies).map_err(Failure::Lost)?.map_err(Failure::Refused)
    };
    let nexts = behind.iter().map(|next| next.as_ref().map(&mut read)).collect();
    (own, nexts)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Change, Request};

    /// Two deletions, each with GET behind EXEC.
    fn read(replies: Vec<Value>) -> (Replies, Vec<Option<Result<Reply, Failure>>>) {
        let delete = |key| {
            let request = Request::at_any_time(Command::Exec(Change::Del));
            KeyRequest { key: Key::from(key), request, next: None }
        };
        let behind = || Some(Encoded { command: &Command::Get, packed: b"", replies: 1 });
        transaction(Exchange { replies, ended: None }, &["a", "b"].map(delete), &[behind(), None, behind()])
    }

    fn carried_out() -> Vec<Value> {
        let queued = || Value::SimpleString("QUEUED".into());
        vec![queued(), queued(), Value::Array(vec![Value::Int(1), Value::Int(0)])]
    }

    #[test]
    fn a_transaction_has_an_outcome_although_replies_behind_it_are_lost() {
        let behind = || [Value::BulkString(b"x".to_vec()), Value::Nil];
        for missing in 0..=2 {
            let replies = carried_out().into_iter().chain(behind()).take(5 - missing).collect();
            let (own, nexts) = read(replies);
            let own: Vec<Reply> = own.into_iter().map(Result::unwrap).collect();
            assert_eq!(own, [Reply::Executed(Some(1)), Reply::Executed(Some(0))]);
            assert!(nexts[1].is_none(), "nothing was sent for it");
            let have: Vec<bool> = nexts.iter().flatten().map(Result::is_ok).collect();
            assert_eq!(have, [missing < 2, missing < 1]);
            assert!(nexts.iter().flatten().all(|next| !matches!(next, Err(Failure::Refused(_)))));
        }
    }

    #[test]
    fn a_transaction_without_the_reply_to_exec_is_lost() {
        for count in 0..3 {
            let (own, nexts) = read(carried_out().into_iter().take(count).collect());
            assert_eq!(own.len(), 2);
            assert!(own.iter().all(|reply| matches!(reply, Err(Failure::Lost(_)))));
            assert!(nexts.iter().flatten().all(|next| matches!(next, Err(Failure::Lost(_)))));
        }
    }
}

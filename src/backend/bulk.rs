//! Commands on many keys in one trip: of locks that are acquired and released together, and of those that the keeper thread works on.

use std::iter;

use super::codec;
use super::connections::{Checkout as _, LockConnection as _, Source, exchange};
use super::errors::Failure;
use super::limits::Limits;
use super::pipelining::{JobOutcome, PackedNext, QueuedCommand, send};
use super::pooled::PooledBackend;
use super::resp::Packed;
use super::watch::PooledWatch;
use super::{Answers, KeyRequest, WatchedAll, WatchedConnection};
use crate::key::Key;

impl<S: Source> PooledBackend<S> {
    /// Sends what may still be sent.
    pub(super) fn send_all(&self, requests: &[KeyRequest], mut limits: Limits<'_>) -> Vec<Answers> {
        let command = |KeyRequest { key, request, next }: &KeyRequest| {
            let next = next.as_ref().map(|next| PackedNext::new(key, next));
            QueuedCommand::new(key, request, next, &limits)
        };
        let commands: Vec<QueuedCommand> = requests.iter().map(command).collect();
        loop {
            let (mut connection, now) = match self.connection(&mut limits) {
                Ok(ready) => ready,
                Err(failure) => return requests.iter().map(|_| Err(failure.clone()).into()).collect(),
            };
            let server = connection.server_version();
            let mut sendable = commands.iter().filter(|command| command.job(server, now).is_some());
            let Some(first) = sendable.next() else {
                return requests.iter().map(|_| Err(Failure::TooLate).into()).collect();
            };
            let Some(own) = first.job(server, now) else { unreachable!("it may be sent") };
            let limit = limits.answered_by.since(now.uptime);
            let outcomes = send(&mut *connection, own, sendable, || now, limit);
            self.note_role(&outcomes);
            if outcomes.leave_in_order(own.own) {
                drop(connection);
            } else {
                connection.invalidate();
            }
            let refusal = outcomes.found_no_room().cloned();
            if refusal.is_some() && self.wait_for_room(&mut limits) {
                continue;
            }
            let mut outcomes = iter::once(outcomes.own).chain(outcomes.others);
            let outcome_of = |command: &QueuedCommand| match (command.job(server, now), &refusal) {
                (None, _) => Err(Failure::TooLate).into(),
                (Some(_), Some(refusal)) => Err(Failure::Refused(refusal.clone())).into(),
                (Some(_), None) => match outcomes.next().and_then(JobOutcome::answers) {
                    Some(answers) => answers,
                    None => unreachable!("what was sent was read, unless the server has no room"),
                },
            };
            return commands.iter().map(outcome_of).collect();
        }
    }

    pub(super) fn watch_each(&self, keys: &[Key], mut limits: Limits<'_>) -> Result<WatchedAll, Failure> {
        let (mut connection, now) = self.connection(&mut limits)?;
        let Packed { bytes: packed, count } = codec::packed_watches(keys);
        let limit = limits.answered_by.since(now.uptime);
        let replies = exchange(&mut *connection, &packed, count, limit).complete();
        let read = replies.and_then(|replies| codec::read_watches(keys.len(), replies));
        let failure = match read {
            Ok(Ok(replies)) => {
                let watched: Box<dyn WatchedConnection> = Box::new(PooledWatch::on(connection));
                let replies = replies.into_iter().map(|reply| reply.map_err(Failure::Refused)).collect();
                return Ok((replies, watched));
            }
            Ok(Err(refusal)) => Failure::Refused(refusal),
            Err(error) => Failure::Lost(error),
        };
        // It may be watching.
        connection.invalidate();
        Err(failure)
    }
}

//! Commands on many keys in one trip: of locks that are acquired and released together, and of those that the keeper thread works on.

use std::time::Duration;

use super::codec;
use super::connections::{Checkout as _, Exchange, LockConnection, Source, exchange};
use super::errors::{Failure, Refusal};
use super::item::{self, Item, Left, Replies};
use super::limits::Limits;
use super::pooled::PooledBackend;
use super::resp::Packed;
use super::watch::PooledWatch;
use super::{Answers, KeyRequest, WatchedAll, WatchedConnection};
use crate::clock::Now;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Command, Request};
use crate::version::Version;

impl<S: Source> PooledBackend<S> {
    /// Sends what may still be sent.
    pub(super) fn send_all(&self, requests: &[KeyRequest], mut limits: Limits<'_>) -> Vec<Answers> {
        loop {
            let (mut connection, now) = match self.connection(&mut limits) {
                Ok(ready) => ready,
                Err(failure) => return requests.iter().map(|_| Err(failure.clone()).into()).collect(),
            };
            let trip = Trip::packed(requests, limits.needs, connection.server_version(), now);
            if trip.is_empty() {
                return requests.iter().map(|_| Err(Failure::TooLate).into()).collect();
            }
            let limit = limits.answered_by.since(now.uptime).min(self.command_timeout);
            let (answers, left) = trip.exchange(&mut *connection, requests, limit);
            self.pool.note_role(&left);
            if left.out_of_order {
                connection.invalidate();
            } else {
                drop(connection);
            }
            match answers {
                Ok(answers) => return answers,
                Err(refusal) if !self.wait_for_room(&mut limits) => {
                    return requests.iter().map(|_| Err(Failure::Refused(refusal.clone())).into()).collect();
                }
                Err(_) => {}
            }
        }
    }

    pub(super) fn watch_each(&self, keys: &[Key], mut limits: Limits<'_>) -> Result<WatchedAll, Failure> {
        let (mut connection, now) = self.connection(&mut limits)?;
        let Packed { bytes: packed, forms } = codec::packed_watches(keys);
        let limit = limits.answered_by.since(now.uptime).min(self.command_timeout);
        let replies = exchange(&mut *connection, &packed, forms.len(), limit).complete();
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

/// Commands on many keys, packed for one trip.
struct Trip {
    packed: Packed,
    /// How many replies each command has, and the one behind it: none if it is not sent.
    counts: Vec<[usize; 2]>,
}

impl Trip {
    fn packed(requests: &[KeyRequest], needs: Protocol, server: Option<Version>, now: Now) -> Self {
        let mut packed = Packed::with_room_for(requests.len());
        let mut counts = Vec::with_capacity(requests.len());
        for KeyRequest { key, request, next } in requests {
            let mut pack = |request: &Request, needs| {
                let before = packed.forms.len();
                if item::may_be_sent(needs, request.before, server, now) {
                    codec::pack(&mut packed, key.as_bytes(), &request.command);
                }
                packed.forms.len() - before
            };
            let own = pack(request, needs);
            let next = next.as_ref().filter(|_| own > 0);
            counts.push([own, next.map_or(0, |next| pack(&next.request, next.needs))]);
        }
        Self { packed, counts }
    }

    fn is_empty(&self) -> bool {
        self.packed.forms.is_empty()
    }

    /// Sends it, and returns the answers, or why the server has read nothing.
    fn exchange(
        &self,
        connection: &mut impl LockConnection,
        requests: &[KeyRequest],
        limit: Duration,
    ) -> (Result<Vec<Answers>, Refusal>, Left) {
        let count = self.packed.forms.len();
        let Exchange { mut replies, ended } = exchange(connection, &self.packed.bytes, count, limit);
        let (mut replies, mut item) = (Replies::of(&mut replies, ended), Item::default());
        let mut forms = self.packed.forms.as_slice();
        let mut outcome = |command: &Command, count: usize| {
            let own;
            (own, forms) = forms.split_at(count);
            item.receive(command, own, &mut replies)
        };
        let mut answers = Vec::with_capacity(requests.len());
        for (KeyRequest { request, next, .. }, [own, behind]) in requests.iter().zip(&self.counts) {
            let own = outcome(&request.command, *own);
            let next = next.as_ref().and_then(|next| outcome(&next.request.command, *behind));
            answers.push(Answers { own: own.unwrap_or(Err(Failure::TooLate)), next });
        }
        let refusal = replies.no_room.take();
        (refusal.map_or(Ok(answers), Err), replies.left)
    }
}

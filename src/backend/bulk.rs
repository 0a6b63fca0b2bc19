//! Commands on many keys in one trip: of locks that are acquired and released together, and of those that the keeper thread works on.

use super::codec;
use super::connections::{Checkout as _, LockConnection as _, Source, exchange};
use super::errors::Failure;
use super::item::{self, Item};
use super::limits::Limits;
use super::pooled::PooledBackend;
use super::resp::Packed;
use super::watch::PooledWatch;
use super::{Answers, KeyRequest, WatchedAll, WatchedConnection};
use crate::key::Key;

impl<S: Source> PooledBackend<S> {
    /// Sends what may still be sent.
    pub(super) fn send_all(&self, requests: &[KeyRequest], mut limits: Limits<'_>) -> Vec<Answers> {
        // Each command, and what goes behind it.
        let mut items = Vec::with_capacity(requests.len());
        for KeyRequest { key, request, next } in requests {
            items.push(Item::new(key, request, limits.needs));
            items.extend(next.as_ref().map(|next| Item::new(key, &next.request, next.needs)));
        }
        let refusal = loop {
            let (mut connection, now) = match self.connection(&mut limits) {
                Ok(ready) => ready,
                Err(failure) => return requests.iter().map(|_| Err(failure.clone()).into()).collect(),
            };
            let server = connection.server_version();
            let send = |(own, behind): Pair<'_>| item::send_both(own, behind, server, now);
            if pairs(requests, &mut items).map(send).filter(|sent| *sent).count() == 0 {
                break None;
            }
            let limit = limits.answered_by.since(now.uptime).min(self.command_timeout);
            let left = item::trip(&mut *connection, &mut items, limit);
            self.pool.note_role(&left);
            if left.out_of_order {
                connection.invalidate();
            } else {
                drop(connection);
            }
            let refusal = items.iter().find_map(Item::found_no_room).cloned();
            if refusal.is_none() || !self.wait_for_room(&mut limits) {
                break refusal;
            }
        };
        let unread = || refusal.clone().map_or(Failure::TooLate, Failure::Refused);
        let answers = |((own, behind), request): (Pair<'_>, &KeyRequest)| {
            let next = request.next.as_ref().zip(behind);
            let next = next.and_then(|(next, behind)| behind.outcome(&next.request.command));
            let own = own.outcome(&request.request.command).unwrap_or_else(|| Err(unread()));
            Answers { own, next }
        };
        pairs(requests, &mut items).zip(requests).map(answers).collect()
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

/// A command, and what goes behind it.
type Pair<'a> = (&'a mut Item, Option<&'a mut Item>);

fn pairs<'a>(requests: &[KeyRequest], items: &'a mut [Item]) -> impl Iterator<Item = Pair<'a>> {
    let mut items = items.iter_mut();
    requests.iter().map_while(move |request| {
        let own = items.next()?;
        Some((own, request.next.as_ref().and_then(|_| items.next())))
    })
}

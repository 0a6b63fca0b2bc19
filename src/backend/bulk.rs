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
        let items = |KeyRequest { key, request, next }: &KeyRequest| {
            [Item::new(key, request, limits.needs), Item::next(key, next.as_ref())]
        };
        let mut items: Vec<[Item; 2]> = requests.iter().map(items).collect();
        let refusal = loop {
            let (mut connection, now) = match self.connection(&mut limits) {
                Ok(ready) => ready,
                Err(failure) => return requests.iter().map(|_| Err(failure.clone()).into()).collect(),
            };
            let server = connection.server_version();
            let send = |[own, next]: &mut [Item; 2]| usize::from(item::send_both(own, next, server, now));
            if items.iter_mut().map(send).sum::<usize>() == 0 {
                break None;
            }
            let limit = limits.answered_by.since(now.uptime).min(self.command_timeout);
            let mut all: Vec<&mut Item> = items.iter_mut().flatten().collect();
            let left = item::trip(&mut *connection, &mut all, limit);
            self.pool.note_role(&left);
            if left.out_of_order {
                connection.invalidate();
            } else {
                drop(connection);
            }
            let refusal = items.iter().find_map(|[own, _]| own.found_no_room()).cloned();
            if refusal.is_none() || !self.wait_for_room(&mut limits) {
                break refusal;
            }
        };
        let unread = || refusal.clone().map_or(Failure::TooLate, Failure::Refused);
        let answers = |([own, behind], request): (&mut [Item; 2], &KeyRequest)| {
            let next = request.next.as_ref().and_then(|next| behind.outcome(&next.request.command));
            let own = own.outcome(&request.request.command).unwrap_or_else(|| Err(unread()));
            Answers { own, next }
        };
        items.iter_mut().zip(requests).map(answers).collect()
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

//! Changes of a key that holds what is expected, on servers that compare and change in one command: one trip, which other commands share. If the
//! key holds something else it is read, as a transaction would have done before.

use std::slice;

use super::OneServer;
use crate::net::codec::Compares;
use crate::net::errors::{Failure, Refusal, RefusalKind};
use crate::net::limits::Limits;
use crate::net::{KeyTrip, Sent};
use crate::rules::{Command, Reply, Trip};
use crate::values::clock;
use crate::values::value::LONGEST_KEPT;

impl OneServer {
    /// Returns how a trip changes its key in one command, if it does and the server has one for it: none that looks at a time to live as well.
    pub(super) fn compares(&self, trip: &Trip) -> Option<Compares> {
        let expected = trip.if_holds.as_ref().filter(|expected| !expected.without_ttl)?;
        let is_on_the_key = matches!(trip.command, Command::Set(_) | Command::Del);
        // A longer value is known by its beginning alone.
        let is_whole = (1..LONGEST_KEPT).contains(&expected.bytes.len());
        self.opener.health.compares().filter(|_| is_on_the_key && is_whole)
    }

    /// Makes such a trip.
    pub(super) fn by_comparing(&self, trip: &KeyTrip<'_>, limits: Limits<'_>) -> Sent {
        let mut own = self.by_master(trip, limits);
        if !matches!(own.reply, Some(Ok(Reply::Executed(Some(_))))) {
            self.after_comparing(slice::from_ref(trip), slice::from_mut(&mut own), limits);
        }
        own
    }

    /// Makes trips of which some are such.
    pub(super) fn all_by_comparing(&self, trips: &[KeyTrip<'_>], limits: Limits<'_>) -> Vec<Sent> {
        let comparing = trips.iter().map(|trip| KeyTrip { compares: self.compares(trip.trip), ..*trip });
        let trips: Vec<KeyTrip<'_>> = comparing.collect();
        let mut all = self.all_by_master(&trips, limits);
        self.after_comparing(&trips, &mut all, limits);
        all
    }

    /// Makes of what came of the trips what a transaction would have come to: reads keys that hold something else, and makes a transaction where
    /// the server has no such command for this user after all.
    #[cold]
    fn after_comparing(&self, trips: &[KeyTrip<'_>], all: &mut [Sent], limits: Limits<'_>) {
        let get = Trip::of(Command::Get);
        let (mut next, mut places) = (Vec::new(), Vec::new());
        for (at, (trip, own)) in
            trips.iter().zip(&*all).enumerate().filter(|(_, (trip, _))| trip.compares.is_some())
        {
            match &own.reply {
                Some(Err(Failure::Refused(refusal))) if lacks(refusal) => {
                    self.opener.health.refuses_to_compare();
                    next.push(KeyTrip { compares: None, ..own.again(trip) });
                }
                Some(Ok(Reply::Executed(None))) => next.push(KeyTrip::new(trip.key, &get)),
                _ => continue,
            }
            places.push(at);
        }
        if !next.is_empty() {
            let limits = limits.for_the_next(clock::now(), self.opener.command_timeout);
            let more = self.all_by_master(&next, limits);
            for (at, (trip, more)) in places.into_iter().zip(next.iter().zip(more)) {
                if trip.transacts() {
                    all[at].replace(more);
                } else {
                    // What comes next is judged by the time of this reply.
                    (all[at].found, all[at].reply, all[at].at) = (more.reply, None, None);
                }
            }
        }
        for (trip, own) in trips.iter().zip(all) {
            // It was to be sent soon, and nothing was read.
            let is_late = own.found.is_none() && matches!(own.reply, None | Some(Err(Failure::TooLate)));
            if let (true, Some(_), Some(expected)) = (is_late, trip.compares, &trip.trip.if_holds) {
                (own.found, own.reply) = (Some(Ok(Reply::Bulk(Some(expected.bytes.clone())))), None);
            }
        }
    }
}

/// Returns true if the server has no such command, or not for this user: nothing was carried out.
fn lacks(refusal: &Refusal) -> bool {
    match refusal.kind() {
        RefusalKind::UnknownCommand => true,
        RefusalKind::NotPermitted => !refusal.is_about_a_key(),
        RefusalKind::Other => ["ERR syntax error", "ERR wrong number of arguments"]
            .iter()
            .any(|words| refusal.text().starts_with(words)),
        _ => false,
    }
}

//! What goes again. A trip that was shared, or not sent, is not decided by that: it goes again as long as there is time,
//! with fewer others, on another connection, after a pause, or as another trip. This is the one place that knows why.
//!
//! | what happened | what follows |
//! |---|---|
//! | it was not sent: its lane was given up before | it goes by itself |
//! | a transaction of several keys was not carried out | those that it has not changed go in halves, and in the end each by itself |
//! | the server says for the first time that its keys have slots | those of each slot go together |
//! | the server had no room, or settles | it goes again after a pause |
//! | the server was too old when the connection was opened | it goes again if that has ended |
//! | a replica has refused it, and a new connection finds the master | it goes again at once, then after pauses |
//! | the server has no command that compares, or not for this user | it goes again as a transaction |
//! | such a command has found something else | the key is read |

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::Ordering;

use proto::Reply;
use proto::values::{Key, Uptime};

use super::waiting::Said;
use super::{OneServer, pause};
use crate::net::errors::{Failure, Refusal, RefusalKind};
use crate::net::jobs::RawReplies;
use crate::net::lanes::Batching;
use crate::net::limits::Limits;
use crate::net::packed::{Form, Packed};
use crate::net::request::Get;
use crate::net::threads::on_threads;
use crate::net::{KeyTrip, Sent, Undecided};
use crate::system::clock;
use crate::system::sync::Mutex;

/// Of so many keys that a transaction has not changed, each goes by itself; of more, half of them go together.
const FEW: usize = 8;

/// Trips of which some are to go again, and what came of each so far.
struct Rest<'a> {
    /// As they go next.
    trips: Vec<KeyTrip<'a>>,
    sent: Vec<Sent>,
    pending: Vec<Part>,
    /// Set once the server has taken long not to answer: nothing more is sent.
    stuck: Option<Failure>,
}

/// Trips that go together.
struct Part {
    /// Their places in the list.
    places: Vec<usize>,
    batching: Batching,
    first: FirstStep,
}

/// What comes before they go.
#[derive(Clone)]
enum FirstStep {
    Nothing,
    /// They were sent then, by a command that compares, and have as much time as is left.
    Compared(Option<Uptime>),
    /// A replica has refused them once.
    Master,
    /// A pause, if there is time until then; and why, if that is to be said.
    Pause(Uptime, Option<Box<Refusal>>),
    /// The question whether the connection is there still. If so, its server is too old.
    Ping,
}

impl FirstStep {
    /// Returns true if it is the same, but for how long.
    fn is_as(&self, other: &Self) -> bool {
        mem::discriminant(self) == mem::discriminant(other)
    }
}

/// What follows on a trip.
enum Follows {
    /// It goes with fewer others.
    Apart,
    /// It goes with the same.
    Again(FirstStep),
}

impl OneServer {
    /// Makes the rest of trips that were sent so, or of those that were not sent yet. Returns what came of each.
    #[cold]
    pub(super) fn make_rest(
        &self,
        trips: &[KeyTrip<'_>],
        sent: Option<(Vec<Sent>, Batching)>,
        limits: &Limits<'_>,
    ) -> Vec<Sent> {
        let all = (0..trips.len()).collect();
        let mut rest = Rest { trips: trips.to_vec(), sent: Vec::new(), pending: Vec::new(), stuck: None };
        match sent {
            Some((sent, batching)) => {
                rest.sent = sent;
                self.judge(&mut rest, Part { places: all, batching, first: FirstStep::Nothing }, limits);
            }
            None => {
                let unsent = || Sent { undecided: Some(Undecided::Unsent), ..Sent::default() };
                rest.sent = trips.iter().map(|_| unsent()).collect();
                // First what needs no transaction.
                rest.pending = self.by_slot(trips, all, &FirstStep::Nothing).into_iter().rev().collect();
            }
        }
        // Transactions of several slots need a connection each. Other users of a pool need some as well.
        let in_cluster = self.in_cluster.load(Ordering::Relaxed);
        let count = if in_cluster && !self.opener.lends() { rest.pending.len().min(self.size) } else { 1 };
        let rest = Mutex::new(rest);
        on_threads(count, || {
            let (mut own, mut said) = (*limits, Said::default());
            while self.make_next(&rest, own, &mut said) {
                if in_cluster {
                    // What others took before it says nothing about the next.
                    own = limits.for_the_next(clock::now(), self.opener.command_timeout);
                }
            }
        });
        let Rest { trips: last, sent, .. } = rest.into_inner();
        let outcome = |((trip, last), mut sent): ((&KeyTrip<'_>, &KeyTrip<'_>), Sent)| {
            if let Some(undecided) = sent.undecided.take() {
                let failed = Sent::failed(last, self.given_up(undecided, limits));
                merge(last, &mut sent, failed);
            }
            after_comparing(trip, sent)
        };
        trips.iter().zip(&last).zip(sent).map(outcome).collect()
    }

    /// Sends the next of several parts. Returns false if there is none.
    fn make_next(&self, rest: &Mutex<Rest<'_>>, mut limits: Limits<'_>, said: &mut Said) -> bool {
        let mut before = rest.lock();
        let Some(part) = before.pending.pop() else { return false };
        let batch: Vec<KeyTrip<'_>> = part.places.iter().map(|at| before.trips[*at]).collect();
        let stuck = before.stuck.clone();
        drop(before);
        let taken_at = clock::uptime();
        let failed =
            |failure: Failure| batch.iter().map(|trip| Sent::failed(trip, failure.clone())).collect();
        let is_due = match &stuck {
            Some(_) => Ok(true),
            None => self.is_due(&part.first, batch[0].key, &mut limits, said),
        };
        let began = if let FirstStep::Pause(..) = part.first { clock::uptime() } else { taken_at };
        let sent: Vec<Sent> = match (stuck, is_due) {
            (Some(failure), _) => failed(failure.after(began.since(limits.waits_since))),
            (None, Err(failure)) => failed(failure),
            (None, Ok(true)) => self.carry_all(&batch, part.batching, &limits),
            // That the key was found to hold something else is half of what they come to.
            (None, Ok(false)) if matches!(part.first, FirstStep::Compared(_)) => {
                failed(self.given_up(Undecided::Unsent, &limits))
            }
            // What they came to before counts.
            (None, Ok(false)) => return true,
        };
        let mut after = rest.lock();
        if after.stuck.is_none() && clock::uptime().since(began) >= self.opener.command_timeout / 2 {
            after.stuck = sent.iter().find_map(Sent::unreachable);
        }
        let rest = &mut *after;
        for (at, sent) in part.places.iter().zip(sent) {
            merge(&rest.trips[*at], &mut rest.sent[*at], sent);
        }
        self.judge(rest, part, &limits);
        true
    }

    /// Does what comes before trips are sent. Returns whether there is time for them.
    fn is_due(
        &self,
        first: &FirstStep,
        key: &Key,
        limits: &mut Limits<'_>,
        said: &mut Said,
    ) -> Result<bool, Failure> {
        limits.decided_at = clock::now();
        match first {
            FirstStep::Nothing | FirstStep::Master => {}
            FirstStep::Compared(sent_at) => *limits = limits.after(*sent_at, limits.decided_at),
            FirstStep::Pause(until, why) => {
                if let Some(why) = why {
                    said.waits(key, why, limits);
                }
                return Ok(pause(limits, *until));
            }
            FirstStep::Ping => return self.is_too_old(key, limits).map(|is_too_old| !is_too_old),
        }
        Ok(limits.decided_at.uptime < limits.answered_by)
    }

    /// Returns true if the server is too old for what is to be sent, as it says on a connection that works: it may have
    /// been upgraded since one was opened, which is closed then. Fails if there is no time for another.
    pub(super) fn is_too_old(&self, key: &Key, limits: &mut Limits<'_>) -> Result<bool, Failure> {
        let mut ping = Packed::default();
        ping.awaits(Form::Any).words(&[b"PING"]);
        let began = limits.decided_at.uptime;
        let RawReplies { missing, version, .. } = self.ask(key, ("PING", &ping, 0), limits)?;
        limits.decided_at = clock::now();
        match missing {
            None => Ok(version.is_some_and(|version| version < limits.needs.min_version())),
            Some(_) if limits.decided_at.uptime < limits.answered_by => Ok(false),
            Some(error) => Err(Failure::unreachable(error).after(limits.decided_at.uptime.since(began))),
        }
    }

    /// Has those of a part go again of which it follows from what came of them.
    fn judge(&self, rest: &mut Rest<'_>, part: Part, limits: &Limits<'_>) {
        let (mut apart, mut learned) = (Vec::new(), false);
        let mut again: Vec<(FirstStep, Vec<usize>)> = Vec::new();
        for at in part.places {
            let (trip, sent) = (&mut rest.trips[at], &rest.sent[at]);
            if matches!(sent.undecided, Some(Undecided::CrossSlot)) {
                learned |= !self.in_cluster.swap(true, Ordering::Relaxed);
            }
            let follows = self.follows(trip, sent, &part.first, limits);
            *trip = match (&follows, &sent.reply) {
                (Some(Follows::Again(FirstStep::Compared(_))), Some(Ok(_))) => KeyTrip::of(trip.key, &Get),
                (Some(Follows::Again(FirstStep::Compared(_))), _) => {
                    KeyTrip { compares: None, ..sent.again(trip) }
                }
                _ => sent.again(trip),
            };
            match follows {
                None => {}
                Some(Follows::Apart) => apart.push(at),
                Some(Follows::Again(first)) => match again.iter_mut().find(|(other, _)| first.is_as(other)) {
                    Some((_, places)) => places.push(at),
                    None => again.push((first, vec![at])),
                },
            }
        }
        let alone = |places| Part { places, batching: Batching::Alone, first: FirstStep::Nothing };
        if learned {
            rest.pending.extend(self.by_slot(&rest.trips, apart, &FirstStep::Nothing));
        } else if part.batching != Batching::Alone {
            // Others shared it.
            rest.pending.extend(Some(apart).filter(|apart| !apart.is_empty()).map(alone));
        } else if apart.len() <= FEW {
            rest.pending.extend(apart.into_iter().map(|at| alone(vec![at])));
        } else {
            let half = apart.split_off(apart.len() / 2);
            rest.pending.extend([half, apart].map(alone));
        }
        for (first, places) in again {
            rest.pending.extend(self.by_slot(&rest.trips, places, &first));
        }
    }

    /// Returns what follows on a trip, which went after `before`.
    fn follows(
        &self,
        trip: &KeyTrip<'_>,
        sent: &Sent,
        before: &FirstStep,
        limits: &Limits<'_>,
    ) -> Option<Follows> {
        Some(match (&sent.undecided, trip.compares, &sent.reply) {
            (Some(Undecided::Unsent | Undecided::Together | Undecided::CrossSlot), ..) => Follows::Apart,
            (Some(Undecided::NoRoom(_)), ..) => {
                self.dialing.leave_alone(clock::uptime());
                let is_connected = self.opener.is_connected();
                let until = if is_connected { limits.connected_by } else { limits.accepted_by };
                Follows::Again(FirstStep::Pause(until, None))
            }
            (Some(Undecided::Settles(refusal)), ..) => {
                Follows::Again(FirstStep::Pause(limits.accepted_by, Some(refusal.clone())))
            }
            // Of several servers behind one address some may be older.
            (Some(Undecided::TooOld(_)), ..) if matches!(before, FirstStep::Ping) => return None,
            (Some(Undecided::TooOld(_)), ..) => Follows::Again(FirstStep::Ping),
            (None, ..) if is_read_only(sent) && self.opener.finds_master() => Follows::Again(match before {
                FirstStep::Master | FirstStep::Pause(..) => FirstStep::Pause(limits.reachable_by, None),
                _ => FirstStep::Master,
            }),
            (None, Some(_), Some(Err(Failure::Refused(refusal)))) if lacks(refusal) => {
                self.opener.health.refuses_to_compare();
                Follows::Again(FirstStep::Compared(sent.began_at))
            }
            (None, Some(_), Some(Ok(Reply::Executed(None)))) => {
                Follows::Again(FirstStep::Compared(sent.began_at))
            }
            _ => return None,
        })
    }

    /// Returns why trips that are not decided go no more.
    fn given_up(&self, undecided: Undecided, limits: &Limits<'_>) -> Failure {
        match undecided {
            Undecided::NoRoom(refusal) | Undecided::Settles(refusal) | Undecided::TooOld(refusal) => {
                Failure::Refused(*refusal)
            }
            Undecided::Unsent | Undecided::Together | Undecided::CrossSlot => {
                let waited = clock::uptime().since(limits.waits_since);
                self.dialing.all_in_use(&self.opener).after(waited)
            }
        }
    }

    /// Divides places of trips by their slots.
    fn by_slot(&self, trips: &[KeyTrip<'_>], places: Vec<usize>, first: &FirstStep) -> Vec<Part> {
        let mut slots: BTreeMap<Option<u16>, Vec<usize>> = BTreeMap::new();
        for at in places {
            slots.entry(self.slot(&trips[at])).or_default().push(at);
        }
        let part = |places: Vec<usize>| {
            let batching = self.batching(&trips[places[0]], places.len());
            Part { places, batching, first: first.clone() }
        };
        slots.into_values().map(part).collect()
    }
}

/// Returns true if this is what a trip comes to, as it usually is. Of anything else it is judged what follows.
#[inline]
pub(super) fn is_usual(trip: &KeyTrip<'_>, sent: &Sent) -> bool {
    sent.undecided.is_none()
        && match (trip.compares, &sent.reply) {
            (Some(_), reply) => matches!(reply, Some(Ok(Reply::Executed(Some(_))))),
            (None, reply) => !matches!(reply, Some(Err(_))),
        }
}

/// Notes what came of a trip as it went last: if that was the GET of what a command that compares has found, what the
/// key holds.
fn merge(last: &KeyTrip<'_>, sent: &mut Sent, more: Sent) {
    if sent.changed_by.is_some() && last.if_holds.is_none() {
        // What comes next is judged by the time of this reply.
        (sent.found, sent.reply, sent.at, sent.undecided) = (more.reply, None, None, more.undecided);
    } else {
        sent.replace(more);
    }
}

/// Makes of what came of a command that compares what a transaction would have come to.
fn after_comparing(trip: &KeyTrip<'_>, sent: Sent) -> Sent {
    // It was to be sent soon, and nothing was read.
    let is_late = sent.found.is_none() && matches!(sent.reply, None | Some(Err(Failure::TooLate)));
    match (trip.if_holds, trip.compares) {
        (Some(expected), Some(_)) if is_late => {
            Sent { found: Some(Ok(Reply::Bulk(Some(expected.bytes.clone())))), reply: None, ..sent }
        }
        _ => sent,
    }
}

/// Returns true if the server has refused a change since it is a replica now.
fn is_read_only(sent: &Sent) -> bool {
    matches!(&sent.reply, Some(Err(Failure::Refused(refusal))) if refusal.kind() == RefusalKind::ReadOnly)
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

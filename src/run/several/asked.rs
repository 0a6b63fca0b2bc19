//! Asking for several locks in one trip, and giving back what is acquired behind one that is not.

use super::WaitAll;
use crate::net::{Failure, KeyTrip, RefusalKind, Sent};
use crate::report::error::Error;
use crate::rules::{Command, Reply, Trip};
use crate::run::acquire::{Asked, Call};
use crate::run::held::Acquired;
use crate::run::session::Session;
use crate::values::clock::{self, Now};
use crate::values::key::Key;

/// How often keys are read whose SETNX had no reply, before it is given up. Each time a server that is unreachable is waited for.
const READS: u32 = 4;

/// The locks that were asked for together, until each is waited for.
pub(super) struct AskedAll<'a> {
    all: &'a WaitAll<'a>,
    /// Of each key. While one is waited for, these are commands without a reply, which have acquired nothing so far.
    asked: Vec<Option<Asked<'a>>>,
    /// The last that is waited for: the wait reports that its reply was lost.
    waited_for: Option<&'a Key>,
    not_released: Vec<Error>,
}

impl<'a> AskedAll<'a> {
    /// Those that were `asked` for so far, from the first on. Fails if it cannot be found out what they have acquired.
    pub(super) fn new(all: &'a WaitAll<'a>, asked: Vec<Asked<'a>>) -> Result<Self, Error> {
        let places = all.keys.iter().map(|_| None).collect();
        let mut new = Self { all, asked: places, waited_for: None, not_released: Vec::new() };
        match new.add(0, asked) {
            Ok(()) => Ok(new),
            Err(error) => Err(error.and(new.give_back(Vec::new()))),
        }
    }

    /// Returns the answer with which the wait for a lock begins; none if that asks itself. Unless the lock is granted, a call that may wait
    /// holds none behind it then, as far as is known. Fails if that could not be found out.
    pub(super) fn first(&mut self, index: usize) -> Result<Option<Asked<'a>>, Error> {
        if self.asked[index].is_none() {
            let unasked = self.asked[index..].iter().take_while(|asked| asked.is_none()).count();
            let asked = self.all.ask(index, unasked);
            self.add(index, asked)?;
        }
        self.waited_for = Some(&self.all.keys[index]);
        let first = match &mut self.asked[index] {
            Some(lost) if lost.is_lost() => Some(lost.clone()),
            answered => answered.take(),
        };
        let is_granted = first.as_ref().is_some_and(Asked::is_carried_out);
        if !is_granted && self.all.may_wait() {
            let behind = self.take_granted(clock::now());
            self.not_released.extend(self.all.give_back(Vec::new(), behind));
        }
        debug_assert!(
            is_granted || !self.all.may_wait() || !self.holds_any(),
            "it waits with more than a prefix"
        );
        Ok(first)
    }

    fn holds_any(&self) -> bool {
        self.asked.iter().flatten().any(Asked::is_carried_out)
    }

    /// Forgets what became of a lock before the wait for it ended.
    pub(super) fn forget(&mut self, index: usize) {
        self.asked[index] = None;
        let key = &self.all.keys[index];
        self.not_released.retain(|error| error.key() != Some(key));
    }

    /// Gives back all, with those that were waited for. Returns what may be left held.
    pub(super) fn give_back(mut self, early: Vec<Acquired>) -> Vec<Error> {
        let unread = self.settle(1, |trips| {
            let now = clock::now();
            let Call { engine, options, .. } = self.all.call;
            let session = Session::new(engine, trips[0].key, options.protocol, Some(now.uptime));
            engine.backend.send_all(trips, &session.limits(trips[0].trip, now))
        });
        let behind = self.take_granted(clock::now());
        let mut left = self.all.give_back(early, behind);
        left.extend(unread);
        // What is known since says more.
        self.not_released.retain(|error| !left.iter().any(|left| left.key() == error.key()));
        left.append(&mut self.not_released);
        left
    }

    /// Adds those that were asked for from this one on, and finds out what commands without a reply have acquired.
    fn add(&mut self, index: usize, asked: Vec<Asked<'a>>) -> Result<(), Error> {
        if asked.is_empty() {
            return Ok(());
        }
        for (place, asked) in self.asked[index..].iter_mut().zip(asked) {
            *place = Some(asked);
        }
        let mut unread = self.settle(READS, |trips| self.all.send_each(trips));
        if unread.is_empty() {
            return Ok(());
        }
        let first = unread.remove(0);
        let error = first.and(unread);
        self.all.report_of_each(&error, 1);
        Err(error)
    }

    /// Finds out what commands without a reply have acquired (I6): a lock is granted if its key holds the value. Returns an error for each
    /// that could not be read, or has no expiration, so that its value names no holder.
    fn settle(&mut self, reads: u32, read: impl Fn(&[KeyTrip<'_>]) -> Vec<Sent>) -> Vec<Error> {
        let Self { all: WaitAll { call, .. }, asked, waited_for, .. } = self;
        let now = clock::now();
        let mut unread: Vec<&mut Option<Asked<'_>>> = Vec::new();
        for place in asked {
            match place {
                Some(asked) if asked.is_lost() && asked.lease.has_passed(now) => *place = None,
                Some(asked) if asked.is_lost() => unread.push(place),
                _ => {}
            }
        }
        let report = |Asked { key, trip, sent, .. }: &Asked<'_>| match &sent.reply {
            Some(Err(Failure::Lost(cause))) if *waited_for != Some(*key) => {
                call.engine.observer.reply_lost(key, trip.name(), cause);
            }
            _ => {}
        };
        for _ in 0..reads {
            if unread.is_empty() || call.options.expiration.is_none() {
                break;
            }
            let keys = unread.iter().filter_map(|place| place.as_ref()).map(|asked| asked.key);
            let get = Trip::of(Command::Get);
            let trips: Vec<KeyTrip<'_>> = keys.map(|key| KeyTrip::new(key, &get)).collect();
            let mut found = read(&trips).into_iter().map(Sent::own);
            unread.retain_mut(|place| match (place, found.next()) {
                (Some(asked), Some(Ok(Reply::Bulk(Some(value))))) if value == asked.lease.value => {
                    report(asked);
                    asked.sent.reply = Some(Ok(Reply::Integer(1)));
                    false
                }
                (_, Some(Err(Failure::Refused(refusal)))) => refusal.kind() != RefusalKind::WrongType,
                (_, found) => !matches!(found, Some(Ok(_))),
            });
        }
        let in_doubt = |place: &mut Option<Asked<'_>>| {
            let asked = place.take()?;
            report(&asked);
            let Some(Err(Failure::Lost(cause))) = asked.sent.reply else { return None };
            let (key, command) = (asked.key.clone(), asked.trip.name());
            Some(Error::InDoubt { key, command, advice: call.advice(), cause })
        };
        unread.into_iter().filter_map(in_doubt).collect()
    }

    /// Takes what was acquired, and forgets what was not.
    fn take_granted(&mut self, now: Now) -> Vec<Acquired> {
        let answered = |place: &mut Option<Asked<'a>>| place.take_if(|asked| !asked.is_lost());
        let granted = self.asked.iter_mut().filter_map(answered).filter(Asked::is_carried_out);
        let granted = granted.map(|mut asked| {
            self.not_released.retain(|error| error.key() != Some(asked.key));
            asked.at = now;
            self.all.call.hold(self.all.call.shared, &mut asked)
        });
        granted.collect()
    }
}

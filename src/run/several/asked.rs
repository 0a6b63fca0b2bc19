//! Asking for several locks in one trip, and giving back what is acquired behind one that is not.

use super::{Several, WaitAll};
use crate::net::{Failure, KeyTrip, RefusalKind, Sent};
use crate::report::error::Error;
use crate::rules::acquire::first_command;
use crate::rules::{Command, Reply, Trip};
use crate::run::acquire::{Answer, Wait};
use crate::run::held::Acquired;
use crate::run::session::Session;
use crate::values::clock::{self, Now};
use crate::values::key::Key;

/// How often keys are read whose SETNX had no reply, before it is given up. Each time a server that is unreachable is waited for.
const READS: u32 = 4;

/// The locks that were asked for together, until each is waited for.
pub(super) struct Asked<'a> {
    all: &'a WaitAll<'a>,
    /// Of each key. While one is waited for, these are commands without a reply, which have acquired nothing so far.
    answers: Vec<Option<Answer>>,
    /// The last that is waited for: the wait reports that its reply was lost.
    waited_for: Option<Key>,
    not_released: Vec<Error>,
}

impl<'a> Asked<'a> {
    pub(super) fn new(all: &'a WaitAll<'a>) -> Self {
        let answers = all.wanted.keys.iter().map(|_| None).collect();
        Self { all, answers, waited_for: None, not_released: Vec::new() }
    }

    /// Returns the answer with which the wait for a lock begins; none if that asks itself. Unless the lock is granted, a call that may wait
    /// holds none behind it then, as far as is known. Fails if that could not be found out.
    pub(super) fn first(&mut self, index: usize) -> Result<Option<Answer>, Error> {
        if self.answers[index].is_none() {
            self.ask(index)?;
        }
        self.waited_for = Some(self.all.wanted.keys[index].clone());
        let first = match &mut self.answers[index] {
            Some(lost) if lost.is_lost() => Some(lost.clone()),
            answered => answered.take(),
        };
        let is_granted = first.as_ref().is_some_and(Answer::is_granted);
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

    /// Asks for all locks in one trip. Returns them if each is granted.
    pub(super) fn all_at_once(&mut self) -> Result<Option<Vec<Acquired>>, Error> {
        self.ask(0)?;
        let now = clock::now();
        let is_held = |answer: &Answer| answer.is_granted() && !answer.lease.has_passed(now);
        if !self.answers.iter().all(|answer| answer.as_ref().is_some_and(is_held)) {
            return Ok(None);
        }
        let granted = self.take_granted(now);
        for Acquired { hold, .. } in &granted {
            self.all.report(&hold.key, 1, Ok(()));
        }
        Ok(Some(granted))
    }

    fn holds_any(&self) -> bool {
        self.answers.iter().flatten().any(Answer::is_granted)
    }

    /// Forgets what became of a lock before the wait for it ended.
    pub(super) fn forget(&mut self, index: usize) {
        self.answers[index] = None;
        let key = &self.all.wanted.keys[index];
        self.not_released.retain(|error| error.key() != Some(key));
    }

    /// Gives back all, with those that were waited for. Returns what may be left held.
    pub(super) fn give_back(mut self, early: Vec<Acquired>) -> Vec<Error> {
        let unread = self.settle(1, |trips| {
            let now = clock::now();
            let protocol = self.all.wanted.options.protocol;
            let session = Session::new(self.all.engine, trips[0].key, protocol, Some(now.uptime));
            self.all.engine.backend.send_all(trips, &session.limits(trips[0].trip, now))
        });
        let behind = self.take_granted(clock::now());
        let mut left = self.all.give_back(early, behind);
        left.extend(unread);
        // What is known since says more.
        self.not_released.retain(|error| !left.iter().any(|left| left.key() == error.key()));
        left.append(&mut self.not_released);
        left
    }

    /// Asks for the locks from this one on in one trip, unless it is this one alone: up to the first that a thread of this process has or
    /// waits for, or that is left to a process which was just notified of its release.
    fn ask(&mut self, index: usize) -> Result<(), Error> {
        let WaitAll { engine, wanted, .. } = self.all;
        let is_busy = |key: &Key| {
            let is_left =
                || engine.notifies(wanted.options) && engine.notifications.of(key).head_start(key).is_some();
            self.all.may_wait() && (!engine.queue.is_idle(key) || is_left())
        };
        let rest = wanted.keys.iter().zip(&self.answers).skip(index);
        let count = rest.take_while(|(key, answer)| answer.is_none() && !is_busy(key)).count();
        if count < 2 {
            return Ok(());
        }
        let keys = &wanted.keys[index..index + count];
        let connected = if engine.knows_meaning_of(wanted.options) {
            Ok(())
        } else {
            self.all.talk(&keys[0], |session| session.connect(clock::now()))
        };
        let (now, protocol) = (clock::now(), engine.protocol_of(wanted.options));
        let mut trips = Vec::with_capacity(count);
        for (key, place) in keys.iter().zip(&mut self.answers[index..]) {
            let (lease, trip) = first_command(wanted.options, protocol, engine.identity.next_nonce(), now);
            let command = trip.name();
            *place = Some(Answer { key: key.clone(), lease, command, reply: Err(Failure::TooLate) });
            trips.push(trip);
        }
        let trips: Vec<KeyTrip<'_>> =
            keys.iter().zip(&trips).map(|(key, trip)| KeyTrip::new(key, trip)).collect();
        let sent = match connected {
            Ok(()) => self.all.send_each(&trips),
            Err(failure) => trips.iter().map(|trip| Sent::failed(trip, failure.clone())).collect(),
        };
        for (answer, sent) in self.answers[index..].iter_mut().flatten().zip(sent) {
            answer.reply = sent.own();
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
        let Self { all: WaitAll { engine, wanted, .. }, answers, waited_for, .. } = self;
        let now = clock::now();
        let mut unread: Vec<&mut Option<Answer>> = Vec::new();
        for place in answers {
            match place {
                Some(answer) if answer.is_lost() && answer.lease.has_passed(now) => *place = None,
                Some(answer) if answer.is_lost() => unread.push(place),
                _ => {}
            }
        }
        let report = |Answer { key, command, reply, .. }: &Answer| match reply {
            Err(Failure::Lost(cause)) if waited_for.as_ref() != Some(key) => {
                engine.observer.reply_lost(key, command, cause);
            }
            _ => {}
        };
        for _ in 0..reads {
            if unread.is_empty() || wanted.options.expiration.is_none() {
                break;
            }
            let keys = unread.iter().filter_map(|place| place.as_ref()).map(|answer| &answer.key);
            let get = Trip::of(Command::Get);
            let trips: Vec<KeyTrip<'_>> = keys.map(|key| KeyTrip::new(key, &get)).collect();
            let mut found = read(&trips).into_iter().map(Sent::own);
            unread.retain_mut(|place| match (place, found.next()) {
                (Some(answer), Some(Ok(Reply::Bulk(Some(value))))) if value == answer.lease.value => {
                    report(answer);
                    answer.reply = Ok(Reply::Integer(1));
                    false
                }
                (_, Some(Err(Failure::Refused(refusal)))) => refusal.kind() != RefusalKind::WrongType,
                (_, found) => !matches!(found, Some(Ok(_))),
            });
        }
        let in_doubt = |place: &mut Option<Answer>| {
            let answer = place.take()?;
            report(&answer);
            let Answer { key, command, reply: Err(Failure::Lost(cause)), .. } = answer else { return None };
            Some(Error::InDoubt { key, command, advice: Wait::advice(wanted.options), cause })
        };
        unread.into_iter().filter_map(in_doubt).collect()
    }

    /// Takes what was acquired, and forgets what was not.
    fn take_granted(&mut self, now: Now) -> Vec<Acquired> {
        let WaitAll { engine, wanted: Several { options, shared, .. }, .. } = self.all;
        let answered = |place: &mut Option<Answer>| place.take_if(|answer| !answer.is_lost());
        let granted = self.answers.iter_mut().filter_map(answered).filter(Answer::is_granted);
        let granted = granted.map(|Answer { key, lease, .. }| {
            self.not_released.retain(|error| error.key() != Some(&key));
            engine.granted(&key, options, *shared, lease, now)
        });
        granted.collect()
    }
}

//! The simulated server of the scenarios and of the random search: one key, and what the steps of trips do to it.

use std::mem;
use std::time::Duration;

use setnx_lock_proto::lease::End;
use setnx_lock_proto::{Command, Expected, NewValue, Replies, Reply, Trip};

/// One key, as every server since 2.2 has it.
#[derive(Clone, Debug, Default)]
pub struct Server {
    value: Option<Vec<u8>>,
    /// When the server removes the key by itself, by its own clock.
    expires: Option<Duration>,
    /// Both before the last write.
    before: (Option<Vec<u8>>, Option<Duration>),
    /// Counts the writes.
    version: u64,
    /// The counter of fencing tokens, another key.
    counter: i64,
    /// Counts the writes of that.
    counter_version: u64,
    /// When it is forgotten.
    counter_expires: Option<Duration>,
}

/// A trip on its way to the server, one step at a time. One that needs the key to hold something has two, since other
/// clients may come in between: WATCH, and EXEC if the key holds that.
#[derive(Clone, Debug)]
pub struct Leg {
    trip: Trip,
    /// The version of the key that the connection watches.
    watched: Option<u64>,
    /// What the first step has found.
    found: Option<Reply>,
}

/// What follows a step.
#[derive(Debug)]
pub enum Next {
    Leg(Leg),
    End(Replies),
}

impl Leg {
    pub fn first(trip: Trip) -> Self {
        Self { trip, watched: None, found: None }
    }

    pub fn into_trip(self) -> Trip {
        self.trip
    }

    /// What the key must hold, if this step looks whether it does.
    fn looks(&self) -> Option<&Expected> {
        self.trip.if_holds.as_ref().filter(|_| self.found.is_none())
    }

    /// Returns the command that this step sends; `None` if it looks.
    pub fn command(&self) -> Option<&Command> {
        if self.looks().is_some() { None } else { Some(&self.trip.command) }
    }

    /// The trip that this step is part of.
    pub fn trip(&self) -> &Trip {
        &self.trip
    }

    pub fn name(&self) -> &'static str {
        if self.looks().is_some() { "WATCH" } else { self.trip.name() }
    }

    /// When it may no longer be sent.
    pub fn before(&self) -> Option<End> {
        self.trip.before.filter(|_| self.looks().is_none())
    }

    /// Returns what follows this step, which was answered by this.
    pub fn answered(mut self, reply: Reply) -> Next {
        match self.looks() {
            None => {
                let reply = Some(reply).filter(|reply| *reply != Reply::TooLate);
                Next::End(Replies { found: self.found, reply, ..Replies::default() })
            }
            Some(Expected { bytes, .. }) if matches!(&reply, Reply::Bulk(Some(found)) if found == bytes) => {
                self.found = Some(reply);
                Next::Leg(self)
            }
            Some(_) => Next::End(Replies { found: Some(reply), ..Replies::default() }),
        }
    }
}

impl Server {
    /// Writes or clears the key, as any client may.
    pub fn set(&mut self, value: Option<Vec<u8>>) {
        self.write(value, None);
    }

    /// Loses the last write, as a failover may.
    pub fn go_back(&mut self) {
        let (value, expires) = mem::take(&mut self.before);
        self.write(value, expires);
    }

    /// Counts as a write of the key, and leaves its value: EXPIRE.
    pub fn touch(&mut self) {
        self.version += 1;
    }

    /// Returns what the key holds.
    pub fn value(&mut self, now: Duration) -> Option<&[u8]> {
        // Up to Redis 6.0 expiry does not count as a write: a transaction that watches the key is carried out.
        if self.expires.is_some_and(|expires| expires <= now) {
            (self.value, self.expires) = (None, None);
        }
        self.value.as_deref()
    }

    /// Returns after how long the server removes the key by itself, if it does.
    pub fn time_to_live(&self, now: Duration) -> Option<Duration> {
        Some(self.expires?.saturating_sub(now))
    }

    /// Carries out a step of a trip. Returns the reply.
    pub fn carry_out(&mut self, now: Duration, leg: &mut Leg) -> Reply {
        let is_on_counter = matches!(leg.trip.command, Command::Raise { .. });
        let (found, version) = if is_on_counter {
            ((self.counter > 0).then(|| self.counter.to_string().into_bytes()), self.counter_version)
        } else {
            (self.value(now).map(<[u8]>::to_vec), self.version)
        };
        let Some(command) = leg.command() else {
            leg.watched = Some(version);
            let asks = leg.trip.if_holds.as_ref().is_some_and(|expected| expected.without_ttl);
            let left = self.time_to_live(now).filter(|_| asks);
            return match found.clone().zip(left) {
                Some(expiring) => Reply::Expiring(Box::new(expiring)),
                None => Reply::Bulk(found),
            };
        };
        if leg.trip.if_holds.is_none() {
            return self.change(now, command, found);
        }
        if leg.watched != Some(version) {
            return Reply::Executed(None);
        }
        match self.change(now, command, found) {
            Reply::Integer(count) => Reply::Executed(Some(count)),
            reply => unreachable!("a transaction changes something: {reply:?}"),
        }
    }

    /// Carries out a command alone.
    fn change(&mut self, now: Duration, command: &Command, found: Option<Vec<u8>>) -> Reply {
        match command {
            Command::SetNx(entry) => {
                if found.is_none() {
                    self.put(entry, now);
                }
                Reply::Integer(i64::from(found.is_none()))
            }
            Command::Get => Reply::Bulk(found),
            Command::GetSet(value) => {
                self.write(Some(value.to_vec()), None);
                Reply::Bulk(found)
            }
            Command::Set(entry) => {
                self.put(entry, now);
                Reply::Integer(1)
            }
            Command::Renew(renewed) => {
                let (entry, time) = &**renewed;
                self.put(entry, now);
                self.keep_counter(now, *time)
            }
            Command::Del => self.delete(),
            Command::GetDel => {
                self.delete();
                Reply::Bulk(found)
            }
            Command::Count { forget_after } => {
                self.counter += 1;
                self.counter_version += 1;
                self.counter_expires = forget_after.map(|time| now + time).or(self.counter_expires);
                Reply::Integer(self.counter)
            }
            Command::Raise { by, .. } => {
                self.counter += by.cast_signed();
                self.counter_version += 1;
                Reply::Integer(self.counter)
            }
            Command::ForgetAfter(time) => self.keep_counter(now, *time),
            Command::GetAll(_) => unreachable!("it is on several keys"),
            Command::TimeToLive => unreachable!("no rules send it"),
            Command::Waiting(_) | Command::Take(_) => unreachable!("no rules of the lock send it"),
        }
    }

    pub fn counter(&self) -> i64 {
        self.counter
    }

    pub fn set_counter(&mut self, counter: i64) {
        self.counter = counter;
    }

    /// Forgets the counter if that is due. Returns true if it was.
    pub fn forget_counter(&mut self, now: Duration) -> bool {
        let is_due = self.counter_expires.take_if(|expires| *expires <= now).is_some();
        if is_due {
            self.counter = 0;
            self.counter_version += 1;
        }
        is_due
    }

    pub fn put(&mut self, entry: &NewValue, now: Duration) {
        self.write(Some(entry.value.to_vec()), entry.ttl.map(|ttl| now + ttl));
    }

    fn keep_counter(&mut self, now: Duration, time: Duration) -> Reply {
        let is_there = self.counter > 0;
        self.counter_expires = is_there.then_some(now + time);
        Reply::Integer(i64::from(is_there))
    }

    fn delete(&mut self) -> Reply {
        let found = self.value.is_some();
        if found {
            self.write(None, None);
        }
        Reply::Integer(i64::from(found))
    }

    fn write(&mut self, value: Option<Vec<u8>>, expires: Option<Duration>) {
        self.before = (mem::replace(&mut self.value, value), mem::replace(&mut self.expires, expires));
        self.version += 1;
    }
}

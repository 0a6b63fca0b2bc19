//! Ruby clients in the random search. Those of gem 1.4.3 or later write an empty value with a
//! time to live, and replace a time in the past by a plain SET, after a GET: if several have
//! read the same value, each of them has the lock then. Those up to 1.4.1 replace it, and a key
//! that is absent by then, by GETSET, and have the lock if that returns a time in the past.

use std::time::Duration;

use super::{Doing, Gems, MILLI, Releasing, Run, START, holding, one_in};
use crate::simulated::{Leg, Server};
use setnx_lock_proto::hold::Release;
use setnx_lock_proto::lease::{End, Lease};
use setnx_lock_proto::task::{Io, Task};
use setnx_lock_proto::values::{Now, State, Uptime, Wall};
use setnx_lock_proto::{Command, GiveUp, NewValue, Pause, Reply, Trip};

const POLL_INTERVAL: Duration = Duration::from_millis(100);

type Found = Option<Vec<u8>>;

/// How long a gem up to 1.4.1 takes at most between GET and GETSET, in microseconds, beside their ways.
pub(super) const PAUSE: u64 = 240_000;
/// Stands for that pause.
pub(super) const BETWEEN: Duration = Duration::from_micros(PAUSE);

/// Asks for the key. Returns what it holds if another has it.
async fn ask(io: &Io, lease: &Lease) -> Result<Option<Found>, GiveUp> {
    match io.send(Trip::of(Command::SetNx(lease.new_value()))).await.plain() {
        Reply::Integer(0) => {}
        Reply::Integer(_) => return Ok(None),
        _ => return Err(GiveUp::Io),
    }
    match io.send(Trip::of(Command::Get)).await.plain() {
        Reply::Bulk(found) => Ok(Some(found)),
        _ => Err(GiveUp::Io),
    }
}

fn pause(time: Duration) -> Pause {
    Pause { time, seen: None, in_doubt: false, is_refused: false }
}

async fn acquire(io: &Io, expiration: Duration) -> Result<Lease, GiveUp> {
    loop {
        let lease = lease(io.now(), expiration);
        let Some(found) = ask(io, &lease).await? else { return Ok(lease) };
        let is_past = |until: Wall| until < io.now().wall;
        if matches!(State::of_value(found.as_deref()), State::Until { until, .. } if is_past(until)) {
            // Stands for a plain SET with PX.
            return match io.send(Trip::of(Command::GetSet(lease.value.clone()))).await.plain() {
                Reply::Bulk(_) => Ok(lease),
                _ => Err(GiveUp::Io),
            };
        }
        io.sleep(pause(POLL_INTERVAL)).await;
    }
}

/// The same, up to 1.4.1.
async fn acquire_classic(io: &Io, expiration: Duration) -> Result<Lease, GiveUp> {
    let is_past = |found: &Option<Vec<u8>>| match State::of_value(found.as_deref()) {
        State::Until { until, .. } => until < io.now().wall,
        // Read as 0.
        _ => true,
    };
    loop {
        let lease = classic_lease(io.now(), expiration);
        let Some(found) = ask(io, &lease).await? else { return Ok(lease) };
        if is_past(&found) {
            io.sleep(pause(BETWEEN)).await;
            let lease = classic_lease(io.now(), expiration);
            match io.send(Trip::of(Command::GetSet(lease.value.clone()))).await.plain() {
                Reply::Bulk(found) if is_past(&found) => return Ok(lease),
                Reply::Bulk(_) => {}
                _ => return Err(GiveUp::Io),
            }
        }
        io.sleep(pause(POLL_INTERVAL)).await;
    }
}

fn classic_lease(now: Now, expiration: Duration) -> Lease {
    let mut lease = Lease::default();
    let Wall(shown) = now.wall.after(expiration).after(Duration::from_secs(1));
    let value = format!("{}.{:06}", shown / 1_000_000, shown % 1_000_000);
    (lease.value, lease.end) = (value.as_bytes().into(), Some(End::of(now, expiration)));
    lease
}

fn lease(now: Now, expiration: Duration) -> Lease {
    let mut lease = Lease::default();
    (lease.ttl, lease.end) = (Some(expiration), Some(End::of(now, expiration)));
    lease
}

/// Carries out the plain SET of a gem; `None` if it is another command.
pub(super) fn carry_out(server: &mut Server, leg: &Leg, ttl: Duration, now: Duration) -> Option<Reply> {
    let Some(Command::GetSet(value)) = leg.command() else { return None };
    if !value.is_empty() {
        return None;
    }
    server.put(&NewValue { value: value.clone(), ttl: Some(ttl) }, now);
    Some(Reply::Bulk(None))
}

impl Run {
    pub(super) fn is_gem(&self, n: usize) -> bool {
        match self.conditions.gems {
            Gems::None => false,
            Gems::Newer => n > 0,
            Gems::Classic { count, .. } => n >= 3 - count,
        }
    }

    pub(super) fn start_gem(&mut self, n: usize, now: Now) {
        let expiration = self.clients[n].expiration;
        let (attempt, step) = match self.conditions.gems {
            Gems::Classic { .. } => Task::begin(now, async move |io| acquire_classic(io, expiration).await),
            _ => Task::begin(now, async move |io| acquire(io, expiration).await),
        };
        self.clients[n].attempt = Some(attempt);
        self.act(n, step);
    }

    /// A gem works on, or crashes. What a newer one's DEL does to others
    /// is no matter of ours; one up to 1.4.1 releases its lock in time.
    pub(super) fn work_as_gem(&mut self, n: usize, choice: u8) {
        let now = self.now(n);
        let lasts = self.clients[n].held.as_ref().is_some_and(|held| !held.lease.has_passed(now));
        if lasts && choice % 4 == 1 && matches!(self.conditions.gems, Gems::Classic { .. }) {
            let release = async move |io: &Io| match io.send(Trip::of(Command::Del)).await.plain() {
                Reply::Integer(_) => Ok(Release::Released { certified: false }),
                _ => Err(GiveUp::Io),
            };
            let (task, step) = Task::begin(now, release);
            self.clients[n].held = None;
            self.clients[n].releasing = Some(Releasing::Gem(task));
            self.act_on_release(n, step);
        } else if one_in(3, choice) {
            self.clients[n].held = None;
        } else {
            self.clients[n].doing = Doing::Working;
        }
    }

    /// A command of a gem up to 1.4.1 was carried out that has replaced this. It has the lock from then on, or has
    /// overwritten a holder's value.
    pub(super) fn note_gem(&mut self, n: usize, leg: &Leg, replaced: Option<&[u8]>) {
        let now = self.now(n);
        let value = match leg.command() {
            Some(Command::SetNx(entry)) if replaced.is_none() => entry.value.clone(),
            Some(Command::GetSet(value)) => {
                let past = State::of_value(replaced);
                if matches!(past, State::Until { until, .. } if until >= now.wall) {
                    let is_of = |n: &usize| {
                        let held = self.clients[*n].held.as_ref();
                        !self.is_gem(*n) && held.map(|held| &*held.lease.value) == replaced
                    };
                    let overwrites = self.present().any(|n| is_of(&n));
                    self.overwritten += u64::from(overwrites);
                    return;
                }
                value.clone()
            }
            _ => return,
        };
        let State::Until { until: Wall(shown), .. } = State::of_value(Some(&value)) else {
            return;
        };
        let wall = shown - 1000 * MILLI;
        let uptime = Uptime::of(Duration::from_micros(wall - self.clients[n].skew - START));
        let mut lease = Lease::default();
        (lease.value, lease.end) = (value, Some(End { wall: Wall(wall), uptime }));
        self.clients[n].held = Some(holding::Held { lease, number: self.executions + 1, on: 0 });
    }

    /// A client of ours has changed what the key held before: it may be the value of a gem that has the lock.
    pub(super) fn note_driven_out(&mut self, n: usize, leg: &Leg, before: Option<&[u8]>) {
        let now = self.since_start();
        if self.is_gem(n) || before.is_none() || self.server.value(now) == before {
            return;
        }
        // So may each loser of the classic takeover.
        let is_loser = matches!(leg.command(), Some(Command::GetSet(_))) && self.clients[n].held.is_none();
        let has = |gem: usize| {
            let held = self.clients[gem].held.as_ref();
            held.is_some_and(|held| {
                Some(&*held.lease.value) == before && !held.lease.has_passed(self.now(gem))
            })
        };
        if !is_loser && (0..3).any(|gem| self.is_gem(gem) && has(gem)) {
            // Beside a clear that is the price, for so long after a grant, and as long as what was begun then takes.
            let is_soon = self.time < self.clients[n].granted + (700 + 10 * self.conditions.delay) * MILLI;
            if self.conditions.clears && is_soon {
                self.priced += 1;
            } else {
                self.breaks("a gem has lost the lock within its lease");
            }
        }
    }
}

//! A master that Sentinels know, and that fails over to a replica.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use std::{fmt, iter};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, Locker, LockerBuilder};
use testkit::Failure;
use testkit::failover::{Failover, MASTER};

use crate::support::notified::until;
use crate::support::{LONG, Outcome, millis, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("failover::two_are_followed_and_settled", || are_followed_and_settled(2)),
        trial("failovers::twenty_are_followed_and_settled", || are_followed_and_settled(20)),
        trial("failovers::without_settling_locks_are_granted_twice", locks_are_granted_twice),
    ]
}

/// How long a master gives no sign of life until it is down.
const DOWN_AFTER: Duration = Duration::from_secs(1);
/// The lease of each lock, after which all have expired that the new master may not know. A failover takes half of it.
const LEASE: Duration = Duration::from_secs(4);
/// How long locks are granted that no replica gets to know, before the master is gone.
const UNREPLICATED: Duration = millis(400);
/// How many programs there are, of one thread each, and locks.
const PROGRAMS: usize = 12;
const KEYS: usize = 6;
/// How often a run is begun at most.
const ATTEMPTS: usize = 3;
/// How late a lock may be had after a Sentinel names the new master, on an idle machine.
const LATE: Duration = millis(300);

/// A locker that follows a failover quickly, and waits for it.
fn builder(failover: &Failover) -> Result<LockerBuilder, Error> {
    let builder = Locker::sentinel_builder(failover.addresses(), MASTER)?.retry_for(LONG);
    Ok(builder.connect_timeout(millis(200)).command_timeout(millis(500)))
}

fn are_followed_and_settled(failovers: usize) -> Outcome {
    let run = Run::over(failovers, LEASE)?;
    println!("with settling: {run}");
    assert_eq!(run.late.len(), failovers, "locks are had after each");
    assert_eq!(run.overlaps, [], "{run}");
    Ok(())
}

/// Otherwise the check would find nothing.
fn locks_are_granted_twice() -> Outcome {
    let run = Run::over(20, Duration::ZERO)?;
    println!("without settling: {run}");
    assert!(!run.overlaps.is_empty(), "{run}");
    Ok(())
}

/// What came of some failovers while programs lock.
struct Run {
    holds: usize,
    overlaps: Vec<(Hold, Hold)>,
    /// How long after a Sentinel named the new master, and that has settled, the next lock was had.
    late: Vec<Duration>,
}

/// A lock that was held: which, from when on, and until when its holder relied on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    key: usize,
    from: Instant,
    until: Instant,
}

impl Run {
    /// Kills the master and stops it, in turn. `settles`: how long a new master grants nothing.
    fn over(failovers: usize, settles: Duration) -> Result<Self, Failure> {
        // A machine that pauses for as long as a master may be silent has a failover of its own, with two masters for a while.
        for _ in 0..ATTEMPTS {
            if let Some(run) = Self::undisturbed(failovers, settles)? {
                return Ok(run);
            }
        }
        Err(format!("the machine paused for {DOWN_AFTER:?} in each of {ATTEMPTS} runs").into())
    }

    /// Returns nothing if the Sentinels found a master down that was not.
    fn undisturbed(failovers: usize, settles: Duration) -> Result<Option<Self>, Failure> {
        let mut failover = Failover::start(DOWN_AFTER)?;
        let programs = iter::repeat_with(|| builder(&failover)?.settle_after_failover(settles).build());
        let programs = programs.take(PROGRAMS).collect::<Result<Vec<Locker>, Error>>()?;
        let (holds, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        let named: Option<Vec<Instant>> = thread::scope(|scope| {
            let work = |number, locker| {
                let program = Program { number, locker, holds: &holds, is_over: &is_over };
                scope.spawn(move || program.work())
            };
            let workers: Vec<_> =
                programs.iter().enumerate().map(|(number, locker)| work(number, locker)).collect();
            let mut granted_from = Instant::now();
            let named = (0..failovers).map(|n| {
                until_held(&holds, granted_from);
                let named = fail_over(&mut failover, n % 2 == 0)?;
                granted_from = named.unwrap_or(granted_from) + settles;
                Ok(named)
            });
            let named: Result<Option<_>, Failure> = named.collect();
            until_held(&holds, granted_from);
            is_over.store(true, Ordering::Relaxed);
            workers.into_iter().try_for_each(|worker| worker.join().unwrap())?;
            named
        })?;
        let Some(named) = named else { return Ok(None) };
        let mut holds: Vec<Hold> = holds.into_inner().unwrap_or_else(PoisonError::into_inner);
        holds.sort_by_key(|hold| hold.from);
        let has_holds = |key| holds.iter().any(|hold| hold.key == key);
        assert!((0..KEYS).all(has_holds), "some keys are held by tokens alone");
        let next = |after: Instant| holds.iter().map(|hold| hold.from).find(|from| *from >= after);
        let late = named.into_iter().map(|at| at + settles);
        let late = late.filter_map(|at| Some(next(at)? - at)).collect();
        let overlaps = (0..KEYS).flat_map(|key| overlaps(&holds, key)).collect();
        Ok(Some(Self { holds: holds.len(), overlaps, late }))
    }
}

/// Waits until a program has held a lock since then, and others do.
fn until_held(holds: &Mutex<Vec<Hold>>, since: Instant) {
    let has_held = || {
        let holds = holds.lock().unwrap_or_else(PoisonError::into_inner);
        holds.iter().any(|hold| hold.from >= since)
    };
    until("locks are held", has_held);
    thread::sleep(LEASE / 2);
}

/// Has the master gone, shortly after it was cut off from its replicas. Returns when a Sentinel named the next; nothing if that was found down
/// as well.
fn fail_over(failover: &mut Failover, kills: bool) -> Result<Option<Instant>, Failure> {
    let master = failover.master();
    failover.cut_replication(master)?;
    thread::sleep(UNREPLICATED);
    if kills {
        failover.servers[master].stop();
    } else {
        failover.servers[master].freeze();
    }
    let next = failover.until_other_than(master);
    let named = Instant::now();
    if !kills {
        // It goes on as a master, until a Sentinel makes it a replica.
        thread::sleep(LEASE / 4);
        failover.servers[master].thaw();
        thread::sleep(LEASE / 4);
    }
    let is_master = failover.rejoin(master, next)?;
    Ok(is_master.then_some(named))
}

/// Returns the holds of a key that began before the one before had ended.
fn overlaps(holds: &[Hold], key: usize) -> Vec<(Hold, Hold)> {
    let mut found = Vec::new();
    let mut last: Option<Hold> = None;
    for hold in holds.iter().filter(|hold| hold.key == key) {
        if let Some(last) = last.filter(|last| hold.from < last.until) {
            found.push((last, *hold));
        }
        last = last.filter(|last| last.until > hold.until).or(Some(*hold));
    }
    found
}

/// A program with connections of its own.
struct Program<'a> {
    number: usize,
    locker: &'a Locker,
    holds: &'a Mutex<Vec<Hold>>,
    is_over: &'a AtomicBool,
}

impl Program<'_> {
    /// Holds one lock after the other, for up to its lease.
    fn work(&self) -> Result<(), Error> {
        let options = LockOptions::expiring_after(LEASE).poll_interval(millis(20));
        for n in self.number.. {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let key = n % KEYS;
            let lock = Lock::new(self.locker, format!("failover:{key}"), options)?;
            let held = match lock.try_lock_for(10 * LEASE) {
                Ok(Some(held)) => held,
                Ok(None) => continue,
                // A command was under way.
                Err(error) if error.is_transient() => continue,
                Err(error) => return Err(error),
            };
            // Some go on by a token.
            let held =
                if n % 3 > 0 { Ok(held) } else { held.into_token().and_then(|token| lock.resume(&token)) };
            let Ok(held) = held else { continue };
            let from = Instant::now();
            let valid = held.remaining().unwrap_or_default();
            // From a moment to all of its lease.
            let work = LEASE * u32::try_from(n % 5).unwrap_or_default() / 4;
            thread::sleep(work);
            // What it does while the lease is valid is done under the lock, whatever the server says of the lock at the end.
            let until = Instant::now().min(from + valid);
            self.holds.lock().unwrap_or_else(PoisonError::into_inner).push(Hold { key, from, until });
            let _ = held.release();
        }
        Ok(())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut late = self.late.clone();
        late.sort_unstable();
        let slow = late.iter().filter(|late| **late > LATE).count();
        write!(
            f,
            "{} holds, {} overlaps; locks were had again {:?} (median) after the new master was named and had settled, {slow} times later \
             than {LATE:?}: {late:?}",
            self.holds,
            self.overlaps.len(),
            late.get(late.len() / 2),
        )
    }
}

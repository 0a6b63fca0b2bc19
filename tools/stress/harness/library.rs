//! This library as a contender.

use std::cell::RefCell;
use std::time::Duration;

use setnx_lock::{
    Error, Event, Lock, LockGuard, LockOptions, Locker, LockerBuilder, LossReason, Observer, Protocol,
    Quorum, QuorumGuard,
};

use super::Failure;
use super::client::{HeldLock, ThreadClient};
use super::hold::Outcome;
use super::random::Random;

/// Less than the longest delay, so that some replies are given up although their commands are executed.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(1800);

#[derive(Debug)]
pub(crate) struct Library {
    locker: Locker,
    protocol: Protocol,
    /// Whether processes notify each other of releases.
    notifications: bool,
    random: Random,
}

impl Library {
    pub(crate) fn open(url: &str, protocol: Protocol, connections: u32) -> Result<Self, Failure> {
        let builder = Locker::builder(url)?.pool_size(connections).command_timeout(COMMAND_TIMEOUT);
        // Some have a name, which the values of the others lack.
        let process = std::process::id();
        let named = process.is_multiple_of(2).then(|| format!("stress:{process}"));
        let builder = named.into_iter().fold(builder, LockerBuilder::holder_name);
        let locker = builder.observer(Collector).build()?;
        Ok(Self { locker, protocol, notifications: false, random: Random::new() })
    }

    pub(crate) fn with_notifications(self) -> Self {
        Self { notifications: true, ..self }
    }
}

thread_local! {
    /// The events of this thread's lock since it was asked for: whether it was taken over, and remarks on other events.
    static SEEN: RefCell<(bool, Vec<String>)> = const { RefCell::new((false, Vec::new())) };
}

/// Collects events, which come on the thread that works with the lock.
#[derive(Debug)]
struct Collector;

impl Observer for Collector {
    fn event(&self, event: &Event<'_>) {
        SEEN.with_borrow_mut(|(taken_over, remarks)| match event {
            Event::TakenOver { .. } => {
                *taken_over = true;
                remarks.push(format!("{event:?}"));
            }
            Event::AcquireFinished { .. } | Event::Released { .. } => {}
            _ => remarks.push(format!("{event:?}")),
        });
    }
}

impl ThreadClient for &Library {
    fn acquire(
        &mut self,
        key: &str,
        expiration: Duration,
        timeout: Duration,
    ) -> Result<Option<Box<dyn HeldLock + '_>>, Failure> {
        let poll = self.random.millis(&(30..100));
        let options = LockOptions::expiring_after(expiration).protocol(self.protocol).poll_interval(poll);
        let options = if self.notifications { options.notify_waiters(true) } else { options };
        let lock = Lock::new(&self.locker, key, options)?;
        SEEN.with_borrow_mut(|(taken_over, _)| *taken_over = false);
        // Some delays exceed the timeouts for a reply and for a
        // connection, and stopping a process interrupts its connecting.
        let is_expected = |error: &Error| matches!(error, Error::InDoubt { .. } | Error::Unavailable { .. });
        acquired(lock.try_lock_for(timeout), is_expected)
    }

    fn remarks(&mut self) -> Vec<String> {
        SEEN.with_borrow_mut(|(_, remarks)| std::mem::take(remarks))
    }
}

/// How long a server is not used after its restart: more than the longest lease of the stress.
const SETTLES: Duration = Duration::from_secs(1);
/// How long an answer of one of several servers is waited for: those that hang are to cost others little time.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// This library with several servers.
#[derive(Debug)]
pub(crate) struct OnQuorum {
    lockers: Vec<Locker>,
    /// Auto or Classic: each process has one of them.
    protocol: Protocol,
    random: Random,
}

impl OnQuorum {
    pub(crate) fn open<'a>(urls: impl Iterator<Item = &'a str>) -> Result<Self, Failure> {
        let open = |url| {
            let builder =
                Locker::builder(url)?.command_timeout(ANSWER_TIMEOUT).connect_timeout(ANSWER_TIMEOUT);
            builder.settle_after_restart(SETTLES).build()
        };
        let lockers = urls.map(open).collect::<Result<_, Error>>()?;
        let random = Random::new();
        let protocol = if random.in_a_thousand(500) { Protocol::Auto } else { Protocol::Classic };
        Ok(Self { lockers, protocol, random })
    }
}

impl ThreadClient for &OnQuorum {
    fn acquire(
        &mut self,
        key: &str,
        expiration: Duration,
        timeout: Duration,
    ) -> Result<Option<Box<dyn HeldLock + '_>>, Failure> {
        let poll = self.random.millis(&(5..50));
        let options = LockOptions::expiring_after(expiration).protocol(self.protocol).poll_interval(poll);
        // A server is gone, and another hangs or settles.
        let is_expected = |error: &Error| matches!(error, Error::NoMajority { .. }) && error.is_transient();
        acquired(Quorum::new(&self.lockers, key, options)?.try_lock_for(timeout), is_expected)
    }
}

/// Returns what a call has acquired: nothing if it has failed as a part of the stress.
fn acquired<'a, G: HeldLock + 'a>(
    outcome: Result<Option<G>, Error>,
    is_expected: impl Fn(&Error) -> bool,
) -> Result<Option<Box<dyn HeldLock + 'a>>, Failure> {
    match outcome {
        Ok(guard) => Ok(guard.map(|guard| Box::new(guard) as Box<dyn HeldLock>)),
        Err(error) if is_expected(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl HeldLock for QuorumGuard {
    fn remaining(&self) -> Duration {
        QuorumGuard::remaining(self)
    }

    /// Unknown: its events come on other threads.
    fn taken_over(&self) -> bool {
        false
    }

    fn release(self: Box<Self>) -> (Outcome, Option<String>) {
        match QuorumGuard::release(*self) {
            Ok(()) => (Outcome::Released, None),
            Err(error) if error.is_lost() => (Outcome::Lost, Some(format!("{error:?}"))),
            Err(error) => (Outcome::Failed, Some(format!("{error:?}"))),
        }
    }
}

impl HeldLock for LockGuard {
    fn remaining(&self) -> Duration {
        LockGuard::remaining(self).unwrap_or_default()
    }

    fn taken_over(&self) -> bool {
        SEEN.with_borrow(|(taken_over, _)| *taken_over)
    }

    fn release(self: Box<Self>) -> (Outcome, Option<String>) {
        let outcome = match LockGuard::release(*self) {
            Ok(()) => Outcome::Released,
            Err(Error::Lost { reason: LossReason::Expired, .. }) => Outcome::Expired,
            Err(Error::Lost { .. }) => Outcome::Lost,
            Err(error) => return (Outcome::Failed, Some(format!("{error:?}"))),
        };
        (outcome, None)
    }
}

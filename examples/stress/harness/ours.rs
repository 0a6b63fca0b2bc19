//! This library as a contender.

use std::cell::RefCell;
use std::time::Duration;

use setnx_lock::{Error, Event, Lock, LockGuard, LockOptions, Locker, Observe, Protocol, Release};

use super::Failure;
use super::chance::Chance;
use super::hold::Outcome;
use super::contender::{Hand, Held};

/// Less than the longest delay, so that some answers are given up: their commands are carried out all the same.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(1800);

/// How often in a row a lock passes on.
const TIMES: u32 = 3;

#[derive(Debug)]
pub(crate) struct Ours {
    locker: Locker,
    protocol: Protocol,
    /// Whether locks pass from thread to thread, and processes wake each other.
    passing: bool,
    chance: Chance,
}

impl Ours {
    pub(crate) fn open(url: &str, protocol: Protocol, connections: u32) -> Result<Self, Failure> {
        let locker = Locker::builder(url)?.pool_size(connections).command_timeout(COMMAND_TIMEOUT).build()?;
        Ok(Self { locker: locker.observed_by(Witness), protocol, passing: false, chance: Chance::new() })
    }

    pub(crate) fn passing(self) -> Self {
        Self { passing: true, ..self }
    }

    pub(crate) fn apart(self) -> Self {
        Self { locker: self.locker.pipelining(false), ..self }
    }
}

thread_local! {
    /// What happened to this thread's lock since it asked for it: whether it was taken over, and what else there was.
    static SEEN: RefCell<(bool, Vec<String>)> = const { RefCell::new((false, Vec::new())) };
}

/// Locks report on the thread that works with them.
#[derive(Debug)]
struct Witness;

impl Observe for Witness {
    fn event(&self, event: &Event<'_>) {
        SEEN.with_borrow_mut(|(took_over, remarks)| match event {
            Event::TakenOver { .. } => {
                *took_over = true;
                remarks.push(format!("{event:?}"));
            }
            Event::AcquireFinished { .. } | Event::Released { .. } => {}
            _ => remarks.push(format!("{event:?}")),
        });
    }
}

impl Hand for &Ours {
    fn take(
        &mut self,
        key: &str,
        expiration: Duration,
        patience: Duration,
    ) -> Result<Option<Box<dyn Held + '_>>, Failure> {
        let poll = self.chance.millis(&(30..100));
        let options = LockOptions::expiring_after(expiration).protocol(self.protocol).poll_interval(poll);
        let options = if self.passing { options.handoff(TIMES).notify_waiters() } else { options };
        let lock = Lock::new(&self.locker, key, options)?;
        SEEN.with_borrow_mut(|(took_over, _)| *took_over = false);
        match lock.try_lock_for(patience) {
            Ok(guard) => Ok(guard.map(|guard| Box::new(guard) as Box<dyn Held>)),
            // The delays are longer than the patience with an answer, and with a connection that others wait for one on; and stopping a
            // process interrupts its connecting. That is the stress.
            Err(Error::Unknown { .. } | Error::Io { .. } | Error::NoConnection { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn remarks(&mut self) -> Vec<String> {
        SEEN.with_borrow_mut(|(_, remarks)| std::mem::take(remarks))
    }
}

impl Held for LockGuard {
    fn remaining(&self) -> Duration {
        LockGuard::remaining(self).unwrap_or_default()
    }

    fn took_over(&self) -> bool {
        SEEN.with_borrow(|(took_over, _)| *took_over)
    }

    fn release(self: Box<Self>) -> (Outcome, Option<String>) {
        let outcome = match LockGuard::release(*self) {
            Ok(Release::Released { certified: true }) => Outcome::Certified,
            Ok(Release::Released { certified: false }) => Outcome::Released,
            Ok(Release::HandedOff { .. }) => Outcome::HandedOff,
            Ok(Release::Expired) => Outcome::Expired,
            Ok(Release::Lost) => Outcome::Lost,
            Ok(other) => return (Outcome::Failed, Some(format!("{other:?}"))),
            Err(error) => return (Outcome::Failed, Some(error.to_string())),
        };
        (outcome, None)
    }
}

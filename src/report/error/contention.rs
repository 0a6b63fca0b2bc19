//! What a waiter saw of the lock that it did not get.

use std::fmt;
use std::time::Duration;

use crate::report::state::{Holder, LockState};

/// What a waiter saw of the lock that it did not get.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Contention {
    /// How often the waiter asked the server for the lock; 0 if
    /// other threads of this process were queued ahead all the time.
    pub attempts: u32,
    /// How long the wait was.
    pub waited: Duration,
    /// What the key, or of permits the one that is free first, was last seen to hold; `None` if it was not read.
    pub seen: Option<LockState>,
    /// True if the waiter's own options have an expiration; only then does it take over expired locks.
    pub expiring: bool,
    /// How many threads of this process were still queued ahead for the same key through the same locker.
    pub ahead: usize,
    /// How many permits there are, all of them held unless they are `left_to_writer`; `None` if the wait was for one lock.
    pub permits: Option<usize>,
    /// True if a reader has left the permits to a writer that came before and still waits.
    pub left_to_writer: bool,
    /// True if the calling thread itself took this lock, or all permits, and has not released it: a nested lock that
    /// waits for itself, unless the guard was moved to another thread.
    pub taken_by_this_thread: bool,
}

impl Contention {
    /// Returns true if a permit was free, which others were faster to acquire.
    fn saw_one_free(&self) -> bool {
        self.permits.is_some() && matches!(self.seen, Some(LockState::Absent))
    }

    /// Returns who held the lock when it was last seen, or of permits the one that is free first; `None` if that has no
    /// [name](crate::LockerBuilder::holder_name), or the key was not read. A waiter without an expiration reads no key.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.seen.as_ref()?.holder().filter(|_| self.expiring)
    }
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.attempts == 1 { "attempt" } else { "attempts" };
        write!(f, " after {} {plural}", self.attempts)?;
        if self.attempts == 0 {
            f.write_str(": other threads of this process were queued ahead")?;
            if self.ahead > 0 {
                write!(f, ", and {} still are", self.ahead)?;
            }
        }
        if self.left_to_writer {
            f.write_str("; a writer is next")?;
        } else if let Some(permits) = self.permits.filter(|_| !self.saw_one_free()) {
            write!(f, "; all {permits} permits were held")?;
        }
        match &self.seen {
            // A waiter without an expiration does not read the key.
            _ if !self.expiring => f.write_str(
                "; a lock without an expiration is never taken over: if its holder has crashed, clear it by hand",
            )?,
            Some(state) if !self.saw_one_free() => {
                let what = if self.permits.is_some() { "the first of them" } else { "last seen" };
                write!(f, "; {what}: {state}")?;
                if let Some(advice) = state.advice() {
                    write!(f, ", {advice}")?;
                }
            }
            Some(_) | None => {}
        }
        if self.taken_by_this_thread {
            f.write_str(
                "; the calling thread itself took the lock and has not released it: a nested lock waits for itself, unless its guard \
                 was moved to another thread",
            )?;
        }
        Ok(())
    }
}

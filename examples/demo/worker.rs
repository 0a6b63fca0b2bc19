//! A worker: threads that take the lock in turns, count in the file, and write down when they did. Knows nothing of the
//! other workers; all that is between them is the lock.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Release};

use crate::Failure;
use crate::moment::Moment;
use crate::options::Task;
use crate::record::{Log, What};
use crate::shield::Parent;

/// How long a worker waits for the lock beyond what a dead holder can make it wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// Works until the conductor closes the pipe, or something fails.
pub(crate) fn run(task: &Task) -> Result<ExitCode, Failure> {
    let parent = Parent::watch();
    let locker = Locker::open(&std::env::var("REDIS_URL")?)?;
    let options = LockOptions::expiring_after(task.expiration)
        .timeout(task.expiration + PATIENCE)
        .poll_interval(task.poll);
    let lock = Lock::new(&locker, task.key.as_str(), options)?;
    let log = Log::open(&task.log)?;
    let failed = AtomicBool::new(false);
    let worker = Worker { task, lock, log, parent, failed };
    thread::scope(|scope| {
        for thread in 1..=task.threads {
            let worker = &worker;
            scope.spawn(move || worker.work(thread));
        }
    });
    Ok(if worker.failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Worker<'a> {
    task: &'a Task,
    lock: Lock,
    log: Log,
    parent: Parent,
    failed: AtomicBool,
}

impl Worker<'_> {
    /// One thread's day.
    fn work(&self, thread: u16) {
        for turn in 0_u32.. {
            if self.is_over() {
                break;
            }
            if let Err(failure) = self.take_turn(thread) {
                self.failed.store(true, Ordering::Relaxed);
                eprintln!("demo: worker {}, thread {thread}: {failure}", self.task.number);
                break;
            }
            thread::sleep(self.rest(thread, turn));
        }
    }

    fn is_over(&self) -> bool {
        self.parent.is_gone() || self.failed.load(Ordering::Relaxed)
    }

    /// Adds one to the counter, under the lock.
    fn take_turn(&self, thread: u16) -> Result<(), Failure> {
        let asked = Moment::now();
        let guard = self.lock.lock()?;
        if self.is_over() {
            return Ok(());
        }
        self.log.write(thread, What::Entered { asked, at: Moment::now() })?;
        if self.task.keep_from.is_some_and(|from| Moment::now() >= from) {
            return self.keep(thread, &guard);
        }
        let count: u64 = fs::read_to_string(&self.task.counter)?.trim().parse()?;
        // Whoever else got in would read the same number in this time, and one of the two counts would be lost.
        thread::sleep(self.task.pause);
        let counted = match guard.ensure_held() {
            Ok(()) => {
                // Written aside and moved: should the lock fail, counts get lost, and nobody reads half a number.
                let aside = self.task.counter.with_extension(format!("{}-{thread}", self.task.number));
                fs::write(&aside, format!("{}\n", count + 1))?;
                fs::rename(&aside, &self.task.counter)?;
                true
            }
            // A machine that stood still for that long: others may be at it, so this count is given up.
            Err(Error::Expired { .. }) => false,
            Err(error) => return Err(error.into()),
        };
        // Before the release: a moment after it, somebody else is inside.
        self.log.write(thread, What::Leaves { at: Moment::now(), counted })?;
        match guard.release()? {
            Release::Released { .. } => {}
            outcome => self.log.write(thread, What::Trouble(format!("the release said {outcome:?}")))?,
        }
        Ok(())
    }

    /// Holds the lock and does nothing else, until this process is killed.
    fn keep(&self, thread: u16, guard: &LockGuard) -> Result<(), Failure> {
        let until = guard.expires_at_system_time().ok_or("a lock with an expiration has no end")?;
        self.log.write(thread, What::Keeps { until: until.into() })?;
        while !self.is_over() {
            thread::sleep(self.task.poll);
        }
        Ok(())
    }

    /// The time between two turns: half a poll interval to one and a half, so that a thread that has just left does not
    /// always come before those that wait. A hash, to have it irregular.
    fn rest(&self, thread: u16, turn: u32) -> Duration {
        let mut hasher = DefaultHasher::new();
        (self.task.number, thread, turn).hash(&mut hasher);
        let percent = u32::try_from(50 + hasher.finish() % 101).unwrap_or(100);
        self.task.poll * percent / 100
    }
}

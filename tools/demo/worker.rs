//! A worker: threads that acquire the lock, count in the file, and log when they did. A worker knows nothing of the
//! others; only the lock coordinates them.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, LossReason};

use crate::Failure;
use crate::moment::Moment;
use crate::options::Task;
use crate::record::{Log, What};
use testkit::shield::Parent;

/// How long a worker waits for the lock beyond the lease of a crashed holder.
const MARGIN: Duration = Duration::from_secs(30);
/// How long connecting may take where the server is killed.
const QUICK: Duration = Duration::from_millis(500);

/// Works until the conductor closes the pipe, or something fails.
pub(crate) fn run(task: &Task) -> Result<ExitCode, Failure> {
    let parent = Parent::watch();
    let builder = Locker::builder(&std::env::var("REDIS_URL")?)?;
    let locker = match task.settles {
        // A failover is waited for, and a server that is gone noticed soon.
        Some(settles) => builder.settle_after_failover(settles).retry_for(MARGIN).connect_timeout(QUICK),
        None => builder,
    };
    let locker = locker.build()?;
    let options = LockOptions::expiring_after(task.expiration)
        .timeout(task.expiration + MARGIN)
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
    /// Acquires and counts again and again, until the run is over.
    fn work(&self, thread: u32) {
        for number in 0_u32.. {
            if self.is_over() {
                break;
            }
            if let Err(failure) = self.count(thread) {
                self.failed.store(true, Ordering::Relaxed);
                eprintln!("demo: worker {}, thread {thread}: {failure}", self.task.number);
                break;
            }
            thread::sleep(self.rest(thread, number));
        }
    }

    fn is_over(&self) -> bool {
        self.parent.is_gone() || self.failed.load(Ordering::Relaxed)
    }

    /// Adds one to the counter, under the lock.
    fn count(&self, thread: u32) -> Result<(), Failure> {
        let asked = Moment::now();
        let guard = match self.lock.lock() {
            // The server was gone before it answered.
            Err(error) if self.task.settles.is_some() && error.is_transient() => return Ok(()),
            acquired => acquired?,
        };
        if self.is_over() {
            return Ok(());
        }
        self.log.write(thread, What::Entered { asked, at: Moment::now() })?;
        if self.task.keep_from.is_some_and(|from| Moment::now() >= from) {
            return self.keep(thread, &guard);
        }
        let count: u64 = fs::read_to_string(&self.task.counter)?.trim().parse()?;
        // A second thread inside would read the same number in this time, and one of the two counts would be lost.
        thread::sleep(self.task.pause);
        let counted = match guard.ensure_held() {
            Ok(()) => {
                // Written aside and moved: should the lock fail, counts are lost, but no thread reads half a number.
                let aside = self.task.counter.with_extension(format!("{}-{thread}", self.task.number));
                fs::write(&aside, format!("{}\n", count + 1))?;
                fs::rename(&aside, &self.task.counter)?;
                true
            }
            // The machine paused for that long. Another thread may count now, so this count is given up.
            Err(Error::Lost { reason: LossReason::Expired, .. }) => false,
            Err(error) => return Err(error.into()),
        };
        // Before the release: after it, another thread has the lock.
        self.log.write(thread, What::Leaves { at: Moment::now(), counted })?;
        match guard.release() {
            Err(error) if error.is_lost() => Ok(self.log.write(thread, What::Trouble(error.to_string()))?),
            // The server is gone, and the lock expires.
            Err(error) if self.task.settles.is_some() && error.is_transient() => Ok(()),
            released => Ok(released?),
        }
    }

    /// Keeps the lock until this process is killed.
    fn keep(&self, thread: u32, guard: &LockGuard) -> Result<(), Failure> {
        let until = guard.expires_at().map(SystemTime::from).ok_or("the lease has no end")?;
        self.log.write(thread, What::Keeps { until: until.into() })?;
        while !self.is_over() {
            thread::sleep(self.task.poll);
        }
        Ok(())
    }

    /// The time from a release to the next call: half a poll interval to one and a half, irregular by a hash. Without
    /// it, a thread that has just released would mostly be served before those that poll.
    fn rest(&self, thread: u32, number: u32) -> Duration {
        let mut hasher = DefaultHasher::new();
        (self.task.number, thread, number).hash(&mut hasher);
        let percent = u32::try_from(50 + hasher.finish() % 101).unwrap_or(100);
        self.task.poll * percent / 100
    }
}

//! Waiters that only a notification ends, and clients that listen for notifications.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Error, Event, Lock, LockGuard, LockOptions, Locker, Observer, ProblemKind};

use super::scenario::patient;
use super::{AnyServer, LONG};
use crate::support::processes;

/// A waiter's poll interval, timeout and lease: so long that a waiter that acquires the lock has received a
/// notification.
pub(crate) const NEVER: Duration = Duration::from_secs(600);

/// Long enough for any load, and much shorter than [`NEVER`].
pub(crate) const IN_TIME: Duration = Duration::from_secs(150);

/// Options of a lock that is acquired at once, or after a notification.
pub(crate) const NOTIFIED: LockOptions =
    LockOptions::expiring_after(NEVER).timeout(NEVER).poll_interval(NEVER).notify_waiters(true);

/// Options of a waiter that polls.
pub(crate) const POLLED: LockOptions = LockOptions::expiring_after(LONG)
    .timeout(LONG)
    .poll_interval(Duration::from_millis(20))
    .notify_waiters(true);

/// A lock through a locker of its own, as another process has it.
pub(crate) fn elsewhere(server: &impl AnyServer, key: &str, options: LockOptions) -> Result<Lock, Error> {
    Lock::new(&patient(&server.url())?.build()?, key, options)
}

/// A thread that waits for a lock.
#[derive(Debug)]
pub(crate) struct Waiter(mpsc::Receiver<Result<LockGuard, Error>>);

impl Waiter {
    pub(crate) fn of(lock: &Lock) -> Self {
        let (sender, outcome) = mpsc::channel();
        let lock = lock.clone();
        // After a failed test the receiver is gone.
        thread::spawn(move || sender.send(lock.lock()).is_ok());
        Self(outcome)
    }

    /// Waits for the outcome and returns it.
    #[track_caller]
    pub(crate) fn came(&self) -> Result<LockGuard, Error> {
        self.0.recv_timeout(IN_TIME).expect("the waiter received no notification")
    }

    pub(crate) fn still_waits(&self) -> bool {
        matches!(self.0.try_recv(), Err(mpsc::TryRecvError::Empty))
    }
}

/// Lockers that listen already, since a thread of each waits for another key meanwhile. A locker that has just begun to
/// listen looks at its keys once more.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) lockers: Vec<Locker>,
    _elsewhere: (LockGuard, Vec<Waiter>),
}

impl Listening {
    pub(crate) fn start(server: &impl AnyServer, count: usize) -> Result<Self, Error> {
        const OTHER: &str = "waited for meanwhile";
        let held = elsewhere(server, OTHER, NOTIFIED)?.lock()?;
        let (mut lockers, mut waiters) = (Vec::new(), Vec::new());
        for n in 1..=count {
            let locker = patient(&server.url())?.build()?;
            waiters.push(Waiter::of(&Lock::new(&locker, OTHER, NOTIFIED)?));
            lockers.push(locker);
            until_waiting(server, OTHER, n);
        }
        Ok(Self { lockers, _elsewhere: (held, waiters) })
    }
}

/// Waits until `it_is_so` returns true.
#[track_caller]
pub(crate) fn until(what: &str, it_is_so: impl FnMut() -> bool) {
    assert!(within(LONG, it_is_so), "never: {what}");
}

/// Waits until `it_is_so` returns true, for so long. Returns whether it did.
pub(crate) fn within(time: Duration, mut it_is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    while !it_is_so() {
        if Instant::now() >= end {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A connection to the server for the test's own commands.
pub(crate) fn connection(server: &impl AnyServer) -> redis::Connection {
    redis::Client::open(server.direct()).unwrap().get_connection().unwrap()
}

/// Returns the numbers of the connections that listen for notifications.
pub(crate) fn listeners(connection: &mut redis::Connection) -> Vec<String> {
    let all: String = redis::cmd("CLIENT").arg("LIST").query(connection).unwrap();
    let listening = all.lines().filter(|line| line.contains(" sub=1 "));
    listening.filter_map(|line| Some(line.strip_prefix("id=")?.split(' ').next()?.to_owned())).collect()
}

/// Waits until so many connections listen.
#[track_caller]
pub(crate) fn until_listening(server: &impl AnyServer, count: usize) {
    let mut connection = connection(server);
    until(&format!("{count} listeners"), || listeners(&mut connection).len() == count);
}

/// The waiting list of a key.
pub(crate) fn list_of(key: &str) -> String {
    format!("{key}:setnx-lock:waiters:{{{key}}}")
}

/// Returns how many processes are in the waiting list of a key.
pub(crate) fn waiting(connection: &mut redis::Connection, key: &str) -> usize {
    redis::cmd("LLEN").arg(list_of(key)).query(connection).unwrap()
}

/// Waits until so many processes are in the waiting list of a key.
#[track_caller]
pub(crate) fn until_waiting(server: &impl AnyServer, key: &str, count: usize) {
    let mut connection = connection(server);
    until(&format!("{count} processes wait for {key}"), || waiting(&mut connection, key) == count);
}

/// Returns the keys that match the pattern.
pub(crate) fn keys(server: &impl AnyServer, pattern: &str) -> Vec<String> {
    redis::cmd("KEYS").arg(pattern).query(&mut connection(server)).unwrap()
}

/// Records the reason of each [`ProblemKind::NotificationsUnavailable`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Reasons(Arc<Mutex<Vec<String>>>);

impl Observer for Reasons {
    fn event(&self, event: &Event<'_>) {
        if let Event::Problem { kind: ProblemKind::NotificationsUnavailable, details, .. } = event {
            self.0.lock().unwrap().push((*details).to_owned());
        }
    }
}

impl Reasons {
    pub(crate) fn reported(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Returns a lock that this observes.
    pub(crate) fn of(&self, url: &str, key: &str, options: LockOptions) -> Result<Lock, Error> {
        Lock::new(&patient(url)?.observer(self.clone()).build()?, key, options)
    }
}

/// A process of this suite's program. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Worker(Child);

impl Worker {
    pub(crate) fn performing(task: &[&str]) -> std::io::Result<Self> {
        Ok(Self(processes::worker(task)?))
    }

    /// Returns its next line of output.
    pub(crate) fn says(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Ends its input, for which a worker may wait.
    pub(crate) fn goes_on(&mut self) {
        drop(self.0.stdin.take());
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -{name}");
    }

    /// Waits for its end, and returns whether it succeeded.
    pub(crate) fn ends_well(&mut self) -> std::io::Result<bool> {
        Ok(self.0.wait()?.success())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

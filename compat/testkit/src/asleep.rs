//! Threads that a test runs until they sleep.

use std::fs;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::LONG;

/// How often in a row a thread must be found asleep, once a millisecond: one that only waits for a mutex sleeps, too,
/// on a busy machine for as long as the thread that has the mutex does not run.
const SAMPLES: u32 = 15;

/// The number of the system call in which a parked thread waits.
const FUTEX: &str = if cfg!(target_arch = "x86_64") { "202" } else { "98" };

/// Starts a thread, and returns once it sleeps.
pub fn asleep<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let sleeper = Sleeper::start(body);
    sleeper.rests();
    sleeper.thread
}

/// A thread whose state a test samples: it sleeps, runs, and sleeps again.
pub struct Sleeper<T> {
    thread: JoinHandle<T>,
    /// The files under `/proc` that hold its state, and the system call that it is in.
    stat: String,
    syscall: String,
}

impl<T: Send + 'static> Sleeper<T> {
    pub fn start(body: impl FnOnce() -> T + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("the caller receives it");
            body()
        });
        let number = receiver.recv().expect("the thread sends its number first");
        let [stat, syscall] = ["stat", "syscall"].map(|name| format!("/proc/self/task/{number}/{name}"));
        Self { thread, stat, syscall }
    }

    /// Returns once the thread sleeps.
    pub fn rests(&self) {
        let end = Instant::now() + LONG;
        let mut found = 0;
        while found < SAMPLES {
            assert!(Instant::now() < end, "the thread does not sleep");
            // The line holds the number, the name in parentheses, the state.
            let Ok(stat) = fs::read_to_string(&self.stat) else {
                // The thread has ended.
                assert!(self.thread.is_finished() || fs::metadata("/proc/self").is_ok(), "needs /proc");
                break;
            };
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
            // A thread that waits for a reply is not asleep. Not every kernel has the file.
            let syscall = fs::read_to_string(&self.syscall);
            let parked = syscall.map_or(true, |call| call.split(' ').next() == Some(FUTEX));
            found = if state == Some('S') && parked { found + 1 } else { 0 };
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn join(self) -> T {
        self.thread.join().unwrap()
    }
}

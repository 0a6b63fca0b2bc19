//! Threads that have got as far as waiting.

use std::fs;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::LONG;

/// How often in a row a thread has to be found asleep: one that waits for a mutex for a moment is not there yet.
const LOOKS: u32 = 5;

/// Starts a thread, and returns once it sleeps.
pub(crate) fn asleep<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let sleeper = Sleeper::start(body);
    sleeper.rests();
    sleeper.thread
}

/// A thread that is watched as it falls asleep, wakes and falls asleep again.
pub(crate) struct Sleeper<T> {
    thread: JoinHandle<T>,
    /// Where the system tells its state.
    file: String,
}

impl<T: Send + 'static> Sleeper<T> {
    pub(crate) fn start(body: impl FnOnce() -> T + Send + 'static) -> Self {
        let (sender, receiver) = mpsc::channel();
        let thread = thread::spawn(move || {
            sender.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("it is waited for");
            body()
        });
        let file = format!("/proc/self/task/{}/stat", receiver.recv().expect("it says so first"));
        Self { thread, file }
    }

    /// Returns once the thread sleeps. One that has been woken before is awake until it sleeps anew.
    pub(crate) fn rests(&self) {
        let end = Instant::now() + LONG;
        let mut found = 0;
        while found < LOOKS {
            assert!(Instant::now() < end, "the thread does not come to rest");
            // Number, name in brackets, state.
            let Ok(stat) = fs::read_to_string(&self.file) else {
                // It has ended already, which is as much rest as there can be.
                assert!(self.thread.is_finished() || fs::metadata("/proc/self").is_ok(), "needs /proc");
                break;
            };
            let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
            found = if state == Some('S') { found + 1 } else { 0 };
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn join(self) -> T {
        self.thread.join().unwrap()
    }
}

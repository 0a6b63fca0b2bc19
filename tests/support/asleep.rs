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
    let (sender, receiver) = mpsc::channel();
    let thread = thread::spawn(move || {
        sender.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("it is waited for");
        body()
    });
    let file = format!("/proc/self/task/{}/stat", receiver.recv().expect("it says so first"));
    let end = Instant::now() + LONG;
    let mut found = 0;
    while found < LOOKS {
        assert!(Instant::now() < end, "the thread does not come to rest");
        // Number, name in brackets, state.
        let Ok(stat) = fs::read_to_string(&file) else {
            // It has ended already, which is as much rest as there can be.
            assert!(thread.is_finished() || fs::metadata("/proc/self").is_ok(), "needs /proc");
            break;
        };
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start().chars().next();
        found = if state == Some('S') { found + 1 } else { 0 };
        thread::sleep(Duration::from_millis(1));
    }
    thread
}

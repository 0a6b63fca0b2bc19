//! Contention: threads that send commands all the time, so that their commands are pipelined together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands as _;
use setnx_lock::{Error, Event, Lock, LockOptions, Locker, Observer, ProblemKind};
use setnx_lock_testing::{Fault, Proxy, Received};

use super::{LONG, Target};

/// Runs so many threads. Each repeats its action until `it_has_happened`, and once more then. `action_of` makes the action of the nth
/// thread. Returns the errors, each with the number of its thread.
pub(crate) fn contention<F>(
    threads: usize,
    what: &str,
    mut it_has_happened: impl FnMut() -> bool,
    action_of: impl Fn(usize) -> F + Sync,
) -> Vec<(usize, Error)>
where
    F: FnMut() -> Result<(), Error>,
{
    let over = AtomicBool::new(false);
    let errors = Mutex::new(Vec::new());
    let happened = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|n| {
                let (over, errors, action_of) = (&over, &errors, &action_of);
                scope.spawn(move || {
                    let mut act = action_of(n);
                    let mut last = false;
                    while !last {
                        last = over.load(Ordering::SeqCst);
                        if let Err(error) = act() {
                            errors.lock().unwrap().push((n, error));
                        }
                    }
                })
            })
            .collect();
        let end = Instant::now() + LONG;
        let happened = loop {
            // A thread that has ended has panicked.
            let failed = threads.iter().any(thread::ScopedJoinHandle::is_finished);
            match it_has_happened() {
                false if !failed && Instant::now() < end => thread::sleep(Duration::from_millis(2)),
                happened => break happened || failed,
            }
        };
        over.store(true, Ordering::SeqCst);
        happened
    });
    assert!(happened, "never: {what}");
    errors.into_inner().unwrap()
}

/// The same, until the faults of the server have happened.
pub(crate) fn contention_with_faults<F>(
    threads: usize,
    server: &Proxy,
    action_of: impl Fn(usize) -> F + Sync,
) -> Vec<(usize, Error)>
where
    F: FnMut() -> Result<(), Error>,
{
    contention(threads, "a batch with a fault", || server.faults_left() == 0, action_of)
}

/// Makes [`contention_with_faults`] go on until a batch has at least so many commands.
pub(crate) fn await_batch_of(server: &Proxy, least: usize) {
    server.in_batch(least, least, Fault::DelayReply(Duration::ZERO));
}

/// An action: acquires and releases a lock of its own, and asserts that the key agrees with the outcome. With faults a command whose reply was
/// lost may be carried out after that.
pub(crate) fn pairs(
    target: &Target,
    locker: &Locker,
    key: &str,
    options: LockOptions,
    faults: bool,
) -> impl FnMut() -> Result<(), Error> + use<> {
    let lock = Lock::new(locker, key, options).unwrap();
    let mut direct = target.connection();
    let key = key.to_owned();
    move || {
        let held = match lock.lock() {
            Ok(held) => held,
            Err(error) => {
                // The server may have granted it all the same.
                let () = direct.del(&key).unwrap();
                return Err(error);
            }
        };
        let value: Option<Vec<u8>> = direct.get(&key).unwrap();
        assert!(value.is_some(), "{key}: granted, and the key is missing");
        match held.release() {
            Ok(()) => {
                let left: Option<Vec<u8>> = direct.get(&key).unwrap();
                if left.is_some() {
                    assert!(faults && left != value, "{key}: released, and the key exists");
                    let () = direct.del(&key).unwrap();
                }
                Ok(())
            }
            Err(error) => {
                let () = direct.del(&key).unwrap();
                Err(error)
            }
        }
    }
}

/// Records the key of each command whose reply was lost, and the reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostReplies(Arc<Mutex<Vec<(String, String)>>>);

impl Observer for LostReplies {
    fn event(&self, event: &Event<'_>) {
        if let Event::Problem { key: Some(key), kind: ProblemKind::ReplyLost, details, .. } = event {
            self.0.lock().unwrap().push((key.to_string(), (*details).to_owned()));
        }
    }
}

impl LostReplies {
    /// Returns the keys in alphabetical order.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.0.lock().unwrap().iter().map(|(key, _)| key.clone()).collect();
        keys.sort();
        keys
    }

    /// Asserts that the reason of each contains these words.
    #[track_caller]
    pub(crate) fn assert_all_say(&self, why: &str) {
        let all = self.0.lock().unwrap();
        assert!(all.iter().all(|(_, text)| text.contains(why)), "{why}: {all:?}");
    }
}

/// Asserts that no command was sent by two threads: no value twice, and between two DELs of a key a new value.
#[track_caller]
pub(crate) fn assert_nothing_sent_by_two(server: &Proxy) {
    super::scenario::assert_nothing_sent_twice(server);
    let asked = server.log();
    let mut deleted: Vec<&str> = Vec::new();
    for Received { name, arguments, .. } in &asked {
        let Some(key) = arguments.first() else { continue };
        match name.as_str() {
            "DEL" => {
                assert!(!deleted.contains(&key.as_str()), "{key} was deleted twice");
                deleted.push(key);
            }
            "SETNX" => deleted.retain(|other| other != key),
            _ => {}
        }
    }
}

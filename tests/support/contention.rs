//! Crowds: threads that want commands sent all the time, so that they share trips to the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands as _;
use setnx_lock::{Error, Event, Lock, LockOptions, Locker, Observe, Release};

use super::{Target, LONG};
use crate::servers::{Asked, Fault, Proxy};

/// Has so many threads do something again and again until it has happened, and once more then. `member` says what each of them does.
/// Returns what went wrong for whom.
pub(crate) fn contention<F>(
    threads: usize,
    what: &str,
    mut it_has_happened: impl FnMut() -> bool,
    member: impl Fn(usize) -> F + Sync,
) -> Vec<(usize, Error)>
where
    F: FnMut() -> Result<(), Error>,
{
    let over = AtomicBool::new(false);
    let wrong = Mutex::new(Vec::new());
    let happened = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|n| {
                let (over, wrong, member) = (&over, &wrong, &member);
                scope.spawn(move || {
                    let mut deed = member(n);
                    let mut last = false;
                    while !last {
                        last = over.load(Ordering::SeqCst);
                        if let Err(error) = deed() {
                            wrong.lock().unwrap().push((n, error));
                        }
                    }
                })
            })
            .collect();
        let end = Instant::now() + LONG;
        let happened = loop {
            // One that has ended has failed.
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
    wrong.into_inner().unwrap()
}

/// The same, until the faults that were asked for have happened.
pub(crate) fn crowd_in_harm<F>(
    threads: usize,
    proxy: &Proxy,
    member: impl Fn(usize) -> F + Sync,
) -> Vec<(usize, Error)>
where
    F: FnMut() -> Result<(), Error>,
{
    contention(threads, "a trip that comes to harm", || proxy.faults_left() == 0, member)
}

/// Makes a crowd go on until a trip has carried so many.
pub(crate) fn await_company(proxy: &Proxy, least: usize) {
    proxy.in_batch(least, least, Fault::AnswerLate(Duration::ZERO));
}

/// A member that takes a lock of its own and gives it back. What it is told of the key must be true.
pub(crate) fn pairs(
    target: &Target,
    locker: &Locker,
    key: &str,
    options: LockOptions,
) -> impl FnMut() -> Result<(), Error> + use<> {
    let lock = Lock::new(locker, key, options).unwrap();
    let mut direct = target.connection();
    let key = key.to_owned();
    move || {
        let held = match lock.lock() {
            Ok(held) => held,
            Err(error) => {
                // It may be ours after all.
                let () = direct.del(&key).unwrap();
                return Err(error);
            }
        };
        assert!(direct.exists::<_, bool>(&key).unwrap(), "{key}: granted, and nothing is there");
        match held.release() {
            Ok(Release::Released { .. }) => {
                assert!(!direct.exists::<_, bool>(&key).unwrap(), "{key}: released, and it stayed behind");
                Ok(())
            }
            Ok(other) => panic!("{key}: {other:?}"),
            Err(error) => {
                let () = direct.del(&key).unwrap();
                Err(error)
            }
        }
    }
}

/// A member that tries to get a lock that others try to get as well.
pub(crate) fn contends<'a>(
    locker: &Locker,
    key: &str,
    inside: &'a AtomicBool,
    options: LockOptions,
) -> impl FnMut() -> Result<(), Error> + use<'a> {
    let lock = Lock::new(locker, key, options).unwrap();
    move || {
        if let Some(held) = lock.try_lock()? {
            assert!(!inside.swap(true, Ordering::SeqCst), "two have the lock");
            thread::yield_now();
            inside.store(false, Ordering::SeqCst);
            assert_ne!(held.release()?, Release::Lost);
        }
        Ok(())
    }
}

/// Writes down the key of each command that got no answer, and why it got none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Troubles(Arc<Mutex<Vec<(String, String)>>>);

impl Observe for Troubles {
    fn event(&self, event: &Event<'_>) {
        if let Event::ReplyLost { key, error, .. } = event {
            self.0.lock().unwrap().push((key.to_string(), error.to_string()));
        }
    }
}

impl Troubles {
    /// Returns the keys in alphabetical order.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<_> = self.0.lock().unwrap().iter().map(|(key, _)| key.clone()).collect();
        keys.sort();
        keys
    }

    /// Asserts that all had this reason.
    #[track_caller]
    pub(crate) fn assert_all_say(&self, why: &str) {
        let all = self.0.lock().unwrap();
        assert!(all.iter().all(|(_, text)| text.contains(why)), "{why}: {all:?}");
    }
}

/// Asserts that nobody's command was sent by two: no value twice, and no DEL of a key without a new value between.
#[track_caller]
pub(crate) fn assert_nothing_sent_by_two(proxy: &Proxy) {
    super::scenario::assert_nothing_sent_twice(proxy);
    let asked = proxy.asked();
    let mut deleted: Vec<&str> = Vec::new();
    for Asked { name, arguments, .. } in &asked {
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

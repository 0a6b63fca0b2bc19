//! What the program's own code may do: observers use the lock that their event is about, and what it leaves behind
//! panics when it is dropped.

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};
use std::thread;

use proto::{Reply, WhyRefused};

use super::*;
use crate::net::scripted::ScriptedBackend;
use crate::{Lock, LockOptions, Locker, MultiLock, MultiLockGuard, Observer, ProblemKind};

const LONG: Duration = Duration::from_secs(60);

/// What the server of [`locks`] does.
#[derive(Clone, Copy, Debug)]
enum Server {
    Works,
    Refuses,
    Hangs,
    /// Another client has the lock at the look, or at the swap.
    LosesAt(&'static str),
}

/// Uses the locks in every way at each event, and when there is no thread for the keeper.
#[derive(Default)]
struct User {
    held: Mutex<Option<Arc<MultiLockGuard>>>,
    is_using: AtomicBool,
    seen: Mutex<Vec<String>>,
}

impl Observer for User {
    fn event(&self, event: &Event<'_>) {
        let shown = match event {
            Event::Problem { kind, .. } => format!("{kind:?}"),
            _ => format!("{event:?}"),
        };
        let name = shown.split([' ', '{']).next().unwrap_or_default().to_owned();
        self.seen.lock().unwrap().push(name);
        let Some(held) = self.held.lock().unwrap().clone() else { return };
        // Else an observer of `Extended` would not end.
        let has_no_keeper = matches!(event, Event::Problem { kind: ProblemKind::KeeperUnavailable, .. });
        if has_no_keeper || !self.is_using.swap(true, Ordering::Relaxed) {
            for guard in held.guards() {
                let _ = (guard.extend(), guard.verify(), guard.fencing_token());
            }
            let _ = (held.extend(), held.verify(), held.fencing_tokens());
            self.is_using.store(false, Ordering::Relaxed);
        }
    }
}

impl User {
    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut *self.seen.lock().unwrap()).into_iter().collect()
    }
}

/// Returns locks on `keys` that are held, who uses them, and what decides how the server goes on.
fn locks(keys: &[&str]) -> (Arc<MultiLockGuard>, Arc<User>, Arc<Mutex<Server>>) {
    let user = Arc::<User>::default();
    let server = Arc::new(Mutex::new(Server::Works));
    let (mode, values) = (Arc::clone(&server), Mutex::new(HashMap::new()));
    let backend = ScriptedBackend::replying_for(move |key, command| {
        let mut values = values.lock().unwrap();
        let other = || Reply::Bulk(Some(b"1".to_vec()));
        match (*mode.lock().unwrap(), command[0]) {
            (Server::Refuses, _) => Reply::Refused(WhyRefused::Command),
            (Server::Hangs, _) => Reply::Lost,
            (Server::LosesAt(name), command) if command == name => other(),
            (_, "SETNX") => {
                values.insert(key.clone(), command[2].into());
                Reply::Integer(1)
            }
            (_, "GET") => Reply::Bulk(values.get(key).cloned()),
            (_, "GETSET") => Reply::Bulk(values.insert(key.clone(), command[2].into())),
            _ => Reply::Integer(1),
        }
    });
    let locker = Locker::over(backend).observed_by(Arc::clone(&user));
    locker.engine().refuse_threads(true);
    let options = LockOptions::expiring_after(LONG);
    let held = MultiLock::new(&locker, keys.iter().copied(), options).unwrap().lock().unwrap();
    let held = Arc::new(held);
    *user.held.lock().unwrap() = Some(Arc::clone(&held));
    user.take();
    (held, user, server)
}

/// Runs it, and fails if it does not end.
fn ends(act: impl FnOnce() + Send + 'static) {
    let (sender, ended) = channel();
    thread::spawn(move || {
        act();
        sender.send(()).unwrap();
    });
    ended.recv_timeout(LONG).expect("it ends");
}

#[test]
fn an_observer_of_each_event_may_use_the_lock() {
    let each = [
        (Server::Works, "Extended"),
        (Server::Refuses, "ExtendFailed"),
        (Server::Hangs, "ReplyLost"),
        (Server::LosesAt("GET"), "Lost"),
        (Server::LosesAt("GETSET"), "ValueOverwritten"),
    ];
    for keys in [&["k"][..], &["k", "l"]] {
        for (mode, event) in each {
            let (held, user, server) = locks(keys);
            *server.lock().unwrap() = mode;
            let of_thread = Arc::clone(&held);
            ends(move || drop(of_thread.extend()));
            let seen = user.take();
            assert!(seen.contains(event), "{mode:?} {keys:?}: {seen:?}");
        }
    }
}

#[test]
fn an_observer_may_use_a_lock_that_no_thread_keeps() {
    type Ask = fn(&MultiLockGuard);
    let ask: [(&str, Ask); 3] = [
        ("on_loss", |held| held.guards()[0].on_loss(|_| ())),
        ("extend", |held| {
            held.guards()[0].hold.is_kept.store(true, Ordering::Relaxed);
            let _ = held.guards()[0].extend();
        }),
        ("extend all", |held| {
            held.guards()[0].hold.is_kept.store(true, Ordering::Relaxed);
            let _ = held.extend();
        }),
    ];
    for (name, ask) in ask {
        let (held, user, _) = locks(&["k", "l"]);
        ends(move || {
            ask(&held);
            // The observer has extended it, and asked again for a thread.
            ask(&held);
        });
        let seen = std::mem::take(&mut *user.seen.lock().unwrap());
        let reported = seen.iter().filter(|event| *event == "KeeperUnavailable").count();
        assert_eq!(reported, 1, "{name}: {seen:?}");
    }
}

#[test]
fn that_no_thread_keeps_a_lock_is_reported_again_after_one_did() {
    let (held, user, _) = locks(&["k"]);
    let engine = Arc::clone(held.guards()[0].engine());
    for refused in [true, true, false, true] {
        // As if the thread had ended.
        engine.refuse_threads(refused);
        held.guards()[0].hold.note_kept(if refused { Err(std::io::Error::other("no")) } else { Ok(()) });
        held.guards()[0].hold.report();
    }
    let seen = std::mem::take(&mut *user.seen.lock().unwrap());
    assert_eq!(seen.iter().filter(|event| *event == "KeeperUnavailable").count(), 2, "{seen:?}");
}

/// Counts how often it is dropped, and panics each time; so does what the panic carries.
struct PanicsWhenDropped(Arc<AtomicUsize>);

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if self.0.fetch_add(1, Ordering::Relaxed) < 5 {
            std::panic::resume_unwind(Box::new(PanicsWhenDropped(Arc::clone(&self.0))));
        }
    }
}

fn value() -> (Arc<AtomicUsize>, PanicsWhenDropped) {
    let drops = Arc::<AtomicUsize>::default();
    (Arc::clone(&drops), PanicsWhenDropped(drops))
}

/// Runs it, and returns what it does. A panic is not let out: the test would end with what it carries.
#[track_caller]
fn quiet<T>(act: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(done) => done,
        Err(panic) => {
            std::mem::forget(panic);
            panic!("it panics");
        }
    }
}

#[test]
fn what_is_left_of_a_loss_s_closure_keeps_no_lock_from_being_released() {
    type End = fn(LockGuard);
    let ends: [(&str, End); 4] = [
        ("released", |held| held.release().unwrap()),
        ("dropped", drop),
        ("left to expire", |held| held.leave_to_expire().unwrap()),
        ("unwound", |held| {
            let unwound = catch_unwind(AssertUnwindSafe(move || {
                let _held = held;
                std::panic::resume_unwind(Box::new("on purpose"));
            }));
            assert_eq!(unwound.map_err(|panic| panic.is::<&str>()), Err(true), "the first panic goes on");
        }),
    ];
    for (name, end) in ends {
        let released = Arc::<AtomicUsize>::default();
        let of_observer = Arc::clone(&released);
        let locker = Locker::over(ScriptedBackend::granting()).observed_by(move |event: &Event<'_>| {
            of_observer.fetch_add(matches!(event, Event::Released { .. }).into(), Ordering::Relaxed);
        });
        let held = Lock::new(&locker, "k", LockOptions::without_expiration()).unwrap().lock().unwrap();
        let (drops, counted) = value();
        held.on_loss(move |_| drop(counted));
        quiet(|| end(held));
        assert!(drops.load(Ordering::Relaxed) > 0, "{name}");
        assert_eq!(released.load(Ordering::Relaxed), 1, "{name}");
    }
}

#[test]
fn a_closure_that_panics_with_what_panics_when_dropped_is_contained() {
    let locker = Locker::over(ScriptedBackend::replying(|command| match command {
        "SETNX" => Reply::Integer(1),
        _ => Reply::Bulk(None),
    }));
    let held = Lock::new(&locker, "k", LockOptions::expiring_after(LONG)).unwrap().lock().unwrap();
    let (drops, counted) = value();
    held.on_loss(move |_| std::panic::resume_unwind(Box::new(counted)));
    assert!(quiet(|| held.verify()).is_err_and(|error| error.is_lost()));
    assert!(drops.load(Ordering::Relaxed) > 0);
    assert!(held.release().is_err_and(|error| error.is_lost()));
}

#[test]
fn an_observer_that_panics_when_dropped_keeps_no_lock_from_being_released() {
    let (drops, counted) = value();
    let counted = Mutex::new(counted);
    let locker = Locker::over(ScriptedBackend::granting()).observed_by(move |_: &Event<'_>| {
        drop(counted.lock().unwrap_or_else(PoisonError::into_inner));
    });
    let lock = Lock::new(&locker, "k", LockOptions::without_expiration()).unwrap();
    let held = lock.lock().unwrap();
    drop((lock, locker));
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    // The guard is the last that knows the observer.
    quiet(|| held.release()).unwrap();
    assert!(drops.load(Ordering::Relaxed) > 0);
}

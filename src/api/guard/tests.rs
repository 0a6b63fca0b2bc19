mod program;

use proto::Reply;

use super::*;
use crate::report::event::Event;
use std::sync::{Mutex, PoisonError};

use crate::net::scripted::ScriptedBackend;
use crate::run::identity::Identity;
use crate::{Lock, LockOptions, Locker};

fn assert_owned_and_sendable<T: Send + Sync + 'static>() {}

#[test]
fn a_guard_can_go_to_any_thread() {
    assert_owned_and_sendable::<LockGuard>();
}

fn commands(backend: &ScriptedBackend) -> usize {
    backend.sent.lock().unwrap().len()
}

#[test]
fn a_forked_child_releases_nothing() {
    let backend = ScriptedBackend::granting();
    let lock = Lock::new(&Locker::over(backend.clone()), "k", LockOptions::without_expiration()).unwrap();
    for by_dropping in [true, false] {
        let mut held = lock.lock().unwrap();
        Arc::make_mut(&mut held.engine).identity = Arc::new(Identity::in_forked_child());
        let before = commands(&backend);
        if by_dropping {
            drop(held);
        } else {
            assert!(matches!(held.release(), Err(Error::Forked { .. })));
        }
        assert_eq!(commands(&backend), before, "nothing was sent");
    }
}

#[test]
fn a_forked_child_does_nothing_with_the_lock() {
    let backend = ScriptedBackend::granting();
    let options = LockOptions::expiring_after(Duration::from_secs(60)).auto_extend(Duration::from_secs(600));
    let mut held = Lock::new(&Locker::over(backend.clone()), "k", options).unwrap().lock().unwrap();
    Arc::make_mut(&mut held.engine).identity = Arc::new(Identity::in_forked_child());
    let before = commands(&backend);
    held.on_loss(|reason| panic!("{reason}"));
    assert!(matches!(held.extend(), Err(Error::Forked { .. })));
    assert!(matches!(held.verify(), Err(Error::Forked { .. })));
    assert!(matches!(held.fencing_token(), Err(Error::Forked { .. })));
    assert!(matches!(held.leave_to_expire(), Err(Error::Forked { .. })));
    assert_eq!(commands(&backend), before, "nothing was sent");
}

#[test]
fn what_is_done_at_a_loss_may_drop_the_guard() {
    // It is acquired, and each look finds another's value.
    let backend = ScriptedBackend::replying(|command| match command {
        "SETNX" => Reply::Integer(1),
        _ => Reply::Bulk(Some(b"1895000000.5".to_vec())),
    });
    let options = LockOptions::expiring_after(Duration::from_millis(300));
    let locker = Locker::over(backend);
    let held = Lock::new(&locker, "k", options).unwrap().lock().unwrap();
    let (signal, shared) = (held.loss_signal(), Arc::new(Mutex::new(None)));
    let (of_loss, (sender, dropped)) = (Arc::clone(&shared), std::sync::mpsc::channel());
    held.on_loss(move |_| {
        while of_loss.lock().unwrap().take().map(|held: LockGuard| drop(held)).is_none() {}
        sender.send(()).unwrap();
    });
    *shared.lock().unwrap() = Some(held);
    dropped.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(signal.is_lost());
}

#[test]
fn an_observer_may_drop_the_guard() {
    let backend = ScriptedBackend::replying(|command| match command {
        "SETNX" => Reply::Integer(1),
        _ => Reply::Bulk(Some(b"1895000000.5".to_vec())),
    });
    let shared = Arc::new(Mutex::new(None::<LockGuard>));
    let (of_observer, (sender, dropped)) = (Arc::clone(&shared), std::sync::mpsc::channel());
    let locker = Locker::over(backend).observed_by(move |event: &Event<'_>| {
        if let Event::Lost { .. } = event {
            while of_observer.lock().unwrap().take().map(drop).is_none() {}
            sender.send(()).unwrap();
        }
    });
    let options = LockOptions::expiring_after(Duration::from_millis(300));
    let held = Lock::new(&locker, "k", options).unwrap().lock().unwrap();
    let signal = held.loss_signal();
    *shared.lock().unwrap() = Some(held);
    dropped.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(signal.is_lost());
}

#[test]
fn a_forked_child_is_told_to_open_a_locker_of_its_own() {
    let backend = ScriptedBackend::granting();
    let locker = Locker::over(backend.clone()).in_forked_child();
    let lock = Lock::new(&locker, "k", LockOptions::without_expiration()).unwrap();
    assert!(matches!(lock.lock(), Err(Error::Forked { .. })));
    assert!(matches!(lock.state(), Err(Error::Forked { .. })));
    assert!(lock.clear().unwrap_err().to_string().contains("open a new one in the child"));
    assert_eq!(commands(&backend), 0, "nothing was sent");
}

#[test]
fn an_observer_that_panics_keeps_no_lock_from_being_released() {
    let backend = ScriptedBackend::granting();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&seen);
    let locker = Locker::over(backend.clone()).observed_by(move |event: &Event<'_>| {
        events.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{event:?}"));
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    drop(Lock::new(&locker, "k", LockOptions::without_expiration()).unwrap().lock().unwrap());
    assert_eq!(commands(&backend), 2, "SETNX and DEL");
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(seen.iter().any(|event| event.starts_with("AcquireFinished")), "{seen:?}");
    assert!(seen.iter().any(|event| event.starts_with("Released")), "{seen:?}");
}

/// The program's logger, in the unit tests: it panics at what this test sends.
struct PanickingLog;

impl log::Log for PanickingLog {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().contains("panicking-log") {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_that_panics_keeps_no_lock_from_being_released() {
    log::set_logger(&PanickingLog).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let backend = ScriptedBackend::granting();
    let locker = Locker::over(backend.clone());
    let lock = Lock::new(&locker, "panicking-log", LockOptions::without_expiration()).unwrap();
    drop(lock.lock().unwrap());
    assert_eq!(commands(&backend), 2, "SETNX and DEL");
}

#[test]
fn a_call_that_has_waited_for_long_does_not_show_how_little_time_its_last_command_had() {
    let looks = Mutex::new(0);
    let backend = ScriptedBackend::replying(move |command| match command {
        "SETNX" => Reply::Integer(0),
        _ if *looks.lock().unwrap() > 0 => Reply::Unsent,
        _ => {
            *looks.lock().unwrap() += 1;
            Reply::Bulk(Some(b"1895000000.5".to_vec()))
        }
    });
    let options =
        LockOptions::expiring_after(Duration::from_secs(60)).poll_interval(Duration::from_millis(50));
    let lock = Lock::new(&Locker::over(backend), "k", options).unwrap();
    let error = lock.lock().unwrap_err().to_string();
    assert!(error.contains("no connection to the server; check that the server is up"), "{error}");
}

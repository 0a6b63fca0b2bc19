//! What needs no server: threads that cannot be started, and a forked child.

use super::*;

use crate::net::scripted::ScriptedBackend;

const OPTIONS: LockOptions = LockOptions::expiring_after(Duration::from_secs(10));

fn lockers() -> [Locker; 3] {
    [(); 3].map(|()| Locker::over(ScriptedBackend::granting()))
}

#[test]
fn without_threads_each_server_is_asked_on_the_caller_s() {
    let lockers = lockers();
    lockers.iter().for_each(Locker::refuse_threads);
    let lock = Quorum::new(&lockers, "k", OPTIONS).unwrap();
    let held = lock.lock().unwrap();
    assert!(held.remaining() > Duration::from_secs(5));
    held.release().unwrap();
    lock.with(QuorumGuard::ensure_held).unwrap().unwrap();
}

#[test]
fn a_forked_child_is_refused() {
    let lockers = lockers().map(Locker::in_forked_child);
    let lock = Quorum::new(&lockers, "k", OPTIONS).unwrap();
    for outcome in [lock.lock().map(drop), lock.try_lock().map(drop), lock.with(|_| ())] {
        assert!(matches!(outcome, Err(Error::Forked { .. })), "{outcome:?}");
    }
}

#[test]
fn the_thread_of_a_locker_ends_with_it() {
    let lockers = lockers();
    Quorum::new(&lockers, "k", OPTIONS).unwrap().lock().unwrap().release().unwrap();
    lockers[0].shut_down();
    let error = Quorum::new(&lockers, "k", OPTIONS).unwrap().try_lock().unwrap_err();
    assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
}

#[test]
fn a_signal_reports_no_loss_after_a_release() {
    let lock = Quorum::new(lockers(), "k", OPTIONS).unwrap();
    for _ in 0..1000 {
        let held = lock.lock().unwrap();
        let signal = held.loss_signal();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| while signal.is_held() {});
            }
            held.release().unwrap();
        });
        assert_eq!(signal.reason(), None);
    }
}

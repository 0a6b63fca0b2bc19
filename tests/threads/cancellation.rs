//! Waits that are ended from outside: by a cancel token, by a signal, by shutting the locker down.

use std::sync::Arc;
use std::thread;

use setnx_lock::{CancelToken, Error, Lock, LockGuard, LockOptions, Locker};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::asleep::asleep;
use crate::support::scenario::{FOREIGN, opened};
use crate::support::sent::connected;
use crate::support::{
    AnyServer, LONG, Outcome, Release, Target, TestKey, Variant, millis, release, trials_of,
};

trials_of! {
    "cancellation";
    one_token_ends_the_waits_of_many_threads_and_keys_and_they_report_it,
    a_command_in_flight_is_awaited_and_may_acquire_the_lock,
    a_wait_for_a_connection_ends_too,
    shutting_down_ends_all_waits_and_lets_holders_release,
}

const NEVER_POLLS: LockOptions = LockOptions::expiring_after(LONG).poll_interval(LONG).wait_forever();

fn scenario(test: &str) -> Result<(Arc<TestServer>, TestKey, Locker), Box<dyn std::error::Error>> {
    let server = Arc::new(TestServer::start());
    let key = Target::of(&server).key(test);
    let locker = opened(&server.url())?;
    Ok((server, key, locker))
}

type Waiter = thread::JoinHandle<Result<LockGuard, Error>>;

/// Starts a thread that waits for the lock. Returns once it sleeps.
fn waiter(lock: &Lock) -> Waiter {
    let lock = lock.clone();
    asleep(move || lock.lock())
}

#[track_caller]
fn assert_cancelled(waiter: Waiter, key: &TestKey) {
    let error = waiter.join().unwrap().expect_err("the wait was cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    assert_eq!(error.key(), Some(&key.key));
    assert!(error.to_string().contains("the wait was cancelled after "), "{error}");
}

fn one_token_ends_the_waits_of_many_threads_and_keys_and_they_report_it() -> Outcome {
    let (server, key, locker) = scenario("one")?;
    let other = Target::of(&server).key("other");
    let keys = [&key, &other];
    for key in &keys {
        key.set(FOREIGN);
    }
    for variant in Variant::ALL {
        let token = CancelToken::new();
        let mut waiters = Vec::new();
        for key in keys.repeat(3) {
            let lock = Lock::new(&locker, &key.key, variant.set(NEVER_POLLS))?;
            waiters.push((key, waiter(&lock.cancelled_by(&token))));
        }
        assert!(!waiters.iter().any(|(_, waiter)| waiter.is_finished()) && !token.is_cancelled());
        token.clone().cancel();
        for (key, waiter) in waiters {
            assert_cancelled(waiter, key);
        }
        assert!(token.is_cancelled());
    }
    assert!(keys.iter().all(|key| key.value().as_deref() == Some(FOREIGN)));
    Ok(())
}

fn a_command_in_flight_is_awaited_and_may_acquire_the_lock() -> Outcome {
    let (server, key, _) = scenario("under_way")?;
    let locker = opened(&server.url())?;
    let cancel_token = CancelToken::new();
    let lock = connected(Lock::new(&locker, &key.key, NEVER_POLLS)?.cancelled_by(&cancel_token))?;
    server.next("SETNX", Fault::DelayReply(millis(300)));
    let waiter = waiter(&lock);
    cancel_token.cancel();
    let held = waiter.join().unwrap()?;
    assert_eq!(release(held)?, Release::Released { certified: false });
    Ok(())
}

fn a_wait_for_a_connection_ends_too() -> Outcome {
    let url = TestServer::start().url(); // the server ends at once
    let locker = opened(&url)?;
    let cancel_token = CancelToken::new();
    let options = LockOptions::expiring_after(LONG).timeout(LONG * 60);
    let lock = Lock::new(&locker, "unreachable", options)?.cancelled_by(&cancel_token);
    let waiters = [waiter(&lock), waiter(&lock)];
    cancel_token.cancel();
    for waiter in waiters {
        assert!(matches!(waiter.join().unwrap(), Err(Error::Cancelled { .. })));
    }
    Ok(())
}

fn shutting_down_ends_all_waits_and_lets_holders_release() -> Outcome {
    let (server, key, _) = scenario("shut_down")?;
    for variant in Variant::ALL {
        let locker = opened(&server.url())?;
        let lock = Lock::new(&locker, &key.key, variant.set(NEVER_POLLS))?;
        let other = Lock::new(&locker.clone(), "elsewhere", variant.set(NEVER_POLLS))?;
        let held = [lock.lock()?, other.lock()?];
        let waiters = [waiter(&lock), waiter(&lock), waiter(&other)];
        locker.clone().shut_down();
        for waiter in waiters {
            let error = waiter.join().unwrap().expect_err("the locker was shut down");
            assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
            assert!(error.to_string().contains("its locker was shut down"), "{error}");
        }
        for refused in [lock.lock().map(Some), lock.try_lock(), lock.try_lock_for(millis(5))] {
            assert!(matches!(refused, Err(Error::ShutDown { .. })));
        }
        for held in held {
            assert_eq!(release(held)?, Release::Released { certified: false });
        }
        assert_eq!(key.value(), None);
    }
    Ok(())
}

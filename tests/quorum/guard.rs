//! What a holder of a lock on several servers can do, and how it learns of a loss.

use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Error, LockOptions, LossReason, Quorum, QuorumGuard};

use super::{KEY, OPTIONS, Servers};
use crate::support::notified::until;
use crate::support::scenario::FOREIGN;
use crate::support::{LONG, Outcome, chain, millis, trials_of};

trials_of! {
    "quorum";
    a_lease_is_extended_by_a_majority,
    verification_asks_a_majority,
    a_thread_extends_the_leases,
    a_signal_tells_of_the_loss_of_a_majority,
    a_release_says_that_a_majority_was_lost,
    a_call_with_a_body_says_that_the_lock_was_lost,
    the_hold_ends_with_the_lease_of_the_majority,
    a_lock_that_is_granted_late_is_taken_in,
    a_lock_is_held_at_least_for_a_time_and_given_back_at_once,
}

/// Returns a holder of the lock on all servers.
fn held(servers: &Servers, options: LockOptions) -> Result<QuorumGuard, Error> {
    servers.held(&servers.lock(options)?)
}

#[track_caller]
fn assert_lost(outcome: Result<(), Error>, servers: usize) {
    let error = outcome.expect_err("it is lost");
    assert!(error.is_lost() && !error.is_transient() && !error.is_contention(), "{error:?}");
    let text = chain(&error);
    assert!(text.starts_with("lock quorum is no longer held: "), "{text}");
    assert!(text.contains(&format!(" of {servers} servers still have it")), "{text}");
}

fn a_lease_is_extended_by_a_majority() -> Outcome {
    for (count, minority) in [(3, 1), (5, 2)] {
        let servers = Servers::start(count);
        let held = held(&servers, OPTIONS)?;
        let values = servers.values();
        held.extend()?;
        until("each is extended", || servers.values().iter().zip(&values).all(|(new, old)| new != old));
        // What another client has there is not overwritten.
        (0..minority).for_each(|server| servers.set(server, FOREIGN));
        held.extend()?;
        assert!(held.remaining() > LONG / 2);
        assert_eq!(servers.value(0).as_deref(), Some(FOREIGN));
        servers.set(minority, FOREIGN);
        assert_lost(held.extend(), count);
        assert_lost(held.ensure_held(), count);
        assert_eq!(held.remaining(), Duration::ZERO);
        assert_lost(held.extend(), count);
        assert_lost(held.release(), count);
        servers.until_holding(minority + 1);
    }
    Ok(())
}

fn verification_asks_a_majority() -> Outcome {
    let servers = Servers::start(3);
    let held = held(&servers, OPTIONS)?;
    held.verify()?;
    servers.delete(0);
    held.verify()?;
    held.ensure_held()?;
    servers.set(2, FOREIGN);
    let error = held.verify().expect_err("two of three are lost");
    let text = chain(&error);
    let [gone, _, taken] = [0, 1, 2].map(|server: usize| servers.0[server].address());
    assert!(text.contains(&format!("{gone}: is no longer held: its key is missing")), "{text}");
    assert!(text.contains(&format!("{taken}: is no longer held: its key holds another")), "{text}");
    assert_lost(Err(error), 3);
    assert_lost(held.ensure_held(), 3);
    Ok(())
}

fn a_thread_extends_the_leases() -> Outcome {
    const LEASE: Duration = Duration::from_secs(2);
    let servers = Servers::start(3);
    let options = LockOptions::expiring_after(LEASE).timeout(LONG).auto_extend(LONG);
    let held = held(&servers, options)?;
    servers.0[1].stop();
    let began = Instant::now();
    while began.elapsed() < 2 * LEASE {
        // A machine that pauses for longer than a lease loses the lock.
        if held.ensure_held().is_err() {
            return a_thread_extends_the_leases();
        }
        thread::sleep(millis(20));
    }
    held.release()?;
    Ok(())
}

fn a_signal_tells_of_the_loss_of_a_majority() -> Outcome {
    // A third of this is how often the keys are looked at.
    const LEASE: Duration = Duration::from_secs(6);
    let servers = Servers::start(3);
    let held = held(&servers, LockOptions::expiring_after(LEASE).timeout(LONG).auto_extend(LONG))?;
    let signal = held.loss_signal();
    assert!(signal.is_held() && !signal.is_lost() && signal.reason().is_none());
    assert!(!signal.wait_timeout(millis(10)));
    servers.delete(0);
    servers.delete(1);
    let waiting = signal.clone();
    let waiter = thread::spawn(move || waiting.wait_timeout(LONG));
    assert!(waiter.join().unwrap());
    assert!(signal.is_lost() && !signal.is_held());
    // On a machine that pauses, the lease may pass first.
    assert!(matches!(signal.reason(), Some(LossReason::Gone | LossReason::Expired)), "{signal:?}");
    assert_lost(held.ensure_held(), 3);
    drop(held);
    assert!(signal.is_lost(), "what was noticed stays");

    let held = servers.lock(OPTIONS)?.lock()?;
    let signal = held.loss_signal();
    let waiting = signal.clone();
    let waiter = thread::spawn(move || waiting.wait_timeout(LONG));
    held.release()?;
    assert!(!waiter.join().unwrap(), "it ends with the release");
    assert!(!signal.is_lost() && !signal.is_held());
    Ok(())
}

fn a_release_says_that_a_majority_was_lost() -> Outcome {
    let servers = Servers::start(3);
    let first = held(&servers, OPTIONS)?;
    servers.delete(1);
    first.release()?;
    servers.until_holding(0);
    let second = held(&servers, OPTIONS)?;
    let signal = second.loss_signal();
    servers.delete(0);
    servers.delete(1);
    assert_lost(second.release(), 3);
    assert!(signal.is_lost(), "it was noticed at the release");
    servers.until_holding(0);
    Ok(())
}

fn a_call_with_a_body_says_that_the_lock_was_lost() -> Outcome {
    let servers = Servers::start(3);
    let lock = servers.lock(OPTIONS)?;
    let lose = || {
        servers.until_holding(3);
        servers.delete(0);
        servers.delete(2);
    };
    assert_lost(lock.with(|_| lose()), 3);
    servers.until_holding(0);
    let outcome = lock.with_result(|_| {
        lose();
        Ok::<(), Error>(())
    });
    assert_lost(outcome, 3);
    Ok(())
}

fn the_hold_ends_with_the_lease_of_the_majority() -> Outcome {
    const LEASE: Duration = Duration::from_millis(600);
    let servers = Servers::start(3);
    let options = LockOptions::expiring_after(LEASE).timeout(LONG);
    let lock = Quorum::new(servers.lockers()?, KEY, options)?.max_clock_difference(millis(200))?;
    let held = lock.lock()?;
    let left = held.remaining();
    assert!(left + millis(200) <= LEASE, "{left:?}");
    let signal = held.loss_signal();
    assert!(signal.wait_timeout(LONG));
    assert_eq!(signal.reason(), Some(LossReason::Expired));
    assert_lost(held.ensure_held(), 3);
    assert_lost(held.release(), 3);
    Ok(())
}

/// The majority is not enough, once the lock is lost on one of these two servers.
fn a_lock_that_is_granted_late_is_taken_in() -> Outcome {
    let servers = Servers::start(3);
    let third = servers.0[2].pause("SET", 1);
    let lock = servers.lock(OPTIONS)?;
    let held = lock.lock()?;
    third.reached();
    assert_eq!(servers.holding(), 2);
    third.go_on();
    servers.until_holding(3);
    // The reply is on its way.
    until("the third guard", || format!("{held:?}").contains("granted: Some(3)"));
    servers.delete(0);
    held.verify()?;
    held.release()?;
    servers.until_holding(0);

    // One that is granted after the end of the call is released.
    let third = servers.0[2].pause("SET", 1);
    let held = lock.lock()?;
    third.reached();
    held.release()?;
    third.go_on();
    servers.0[2].wait_for("SET", 2);
    servers.until_holding(0);
    // And one that has not been asked for is not any more.
    let held = lock.lock()?;
    servers.until_holding(3);
    held.release()?;
    servers.until_holding(0);
    Ok(())
}

fn a_lock_is_held_at_least_for_a_time_and_given_back_at_once() -> Outcome {
    let servers = Servers::start(3);
    let options = OPTIONS.hold_at_least(LONG / 2);
    // What a minority grants is not a hold.
    servers.set(0, FOREIGN);
    servers.set(1, FOREIGN);
    let lock = servers.lock(options)?;
    assert!(lock.try_lock()?.is_none());
    servers.until_holding(2);
    servers.delete(0);
    servers.delete(1);
    let held = servers.held(&lock)?;
    let values = servers.values();
    held.release()?;
    until("each ends earlier", || servers.values().iter().zip(&values).all(|(new, old)| new < old));
    assert_eq!(servers.holding(), 3);
    assert!(servers.lock(OPTIONS)?.try_lock()?.is_none());
    let error = servers.lock(OPTIONS.hold_at_least(2 * LONG)).expect_err("it is longer than the expiration");
    assert!(chain(&error).contains("longer than the expiration"), "{error}");
    Ok(())
}

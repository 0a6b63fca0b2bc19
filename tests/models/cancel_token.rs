//! Cancelling at any moment, while threads register, sleep and leave. The checker is loom: it runs every schedule with
//! few preemptions, with every value that a weakly ordered load may see.
//!
//! The mutex and the parking are implemented in `weak_sync`, by atomics with the memory orders of the standard
//! library's: loom's own are stricter, and would hide a missing fence.

#[allow(unreachable_pub, reason = "public in the library")]
#[path = "../../src/wait/cancel_token.rs"]
mod subject;

use libtest_mimic::Trial;
use loom::thread;

use crate::weak_sync as sync;
use subject::CancelToken;
use sync::{Signal, park};

pub(crate) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 5] = [
        ("two_sleep", two_sleep),
        ("one_sleeps_while_another_registers_and_leaves", one_sleeps_while_another_registers_and_leaves),
        ("a_signal_cancels_during_registration", a_signal_cancels_during_registration),
        ("a_signal_cancels_during_deregistration", a_signal_cancels_during_deregistration),
        ("a_signal_cancels_during_cancellation", a_signal_cancels_during_cancellation),
    ];
    let trial = |(name, scenario)| crate::exhausted(format!("cancel_token::{name}"), scenario);
    scenarios.into_iter().map(trial).collect()
}

/// As the engine does it: registers, then looks and sleeps.
fn wait(cancel_token: &CancelToken) {
    let _registered = cancel_token.register();
    while !cancel_token.is_cancelled() {
        park();
    }
}

fn spawn_waiter(cancel_token: &CancelToken) -> thread::JoinHandle<()> {
    let cancel_token = cancel_token.clone();
    thread::spawn(move || wait(&cancel_token))
}

fn two_sleep() {
    let cancel_token = CancelToken::new();
    let waiters = [spawn_waiter(&cancel_token), spawn_waiter(&cancel_token)];
    cancel_token.cancel();
    for waiter in waiters {
        waiter.join().unwrap();
    }
}

/// The mutex is held by a thread that does not sleep, while another does.
fn one_sleeps_while_another_registers_and_leaves() {
    let cancel_token = CancelToken::new();
    let waiter = spawn_waiter(&cancel_token);
    let other = {
        let cancel_token = cancel_token.clone();
        thread::spawn(move || drop(cancel_token.register()))
    };
    cancel_token.cancel();
    waiter.join().unwrap();
    other.join().unwrap();
}

/// The signal handler runs in the thread that has the mutex, which cannot continue before the handler has returned.
fn a_signal_cancels_during_registration() {
    let cancel_token = CancelToken::new();
    let waiter = spawn_waiter(&cancel_token);
    let signalled = {
        let cancel_token = cancel_token.clone();
        thread::spawn(move || {
            let handler = cancel_token.clone();
            let signal = Signal::before_the_next_thread_is_named(move || handler.cancel());
            let _registered = cancel_token.register();
            assert!(signal.was_delivered());
        })
    };
    waiter.join().unwrap();
    signalled.join().unwrap();
}

fn a_signal_cancels_during_deregistration() {
    let cancel_token = CancelToken::new();
    let waiter = spawn_waiter(&cancel_token);
    let registered = cancel_token.register();
    let handler = cancel_token.clone();
    let signal = Signal::before_the_next_thread_is_named(move || handler.cancel());
    drop(registered);
    assert!(signal.was_delivered());
    waiter.join().unwrap();
}

/// The handler cancels a second time, before the first thread is woken.
fn a_signal_cancels_during_cancellation() {
    let cancel_token = CancelToken::new();
    let waiters = [spawn_waiter(&cancel_token), spawn_waiter(&cancel_token)];
    let handler = cancel_token.clone();
    let _signal = Signal::before_the_next_thread_is_woken(move || handler.cancel());
    cancel_token.cancel();
    for waiter in waiters {
        waiter.join().unwrap();
    }
}

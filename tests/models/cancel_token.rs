//! Cancelling at any moment of two threads that register, sleep and go. The checker is loom: it tries every schedule
//! with few preemptions, and every value that a weakly ordered load may see.
//!
//! The mutex and the parking are made here, of nothing but atomics with the orders that the standard library's have: the checker's
//! own are stricter, and would hide a fence that is missing.

#[allow(unreachable_pub, reason = "public in the library")]
#[path = "../../src/waiting/cancel.rs"]
mod cancel;

use libtest_mimic::Trial;
use loom::thread;

use crate::weak_sync as sync;
use cancel::CancelToken;
use sync::{Signal, park};

pub(crate) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 7] = [
        ("one_sleeps", one_sleeps),
        ("two_sleep", two_sleep),
        ("one_sleeps_as_another_comes_and_goes", one_sleeps_as_another_comes_and_goes),
        ("two_cancel_at_once", two_cancel_at_once),
        ("a_signal_cancels_in_the_midst_of_registering", a_signal_cancels_in_the_midst_of_registering),
        ("a_signal_cancels_in_the_midst_of_going", a_signal_cancels_in_the_midst_of_going),
        ("a_signal_cancels_in_the_midst_of_cancelling", a_signal_cancels_in_the_midst_of_cancelling),
    ];
    let trial = |(name, scenario)| crate::exhausted(format!("cancels::{name}"), scenario);
    scenarios.into_iter().map(trial).collect()
}

/// As in the engine: registers, then looks and sleeps.
fn wait(cancel_token: &CancelToken) {
    let _registered = cancel_token.register();
    while !cancel_token.is_cancelled() {
        park();
    }
}

fn waits(cancel_token: &CancelToken) -> thread::JoinHandle<()> {
    let cancel_token = cancel_token.clone();
    thread::spawn(move || wait(&cancel_token))
}

fn one_sleeps() {
    let cancel_token = CancelToken::new();
    let waiter = waits(&cancel_token);
    cancel_token.cancel();
    waiter.join().unwrap();
}

fn two_sleep() {
    let cancel_token = CancelToken::new();
    let waiters = [waits(&cancel_token), waits(&cancel_token)];
    cancel_token.cancel();
    for waiter in waiters {
        waiter.join().unwrap();
    }
}

/// The mutex is held by one who does not sleep at all, while the other does.
fn one_sleeps_as_another_comes_and_goes() {
    let cancel_token = CancelToken::new();
    let waiter = waits(&cancel_token);
    let visitor = {
        let cancel_token = cancel_token.clone();
        thread::spawn(move || drop(cancel_token.register()))
    };
    cancel_token.cancel();
    waiter.join().unwrap();
    visitor.join().unwrap();
}

fn two_cancel_at_once() {
    let cancel_token = CancelToken::new();
    let waiter = waits(&cancel_token);
    let other = {
        let cancel_token = cancel_token.clone();
        thread::spawn(move || cancel_token.cancel())
    };
    cancel_token.cancel();
    waiter.join().unwrap();
    other.join().unwrap();
}

/// A handler of a signal runs in the thread that has the mutex, which cannot go on before it has returned.
fn a_signal_cancels_in_the_midst_of_registering() {
    let cancel_token = CancelToken::new();
    let waiter = waits(&cancel_token);
    let signalled = {
        let cancel_token = cancel_token.clone();
        thread::spawn(move || {
            let handler = cancel_token.clone();
            let signal = Signal::before_the_next_thread_is_named(move || handler.cancel());
            let _registered = cancel_token.register();
            assert!(signal.has_come());
        })
    };
    waiter.join().unwrap();
    signalled.join().unwrap();
}

fn a_signal_cancels_in_the_midst_of_going() {
    let cancel_token = CancelToken::new();
    let waiter = waits(&cancel_token);
    let registered = cancel_token.register();
    let handler = cancel_token.clone();
    let signal = Signal::before_the_next_thread_is_named(move || handler.cancel());
    drop(registered);
    assert!(signal.has_come());
    waiter.join().unwrap();
}

/// The handler is called where the waking begins, and again while it goes on.
fn a_signal_cancels_in_the_midst_of_cancelling() {
    let cancel_token = CancelToken::new();
    let waiters = [waits(&cancel_token), waits(&cancel_token)];
    let handler = cancel_token.clone();
    let _signal = Signal::before_the_next_thread_is_woken(move || handler.cancel());
    cancel_token.cancel();
    for waiter in waiters {
        waiter.join().unwrap();
    }
}

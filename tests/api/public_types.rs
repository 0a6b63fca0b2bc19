//! What every public type implements. Most assertions are made by the compiler.

use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use setnx_lock::{
    CancelToken, Contention, Credentials, DeclaredLock, Drained, Error, Event, Expiry, HeldKey, Holder,
    InvalidVersion, Key, Lock, LockGuard, LockOptions, LockState, LockToken, Locker, LockerBuilder,
    LossReason, LossSignal, MultiLock, MultiLockGuard, Permit, ProblemKind, Protocol, Quorum, QuorumGuard,
    Refusal, RefusalKind, RwLock, Semaphore, TransportError, Version, WriteGuard,
};

use crate::support::{Outcome, trials_of};

trials_of! {
    "public_types";
    every_type_implements_debug_send_and_sync,
    a_lock_is_shown_in_a_line_with_its_address,
    what_locks_survives_a_panic,
    errors_can_be_boxed_and_sent,
}

fn is_debug_send_sync<T: Debug + Send + Sync>() {}

fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}

fn is_an_error<T: std::error::Error + Send + Sync + 'static>() {}

/// Instantiates a function for each of these types.
macro_rules! each {
    ($assert:ident: $($type:ty),* $(,)?) => { $($assert::<$type>();)* };
}

fn every_type_implements_debug_send_and_sync() -> Outcome {
    each![
        is_debug_send_sync: Locker, LockerBuilder, Lock, LockGuard, LockOptions, Protocol,
        DeclaredLock, CancelToken, Key, LockState, Expiry, Version, InvalidVersion, Error, Contention,
        TransportError, Refusal, RefusalKind,
        Credentials, Drained, HeldKey, Holder, LockToken, LossReason, LossSignal, Event<'static>, ProblemKind, MultiLock, MultiLockGuard, Semaphore, Permit, RwLock, WriteGuard, Quorum, QuorumGuard,
    ];
    Ok(())
}

fn a_lock_is_shown_in_a_line_with_its_address() -> Outcome {
    let locker = Locker::open("redis://:secret@127.0.0.1:6379/")?;
    let lock = Lock::new(&locker, "report", LockOptions::expiring_after(Duration::from_secs(60)))?;
    assert_eq!(format!("{locker:?}"), "Locker { address: \"127.0.0.1:6379\", .. }");
    let options = "LockOptions { expiration: Some(60s), timeout: Some(5s), protocol: Classic, .. }";
    assert_eq!(
        format!("{lock:?}"),
        format!(
            "Lock {{ locker: {locker:?}, key: Key(\"report\"), options: {options}, cancel_token: None }}"
        )
    );
    Ok(())
}

/// A panic in a body of `with` may be caught, with what the body uses.
fn what_locks_survives_a_panic() -> Outcome {
    each![is_unwind_safe: Locker, Lock, LockGuard, LossSignal, CancelToken, MultiLock, Semaphore, RwLock, Quorum, QuorumGuard];
    Ok(())
}

fn errors_can_be_boxed_and_sent() -> Outcome {
    each![
        is_an_error: Error, TransportError, InvalidVersion,
    ];
    Ok(())
}

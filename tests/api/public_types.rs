//! What every public type implements. The assertions are made by the compiler.

use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};

use libtest_mimic::Trial;
use setnx_lock::{
    CancelToken, Contention, DeclaredLock, Error, Event, Expiry, InvalidVersion, Key, Lock, LockGuard,
    LockOptions, LockState, Locker, LockerBuilder, LossReason, LossSignal, MultiLock, MultiLockGuard, Permit,
    ProblemKind, Protocol, Quorum, QuorumGuard, Refusal, RefusalKind, RwLock, Semaphore, TransportError,
    Version, WriteGuard,
};

use crate::support::{Outcome, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "public_types",
        tests![
            every_type_implements_debug_send_and_sync,
            what_locks_survives_a_panic,
            errors_can_be_boxed_and_sent
        ],
    )
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
        LossReason, LossSignal, Event<'static>, ProblemKind, MultiLock, MultiLockGuard, Semaphore, Permit, RwLock, WriteGuard, Quorum, QuorumGuard,
    ];
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

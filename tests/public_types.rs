//! What every public type implements. The assertions are made by the compiler.

use std::fmt::Debug;

use libtest_mimic::Trial;
use setnx_lock::{
    CancelToken, ClockDifference, ConnectError, Connection, Contention, DeclaredLock, Error, Event, Expiry,
    InspectionFailure, InvalidVersion, Key, Lock, LockGuard, LockOptions, LockState, Locker, LockerBuilder,
    Manager, NoConnection, Persistence, Polling, Protocol, Refusal, RefusalKind, Release, Role, ServerReport,
    TransportError, Version, Warning,
};

use crate::support::{Outcome, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "public_types",
        tests![every_type_implements_debug_send_and_sync, errors_can_be_boxed_and_sent],
    )
}

fn is_debug_send_sync<T: Debug + Send + Sync>() {}

fn is_an_error<T: std::error::Error + Send + Sync + 'static>() {}

/// Instantiates a function for each of these types.
macro_rules! each {
    ($assert:ident: $($type:ty),* $(,)?) => { $($assert::<$type>();)* };
}

fn every_type_implements_debug_send_and_sync() -> Outcome {
    each![
        is_debug_send_sync: Locker, LockerBuilder, Lock, LockGuard, LockOptions, Polling, Protocol,
        DeclaredLock, CancelToken, Key, LockState, Expiry, Version, InvalidVersion, Release, Error, Contention,
        ConnectError, NoConnection, TransportError, Refusal, RefusalKind, InspectionFailure, ServerReport,
        Warning, ClockDifference, Role, Persistence, Event<'static>, Manager, Connection,
    ];
    Ok(())
}

fn errors_can_be_boxed_and_sent() -> Outcome {
    each![
        is_an_error: Error, ConnectError, NoConnection, TransportError, InspectionFailure, InvalidVersion,
    ];
    Ok(())
}

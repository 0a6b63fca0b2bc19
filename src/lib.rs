//! Distributed locks for threaded programs on Redis 1.2 or newer: a single server, Sentinel, Cluster, or a quorum of
//! servers. No Lua, `SET NX PX` or `TIME` needed. Keys and values are those of the Ruby gem redis-objects, so Rust and
//! Ruby programs exclude each other.
//!
//! ```
//! use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
//! use std::time::Duration;
//!
//! let url = "redis://127.0.0.1/";
//! # let server = setnx_lock_testing::TestServer::start();
//! # let url = &server.url();
//! let locker = Locker::open(url)?; // one for the program; clones share its connections
//! let options = LockOptions::expiring_after(Duration::from_secs(15)).protocol(Protocol::Auto);
//! let lock = Lock::new(&locker, "nightly_report", options)?;
//!
//! // With a closure: waits for up to the timeout, 5 s by default, and releases afterwards, even if the closure panics.
//! lock.with(|held| println!("held for {:?} more", held.remaining()))?;
//!
//! // With a guard. One attempt: `None` if another holder has the lock.
//! if let Some(held) = lock.try_lock()? {
//!     held.ensure_held()?; // fails if the lease has ended according to this machine's clocks
//!     held.release()?; // fails if the lock was lost
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! **Limits.** A lock ends after its expiration: work that takes longer keeps running while another
//! client can take the lock, unless the lease is extended ([`LockGuard::extend`],
//! [`LockOptions::auto_extend`]). Clocks of all clients must agree within a second, unless all use
//! [`Protocol::Ttl`], as [`Protocol::Auto`] does on Redis 2.6.12 and newer. A failover to a replica can
//! lose a lock. [`documentation::limits`] has the guarantee as a table, and what to do about each limit.
//!
//! | type | what it is |
//! |---|---|
//! | [`Locker`] | a server, the master that Sentinels know, or a cluster, and the connections; one for the program |
//! | [`Lock`] | one key on that server, with its [`LockOptions`] |
//! | [`LockGuard`] | a lock that is held; releases when dropped |
//! | [`LockToken`] | a held lock on its way to another process |
//! | [`DeclaredLock`] | a lock with the gem's key names, `team:7:draft_lock` |
//! | [`MultiLock`] | several keys, all or none |
//! | [`Semaphore`], [`RwLock`] | at most `n` holders; many readers or one writer |
//! | [`Quorum`] | one key on a majority of independent servers |
//! | [`Error`], [`Event`] | why a call failed; what happened to a lock, for the `log` crate and an [`Observer`] |
//!
//! Read on: [`documentation::guide`] for everything that a program does with a lock, [`documentation::several`] for
//! more than one key, [`documentation::from_ruby`] to move from the gem, [`documentation::servers`] for versions of
//! Redis, rights and proxies.
//!
//! # Features
//!
//! None is on by default.
//!
//! - `tls-native-tls`, `tls-rustls`, `tls-rustls-webpki-roots`: `rediss://` URLs, by
//!   the redis crate's feature of that name. With the last two the program chooses
//!   the cryptography: it depends on rustls with the feature `ring` or `aws_lc_rs`.
//! - `macros`: the attribute `#[setnx_lock::locked]` for a function that runs while a lock is held.

// To read, as docs/internals.md follows one call:
// 1. without contention: api/lock, run/acquire, proto/acquire, proto/lease, run/session, net/server, net/server/sharing, net/lanes, net/trip, net/connections/socket, run/hold, run/life;
// 2. with contention: run/acquire/wait, wait/wait_queue, run/acquire/wait/sleep, run/turns, proto/task, proto/acquire/cues, proto/acquire/pace;
// 3. the release: api/guard, run/ending, run/release, proto/hold/hand_over, run/drive, wait/wait_queue/holder, proto/hold.
mod api;
pub mod documentation;
mod extend;
mod net;
mod powers;
mod report;
mod run;
mod system;
mod values;
mod wait;

pub use api::guard::LockGuard;
pub use api::lock::Lock;
pub use api::locker::{Drained, HeldKey, Locker, LockerBuilder, Unsettled};
pub use api::loss_signal::LossSignal;
pub use net::{Refusal, RefusalKind, TransportError};
pub use powers::{
    DeclaredLock, LockId, LockToken, MultiLock, MultiLockGuard, Permit, Quorum, QuorumGuard, RwLock,
    Semaphore, WriteGuard,
};
pub use report::error::{Contention, Error};
pub use report::event::{Event, Observer, ProblemKind, Settlement};
pub use report::state::{Expiry, Holder, LockState, LossReason};
pub use values::credentials::Credentials;
pub use values::options::LockOptions;
pub use wait::CancelToken;

#[doc(inline)]
pub use proto::values::{InvalidVersion, Key, Protocol, Version};

#[cfg(feature = "macros")]
#[doc(inline)]
pub use setnx_lock_macros::locked;

/// What the attribute expands to. No part of the interface: it may change in any release.
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __macros {
    pub use crate::api::scope::{Scope, converted, run};
}

/// The locker of an attribute without the argument `locker`. Where
/// there is none, the compiler's message has this name in it.
#[cfg(feature = "macros")]
#[doc(hidden)]
#[macro_export]
macro_rules! __declare_a_static_LOCKER_or_add_the_argument_locker {
    () => {
        LOCKER
    };
}

/// The crates whose types appear in this one's, in the versions that it uses.
pub use ::{chrono, r2d2, redis};

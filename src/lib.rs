//! Distributed locks on one Redis server, version 1.2 or later. A client acquires a lock by storing its expiry time with SETNX; another
//! takes over an expired one with GETSET or, with another [`Protocol`], by a transaction. Calls block; all threads of a program share
//! a pool of connections. Keys and values are those of the Ruby gem redis-objects.
//!
//! **Limits.** A lock ends after its expiration: work that takes longer goes on while another holder has the lock, unless its lease is
//! extended ([`LockGuard::extend`], [`LockOptions::auto_extend`]). All clients of a key need clocks clearly less than a second apart,
//! unless all use Ttl (as Auto does from Redis 2.6.12 on), and in Classic the same expiration. A failover to a replica can lose a lock.
//! [`documentation::limits`] says what is guaranteed, each limit, and what to do.
//!
//! ```no_run
//! use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
//! use std::time::Duration;
//!
//! let locker = Locker::open("redis://127.0.0.1/")?;
//! let options = LockOptions::expiring_after(Duration::from_secs(15)).protocol(Protocol::Auto);
//! let lock = Lock::new(&locker, "serialize_stuff", options)?;
//!
//! // With a closure: waits up to the timeout, 5 s unless set, and releases afterwards, even if the closure panics.
//! lock.with(|held| println!("held for {:?} more", held.remaining()))?;
//!
//! // With a guard. One attempt: `None` if another holder has the lock.
//! if let Some(held) = lock.try_lock()? {
//!     held.ensure_held()?; // fails if the lease has ended by this machine's clocks
//!     held.release()?; // fails if the lock was lost
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! [`Protocol::Auto`] uses the best protocol that the server has: keys with a time to live from Redis 2.6.12 on, transactions from 2.2 on, and
//! before that the gem's commands. Its releases wake waiters of other processes. The default is [`Protocol::Classic`], which sends what gems up
//! to 1.4.1 send, on every server.
//!
//! A [`Locker`] connects to one server and owns the pool. A [`Lock`] is one key on that server with its [`LockOptions`]. A [`LockGuard`]
//! is a lock that is held. A [`DeclaredLock`] makes locks with the gem's key names, `team:7:draft_lock`
//! ([`documentation::from_ruby`]). [`documentation::algorithm`] explains the rules, [`documentation::design`] the reasons.
//!
//! [`MultiLock`] holds several keys at once, a [`Semaphore`] lets a number of holders in, an [`RwLock`] many readers or one writer:
//! [`documentation::several`]. A [`Quorum`] is one key on several independent servers: [`documentation::servers`].
//!
//! [`documentation::holding`] says what a holder can do: extend its lease, notice a loss, take fencing tokens, nest calls.
//! [`documentation::cron`] is about jobs that several machines start, [`documentation::comparison`] about other libraries.
//!
//! [`Locker::inspect`] reports which protocols a server supports and what may harm locks there. [`documentation::servers`] describes
//! each version, [`documentation::operations`] how to run locks.
//!
//! # Features
//!
//! None is on by default. `tls-rustls`, `tls-rustls-webpki-roots` and `tls-native-tls` enable the redis crate's feature of that name: a
//! `rediss://` URL needs one of them. With `tls-rustls` a program must choose its cryptography, by depending on rustls with the feature
//! `ring` or `aws_lc_rs`.
//!
//! `macros` enables the attribute `#[setnx_lock::locked]`: a function that runs while a lock is held.
//!
//! # Errors and events
//!
//! A failed call returns an [`Error`]. Takeovers, lost replies, late releases and more are reported as an [`Event`], to the `log` crate and
//! to an observer that implements [`Observer`] ([`LockerBuilder::observer`]).

// To read, from `lock.with` to the socket: api/lock, run/acquire, run/acquire/wait and the loop in its file attempt, rules/acquire,
// run/session, net/pooled, net/own with net/lanes, net/connections/socket. Whose turn it is: wait/wait_queue.
// The release: api/guard, run/ending, run/release, rules/owned.
mod api;
pub mod documentation;
mod net;
mod report;
mod rules;
mod run;
mod values;
mod wait;

pub use api::declared::{DeclaredLock, LockId};
pub use api::guard::LockGuard;
pub use api::lock::Lock;
pub use api::locker::{Locker, LockerBuilder};
pub use api::loss_signal::LossSignal;
pub use api::several::{
    MultiLock, MultiLockGuard, Permit, Quorum, QuorumGuard, RwLock, Semaphore, WriteGuard,
};
pub use net::{
    ClockDifference, Persistence, Refusal, RefusalKind, Role, ServerReport, TransportError, Warning,
};
pub use report::error::{Contention, Error};
pub use report::event::{Event, Observer, ProblemKind};
pub use rules::ownership::LossReason;
pub use values::key::Key;
pub use values::options::{LockOptions, Protocol};
pub use values::value::{Expiry, LockState};
pub use values::version::{InvalidVersion, Version};
pub use wait::CancelToken;

#[cfg(feature = "macros")]
#[doc(inline)]
pub use setnx_lock_macros::locked;

/// What the attribute expands to. No part of the interface: it may change in any release.
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __macros {
    pub use crate::api::scope::{Scope, converted, run};
}

/// The locker of an attribute without the argument `locker`. Where there is none, the compiler's message has this name in it.
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

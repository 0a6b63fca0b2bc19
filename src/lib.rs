//! Distributed locks on the Redis servers that people actually have, back to Redis 1.2: SETNX with the expiry time as the
//! value, GETSET to take over an expired lock. Blocking and pooled, made for threads; it shares keys with the Ruby gem
//! redis-objects, any version of it.
//!
//! **What a lock of this kind cannot do:** it is a lease, a promise for a limited time. Work that takes longer goes on while
//! another holder has the lock; clients of a key need clocks within a second of each other; and a
//! failover to a replica can lose a lock. [`documentation::limits`] describes each limit with its scenario.
//!
//! ```no_run
//! use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
//! use std::time::Duration;
//!
//! let locker = Locker::open("redis://127.0.0.1/")?;
//! let options = LockOptions::expiring_after(Duration::from_secs(15)).protocol(Protocol::Auto);
//! let lock = Lock::new(&locker, "serialize_stuff", options)?;
//!
//! // The block form: waits up to the timeout, 5 s unless set, and always releases.
//! lock.with(|held| println!("held for {:?} more", held.remaining()))?;
//!
//! // The guard form. One attempt: contention is an answer, not an error.
//! if let Some(held) = lock.try_lock()? {
//!     held.ensure_held()?; // before a step that must not happen twice
//!     println!("{:?}", held.release()?);
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! [`Protocol::Auto`] takes the safest commands that the server supports. Beside gems from 1.4.3 on use [`Protocol::Ttl`]. The default
//! is [`Protocol::Classic`], which sends what the gem sends and works on every server.
//!
//! A [`Locker`] is a server, a [`Lock`] one key on it with its [`LockOptions`], a [`LockGuard`] a held lock. A [`DeclaredLock`] makes
//! locks with the gem's keys ([`documentation::from_ruby`]). Inside, one loop asks the rules, which are pure code, what to do next, and
//! performs it. [`documentation::algorithm`] explains the rules, [`documentation::design`] the reasons.
//!
//! [`Locker::inspect`] reports what a server can do for locks and what may harm them there; [`documentation::servers`] describes each
//! version, [`documentation::operations`] how to run locks.
//!
//! # Features
//!
//! None is on by default. `tls-rustls`, `tls-rustls-webpki-roots` and `tls-native-tls` pass TLS through to the redis crate: a `rediss://`
//! URL needs one of them.
//!
//! # Errors and events
//!
//! A failed call returns an [`Error`]. What happens on the way is an [`Event`], which goes to the log and to an [`Observe`]r.

mod backend;
mod clock;
mod declared;
pub mod documentation;
mod engine;
mod error;
mod event;
mod guard;
mod identity;
mod key;
mod lock;
mod locker;
mod options;
mod protocol;
mod queue;
mod sync;
mod thread_holds;
mod value;
mod version;

pub use backend::{
    ClockDifference, ConnectError, Connection, LockConnection, Manager, NoConnection, Persistence, Refusal,
    RefusalKind, Role, ServerReport, TransportError, Warning,
};
pub use declared::{DeclaredLock, LockId};
pub use error::{Contention, Error, InspectionFailure};
pub use event::{Event, Observe};
pub use guard::LockGuard;
pub use key::Key;
pub use lock::Lock;
pub use locker::{Locker, LockerBuilder};
pub use options::{
    DEFAULT_POLL_INTERVAL, DEFAULT_TIMEOUT, LONGEST_EXPIRATION, LockOptions, Polling, Protocol,
};
pub use protocol::release::Release;
pub use queue::CancelToken;
pub use value::{Expiry, LockState};
pub use version::{InvalidVersion, Version};

/// The crates whose types appear in this one's, in the versions that it uses.
pub use ::{chrono, r2d2, redis};

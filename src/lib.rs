//! Distributed locks on the Redis servers that people actually have, back to Redis 1.2: SETNX with the expiry time as the
//! value, GETSET to take over from the dead. Blocking and pooled, made for threads; it shares keys with the Ruby gem
//! redis-objects, any version of it.
//!
//! **What a lock of this kind cannot do:** it is a lease, a promise for a limited time. Work that takes longer runs on while
//! another has the lock; all clients of a key must use the same expiration and clocks within a second of each other; and a
//! failover to a replica can lose it. [`documentation::limits`] tells each of these with its scenario.
//!
//! ```no_run
//! use setnx_lock::{Error, Lock, LockOptions, Locker};
//! use std::time::Duration;
//!
//! let locker = Locker::open("redis://127.0.0.1/")?;
//! let lock = Lock::new(&locker, "serialize_stuff", LockOptions::expiring_after(Duration::from_secs(15)))?;
//!
//! // The block form: waits up to the timeout, 5 s unless set, and gives the lock back whatever happens.
//! lock.with(|held| {
//!     println!("ours for {:?}", held.remaining());
//!     Ok::<_, Error>(())
//! })?;
//!
//! // The guard form. One try: that another has the lock is an answer, not an error.
//! if let Some(held) = lock.try_lock()? {
//!     held.ensure_held()?; // before a step that must not happen twice
//!     println!("{:?}", held.release()?);
//! }
//! # Ok::<(), Error>(())
//! ```
//!
//! The house, from the street down: a [`Locker`] is a server, a [`Lock`] one key on it with its [`LockOptions`], a [`LockGuard`]
//! a lock that is held. A [`DeclaredLock`] makes locks with the gem's keys ([`documentation::from_ruby`]); a [`Protocol`] says by
//! which commands a lock is taken over and given back. Below them one loop asks the rules, which are pure code, what to do next, and does it through the
//! windows: the server, and the clock. [`documentation::algorithm`] explains the rules, [`documentation::design`] the
//! reasons.
//!
//! What a server can do for locks, and what may go wrong there, is the answer of [`Locker::server`]; [`documentation::servers`] has
//! each version, [`documentation::operations`] how to run it.
//!
//! What goes wrong is an [`Error`]; what happens on the way is an [`Event`], written to the log unless an [`Observe`]r wants it.

mod clock;
mod declared;
pub mod documentation;
mod engine;
mod error;
mod event;
mod guard;
mod held;
mod identity;
mod key;
mod lock;
mod locker;
mod options;
mod protocol;
mod server;
mod sync;
mod value;
mod version;
mod waiting;

pub use declared::DeclaredLock;
pub use error::{Contention, Error, NoAnswer, NoConnection};
pub use event::{Event, LogObserver, Observe};
pub use guard::LockGuard;
pub use key::Key;
pub use lock::Lock;
pub use locker::{Locker, Settings};
pub use options::{
    DEFAULT_POLL_INTERVAL, DEFAULT_TIMEOUT, LONGEST_EXPIRATION, LockOptions, Polling, Protocol,
};
pub use protocol::release::Release;
pub use server::refusal::{Refusal, RefusalKind};
pub use server::{
    Carrier, ClockDifference, ConnectError, Connection, Manager, Persistence, Role, Server, Warning,
};
pub use value::{Content, Expiry};
pub use version::Version;
pub use waiting::Canceller;

/// The crates whose types appear in this one's, in the versions that it uses.
pub use ::{chrono, r2d2, redis};

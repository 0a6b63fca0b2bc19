#![doc = include_str!("../README.md")]

mod clock;
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
mod value;

pub use error::{Contention, Error, NoConnection};
pub use event::{Event, LogObserver, Observe};
pub use guard::LockGuard;
pub use key::Key;
pub use lock::Lock;
pub use locker::{Locker, Settings};
pub use options::{DEFAULT_POLL_INTERVAL, DEFAULT_TIMEOUT, LONGEST_EXPIRATION, LockOptions};
pub use protocol::release::Release;
pub use server::refusal::{Refusal, RefusalKind};
pub use server::{Carrier, ConnectError, Connection, Manager};
pub use value::{Content, Expiry};

pub use ::{r2d2, redis};

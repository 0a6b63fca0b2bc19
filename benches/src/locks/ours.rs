//! This crate, in the variants that are compared.

use std::time::Duration;

use setnx_lock::{Lock, LockOptions, Locker, Protocol};

use super::{Client, Locks, TIMEOUT, version_of};
use crate::Failure;
use crate::options::Workload::{self, W1, W2, W2Busy, W2Many, W3, W4, W5, W6, W7, W8, W9, W10, W11, W12};

/// One way to use the crate.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) settings: &'static str,
    pub(crate) workloads: &'static [Workload],
    /// What it changes of the defaults.
    options: fn(LockOptions) -> LockOptions,
    /// The connections of the pool; `None` for the default.
    pool_size: Option<u32>,
}

/// The variant with a pool of one connection.
pub(crate) const ONE_CONNECTION: &str = "ours-pool-1";

/// Each is a line: its name, its settings in words, its workloads, and what it changes of the options.
pub(crate) const VARIANTS: &[Variant] = &[
    variant(
        "ours",
        "defaults",
        &[W1, W2, W2Many, W2Busy, W3, W4, W5, W6, W7, W9, W10, W11, W12],
        |options| options,
    ),
    variant(
        "ours-auto",
        "protocol Auto, which tells waiters of releases",
        &[W1, W2, W2Many, W2Busy, W3, W4, W5, W6, W11, W12],
        |options| options.protocol(Protocol::Auto),
    ),
    variant("ours-watched", "protocol Watched", &[W1, W2Many, W5], |options| {
        options.protocol(Protocol::Watched)
    }),
    variant("ours-ttl", "protocol Ttl", &[W1, W5], |options| options.protocol(Protocol::Ttl)),
    variant("ours-notifications", "notifications", &[W1, W3, W4, W5, W8], |options| {
        options.notify_waiters(true)
    }),
    variant("ours-auto-extend", "leases that are extended", &[W1, W2], |options| options.auto_extend(HOUR)),
    Variant {
        pool_size: Some(1),
        ..variant(ONE_CONNECTION, "a pool of one connection", &[W2Many], |options| options)
    },
];

/// Longer than any workload.
const HOUR: Duration = Duration::from_secs(3600);

const fn variant(
    name: &'static str,
    settings: &'static str,
    workloads: &'static [Workload],
    options: fn(LockOptions) -> LockOptions,
) -> Variant {
    Variant { name, settings, workloads, options, pool_size: None }
}

/// How much longer than its lease the value in the key names: the gem's second.
const GRACE: Duration = Duration::from_secs(1);

pub(super) struct Ours {
    locker: Locker,
    options: LockOptions,
}

impl Ours {
    /// `lease` is how long the key is to name; the expiration is shorter.
    pub(super) fn open(variant: &Variant, url: &str, lease: Duration) -> Result<Self, Failure> {
        let mut builder = Locker::builder(url)?;
        if let Some(size) = variant.pool_size {
            builder = builder.pool_size(size);
        }
        let locker = builder.build()?;
        let expiration = lease.saturating_sub(GRACE);
        let options = (variant.options)(LockOptions::expiring_after(expiration).timeout(TIMEOUT));
        Ok(Self { locker, options })
    }
}

impl Locks for Ours {
    fn version(&self) -> String {
        format!("setnx-lock {}", version_of("setnx-lock"))
    }

    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        Ok(Box::new(Thread { locker: self.locker.clone(), options: self.options, lock: None }))
    }
}

struct Thread {
    locker: Locker,
    options: LockOptions,
    /// The lock of the key that was asked for last.
    lock: Option<(String, Lock)>,
}

impl Client for Thread {
    fn hold(&mut self, key: &str, inside: &mut dyn FnMut()) -> Result<(), Failure> {
        let lock = match &self.lock {
            Some((of, lock)) if of == key => lock,
            _ => {
                let lock = Lock::new(&self.locker, key, self.options)?;
                &self.lock.insert((key.to_owned(), lock)).1
            }
        };
        let guard = lock.lock()?;
        inside();
        // No lease ends within a workload.
        Ok(guard.release()?)
    }
}

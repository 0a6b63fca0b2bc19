//! This crate, in the variants that are compared.

use std::time::Duration;

use setnx_lock::{Lock, LockOptions, Locker, Protocol, Release};

use super::{Client, Locks, PATIENCE, version_of};
use crate::Failure;
use crate::options::Workload::{self, W1, W2, W3, W4, W5};

/// One way to use the crate.
#[derive(Debug)]
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    pub(crate) settings: &'static str,
    pub(crate) workloads: &'static [Workload],
    /// What it changes of the defaults.
    options: fn(LockOptions) -> LockOptions,
    /// Whether a connection for each thread takes the place of the default pool and of combining.
    apart: bool,
}

/// Each is a line: its name, what is said of it, what it is measured at, and what it changes of the options.
pub(crate) const VARIANTS: &[Variant] = &[
    variant("ours", "defaults", &[W1, W2, W3, W4, W5], |options| options),
    variant("ours-watched", "protocol Watched", &[W1, W5], |options| options.protocol(Protocol::Watched)),
    variant("ours-ttl", "protocol Ttl", &[W1, W5], |options| options.protocol(Protocol::Ttl)),
    variant("ours-hand-over", "hand-over, 16 times in a row", &[W1, W3, W4], |options| options.handoff(16)),
    variant("ours-wake-ups", "wake-ups", &[W1, W3, W4, W5], LockOptions::notify_waiters),
    variant("ours-both", "hand-over, 16 times in a row, and wake-ups", &[W3, W4], |options| {
        options.handoff(16).notify_waiters()
    }),
    Variant {
        apart: true,
        ..variant("ours-apart", "without combining; a connection for each thread", &[W1, W2], |options| {
            options
        })
    },
];

const fn variant(
    name: &'static str,
    settings: &'static str,
    workloads: &'static [Workload],
    options: fn(LockOptions) -> LockOptions,
) -> Variant {
    Variant { name, settings, workloads, options, apart: false }
}

/// How much longer than its lease the value in the key names: the gem's second.
const GRACE: Duration = Duration::from_secs(1);

pub(super) struct Ours {
    locker: Locker,
    options: LockOptions,
}

impl Ours {
    /// `lease` is what the key is to show; the expiration is shorter.
    pub(super) fn open(variant: &Variant, url: &str, threads: u32, lease: Duration) -> Result<Self, Failure> {
        let mut settings = Locker::builder(url)?;
        if variant.apart {
            settings = settings.pool_size(threads);
        }
        let locker = settings.build()?.pipelining(!variant.apart);
        let expiration = lease.saturating_sub(GRACE);
        let options = (variant.options)(LockOptions::expiring_after(expiration).timeout(PATIENCE));
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
        match guard.release()? {
            Release::Released { .. } | Release::HandedOff { .. } => Ok(()),
            outcome => Err(format!("the release said {outcome:?}").into()),
        }
    }
}

//! Variants: the options that change how a lock is waited for and released, and the load that its commands are sent
//! under. None of them changes what a lock guarantees.

use setnx_lock::{Error, LockOptions, Locker};

use super::Load;
use super::load_threads::{LoadThreads, Tolerance};
use super::scenario::patient;

/// One combination of options and load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Variant {
    pub(crate) notifications: bool,
    pub(crate) load: Load,
}

impl Variant {
    /// The variants of waiting, under any load.
    pub(crate) const ALL: [Variant; 2] =
        [Variant { notifications: false, load: Load::Any }, Variant { notifications: true, load: Load::Any }];

    /// The variants of waiting, each under each load.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        Load::ALL.into_iter().flat_map(|load| Self::ALL.map(|variant| Self { load, ..variant }))
    }

    pub(crate) fn name(self) -> String {
        let waiting = if self.notifications { "notifications" } else { "plain" };
        self.load.name().map_or(waiting.to_owned(), |load| format!("{waiting}_{load}"))
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        Self::every().find(|variant| variant.name() == name).ok_or_else(|| format!("no such variant: {name}"))
    }

    pub(crate) fn set(self, options: LockOptions) -> LockOptions {
        if self.notifications { options.notify_waiters(true) } else { options }
    }

    /// Opens a locker under the variant's load, on a server without faults.
    pub(crate) fn open(self, url: &str) -> Result<(Locker, Option<LoadThreads>), Error> {
        self.load.open(patient(url)?, Tolerance::Strict)
    }
}

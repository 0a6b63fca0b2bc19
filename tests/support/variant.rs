//! Variants: the options that change how a lock is waited for and released, and the load that its commands are sent under. None of
//! them changes what a lock guarantees.

use setnx_lock::{Error, LockOptions, Locker};

use super::Load;
use super::load_threads::{LoadThreads, Tolerance};
use super::scenario::patient;

/// How many handoffs in a row the tests allow.
pub(crate) const HANDOFFS: u32 = 3;

/// One combination of options and load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Variant {
    pub(crate) handoff: bool,
    pub(crate) notifications: bool,
    pub(crate) load: Load,
}

impl Variant {
    /// The variants of waiting, under any load.
    pub(crate) const ALL: [Variant; 4] = [
        Variant { handoff: false, notifications: false, load: Load::Any },
        Variant { handoff: true, notifications: false, load: Load::Any },
        Variant { handoff: false, notifications: true, load: Load::Any },
        Variant { handoff: true, notifications: true, load: Load::Any },
    ];

    /// The variants of waiting, each under each load.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        Load::ALL.into_iter().flat_map(|load| Self::ALL.map(|variant| Self { load, ..variant }))
    }

    pub(crate) fn name(self) -> String {
        let waiting = match (self.handoff, self.notifications) {
            (false, false) => "plain",
            (true, false) => "handoff",
            (false, true) => "notifications",
            (true, true) => "handoff_and_notifications",
        };
        self.load.name().map_or(waiting.to_owned(), |load| format!("{waiting}_{load}"))
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        Self::every().find(|variant| variant.name() == name).ok_or_else(|| format!("no such variant: {name}"))
    }

    pub(crate) fn set(self, options: LockOptions) -> LockOptions {
        let options = if self.handoff { options.handoff(HANDOFFS) } else { options };
        if self.notifications { options.notify_waiters() } else { options }
    }

    /// Opens a locker under the variant's load, on a server without faults.
    pub(crate) fn open(self, url: &str) -> Result<(Locker, Option<LoadThreads>), Error> {
        self.load.open(patient(url)?, Tolerance::Strict)
    }
}

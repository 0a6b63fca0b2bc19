//! Ways: the options that change how a lock is waited for and passed on, and with whom its commands travel. None of them changes
//! what it promises.

use setnx_lock::{Error, LockOptions, Locker};

use super::Load;
use super::load_threads::{LoadThreads, Tolerance};

/// How often in a row a lock passes on in the tests.
pub(crate) const TIMES: u32 = 3;

/// One combination of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Variant {
    pub(crate) handoff: bool,
    pub(crate) wake_ups: bool,
    pub(crate) load: Load,
}

impl Variant {
    /// Those of waiting.
    pub(crate) const ALL: [Variant; 4] = [
        Variant { handoff: false, wake_ups: false, load: Load::Any },
        Variant { handoff: true, wake_ups: false, load: Load::Any },
        Variant { handoff: false, wake_ups: true, load: Load::Any },
        Variant { handoff: true, wake_ups: true, load: Load::Any },
    ];

    /// Those of waiting, in all company.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        Load::ALL.into_iter().flat_map(|load| Self::ALL.map(|variant| Self { load, ..variant }))
    }

    pub(crate) fn name(self) -> String {
        let waiting = match (self.handoff, self.wake_ups) {
            (false, false) => "plain",
            (true, false) => "handoff",
            (false, true) => "notifications",
            (true, true) => "hand_over_and_wake_ups",
        };
        self.load.name().map_or(waiting.to_owned(), |load| format!("{waiting}_{load}"))
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        Self::every().find(|variant| variant.name() == name).ok_or_else(|| format!("no such way: {name}"))
    }

    /// Whether locks pass on among our own, before others.
    pub(crate) fn hands_off_or_notifies(self) -> bool {
        self.handoff || self.wake_ups
    }

    pub(crate) fn set(self, options: LockOptions) -> LockOptions {
        let options = if self.handoff { options.handoff(TIMES) } else { options };
        if self.wake_ups { options.notify_waiters() } else { options }
    }

    /// Opens a locker with whatever company belongs to it, on a server that does what it should.
    pub(crate) fn open(self, url: &str) -> Result<(Locker, Option<LoadThreads>), Error> {
        self.load.open(Locker::builder(url)?, Tolerance::Strict)
    }
}

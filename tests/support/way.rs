//! Ways: the options that change how a lock is waited for and passed on, and with whom its commands travel. None of them changes
//! what it promises.

use setnx_lock::{Error, LockOptions, Locker};

use super::Company;
use super::companions::{Companions, Temper};

/// How often in a row a lock passes on in the tests.
pub(crate) const TIMES: u32 = 3;

/// One combination of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) hand_over: bool,
    pub(crate) wake_ups: bool,
    pub(crate) company: Company,
}

impl Way {
    /// Those of waiting.
    pub(crate) const ALL: [Way; 4] = [
        Way { hand_over: false, wake_ups: false, company: Company::Any },
        Way { hand_over: true, wake_ups: false, company: Company::Any },
        Way { hand_over: false, wake_ups: true, company: Company::Any },
        Way { hand_over: true, wake_ups: true, company: Company::Any },
    ];

    /// Those of waiting, in all company.
    pub(crate) fn every() -> impl Iterator<Item = Self> {
        Company::ALL.into_iter().flat_map(|company| Self::ALL.map(|way| Self { company, ..way }))
    }

    pub(crate) fn name(self) -> String {
        let waiting = match (self.hand_over, self.wake_ups) {
            (false, false) => "plain",
            (true, false) => "hand_over",
            (false, true) => "wake_ups",
            (true, true) => "hand_over_and_wake_ups",
        };
        self.company.name().map_or(waiting.to_owned(), |company| format!("{waiting}_{company}"))
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        Self::every().find(|way| way.name() == name).ok_or_else(|| format!("no such way: {name}"))
    }

    /// Whether locks pass on among our own, before others.
    pub(crate) fn passes_on(self) -> bool {
        self.hand_over || self.wake_ups
    }

    pub(crate) fn set(self, options: LockOptions) -> LockOptions {
        let options = if self.hand_over { options.hand_over(TIMES) } else { options };
        if self.wake_ups { options.with_wake_ups() } else { options }
    }

    /// Opens a locker with whatever company belongs to it, on a server that does what it should.
    pub(crate) fn open(self, url: &str) -> Result<(Locker, Option<Companions>), Error> {
        self.company.open(Locker::at(url)?, Temper::Strict)
    }
}

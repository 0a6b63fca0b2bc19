//! Ways of waiting: the options that change how a lock is waited for and passed on, and nothing of what it promises.

use setnx_lock::LockOptions;

/// How often in a row a lock passes on in the tests.
pub(crate) const TIMES: u32 = 3;

/// One combination of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Way {
    pub(crate) hand_over: bool,
    pub(crate) wake_ups: bool,
}

impl Way {
    pub(crate) const ALL: [Way; 4] = [
        Way { hand_over: false, wake_ups: false },
        Way { hand_over: true, wake_ups: false },
        Way { hand_over: false, wake_ups: true },
        Way { hand_over: true, wake_ups: true },
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way { hand_over: false, wake_ups: false } => "plain",
            Way { hand_over: true, wake_ups: false } => "hand_over",
            Way { hand_over: false, wake_ups: true } => "wake_ups",
            Way { hand_over: true, wake_ups: true } => "hand_over_and_wake_ups",
        }
    }

    pub(crate) fn named(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|way| way.name() == name).ok_or_else(|| format!("no such way: {name}"))
    }

    pub(crate) fn set(self, options: LockOptions) -> LockOptions {
        let options = if self.hand_over { options.hand_over(TIMES) } else { options };
        if self.wake_ups { options.with_wake_ups() } else { options }
    }
}

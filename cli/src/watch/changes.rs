//! What has happened to a lock between two reads of its key. Pure.

use serde::Serialize;
use setnx_lock::chrono::{DateTime, Utc};
use setnx_lock::{Key, LockState};

use crate::keys::{Found, KeyReport, State};

/// What has happened, as far as two reads tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// The first read.
    First,
    Acquired,
    Released,
    /// The holder, which has a name, has written a later time.
    Extended,
    /// Another holder has it whose time had passed.
    TakenOver,
    /// Another value: the lock passed on, or its holder extended it.
    Changed,
    /// Its time has passed.
    Expired,
}

impl Change {
    pub(super) fn words(self) -> &'static str {
        match self {
            Change::First => "at first",
            Change::Acquired => "acquired",
            Change::Released => "released",
            Change::Extended => "extended",
            Change::TakenOver => "taken over",
            Change::Changed => "passed on or extended",
            Change::Expired => "expired",
        }
    }
}

/// A report, and the state that it showed when it was made.
#[derive(Clone, Debug)]
pub(super) struct Look {
    pub(super) report: KeyReport,
    state: State,
}

impl Look {
    pub(super) fn at(report: KeyReport, now: DateTime<Utc>) -> Self {
        Self { state: report.state(now), report }
    }

    pub(super) fn free(key: &Key) -> Self {
        Self { report: KeyReport::of(key.clone(), Found::State(LockState::Absent)), state: State::Free }
    }

    pub(super) fn is_free(&self) -> bool {
        self.state == State::Free
    }

    /// Says what has happened since the look before.
    pub(super) fn since(&self, before: Option<&Look>) -> Option<Change> {
        let Some(before) = before else { return Some(Change::First) };
        if before.report.found == self.report.found {
            return (before.state == State::Held && self.state == State::Expired).then_some(Change::Expired);
        }
        let same_holder = before.report.holder.is_some() && before.report.holder == self.report.holder;
        Some(match (before.state, self.state) {
            (_, State::Free) => Change::Released,
            (State::Free, _) => Change::Acquired,
            _ if same_holder => Change::Extended,
            (State::Expired, _) => Change::TakenOver,
            _ => Change::Changed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(value: Option<&str>, seconds: i64) -> Look {
        let found = Found::State(LockState::of_value(value.map(str::as_bytes)));
        Look::at(KeyReport::of("k".into(), found), DateTime::from_timestamp(seconds, 0).unwrap())
    }

    #[test]
    fn two_looks_tell_what_has_happened() {
        const FIRST: Option<&str> = Some("1795157376.5");
        const LATER: Option<&str> = Some("1795157400.5");
        let change = |before: &Look, value, seconds| look(value, seconds).since(Some(before));
        let free = look(None, 1_795_157_300);
        let held = look(FIRST, 1_795_157_301);
        let expired = look(FIRST, 1_795_157_377);
        assert_eq!(free.since(None), Some(Change::First));
        assert_eq!(change(&free, None, 1_795_157_302), None);
        assert_eq!(change(&free, FIRST, 1_795_157_302), Some(Change::Acquired));
        assert_eq!(change(&held, FIRST, 1_795_157_302), None);
        assert_eq!(change(&held, FIRST, 1_795_157_377), Some(Change::Expired));
        assert_eq!(change(&expired, FIRST, 1_795_157_378), None, "is said once");
        assert_eq!(change(&held, None, 1_795_157_302), Some(Change::Released));
        assert_eq!(change(&held, LATER, 1_795_157_302), Some(Change::Changed));
        let named = look(Some("1795157376.5000000000000001:1795157300:web"), 1_795_157_301);
        for (value, expected) in [
            ("1795157400.5000000000000002:1795157300:web", Change::Extended),
            ("1795157400.5000000000000002:1795157301:web", Change::Changed),
            ("1795157400.5000000000000002:1795157300:db", Change::Changed),
        ] {
            assert_eq!(change(&named, Some(value), 1_795_157_302), Some(expected), "{value}");
        }
        assert_eq!(change(&expired, LATER, 1_795_157_378), Some(Change::TakenOver));
        assert_eq!(change(&held, Some("oops"), 1_795_157_302), Some(Change::Changed));
    }
}

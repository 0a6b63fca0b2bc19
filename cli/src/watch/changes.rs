//! What has happened to a lock between two reads of its key. Pure.

use serde::Serialize;
use setnx_lock::chrono::{DateTime, Utc};

use crate::keys::{KeyReport, State};

/// What has happened, as far as two reads tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// The first read.
    First,
    Acquired,
    Released,
    /// The holder that has written its name has written a later time.
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

    /// Returns true if the holder may be the same, whose name comes a moment after the value where the two are written in two trips.
    pub(super) fn lacks_the_name_of(&self, before: Option<&Look>) -> bool {
        before.is_some_and(|before| {
            before.report.found != self.report.found
                && before.report.holder.is_some()
                && self.report.holder.is_none()
                && self.state == State::Held
        })
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
    use crate::keys::Found;
    use setnx_lock::LockState;

    fn look(value: Option<&str>, holder: Option<&str>, seconds: i64) -> Look {
        let found = Found::State(LockState::of_value(value.map(str::as_bytes)));
        let holder = holder.map(str::to_owned);
        let report = KeyReport { holder, ..KeyReport::of("k".into(), found) };
        Look::at(report, DateTime::from_timestamp(seconds, 0).unwrap())
    }

    #[test]
    fn two_looks_tell_what_has_happened() {
        const FIRST: Option<&str> = Some("1795157376.5");
        const LATER: Option<&str> = Some("1795157400.5");
        let change = |before: &Look, value, holder, seconds| look(value, holder, seconds).since(Some(before));
        let free = look(None, None, 1_795_157_300);
        let held = look(FIRST, None, 1_795_157_301);
        let named = look(FIRST, Some("web"), 1_795_157_301);
        let expired = look(FIRST, None, 1_795_157_377);
        assert_eq!(free.since(None), Some(Change::First));
        assert_eq!(change(&free, None, None, 1_795_157_302), None);
        assert_eq!(change(&free, FIRST, None, 1_795_157_302), Some(Change::Acquired));
        assert_eq!(change(&held, FIRST, None, 1_795_157_302), None);
        assert_eq!(change(&held, FIRST, None, 1_795_157_377), Some(Change::Expired));
        assert_eq!(change(&expired, FIRST, None, 1_795_157_378), None, "is said once");
        assert_eq!(change(&held, None, None, 1_795_157_302), Some(Change::Released));
        assert_eq!(change(&held, LATER, None, 1_795_157_302), Some(Change::Changed));
        assert_eq!(change(&named, LATER, Some("web"), 1_795_157_302), Some(Change::Extended));
        assert_eq!(change(&named, LATER, Some("db"), 1_795_157_302), Some(Change::Changed));
        assert_eq!(change(&expired, LATER, None, 1_795_157_378), Some(Change::TakenOver));
        let lacks = |value, holder| look(value, holder, 1_795_157_302).lacks_the_name_of(Some(&named));
        assert!(lacks(LATER, None), "the name is on its way");
        assert!(
            !lacks(LATER, Some("web"))
                && !lacks(LATER, Some("db"))
                && !lacks(FIRST, None)
                && !lacks(None, None)
        );
        assert!(!look(LATER, None, 1_795_157_302).lacks_the_name_of(Some(&held)));
        assert_eq!(change(&held, Some("oops"), None, 1_795_157_302), Some(Change::Changed));
    }
}

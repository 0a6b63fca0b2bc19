//! The locks by the beginning of their keys, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::io::{self, Write};

use setnx_lock::chrono::{DateTime, Utc};

use crate::keys::{KeyReport, State, seconds, shown};

/// The states that a listed key can have, by the names that JSON gives them.
const STATES: [(State, &str); 4] = [
    (State::Held, "held"),
    (State::Expired, "expired"),
    (State::NoExpiration, "no_expiration"),
    (State::GemTtl, "gem_ttl"),
];

/// What is counted of the keys that begin alike.
#[derive(Debug, Default)]
struct Group {
    states: BTreeMap<State, u32>,
    /// For how long the longest has been held whose holder has a name.
    held_seconds: Option<f64>,
    waiters: u32,
}

/// Writes them. `skipped` bytes at the beginning of each key are the prefix that all have.
pub(super) fn write(
    out: &mut impl Write,
    reports: &[KeyReport],
    skipped: usize,
    now: DateTime<Utc>,
) -> io::Result<()> {
    let mut groups = BTreeMap::<String, Group>::new();
    for report in reports {
        let group = groups.entry(prefix(report.key.as_bytes(), skipped)).or_default();
        *group.states.entry(report.state(now)).or_default() += 1;
        let held = report.held_for(now).filter(|_| report.state(now) == State::Held);
        group.held_seconds = held.map(seconds).into_iter().chain(group.held_seconds).reduce(f64::max);
        group.waiters = group.waiters.saturating_add(u32::try_from(report.waiters).unwrap_or(u32::MAX));
    }
    let mut family = |name: &str, help: &str, sample: &dyn Fn(&Group) -> Vec<(String, f64)>| {
        writeln!(out, "# HELP setnx_lock_{name} {help}\n# TYPE setnx_lock_{name} gauge")?;
        for (prefix, group) in &groups {
            for (label, value) in sample(group) {
                writeln!(out, "setnx_lock_{name}{{prefix=\"{prefix}\"{label}}} {value}")?;
            }
        }
        Ok(())
    };
    family("locks", "Locks, by the prefix of their keys and by what the key holds.", &|group| {
        let count = |state| group.states.get(&state).copied().unwrap_or_default();
        STATES.map(|(state, name)| (format!(",state=\"{name}\""), f64::from(count(state)))).into()
    })?;
    family("held_seconds", "How long the longest held lock is held, of holders with a name.", &|group| {
        group.held_seconds.map(|held| (String::new(), held)).into_iter().collect()
    })?;
    family("waiters", "Waiters that are listed for notifications.", &|group| {
        vec![(String::new(), f64::from(group.waiters))]
    })
}

/// The key up to the first colon, as the value of a label: few keys differ there, whatever their number.
fn prefix(key: &[u8], skipped: usize) -> String {
    let skipped = skipped.min(key.len());
    let end = key[skipped..].iter().position(|byte| *byte == b':').map_or(key.len(), |at| skipped + at);
    // Invisible characters are escaped by backslashes, which are escaped as well.
    shown(&String::from_utf8_lossy(&key[..end])).replace('\\', "\\\\").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_grouped_by_what_stands_before_the_first_colon() {
        let label = |key: &str, skipped| prefix(key.as_bytes(), skipped);
        assert_eq!(label("team:7:draft_lock", 0), "team");
        assert_eq!(label("nightly", 0), "nightly");
        assert_eq!(label("app1:team:7", 5), "app1:team");
        assert_eq!(label("a\"\n:b", 0), r#"a\"\\n"#);
    }
}

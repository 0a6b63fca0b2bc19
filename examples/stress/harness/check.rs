//! The checker. Knows intervals of time, and nothing of locks.

use std::collections::BTreeMap;

use super::hold::{End, Hold, Outcome};
use super::moment::Moment;

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// How many holds were looked at. Without any, nothing is shown.
    pub(crate) holds: usize,
    pub(crate) takeovers: usize,
    /// Holds whose holder was killed inside.
    pub(crate) killed: usize,
    /// Holds that lasted longer than their lease.
    pub(crate) overran: usize,
    pub(crate) lost: usize,
    /// Holds whose holder could not learn what became of his release.
    pub(crate) unknown: usize,
    /// Holds that began while an earlier one on the same key was inside and valid, and were valid themselves, each with that
    /// earlier one.
    pub(crate) overlaps: Vec<(Hold, Hold)>,
    /// Holds that went on after their lease while another got in, and whose holder was not told, each with one that got in.
    pub(crate) unreported: Vec<(Hold, Hold)>,
}

/// Looks at all holds of a run whose end is known, in any order.
pub(crate) fn check(holds: &[Hold]) -> Findings {
    let mut findings = Findings::default();
    let mut by_key: BTreeMap<u64, Vec<(&Hold, Moment)>> = BTreeMap::new();
    for hold in holds {
        let Some(ended) = hold.ended() else { continue };
        findings.holds += 1;
        findings.takeovers += usize::from(hold.took_over);
        findings.killed += usize::from(matches!(hold.end, End::Killed(_)));
        findings.overran += usize::from(hold.overran());
        findings.lost += usize::from(matches!(hold.end, End::Left(_, Some(Outcome::Lost))));
        findings.unknown += usize::from(matches!(hold.end, End::Left(_, Some(Outcome::Failed))));
        by_key.entry(hold.key).or_default().push((hold, ended));
    }
    for mut holds in by_key.into_values() {
        holds.sort_by_key(|(hold, _)| (hold.enter, hold.worker, hold.number));
        overlaps(&holds, &mut findings.overlaps);
        unreported(&holds, &mut findings.unreported);
    }
    findings
}

/// Sweeps over the holds of a key in the order of entering, and remembers whose validity reaches furthest.
fn overlaps(holds: &[(&Hold, Moment)], found: &mut Vec<(Hold, Hold)>) {
    let mut furthest: Option<(&Hold, Moment)> = None;
    for &(hold, ended) in holds {
        let until = ended.min(hold.valid_until);
        // What was never valid overlaps with nothing.
        if until <= hold.enter {
            continue;
        }
        match furthest {
            Some((earlier, valid)) if hold.enter < valid => found.push((earlier.clone(), hold.clone())),
            _ => {}
        }
        if furthest.is_none_or(|(_, valid)| until > valid) {
            furthest = Some((hold, until));
        }
    }
}

/// Finds for each hold that overran, and whose holder was not told, the first that entered after its time.
fn unreported(holds: &[(&Hold, Moment)], found: &mut Vec<(Hold, Hold)>) {
    for &(hold, ended) in holds.iter().filter(|(hold, _)| hold.overran() && hold.left_assured()) {
        // One whose clock reads came late entered after its lease: what entered before it is not meant.
        let from = hold.valid_until.max(hold.enter);
        let next = holds.partition_point(|(other, _)| other.enter <= from);
        found.extend(
            holds
                .get(next)
                .filter(|(other, _)| other.enter < ended)
                .map(|(other, _)| (hold.clone(), (*other).clone())),
        );
    }
}

//! The checker. It knows intervals of time, and nothing of locks.

use std::collections::BTreeMap;

use super::hold::{End, Hold, Outcome};
use super::moment::Moment;

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// Holds that were checked. Without any, the run shows nothing.
    pub(crate) holds: usize,
    pub(crate) takeovers: usize,
    /// Holds whose process was killed meanwhile.
    pub(crate) killed: usize,
    /// Holds that lasted longer than their lease.
    pub(crate) outlived: usize,
    /// Holds whose release reported that another holder had the lock.
    pub(crate) lost: usize,
    /// Holds whose release failed, so that its outcome is unknown.
    pub(crate) unknown: usize,
    /// Valid holds that began while an earlier one on the same key was valid: the earlier one, and the later.
    pub(crate) overlaps: Vec<(Hold, Hold)>,
    /// Holds that outlived their lease while another one began, and whose
    /// release reported no problem: each with a hold that began meanwhile.
    pub(crate) unreported: Vec<(Hold, Hold)>,
}

/// Checks all holds of a run whose end is known, in any order.
pub(crate) fn check(holds: &[Hold]) -> Findings {
    let mut findings = Findings::default();
    let mut by_key: BTreeMap<u64, Vec<(&Hold, Moment)>> = BTreeMap::new();
    for hold in holds {
        let Some(ended) = hold.ended() else { continue };
        findings.holds += 1;
        findings.takeovers += usize::from(hold.taken_over);
        findings.killed += usize::from(matches!(hold.end, End::Killed(_)));
        findings.outlived += usize::from(hold.outlived_lease());
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

/// Sweeps over the holds of a key in the order of entering, and keeps the one that is valid the longest.
fn overlaps(holds: &[(&Hold, Moment)], found: &mut Vec<(Hold, Hold)>) {
    let mut furthest: Option<(&Hold, Moment)> = None;
    for &(hold, ended) in holds {
        let until = ended.min(hold.valid_until);
        // A hold that was never valid overlaps with nothing.
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

/// Finds, for each hold that outlived its lease and whose release
/// reported no problem, the first hold that began after the lease.
fn unreported(holds: &[(&Hold, Moment)], found: &mut Vec<(Hold, Hold)>) {
    for &(hold, ended) in holds.iter().filter(|(hold, _)| hold.outlived_lease() && hold.reported_no_problem())
    {
        // If the clock was read late, `enter` is after the lease: a hold that began before it does not count.
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

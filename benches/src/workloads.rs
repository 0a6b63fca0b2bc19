//! The workloads, and what each makes of a run: tables and the panels of a plot.

mod contention;
mod death;
mod idle;
mod pairs;

use crate::Failure;
use crate::candidates::Candidate;
use crate::options::Workload;
use crate::report::Section;
use crate::rounds::Stage;

/// Runs one workload with those candidates that can do it.
pub(crate) fn run(workload: Workload, stage: &Stage, candidates: &[Candidate]) -> Result<Section, Failure> {
    let able: Vec<_> = candidates.iter().filter(|one| one.workloads.contains(&workload)).collect();
    match workload {
        Workload::W1 => pairs::alone(stage, &able),
        Workload::W2 => pairs::together(stage, &able),
        Workload::W3 => contention::run(stage, &able),
        Workload::W4 => idle::run(stage, &able),
        Workload::W5 => death::run(stage, &able),
    }
}

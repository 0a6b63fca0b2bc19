//! The workloads. Each makes tables and the panels of a plot of its results.

mod commands;
mod contention;
mod crash;
mod fairness;
mod idle;
mod kept;
mod keys;
mod loops;
mod many;
mod pairs;
mod permits;
mod several;

use crate::Failure;
use crate::candidates::Candidate;
use crate::options::Workload;
use crate::report::Section;
use crate::rounds::Run;

/// Runs one workload with those candidates that can do it.
pub(crate) fn run(workload: Workload, run: &Run, candidates: &[Candidate]) -> Result<Section, Failure> {
    let able: Vec<_> = candidates.iter().filter(|one| one.workloads.contains(&workload)).collect();
    match workload {
        Workload::W1 => pairs::alone(run, &able),
        Workload::W2 => pairs::together(run, &able),
        Workload::W2Busy => pairs::beside_busy_loops(run, &able),
        Workload::W2Many => many::run(run, &able),
        Workload::W3 => contention::run(run, &able),
        Workload::W4 => idle::run(run, &able),
        Workload::W5 => crash::run(run, &able),
        Workload::W7 => fairness::run(run, &able),
        Workload::W8 => keys::run(run, &able),
        Workload::W9 => kept::run(run, &able),
        Workload::W10 => commands::run(run, &able),
        Workload::W11 => several::run(run, &able),
        Workload::W12 => permits::run(run, &able),
        Workload::W6 => pairs::over_a_relay(run, &able),
    }
}

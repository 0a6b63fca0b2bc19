//! Measures this crate's lock beside raw commands and beside other libraries, on private servers on this machine:
//! `make bench`, and `README.md` in this folder for what is measured and how.
//!
//! The process that was started only waits (`shield.rs`). Another conducts the run: it reads what was asked
//! (`options.rs`), selects the candidates that work here (`candidates.rs`, `selection.rs`), measures each in every
//! round (`rounds.rs`) of each workload (`workloads/`), sums the figures up (`stats.rs`), and writes tables
//! (`report.rs`) and plots (`plot.rs`). What locks is in worker processes (`worker.rs`, and `steady.rs` for many
//! threads), which it starts and sends instructions to (`peer.rs`).

mod busy;
mod candidates;
mod format;
mod locks;
mod moment;
mod options;
mod peer;
mod plot;
mod report;
mod rounds;
mod selection;
mod server_under_test;
mod stats;
mod steady;
mod worker;
mod workloads;

// It serves the tests and the demo as well, which call more of it.
#[path = "../../tools/shared/arguments.rs"]
mod arguments;
#[path = "../../tools/shared/drawing.rs"]
mod drawing;
#[path = "../../tools/shared/program.rs"]
mod program;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use options::{Options, Part};
use report::Report;
use rounds::Run;
use testkit::shield::Parent;

/// Why something failed, for the last line of the output.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    program::run::<Options, Part>("bench", |part| {
        match part {
            Part::Conduct(options) => conduct(&options)?,
            Part::Worker { candidate } => worker::run(&candidate)?,
            Part::Busy => busy::run(),
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Measures what was asked for, and writes it down.
fn conduct(options: &Options) -> Result<(), Failure> {
    let run = Run { plan: options.plan(), parent: Parent::watch() };
    let folder = root().join("target").join("bench");
    fs::create_dir_all(&folder)?;
    let candidates = selection::choose(options)?;
    let mut report = Report::begin(options, &candidates)?;
    let mut failures = Vec::new();
    for workload in options.workloads() {
        let section = workloads::run(workload, &run, &candidates)?;
        let picture = format!("{}.svg", workload.name());
        fs::write(folder.join(&picture), plot::draw(&section.panels).to_string())?;
        report.add(&section, &picture);
        // Written after each workload, should a later one fail.
        fs::write(folder.join("report.md"), report.text())?;
        failures.extend(section.failures);
    }
    println!("{} and the plots beside it", folder.join("report.md").display());
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

//! Measures this crate's lock beside raw commands and beside other libraries, on private servers on this machine:
//! `make bench`, and `README.md` in this folder for what is measured and how.
//!
//! The process that was started only waits (`shield.rs`); another conducts the run: it reads what was asked (`options.rs`) and
//! which candidates there are (`candidates.rs`), has them take turns (`rounds.rs`) at each workload (`workloads/`), sums up what
//! came of it (`stats.rs`), and writes tables (`report.rs`) and plots (`plot.rs`). What locks is in worker processes
//! (`worker.rs`), which it starts and talks to (`peer.rs`).

mod harness;
mod candidates;
mod locks;
mod moment;
mod options;
mod peer;
mod plot;
mod report;
mod rounds;
mod stats;
mod worker;
mod workloads;

// It serves the tests and the demo as well, which call more of it.
#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
#[path = "../../tests/support/redis_server.rs"]
mod redis_server;
#[path = "../../examples/shared/shield.rs"]
mod shield;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use candidates::Candidate;
use options::{Arguments, Options, Part};
use report::Report;
use rounds::Stage;
use shield::Parent;

/// Why something did not work out, for the reader of the last line.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let done = match Arguments::parse().part {
        None => shield::run(),
        Some(Part::Conduct(options)) => conduct(&options).map(|()| ExitCode::SUCCESS),
        Some(Part::Worker { candidate }) => worker::run(&candidate).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("bench: {failure}");
        ExitCode::FAILURE
    })
}

/// Measures what was asked for, and writes it down.
fn conduct(options: &Options) -> Result<(), Failure> {
    let stage = Stage { plan: options.plan(), parent: Parent::watch() };
    let folder = root().join("target").join("bench");
    fs::create_dir_all(&folder)?;
    let candidates = Candidate::choose(options)?;
    let mut report = Report::begin(options, &candidates)?;
    for workload in options.workloads() {
        let section = workloads::run(workload, &stage, &candidates)?;
        let picture = format!("{}.svg", workload.name());
        fs::write(folder.join(&picture), plot::draw(&section.panels).to_string())?;
        report.add(&section, &picture);
        // What there is so far is worth having, should a later workload fail.
        fs::write(folder.join("report.md"), report.text())?;
    }
    println!("{} and the plots beside it", folder.join("report.md").display());
    Ok(())
}

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_path_buf)
}

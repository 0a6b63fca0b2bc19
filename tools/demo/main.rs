//! The lock under contention and after a crash, with real processes: several of them, of several threads each, contend
//! for one lock around a counter in a file, and one is killed while it holds the lock. Ends with a table and a picture.
//! Fails if two threads ever had the lock at once, if a count got lost, or if no process took over the expired lock.
//!
//! With `--failover` it kills the server instead, a master with two replicas and three Sentinels.
//!
//! `make demo`, `make demo-failover`, or `cargo run -p setnx-lock-demo -- --help`.
//!
//! The program runs three parts, each a process of its own: the one that was started only waits (`shield.rs`), another
//! conducts the run (`conduct.rs`), and the workers contend (`worker.rs`). Their logs (`record.rs`) are read into one
//! account (`account.rs`), which the table (`report.rs`) and the picture (`timeline.rs`) are made of.

mod account;
mod conduct;
mod moment;
mod options;
mod progress;
mod record;
mod report;
mod server;
mod timeline;
mod worker;
mod workers;

// It serves the tests and the benches as well, which call more of it than the demo does.
#[path = "../shared/arguments.rs"]
mod arguments;
#[path = "../shared/drawing.rs"]
mod drawing;
#[path = "../shared/program.rs"]
mod program;
#[path = "../shared/time_option.rs"]
mod time_option;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use conduct::conduct;
use options::{Options, Part};
use report::Report;

/// Why something failed, for the last line of the output.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    program::run::<Options, Part>("demo", |part| match part {
        Part::Conduct(options) => run(&options),
        Part::Worker(task) => worker::run(&task),
    })
}

/// Runs the demo and reports on it.
fn run(options: &Options) -> Result<ExitCode, Failure> {
    let account = conduct(options)?;
    let report = Report::of(&account)?;
    println!("{}", report.table());
    let picture = picture_path();
    if let Some(folder) = picture.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(&picture, timeline::draw(&account, &report).to_string())?;
    println!("picture: {}", nearest(&picture).display());
    let problems = report.problems();
    for problem in &problems {
        eprintln!("demo: FAILED: {problem}");
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Beside what Cargo builds; without Cargo, below the current folder.
fn picture_path() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let root = package.as_deref().and_then(|package| package.ancestors().nth(2)).unwrap_or(Path::new(""));
    root.join("target").join("demo").join("timeline.svg")
}

/// The path as it is typed from here.
fn nearest(path: &Path) -> &Path {
    env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path)
}

//! The library at its job, with everything real: several processes of several threads contend for one lock around a
//! counter in a file, and one of the processes is killed while it holds the lock. Ends with a table and a picture, and
//! fails if two were ever inside at once, if a count got lost, or if nobody took over from the dead.
//!
//! `make demo`, or `cargo run --release --example demo -- --help`.
//!
//! The program plays three parts, each a process of its own: the one that was started only waits (`shield.rs`), another
//! conducts the run (`conduct.rs`), and the workers contend (`worker.rs`). What they did is read from their logs
//! (`record.rs`) into one account (`account.rs`), which the table (`report.rs`) and the picture (`timeline.rs`) are made
//! of.

mod account;
mod conduct;
mod workers;
mod moment;
mod options;
mod progress;
mod record;
mod report;
mod server;
mod timeline;
mod worker;

// It serves the tests and the benches as well, which call more of it than the demo does.
#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
#[path = "../../tests/support/redis_server.rs"]
mod redis_server;
#[path = "../shared/shield.rs"]
mod shield;
#[path = "../shared/tail.rs"]
mod tail;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use clap::Parser;

use conduct::conduct;
use options::{Arguments, Options, Part};
use report::Report;

/// Why something did not work out, for the reader of the last line.
type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let done = match Arguments::parse().part {
        None => shield::run(),
        Some(Part::Conduct(options)) => run(&options),
        Some(Part::Worker(task)) => worker::run(&task),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("demo: {failure}");
        ExitCode::FAILURE
    })
}

/// Runs the demo and says what came of it.
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
    let root = env::var_os("CARGO_MANIFEST_DIR").map_or_else(PathBuf::new, PathBuf::from);
    root.join("target").join("demo").join("timeline.svg")
}

/// The path as it is typed from here.
fn nearest(path: &Path) -> &Path {
    env::current_dir().ok().and_then(|here| path.strip_prefix(here).ok()).unwrap_or(path)
}

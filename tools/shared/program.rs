//! The frame of a program that runs several parts, each in a process of its own.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::Failure;
use crate::arguments::Arguments;
use testkit::shield;

/// Runs the part that the arguments name, or has the run conducted where they name none. A failure is the last line.
pub(crate) fn run<O: Args, P: Subcommand>(
    name: &str,
    run_part: impl FnOnce(P) -> Result<ExitCode, Failure>,
) -> ExitCode {
    let done = match Arguments::<O, P>::parse().part {
        None => shield::run(),
        Some(part) => run_part(part),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("{name}: {failure}");
        ExitCode::FAILURE
    })
}

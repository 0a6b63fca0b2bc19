//! W10: what it costs to run a command under a lock from the command line.

use std::env;
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Failure;
use crate::candidates::Candidate;
use crate::format::{cell, rounds};
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;

/// The command itself, without a lock.
const ALONE_NAME: &str = "true";

/// One command line, and how long it takes in milliseconds.
fn measure(words: &[OsString], url: &str) -> Result<f64, Failure> {
    let (program, arguments) = words.split_first().ok_or("no command")?;
    let mut command = Command::new(program);
    command.args(arguments).env("REDIS_URL", url).stdin(Stdio::null());
    let began = Instant::now();
    let status = command.status()?;
    let time = began.elapsed();
    if status.success() {
        Ok(time.as_secs_f64() * 1e3)
    } else {
        Err(format!("{}: {status}", program.display()).into())
    }
}

pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let server = ServerUnderTest::start()?;
    let folder = tempfile::tempdir()?;
    // `make bench` builds it beside this program.
    let tool: OsString = env::current_exe()?.with_file_name("setnx-lock").into();
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let ours = |options: &[&str]| {
        [vec![tool.clone()], words(&["run"]), words(options), words(&["bench:command", "--", "true"])]
            .concat()
    };
    let file: OsString = folder.path().join("lock").into();
    let lines = [
        (ALONE_NAME, words(&["true"])),
        ("flock", [words(&["flock"]), vec![file], words(&["true"])].concat()),
        ("setnx-lock run", ours(&[])),
        ("setnx-lock run --on-loss warn", ours(&["--on-loss", "warn"])),
    ];
    // There is one candidate, by several command lines.
    let lines = if candidates.is_empty() { &[][..] } else { &lines };
    let contenders =
        lines.iter().map(|(name, words)| Contender { name, state: Some(words.clone()) }).collect();
    let (count, url) = (run.plan.command_rounds, server.url());
    let results = run.rounds("W10", count, contenders, |_, words, _| measure(words, &url))?;
    let mut table = Table::new("", &["command", "ms"]);
    for name in results.names() {
        table.row([name.to_owned(), cell(results.spread(name, |time| Some(*time)))]);
    }
    Ok(Section {
        title: "W10: a command under a lock that is free".to_owned(),
        notes: vec![format!("{}, one command in each; the server is on this machine.", rounds(count))],
        tables: vec![table],
        panels: vec![Panel {
            title: "From the start of the command line to its end".to_owned(),
            axis: "milliseconds".to_owned(),
            logarithmic: false,
            legend: ALONE,
            series: Vec::new(),
            rows: results
                .names()
                .map(|name| (name, vec![results.spread(name, |time| Some(*time))]))
                .collect(),
        }],
        failures: Vec::new(),
    })
}

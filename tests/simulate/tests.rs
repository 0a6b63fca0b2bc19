//! Runs of the simulation: equal for one seed, and without a broken law.
//!
//! `SETNX_LOCK_SIMULATE_SECONDS=120` searches fleets for longer, `SETNX_LOCK_SIMULATE_SEEDS=64` each scene.

use std::env;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let trials = vec![
        Trial::test("two_runs_of_a_seed_are_equal", two_runs_of_a_seed_are_equal),
        Trial::test("no_law_is_broken", no_law_is_broken),
        Trial::test("no_scene_breaks_a_law", no_scene_breaks_a_law),
        Trial::test("planted_mistakes_have_a_place", planted_mistakes_have_a_place),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Returns what the program prints.
fn ran(arguments: &[&str]) -> Result<String, Failed> {
    let output = Command::new(env!("CARGO_BIN_EXE_simulate")).args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(format!("{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
    }
}

/// The last line has a hash of all that has happened. Seeds of all kinds of schedules.
fn two_runs_of_a_seed_are_equal() -> Result<(), Failed> {
    let mut traces = Vec::new();
    for seed in ["1", "2", "3", "4", "5", "6", "7", "8"] {
        for what in [["--length", "8s"], ["--scene", "alone"]] {
            let arguments = ["--one", what[0], what[1], "--seed", seed];
            let first = ran(&arguments)?;
            assert_eq!(first, ran(&arguments)?, "{what:?}, seed {seed}");
            traces.push(first);
        }
    }
    traces.dedup();
    assert_eq!(traces.len(), 16, "each seed is a run of its own");
    Ok(())
}

fn no_law_is_broken() -> Result<(), Failed> {
    let seconds = env::var("SETNX_LOCK_SIMULATE_SECONDS").unwrap_or_else(|_| "5".into());
    let text = ran(&["--for", &format!("{seconds}s")])?;
    println!("{}", text.lines().last().unwrap_or_default());
    Ok(())
}

/// What has broken a law once is looked for in each run of the tests.
fn no_scene_breaks_a_law() -> Result<(), Failed> {
    let seeds = env::var("SETNX_LOCK_SIMULATE_SEEDS").unwrap_or_else(|_| "4".into());
    let names = ran(&["--list-scenes"])?;
    assert!(names.lines().count() > 6, "{names}");
    for scene in names.lines() {
        ran(&["--for", "60s", "--seeds", &seeds, "--scene", scene])?;
    }
    Ok(())
}

/// Who moves a line of the library moves the mistake that is planted in it.
fn planted_mistakes_have_a_place() -> Result<(), Failed> {
    ran(&["--planted-places"]).map(drop)
}

//! What an uncontended pair of an acquisition and a release costs on one thread, in instructions and in allocations,
//! relative to SETNX and DEL by the redis crate in the same run, and beside the ratios of `benches/gate.toml`. Fails if
//! one is more than a hundredth worse.
//!
//! Instructions are those in user space that callgrind counts, as the difference of two runs of this program
//! (`counted.rs`) with fixed numbers of pairs, so that its start and end do not count. Those of the thread that
//! acquires: how often others wake depends on the system. Neither figure depends on what else the machine does.

mod counted;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use counted::{CASES, RAW};
use setnx_lock_testing::TestServer;
use testkit::RedisServer;

/// Why something failed, for the last line of the output.
type Failure = Box<dyn Error + Send + Sync>;

/// How much worse than its committed ratio a figure may be. Two runs differ by less than a thousandth.
const LIMIT: f64 = 1.01;
/// The pairs of the two runs.
const PAIRS: [u32; 2] = [200, 1_200];
/// Callgrind counts `rep stosb` once for each byte or block, according to addresses, so that counts vary by a
/// twentieth. Without it glibc copies and fills in loops, as it does small blocks. Other C libraries ignore this.
const COUNTABLE: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.x86_rep_stosb_threshold=100000000:glibc.cpu.x86_rep_movsb_threshold=100000000",
);
const HEAD: &str = "\
# What an uncontended pair costs, as a ratio to SETNX and DEL by the redis crate. `make bench-gate` compares, and with UPDATE=1 writes.\n\n";

/// By what is counted and the name of the case.
type Figures = BTreeMap<String, BTreeMap<String, f64>>;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["count", case, pairs] => {
            pairs.parse().map_err(Failure::from).and_then(|pairs| counted::run(case, pairs))
        }
        ["--update"] => measure().and_then(|figures| write(&figures)),
        // On a busy machine a server may answer so late that a pair goes another way.
        [] => check().or_else(|failure| {
            println!("counted again: {failure}");
            check()
        }),
        _ => Err("there is --update, which writes benches/gate.toml".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench-gate: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<(), Failure> {
    measure().and_then(|figures| compare(&figures))
}

/// Counts each case, and prints what it costs.
fn measure() -> Result<Figures, Failure> {
    let (server, folder) = (RedisServer::start()?, tempfile::tempdir()?);
    let comparing = TestServer::builder().version("valkey-9").start();
    // Its log would grow.
    comparing.overlook("");
    let mut figures = Figures::new();
    let mut raw = [0.0; 2];
    println!("{:18}{:>22}{:>22}", "a pair", "instructions", "allocations");
    for case in CASES {
        let [fewer, more] = PAIRS;
        let url = if case.is_compared() { comparing.url() } else { server.url() };
        let (before, after) =
            (count(case.name, fewer, &url, folder.path())?, count(case.name, more, &url, folder.path())?);
        let each = [0, 1].map(|n| (after[n] - before[n]) / f64::from(more - fewer));
        if case.name == RAW {
            raw = each;
        }
        let ratios = [0, 1].map(|n| each[n] / raw[n]);
        println!(
            "{:18}{:>12.0} ({:6.3}){:>13.1} ({:6.3})",
            case.name, each[0], ratios[0], each[1], ratios[1]
        );
        if case.name == RAW {
            continue;
        }
        for (kind, ratio) in ["instructions", "allocations"].into_iter().zip(ratios) {
            let decimals = (ratio * 1000.0).round() / 1000.0;
            figures.entry(kind.to_owned()).or_default().insert(case.name.to_owned(), decimals);
        }
    }
    Ok(figures)
}

/// Returns the instructions and the allocations of a run with so many pairs.
fn count(case: &str, pairs: u32, url: &str, folder: &Path) -> Result<[f64; 2], Failure> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--separate-threads=yes"]);
    valgrind.arg(format!("--callgrind-out-file={}", folder.join("profile").display()));
    valgrind.arg(env::current_exe()?).args(["count", case, &pairs.to_string()]);
    let output = valgrind.env("REDIS_URL", url).env(COUNTABLE.0, COUNTABLE.1).output()?;
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{case}: {}: {}", output.status, error.trim()).into());
    }
    let profile = fs::read_to_string(folder.join("profile-01"))?;
    let total = profile.lines().find_map(|line| line.strip_prefix("totals: "));
    Ok([total.ok_or("callgrind counted nothing")?.trim().parse()?, out.trim().parse()?])
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gate.toml")
}

fn write(figures: &Figures) -> Result<(), Failure> {
    fs::write(file(), HEAD.to_owned() + &toml::to_string(figures)?)?;
    println!("benches/gate.toml is written");
    Ok(())
}

/// Fails if a figure is more than a hundredth above the committed one, or if one of the two is missing.
fn compare(figures: &Figures) -> Result<(), Failure> {
    let committed: Figures = toml::from_str(&fs::read_to_string(file())?)?;
    let all: BTreeSet<_> = committed
        .iter()
        .chain(figures)
        .flat_map(|(kind, cases)| cases.keys().map(move |case| (kind, case)))
        .collect();
    let mut worse = Vec::new();
    for (kind, case) in all {
        let of = |figures: &Figures| figures.get(kind).and_then(|cases| cases.get(case)).copied();
        match (of(&committed), of(figures)) {
            (Some(before), Some(now)) if now > before * LIMIT => {
                worse.push(format!("{case}: {kind}: {now} instead of {before}"));
            }
            (Some(before), Some(now)) if now * LIMIT < before => {
                println!(
                    "better: {case}: {kind}: {now} instead of {before}; write that: make bench-gate UPDATE=1"
                );
            }
            (Some(_), Some(_)) => {}
            (Some(_), None) => worse.push(format!("{case}: {kind}: not counted")),
            (None, _) => worse.push(format!("{case}: {kind}: not in benches/gate.toml")),
        }
    }
    if worse.is_empty() {
        return Ok(());
    }
    Err(format!("{}; if that is meant: make bench-gate UPDATE=1", worse.join("; ")).into())
}

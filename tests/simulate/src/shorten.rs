//! Cuts a run that breaks a law down to what it needs for that: fewer threads and processes, less time, fewer kinds of
//! calls, mishaps and faults. A cut changes what follows it, so some other seeds are tried as well as the run's own.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Arguments;
use crate::search::as_given;

/// For how long.
const AT_MOST: Duration = Duration::from_secs(60);

/// How many seeds are tried for a cut.
const SEEDS: u64 = 6;

/// What a run may do without, for `--without`: what happens to processes and servers, faults of messages, calls,
/// options and other programs.
#[rustfmt::skip]
const PARTS: [&[&str]; 4] = [
    &[
        "kill", "stop", "separate", "clock", "typing", "stall", "cut", "full", "restart", "refusal", "maxclients",
        "rotate", "sentinels", "move", "failover",
    ],
    &["requests", "replies", "silences", "delays"],
    &["with", "several", "permits", "readers", "tokens", "kept", "lead", "forever", "look"],
    &["extend", "attempts", "least", "later", "names", "prefix", "drain", "others"],
];

/// Without these a run is that of a fleet, whatever the seed.
const SCENES: &str = "scenes";

/// Reads a name that `--without` is given.
pub(crate) fn part(name: &str) -> Result<String, String> {
    if PARTS.concat().contains(&name) || name == SCENES {
        return Ok(name.to_owned());
    }
    Err(format!("it is none of {}, {SCENES}", PARTS.concat().join(", ")))
}

/// A run that breaks a law.
#[derive(Clone, Debug)]
pub(crate) struct Failing {
    pub(crate) arguments: Arguments,
    pub(crate) seed: u64,
    /// Which law, without what differs from run to run.
    law: String,
}

/// Returns what remains of a law's words without numbers, names and times.
fn kind_of(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("broken law"))?;
    let words = line.split_once(": ").map_or(line, |(_, words)| words);
    let is_word = |word: &&str| word.chars().all(char::is_alphabetic);
    Some(words.split_whitespace().filter(is_word).take(6).collect::<Vec<_>>().join(" "))
}

/// Cuts a run whose output this is, as far as that goes in a while. `None` if it broke no law but ended in another way,
/// or is a scene, which is short.
pub(crate) fn shorten(arguments: &Arguments, seed: u64, text: &str) -> io::Result<Option<Failing>> {
    let Some(law) = kind_of(text).filter(|_| arguments.scene.is_none()) else { return Ok(None) };
    let began = Instant::now();
    let mut best = Failing { arguments: arguments.clone(), seed, law };
    best.arguments.without.push(SCENES.to_owned());
    if !breaks(&best)? {
        return Ok(None);
    }
    loop {
        let mut has_cut = false;
        for cut in cuts(&best) {
            if began.elapsed() > AT_MOST {
                return Ok(Some(best));
            }
            if let Some(shorter) = first_that_breaks(&cut)? {
                best = shorter;
                has_cut = true;
                break;
            }
        }
        if !has_cut {
            return Ok(Some(best));
        }
    }
}

/// Returns what could be left out next, what saves most first.
fn cuts(best: &Failing) -> Vec<Failing> {
    let mut all = Vec::new();
    let mut cut = |change: &dyn Fn(&mut Arguments)| {
        let mut shorter = best.clone();
        change(&mut shorter.arguments);
        if shorter.arguments != best.arguments {
            all.push(shorter);
        }
    };
    let Arguments { processes, threads, length, without, .. } = &best.arguments;
    let (processes, threads) = (processes.unwrap_or(6), threads.unwrap_or(7));
    let length = length.unwrap_or(Duration::from_secs(60));
    for fewer in [1, processes / 2, processes - 1] {
        cut(&|arguments| arguments.processes = Some(fewer.clamp(1, processes)));
    }
    for fewer in [1, threads / 2, threads - 1] {
        cut(&|arguments| arguments.threads = Some(fewer.clamp(1, threads)));
    }
    for less in [length / 4, length / 2, length * 3 / 4] {
        cut(&|arguments| arguments.length = Some(less.max(Duration::from_secs(1)).min(length)));
    }
    let each = PARTS.into_iter().flat_map(|group| group.chunks(1));
    for parts in PARTS.into_iter().chain(each) {
        let new: Vec<String> =
            parts.iter().map(|part| (*part).to_owned()).filter(|part| !without.contains(part)).collect();
        cut(&|arguments| arguments.without.extend(new.clone()));
    }
    all
}

/// Returns the cut run, with the first of some seeds that breaks the same law.
fn first_that_breaks(cut: &Failing) -> io::Result<Option<Failing>> {
    for number in 0..SEEDS {
        let seed = cut.seed.wrapping_add(number * 7919) % 1_000_000_007;
        let tried = Failing { seed, ..cut.clone() };
        if breaks(&tried)? {
            return Ok(Some(tried));
        }
    }
    Ok(None)
}

fn breaks(run: &Failing) -> io::Result<bool> {
    let mut command = Command::new(std::env::current_exe()?);
    let ran = command.arg("--one").args(as_given(&run.arguments, run.seed).split(' ')).output()?;
    Ok(kind_of(&String::from_utf8_lossy(&ran.stdout)).as_ref() == Some(&run.law))
}

//! A job that two machines start at about the same time, and that is to run once: the two are processes here.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::time::Duration;
use std::{fs, thread};

use libtest_mimic::Trial;
use setnx_lock::{Lock, LockOptions};

use crate::keeping::Holder;
use crate::processes::{TaskOutcome, protocol_named};
use crate::support::scenario::opened;
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, RedisServer, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials("cron", tests![a_job_of_two_machines_runs_once_if_its_lock_is_held_for_a_time])
}

/// How far apart the two machines start.
const APART: Duration = Duration::from_millis(60);

/// How long the job takes.
const JOB: Duration = Duration::from_millis(20);

/// For each line of input runs the job, unless another machine has the lock, and prints which.
pub(crate) fn as_worker(url: &str, key: &str, file: &str, at_least: &str, protocol: &str) -> TaskOutcome {
    let options = LockOptions::expiring_after(LONG).protocol(protocol_named(protocol)?);
    let options = options.hold_at_least(humantime::parse_duration(at_least)?);
    let lock = Lock::new(&opened(url)?, key, options)?;
    for line in io::stdin().lines() {
        line?;
        match lock.try_lock()? {
            Some(held) => {
                thread::sleep(JOB);
                writeln!(OpenOptions::new().append(true).create(true).open(file)?, "ran")?;
                println!("{:?}", held.release()?);
            }
            None => println!("another machine"),
        }
    }
    Ok(())
}

/// Starts the job at two machines, as many times as there are ticks, and returns how often it ran.
fn runs(at_least: &str, protocol: &str, ticks: usize) -> Result<usize, Box<dyn std::error::Error>> {
    let (server, folder) = (RedisServer::start()?, tempfile::tempdir()?);
    let file = folder.path().join("runs");
    let machine = || {
        Holder::performing(&[
            "cron",
            &server.url(),
            "nightly",
            &file.display().to_string(),
            at_least,
            protocol,
        ])
    };
    let mut machines = [machine()?, machine()?];
    for _ in 0..ticks {
        for machine in &mut machines {
            machine.say("tick")?;
            // The first has ended its job when the second starts, as with a job that is shorter than the clocks are apart.
            machine.line()?;
            thread::sleep(APART);
        }
        // The next tick comes when the key has expired.
        while server.say(&["EXISTS", "nightly"])?.contains('1') && ticks > 1 {
            thread::sleep(millis(20));
            if Lock::new(&opened(&server.url())?, "nightly", LockOptions::expiring_after(LONG))?
                .try_lock()?
                .is_some()
            {
                break;
            }
        }
    }
    for machine in machines {
        assert!(machine.ends_well()?);
    }
    Ok(fs::read_to_string(&file)?.lines().count())
}

fn a_job_of_two_machines_runs_once_if_its_lock_is_held_for_a_time() -> Outcome {
    for protocol in PROTOCOLS.map(|protocol| format!("{protocol:?}").to_lowercase()) {
        assert_eq!(runs("0s", &protocol, 3)?, 6, "each machine runs it");
        // Much longer than anything takes here.
        assert_eq!(runs("60s", &protocol, 1)?, 1);
        // And again at the next tick: on a machine that stands still for more than two seconds both run it.
        let runs = runs("1s", &protocol, 2)?;
        assert!((2..=4).contains(&runs), "{runs}");
    }
    Ok(())
}

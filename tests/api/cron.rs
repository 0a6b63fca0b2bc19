//! A job that two machines start at about the same time, and that is to run once: the two are processes here.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::time::Duration;
use std::{fs, thread};

use setnx_lock::{Lock, LockOptions};
use setnx_lock_testing::TestServer;

use crate::faults::keeping::Holder;
use crate::support::processes::{TaskOutcome, protocol_named};
use crate::support::scenario::opened;
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer, LONG, Outcome, trials_of};

trials_of! {
    "cron";
    a_job_of_two_machines_runs_once_if_its_lock_is_held_for_a_time,
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
    let (server, folder) = (TestServer::start(), tempfile::tempdir()?);
    let file = folder.path().join("runs");
    let machine = || {
        let file = file.display().to_string();
        Holder::performing(&["cron", &server.url(), "nightly", &file, at_least, protocol])
    };
    let mut machines = [machine()?, machine()?];
    let lock =
        Lock::new(&opened(&server.url())?, "nightly", LockOptions::expiring_after(LONG).timeout(LONG))?;
    for tick in 0..ticks {
        if tick > 0 {
            // The next tick comes when the key has expired.
            lock.lock()?.release()?;
        }
        for machine in &mut machines {
            machine.say("tick")?;
            thread::sleep(APART);
        }
        for machine in &mut machines {
            machine.line()?;
        }
    }
    for machine in machines {
        assert!(machine.ends_well()?);
    }
    Ok(fs::read_to_string(&file)?.lines().count())
}

/// Where a machine that stands still changes the outcome, one of so many attempts shows it.
const ATTEMPTS: usize = 20;

fn a_job_of_two_machines_runs_once_if_its_lock_is_held_for_a_time() -> Outcome {
    for protocol in PROTOCOLS.map(|protocol| format!("{protocol:?}").to_lowercase()) {
        let is_once = |at_least, ticks, count| {
            (0..ATTEMPTS).map(|_| runs(at_least, &protocol, ticks)).find_map(|runs| match runs {
                Ok(runs) if runs == count => Some(Ok(())),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            })
        };
        is_once("0s", 2, 4).ok_or("each machine runs it, at each tick")??;
        // Much longer than anything takes here.
        assert_eq!(runs("60s", &protocol, 1)?, 1);
        is_once("1s", 2, 2).ok_or("once at each tick")??;
    }
    Ok(())
}

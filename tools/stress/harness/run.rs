//! One contender's run: lets workers contend, kills and stops some,
//! and returns their holds. However it ends, no process is left.

use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::Failure;
use super::contender::Contender;
use super::hold::Hold;
use super::random::Random;
use super::results::Results;
use super::worker::Task;
use super::workers::Workers;

/// How often the logs are read.
const READ_INTERVAL: Duration = Duration::from_millis(50);
/// Without an acquisition for this long, something is wrong.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// The size of the stress.
#[derive(Clone, Debug)]
pub(crate) struct Harness {
    /// Processes.
    pub(crate) workers: u32,
    /// Threads of each process.
    pub(crate) threads: u32,
    pub(crate) keys: u64,
    /// About how often one of the processes is killed.
    pub(crate) kill_every: Duration,
    /// About how often one of them is stopped for a while.
    pub(crate) stop_every: Duration,
}

/// What a run has produced.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) holds: Vec<Hold>,
    pub(crate) kills: usize,
    pub(crate) took: Duration,
    /// Failures of the workers, in words.
    pub(crate) problems: Vec<String>,
    /// The workers' logs, removed with this value unless kept.
    pub(crate) logs: TempDir,
}

impl Harness {
    /// Lets a contender contend on the server at `url`, for keys that begin with `prefix`, until `go_on`, which is
    /// asked many times a second, says no.
    pub(crate) fn run(
        &self,
        contender: Contender,
        url: &str,
        prefix: &str,
        mut go_on: impl FnMut(&[Hold]) -> Result<bool, Failure>,
    ) -> Result<Run, Failure> {
        let logs = tempfile::Builder::new().prefix("setnx-lock-stress-").tempdir()?;
        let began = Instant::now();
        let log = logs.path().to_owned();
        let (url, prefix) = (url.to_owned(), prefix.to_owned());
        let task = Task { contender, url, threads: self.threads, keys: self.keys, prefix, log: log.clone() };
        let mut results = Results::default();
        let mut workers = Workers::start(self.workers, task, log)?;
        let mut disruptions = Disruptions::new(self);
        let mut progress = (0, Instant::now());
        while go_on(&results.holds)? {
            thread::sleep(READ_INTERVAL);
            workers.read(&mut results)?;
            disruptions.apply(&mut workers, &mut results)?;
            if results.holds.len() > progress.0 {
                progress = (results.holds.len(), Instant::now());
            } else if progress.1.elapsed() > STALL_LIMIT {
                return Err(format!("{contender}: no lock was acquired for {STALL_LIMIT:?}").into());
            }
        }
        let problems = workers.end(&mut results)?;
        Ok(Run { holds: results.holds, kills: disruptions.kills, took: began.elapsed(), problems, logs })
    }
}

/// Kills and stops workers at random times.
struct Disruptions<'a> {
    harness: &'a Harness,
    random: Random,
    kills: usize,
    next_kill: Instant,
    next_stop: Instant,
    /// The worker that is stopped, and until when.
    stopped: Option<(u32, Instant)>,
}

impl<'a> Disruptions<'a> {
    fn new(harness: &'a Harness) -> Self {
        let now = Instant::now();
        let random = Random::new();
        let next_kill = now + random.about(harness.kill_every);
        let next_stop = now + random.about(harness.stop_every);
        Self { harness, random, kills: 0, next_kill, next_stop, stopped: None }
    }

    /// Does what is due.
    fn apply(&mut self, workers: &mut Workers, results: &mut Results) -> Result<(), Failure> {
        let now = Instant::now();
        let any = usize::try_from(self.random.below(workers.len().max(1) as u64))?;
        match self.stopped {
            Some((worker, until)) if now >= until => {
                workers.go_on(worker)?;
                self.stopped = None;
                self.next_stop = now + self.random.about(self.harness.stop_every);
            }
            None if now >= self.next_stop => {
                self.stopped = Some((workers.stop(any)?, now + self.random.millis(&(100..1500))));
            }
            _ => {}
        }
        if now >= self.next_kill {
            workers.replace(any, results)?;
            self.kills += 1;
            self.next_kill = now + self.random.about(self.harness.kill_every);
        }
        Ok(())
    }
}

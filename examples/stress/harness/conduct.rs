//! One contender's run: has workers contend, kills and stops some, and returns who was inside when. However it ends, no process is
//! left.

use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::Failure;
use super::chance::Chance;
use super::workers::Workers;
use super::hold::Hold;
use super::results::Results;
use super::contender::Contender;
use super::worker::Task;

/// How often the logs are read.
const LOOK: Duration = Duration::from_millis(50);
/// How long no lock may be got by anybody before something must be wrong.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// How large the stress is.
#[derive(Clone, Debug)]
pub(crate) struct Harness {
    /// Processes.
    pub(crate) workers: u32,
    /// Threads of each.
    pub(crate) threads: u32,
    pub(crate) keys: u64,
    /// How often about one of the processes is killed.
    pub(crate) kill_every: Duration,
    /// How often about one of them is stopped for a while.
    pub(crate) stop_every: Duration,
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) holds: Vec<Hold>,
    pub(crate) kills: usize,
    pub(crate) took: Duration,
    /// What should not have happened, in words.
    pub(crate) troubles: Vec<String>,
    /// The workers' logs, removed with this value unless kept.
    pub(crate) logs: TempDir,
}

impl Harness {
    /// Has a contender contend on the server at `url` for as long as `go_on`, which is asked many times a second, says so.
    pub(crate) fn run(
        &self,
        contender: Contender,
        url: &str,
        mut go_on: impl FnMut(&[Hold]) -> Result<bool, Failure>,
    ) -> Result<Account, Failure> {
        let logs = tempfile::Builder::new().prefix("setnx-lock-stress-").tempdir()?;
        let began = Instant::now();
        let log = logs.path().to_owned();
        let task =
            Task { contender, url: url.to_owned(), threads: self.threads, keys: self.keys, log: log.clone() };
        let mut results = Results::default();
        let mut workers = Workers::start(self.workers, task, log)?;
        let mut fate = Fate::new(self);
        let mut progress = (0, Instant::now());
        while go_on(&results.holds)? {
            thread::sleep(LOOK);
            workers.read(&mut results)?;
            fate.strike(&mut workers, &mut results)?;
            if results.holds.len() > progress.0 {
                progress = (results.holds.len(), Instant::now());
            } else if progress.1.elapsed() > STALL_LIMIT {
                return Err(format!("{contender}: nobody has got a lock for {STALL_LIMIT:?}").into());
            }
        }
        let troubles = workers.end(&mut results)?;
        Ok(Account { holds: results.holds, kills: fate.kills, took: began.elapsed(), troubles, logs })
    }
}

/// What strikes the workers from outside.
struct Fate<'a> {
    harness: &'a Harness,
    chance: Chance,
    kills: usize,
    next_kill: Instant,
    next_stop: Instant,
    /// Who is stopped, and until when.
    stopped: Option<(u32, Instant)>,
}

impl<'a> Fate<'a> {
    fn new(harness: &'a Harness) -> Self {
        let now = Instant::now();
        let chance = Chance::new();
        let next_kill = now + chance.about(harness.kill_every);
        let next_stop = now + chance.about(harness.stop_every);
        Self { harness, chance, kills: 0, next_kill, next_stop, stopped: None }
    }

    fn strike(&mut self, workers: &mut Workers, results: &mut Results) -> Result<(), Failure> {
        let now = Instant::now();
        let anyone = usize::try_from(self.chance.below(workers.len().max(1) as u64))?;
        match self.stopped {
            Some((worker, until)) if now >= until => {
                workers.go_on(worker)?;
                self.stopped = None;
                self.next_stop = now + self.chance.about(self.harness.stop_every);
            }
            None if now >= self.next_stop => {
                self.stopped = Some((workers.stop(anyone)?, now + self.chance.millis(&(100..1500))));
            }
            _ => {}
        }
        if now >= self.next_kill {
            workers.replace(anyone, results)?;
            self.kills += 1;
            self.next_kill = now + self.chance.about(self.harness.kill_every);
        }
        Ok(())
    }
}

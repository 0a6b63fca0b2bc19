//! One player's run: has workers contend, kills and stops some, and returns who was inside when. However it ends, no process is
//! left.

use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::Failure;
use super::chance::Chance;
use super::crew::Crew;
use super::hold::Hold;
use super::ledger::Ledger;
use super::player::Player;
use super::worker::Task;

/// How often the logs are read.
const LOOK: Duration = Duration::from_millis(50);
/// How long no lock may be got by anybody before something must be wrong.
const STALL_LIMIT: Duration = Duration::from_secs(60);

/// How large the stress is.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
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

impl Arena {
    /// Has a player contend on the server at `url` for as long as `go_on`, which is asked many times a second, says so.
    pub(crate) fn run(
        &self,
        player: Player,
        url: &str,
        mut go_on: impl FnMut(&[Hold]) -> Result<bool, Failure>,
    ) -> Result<Account, Failure> {
        let logs = tempfile::Builder::new().prefix("setnx-lock-stress-").tempdir()?;
        let began = Instant::now();
        let log = logs.path().to_owned();
        let task =
            Task { player, url: url.to_owned(), threads: self.threads, keys: self.keys, log: log.clone() };
        let mut ledger = Ledger::default();
        let mut crew = Crew::start(self.workers, task, log)?;
        let mut fate = Fate::new(self);
        let mut progress = (0, Instant::now());
        while go_on(&ledger.holds)? {
            thread::sleep(LOOK);
            crew.read(&mut ledger)?;
            fate.strike(&mut crew, &mut ledger)?;
            if ledger.holds.len() > progress.0 {
                progress = (ledger.holds.len(), Instant::now());
            } else if progress.1.elapsed() > STALL_LIMIT {
                return Err(format!("{player}: nobody has got a lock for {STALL_LIMIT:?}").into());
            }
        }
        let troubles = crew.end(&mut ledger)?;
        Ok(Account { holds: ledger.holds, kills: fate.kills, took: began.elapsed(), troubles, logs })
    }
}

/// What strikes the workers from outside.
struct Fate<'a> {
    arena: &'a Arena,
    chance: Chance,
    kills: usize,
    next_kill: Instant,
    next_stop: Instant,
    /// Who is stopped, and until when.
    stopped: Option<(u32, Instant)>,
}

impl<'a> Fate<'a> {
    fn new(arena: &'a Arena) -> Self {
        let now = Instant::now();
        let chance = Chance::new();
        let next_kill = now + chance.about(arena.kill_every);
        let next_stop = now + chance.about(arena.stop_every);
        Self { arena, chance, kills: 0, next_kill, next_stop, stopped: None }
    }

    fn strike(&mut self, crew: &mut Crew, ledger: &mut Ledger) -> Result<(), Failure> {
        let now = Instant::now();
        let anyone = usize::try_from(self.chance.below(crew.len().max(1) as u64))?;
        match self.stopped {
            Some((worker, until)) if now >= until => {
                crew.go_on(worker)?;
                self.stopped = None;
                self.next_stop = now + self.chance.about(self.arena.stop_every);
            }
            None if now >= self.next_stop => {
                self.stopped = Some((crew.stop(anyone)?, now + self.chance.millis(&(100..1500))));
            }
            _ => {}
        }
        if now >= self.next_kill {
            crew.replace(anyone, ledger)?;
            self.kills += 1;
            self.next_kill = now + self.chance.about(self.arena.kill_every);
        }
        Ok(())
    }
}

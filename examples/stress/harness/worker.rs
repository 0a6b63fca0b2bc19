//! A worker: threads that take locks by chance, and write down when they had them.

use std::env;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::Failure;
use super::chance::Chance;
use super::moment::Moment;
use super::contender::{Hand, Contender, Table};
use super::record::{Line, Log};

/// Makes the program a worker, and says what it needs to know.
pub(crate) const PART: &str = "SETNX_LOCK_STRESS_WORKER";

/// What a worker needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) contender: Contender,
    pub(crate) url: String,
    pub(crate) threads: u32,
    pub(crate) keys: u64,
    pub(crate) log: PathBuf,
}

impl Task {
    pub(crate) fn to_text(&self) -> String {
        let Self { contender, url, threads, keys, log } = self;
        // The path comes last, since it may contain anything.
        format!("{contender},{url},{threads},{keys},{}", log.display())
    }

    fn from_text(text: &str) -> Result<Self, Failure> {
        let [contender, url, threads, keys, log] = text.splitn(5, ',').collect::<Vec<_>>()[..] else {
            return Err(format!("no such part: {text}").into());
        };
        Ok(Self {
            contender: contender.parse()?,
            url: url.to_owned(),
            threads: threads.parse()?,
            keys: keys.parse()?,
            log: log.into(),
        })
    }
}

/// Plays a worker if this process was started as one.
pub(crate) fn as_worker() -> Option<ExitCode> {
    let part = env::var(PART).ok()?;
    Some(match Task::from_text(&part).and_then(|task| run(&task)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("stress: worker: {failure}");
            ExitCode::FAILURE
        }
    })
}

/// Works until the conductor closes the pipe, or is gone.
fn run(task: &Task) -> Result<(), Failure> {
    let over = over_at_end_of_input();
    let worker = Worker {
        table: task.contender.table(&task.url, task.threads)?,
        keys: task.keys,
        log: Log::open(&task.log)?,
        chance: Chance::new(),
        holds: AtomicU64::new(0),
        over,
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..task.threads).map(|_| scope.spawn(|| worker.work())).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    })
}

fn over_at_end_of_input() -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    let tell = Arc::clone(&over);
    thread::spawn(move || {
        // Nothing is ever written to it.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        tell.store(true, Ordering::Relaxed);
    });
    over
}

struct Worker {
    table: Table,
    keys: u64,
    log: Log,
    chance: Chance,
    holds: AtomicU64,
    over: Arc<AtomicBool>,
}

impl Worker {
    /// One thread's day. One that fails ends them all.
    fn work(&self) -> Result<(), Failure> {
        let mut hand = self.table.hand()?;
        while !self.over.load(Ordering::Relaxed) {
            if let Err(failure) = self.turn(&mut *hand) {
                self.over.store(true, Ordering::Relaxed);
                return Err(failure);
            }
        }
        Ok(())
    }

    fn turn(&self, hand: &mut dyn Hand) -> Result<(), Failure> {
        // Some keys have a crowd before them, and others hardly anybody: takeovers are contended, and many locks are taken.
        let key = self.chance.below(1 + self.chance.below(self.keys));
        let expiration = self.chance.millis(&(20..200));
        let patience = self.chance.millis(&(200..2500));
        let (number, remark) = {
            let Some(held) = hand.take(&format!("stress:{key}"), expiration, patience)? else {
                self.explain(None, hand);
                return Ok(());
            };
            // In this order: neither the beginning nor the end of the lease is taken for later than it is.
            let at = Moment::now();
            let valid_until = at.after(held.remaining());
            let number = self.holds.fetch_add(1, Ordering::Relaxed);
            let took_over = held.took_over();
            self.log.write(&Line::Enter { number, key, at, valid_until, took_over })?;
            thread::sleep(self.work_time(expiration));
            self.log.write(&Line::Leave { number, at: Moment::now() })?;
            let (outcome, remark) = held.release();
            self.log.write(&Line::End { number, outcome })?;
            (number, remark)
        };
        if let Some(remark) = remark {
            self.log.note(format!("{number}: {remark}"));
        }
        self.explain(Some(number), hand);
        Ok(())
    }

    /// Mostly much shorter than the lease, at times a little longer, and rarely so long that others take over.
    fn work_time(&self, expiration: Duration) -> Duration {
        match self.chance.below(100) {
            0 => expiration + self.chance.millis(&(1000..1600)),
            1..5 => expiration + self.chance.millis(&(0..100)),
            _ => self.chance.millis(&(0..40)).min(expiration * 3 / 4),
        }
    }

    fn explain(&self, number: Option<u64>, hand: &mut dyn Hand) {
        let about = number.map_or_else(|| "not got".to_owned(), |number| number.to_string());
        for remark in hand.remarks() {
            self.log.note(format!("{about}: {remark}"));
        }
    }
}

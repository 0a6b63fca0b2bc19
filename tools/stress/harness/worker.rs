//! A worker process: its threads take random locks, and log when they held them.

use std::env;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::Failure;
use super::client::ThreadClient;
use super::contender::{Contender, ProcessClient};
use super::moment::Moment;
use super::random::Random;
use super::record::{Line, Log};

/// The environment variable that makes the program a worker, with its task.
pub(crate) const PART: &str = "SETNX_LOCK_STRESS_WORKER";

/// What a worker needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) contender: Contender,
    pub(crate) url: String,
    pub(crate) threads: u32,
    pub(crate) keys: u64,
    /// How the names of the keys begin.
    pub(crate) prefix: String,
    pub(crate) log: PathBuf,
}

impl Task {
    pub(crate) fn to_text(&self) -> String {
        let Self { contender, url, threads, keys, prefix, log } = self;
        // The path comes last, since it may contain anything.
        format!("{contender},{url},{threads},{keys},{prefix},{}", log.display())
    }

    fn from_text(text: &str) -> Result<Self, Failure> {
        let [contender, url, threads, keys, prefix, log] = text.splitn(6, ',').collect::<Vec<_>>()[..] else {
            return Err("not a worker's task".into());
        };
        Ok(Self {
            contender: contender.parse()?,
            url: url.to_owned(),
            threads: threads.parse()?,
            keys: keys.parse()?,
            prefix: prefix.to_owned(),
            log: log.into(),
        })
    }
}

/// Does a worker's task if this process was started as one.
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

/// Works until the main process closes the pipe, or has ended.
fn run(task: &Task) -> Result<(), Failure> {
    let over = over_at_end_of_input();
    let worker = Worker {
        client: task.contender.client(&task.url, task.threads)?,
        keys: task.keys,
        prefix: task.prefix.clone(),
        log: Log::open(&task.log)?,
        random: Random::new(),
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
    let ended = Arc::clone(&over);
    thread::spawn(move || {
        // Nothing is ever written to it, so the read ends with the pipe.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        ended.store(true, Ordering::Relaxed);
    });
    over
}

struct Worker {
    client: ProcessClient,
    keys: u64,
    prefix: String,
    log: Log,
    random: Random,
    holds: AtomicU64,
    over: Arc<AtomicBool>,
}

impl Worker {
    /// The loop of one thread. A failure in one thread ends all.
    fn work(&self) -> Result<(), Failure> {
        let mut client = self.client.for_thread()?;
        while !self.over.load(Ordering::Relaxed) {
            if let Err(failure) = self.turn(&mut *client) {
                self.over.store(true, Ordering::Relaxed);
                return Err(failure);
            }
        }
        Ok(())
    }

    fn turn(&self, client: &mut dyn ThreadClient) -> Result<(), Failure> {
        // Low numbers are more frequent: some keys are contended, for
        // takeovers, and others are mostly free, for many acquisitions.
        let key = self.random.below(1 + self.random.below(self.keys));
        let expiration = self.random.millis(&(20..200));
        let timeout = self.random.millis(&(200..2500));
        let (number, remark) = {
            let Some(held) = client.acquire(&super::key(&self.prefix, key), expiration, timeout)? else {
                self.explain(None, client);
                return Ok(());
            };
            // In this order, so that `valid_until` is never later than the end of the lease.
            let at = Moment::now();
            let valid_until = at.after(held.remaining());
            let number = self.holds.fetch_add(1, Ordering::Relaxed);
            let taken_over = held.taken_over();
            self.log.write(&Line::Enter { number, key, at, valid_until, taken_over })?;
            thread::sleep(self.work_time(expiration));
            self.log.write(&Line::Leave { number, at: Moment::now() })?;
            let (outcome, remark) = held.release();
            self.log.write(&Line::End { number, outcome })?;
            (number, remark)
        };
        if let Some(remark) = remark {
            self.log.note(format!("{number}: {remark}"));
        }
        self.explain(Some(number), client);
        Ok(())
    }

    /// Mostly much shorter than the lease, at times a little longer, and rarely so long that others take over.
    fn work_time(&self, expiration: Duration) -> Duration {
        match self.random.below(100) {
            0 => expiration + self.random.millis(&(1000..1600)),
            1..5 => expiration + self.random.millis(&(0..100)),
            _ => self.random.millis(&(0..40)).min(expiration * 3 / 4),
        }
    }

    fn explain(&self, number: Option<u64>, client: &mut dyn ThreadClient) {
        let about = number.map_or_else(|| "not acquired".to_owned(), |number| number.to_string());
        for remark in client.remarks() {
            self.log.note(format!("{about}: {remark}"));
        }
    }
}

//! The worker processes: starts them, reads their logs, kills one, and ends them. None outlives this value.

use std::env;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::moment::Moment;
use crate::options::Options;
use crate::record::Line;
use crate::tail::Tail;

/// How long a worker may take to end once it is told to.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What the workers of a run are told.
#[derive(Debug)]
pub(crate) struct Orders<'a> {
    pub(crate) options: &'a Options,
    pub(crate) url: &'a str,
    pub(crate) key: &'a str,
    pub(crate) folder: &'a Path,
    pub(crate) counter: &'a Path,
    /// Which one keeps the lock, and from when on.
    pub(crate) keeper: (u16, Moment),
}

#[derive(Debug)]
pub(crate) struct Crew {
    workers: Vec<Worker>,
}

#[derive(Debug)]
struct Worker {
    number: u16,
    process: Child,
    /// A worker ends when this is closed, also by the end of the process that has it.
    tie: Option<ChildStdin>,
    log: Tail,
    killed: bool,
}

impl Crew {
    pub(crate) fn start(orders: &Orders<'_>) -> Result<Self, Failure> {
        let mut crew = Crew { workers: Vec::new() };
        for number in 1..=orders.options.workers {
            // One after another: those that were started end with the crew if the next one fails.
            crew.workers.push(Worker::start(number, orders)?);
        }
        Ok(crew)
    }

    /// Returns the process ids, in the order of the workers' numbers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.process.id()).collect()
    }

    /// Returns what the workers have written since the last time, each line with the worker's number.
    pub(crate) fn news(&mut self) -> Result<Vec<(u16, Line)>, Failure> {
        let mut news = Vec::new();
        for worker in &mut self.workers {
            news.extend(worker.log.read()?.into_iter().map(|line| (worker.number, line)));
        }
        Ok(news)
    }

    /// Fails if a worker has ended on its own.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            if let Some(status) = worker.process.try_wait()? {
                return Err(format!("worker {} ended before its time: {status}", worker.number).into());
            }
        }
        Ok(())
    }

    /// Kills a worker on the spot, as the system does when memory runs out, and returns when it was dead.
    pub(crate) fn kill(&mut self, number: u16) -> Result<Moment, Failure> {
        for worker in self.workers.iter_mut().filter(|worker| worker.number == number) {
            worker.process.kill()?;
            worker.process.wait()?;
            worker.killed = true;
        }
        Ok(Moment::now())
    }

    /// Lets the workers finish their turns. Returns what went wrong with them, in words.
    pub(crate) fn end(&mut self) -> Result<Vec<String>, Failure> {
        for worker in &mut self.workers {
            worker.tie = None;
        }
        let limit = Instant::now() + END_LIMIT;
        let mut problems = Vec::new();
        for worker in self.workers.iter_mut().filter(|worker| !worker.killed) {
            let number = worker.number;
            loop {
                match worker.process.try_wait()? {
                    Some(status) if status.success() => break,
                    Some(status) => problems.push(format!("worker {number} failed: {status}")),
                    None if Instant::now() < limit => {
                        thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                    None => problems.push(format!("worker {number} did not end within {END_LIMIT:?}")),
                }
                break;
            }
        }
        Ok(problems)
    }
}

impl Worker {
    fn start(number: u16, orders: &Orders<'_>) -> Result<Self, Failure> {
        let Orders { options, url, key, folder, counter, keeper } = orders;
        let path = folder.join(format!("worker-{number}.log"));
        let log = Tail::create(&path)?;
        let mut command = Command::new(env::current_exe()?);
        command.arg("worker").env("REDIS_URL", url).stdin(Stdio::piped()).stdout(Stdio::null());
        command.arg("--counter").arg(counter).arg("--log").arg(&path);
        command.args(["--key", key]);
        command.args(["--number", &number.to_string(), "--threads", &options.threads.to_string()]);
        let times =
            [("--expiration", options.expiration), ("--poll", options.poll), ("--pause", options.pause)];
        for (name, time) in times {
            command.args([name, &humantime::format_duration(time).to_string()]);
        }
        if keeper.0 == number {
            command.args(["--keep-from", &keeper.1.to_string()]);
        }
        let mut process = command.spawn()?;
        let tie = process.stdin.take();
        Ok(Self { number, process, tie, log, killed: false })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended already is what was wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

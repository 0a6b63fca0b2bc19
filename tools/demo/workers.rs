//! The worker processes: starts them, reads their logs, kills one, and ends them. None outlives this value.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::moment::Moment;
use crate::options::Options;
use crate::record::Line;
use testkit::tail::Tail;
use testkit::worker_process::WorkerProcess;

/// How long the workers may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What the workers of a run need to know.
#[derive(Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) options: &'a Options,
    pub(crate) url: &'a str,
    pub(crate) key: &'a str,
    pub(crate) folder: &'a Path,
    pub(crate) counter: &'a Path,
    /// The worker that keeps the lock, and from when on.
    pub(crate) keeper: Option<(u32, Moment)>,
}

#[derive(Debug)]
pub(crate) struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    process: WorkerProcess,
    log: Tail,
    killed: bool,
}

impl Workers {
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self, Failure> {
        // If one fails to start, those before it are dropped, which kills them.
        let workers = (1..=setup.options.workers).map(|number| Worker::start(number, setup));
        workers.collect::<Result<_, _>>().map(Self)
    }

    /// Returns the process ids, in the order of the workers' numbers.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.0.iter().map(|worker| worker.process.child().id()).collect()
    }

    /// Returns what the workers have written since the last time, each line with the worker's number.
    pub(crate) fn new_lines(&mut self) -> Result<Vec<(u32, Line)>, Failure> {
        let mut lines = Vec::new();
        for Worker { process, log, .. } in &mut self.0 {
            lines.extend(log.read()?.into_iter().map(|line| (process.number(), line)));
        }
        Ok(lines)
    }

    /// Fails if a worker has ended on its own.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        self.running().try_for_each(|worker| Ok(worker.process.check()?))
    }

    /// Kills a worker, and returns the last moment at which it was seen to run.
    pub(crate) fn kill(&mut self, number: u32) -> Result<Moment, Failure> {
        let worker = self.running().find(|worker| worker.process.number() == number);
        let worker = worker.ok_or_else(|| format!("no worker {number} is running"))?;
        let seen = Moment::now();
        worker.process.check()?;
        worker.process.kill()?;
        worker.killed = true;
        Ok(seen)
    }

    /// Lets the workers finish what they do. Returns what went wrong with them, in words.
    pub(crate) fn end(&mut self) -> Result<Vec<String>, Failure> {
        self.running().for_each(|worker| worker.process.close_input());
        let limit = Instant::now() + END_LIMIT;
        let mut problems = Vec::new();
        for worker in self.running() {
            problems.extend(worker.process.wait(limit)?);
        }
        Ok(problems)
    }

    fn running(&mut self) -> impl Iterator<Item = &mut Worker> {
        self.0.iter_mut().filter(|worker| !worker.killed)
    }
}

impl Worker {
    fn start(number: u32, setup: &Setup<'_>) -> Result<Self, Failure> {
        let Setup { options, url, key, folder, counter, keeper } = setup;
        let path = folder.join(format!("worker-{number}.log"));
        let log = Tail::create(&path)?;
        let mut command = Command::new(env::current_exe()?);
        command.arg("worker").env("REDIS_URL", url);
        command.arg("--counter").arg(counter).arg("--log").arg(&path);
        command.args(["--key", key]);
        command.args(["--number", &number.to_string(), "--threads", &options.threads.to_string()]);
        let times =
            [("--expiration", options.expiration), ("--poll", options.poll), ("--pause", options.pause)];
        for (name, time) in times {
            command.args([name, &humantime::format_duration(time).to_string()]);
        }
        if let Some((_, from)) = keeper.filter(|(keeper, _)| *keeper == number) {
            command.args(["--keep-from", &from.to_string()]);
        }
        if let Some(settles) = options.settles() {
            command.args(["--settles", &humantime::format_duration(settles).to_string()]);
        }
        Ok(Self { process: WorkerProcess::start(number, &mut command)?, log, killed: false })
    }
}

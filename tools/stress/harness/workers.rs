//! The worker processes: starts them, reads their logs, kills and stops some, and ends them. None outlives this value.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Failure;
use super::moment::Moment;
use super::record::Line;
use super::results::Results;
use super::worker::{PART, Task};
use testkit::tail::Tail;
use testkit::worker_process::WorkerProcess;

/// How long the workers may take to end: a wait for a lock, for a reply, the longest work, and much besides.
const END_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Workers {
    task: Task,
    folder: PathBuf,
    running: Vec<Worker>,
    started: u32,
}

#[derive(Debug)]
struct Worker {
    process: WorkerProcess,
    log: Tail,
}

impl Workers {
    /// Starts so many workers. Their logs come into the folder.
    pub(crate) fn start(count: u32, task: Task, folder: PathBuf) -> Result<Self, Failure> {
        let mut workers = Self { task, folder, running: Vec::new(), started: 0 };
        for _ in 0..count {
            // If one fails to start, those before it are dropped, which kills them.
            workers.start_one()?;
        }
        Ok(workers)
    }

    fn start_one(&mut self) -> Result<(), Failure> {
        self.started += 1;
        let number = self.started;
        let path = self.folder.join(format!("worker-{number}.log"));
        let log = Tail::create(&path)?;
        let task = Task { log: path, ..self.task.clone() };
        let mut command = Command::new(env::current_exe()?);
        command.env(PART, task.to_text());
        self.running.push(Worker { process: WorkerProcess::start(number, &mut command)?, log });
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// Adds what the workers have logged since the last time. Fails if one has ended on its own.
    pub(crate) fn read(&mut self, results: &mut Results) -> Result<(), Failure> {
        for worker in &mut self.running {
            worker.process.check()?;
            worker.read(results)?;
        }
        Ok(())
    }

    /// Kills a worker and starts another.
    pub(crate) fn replace(&mut self, place: usize, results: &mut Results) -> Result<(), Failure> {
        self.running.swap_remove(place).kill(results)?;
        self.start_one()
    }

    /// Stops a worker where it is, as a machine that hangs. Returns its number.
    pub(crate) fn stop(&self, place: usize) -> Result<u32, Failure> {
        let worker = &self.running[place];
        worker.signal(Signal::STOP)?;
        Ok(worker.process.number())
    }

    /// Resumes a stopped worker, unless it has been killed meanwhile.
    pub(crate) fn go_on(&self, number: u32) -> Result<(), Failure> {
        let stopped = self.running.iter().find(|worker| worker.process.number() == number);
        stopped.map_or(Ok(()), |worker| worker.signal(Signal::CONT))
    }

    /// Lets the workers finish, and adds their last lines. Returns what went wrong, in words.
    pub(crate) fn end(mut self, results: &mut Results) -> Result<Vec<String>, Failure> {
        for worker in &mut self.running {
            worker.process.close_input();
            worker.signal(Signal::CONT)?;
        }
        let limit = Instant::now() + END_LIMIT;
        let mut problems = Vec::new();
        for mut worker in self.running {
            problems.extend(worker.process.wait(limit)?);
            worker.kill(results)?;
        }
        Ok(problems)
    }
}

impl Worker {
    fn read(&mut self, results: &mut Results) -> Result<(), Failure> {
        for line in self.log.read::<Line>()? {
            results.add(self.process.number(), &line);
        }
        Ok(())
    }

    /// Kills the process if it has not ended, and adds its last lines.
    fn kill(mut self, results: &mut Results) -> Result<(), Failure> {
        self.process.kill()?;
        let at = Moment::now();
        self.read(results)?;
        results.killed(self.process.number(), at);
        Ok(())
    }

    /// Signals the process, which has not been waited for: its id is still its own.
    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(kill_process(Pid::from_child(self.process.child()), signal)?)
    }
}

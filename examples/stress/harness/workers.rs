//! The worker processes: starts them, reads their logs, kills and stops some, and ends them. None outlives this value.

use std::env;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Failure;
use super::moment::Moment;
use super::record::Line;
use super::results::Results;
use super::tail::Tail;
use super::worker::{PART, Task};

/// How long a worker may take to end once it is told to: a wait for a lock, for an answer, the longest work, and much besides.
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
    number: u32,
    process: Child,
    /// A worker ends when this is closed, also by the end of the process that has it.
    tie: Option<ChildStdin>,
    log: Tail,
}

impl Workers {
    /// Starts so many workers. Their logs come into the folder.
    pub(crate) fn start(count: u32, task: Task, folder: PathBuf) -> Result<Self, Failure> {
        let mut workers = Self { task, folder, running: Vec::new(), started: 0 };
        for _ in 0..count {
            // One after another: those that were started end with the workers if the next one fails.
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
        command.env(PART, task.to_text()).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut process = command.spawn()?;
        let tie = process.stdin.take();
        self.running.push(Worker { number, process, tie, log });
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// Enters what the workers have written since the last time. Fails if one has ended on its own.
    pub(crate) fn read(&mut self, results: &mut Results) -> Result<(), Failure> {
        for worker in &mut self.running {
            if let Some(status) = worker.process.try_wait()? {
                return Err(format!("worker {} ended before its time: {status}", worker.number).into());
            }
            worker.read(results)?;
        }
        Ok(())
    }

    /// Kills a worker on the spot, as the system does when memory runs out, and starts another.
    pub(crate) fn replace(&mut self, place: usize, results: &mut Results) -> Result<(), Failure> {
        self.running.swap_remove(place).kill(results)?;
        self.start_one()
    }

    /// Stops a worker where it is, as a machine that hangs. Returns its number.
    pub(crate) fn stop(&self, place: usize) -> Result<u32, Failure> {
        let worker = &self.running[place];
        worker.signal(Signal::STOP)?;
        Ok(worker.number)
    }

    /// Lets a stopped worker go on, if it has not been killed meanwhile.
    pub(crate) fn go_on(&self, number: u32) -> Result<(), Failure> {
        self.running
            .iter()
            .filter(|worker| worker.number == number)
            .try_for_each(|worker| worker.signal(Signal::CONT))
    }

    /// Lets the workers finish, and enters their last lines. Returns what went wrong, in words.
    pub(crate) fn end(mut self, results: &mut Results) -> Result<Vec<String>, Failure> {
        for worker in &mut self.running {
            worker.tie = None;
            worker.signal(Signal::CONT)?;
        }
        let limit = Instant::now() + END_LIMIT;
        let mut problems = Vec::new();
        for mut worker in self.running.drain(..) {
            let number = worker.number;
            loop {
                match worker.process.try_wait()? {
                    Some(status) if status.success() => {}
                    Some(status) => problems.push(format!("worker {number} failed: {status}")),
                    None if Instant::now() < limit => {
                        thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                    None => problems.push(format!("worker {number} did not end within {END_LIMIT:?}")),
                }
                break;
            }
            worker.kill(results)?;
        }
        Ok(problems)
    }
}

impl Worker {
    fn read(&mut self, results: &mut Results) -> Result<(), Failure> {
        for line in self.log.read::<Line>()? {
            results.add(self.number, &line);
        }
        Ok(())
    }

    /// Kills the process if it has not ended, and enters its last lines.
    fn kill(mut self, results: &mut Results) -> Result<(), Failure> {
        self.process.kill()?;
        self.process.wait()?;
        let at = Moment::now();
        self.read(results)?;
        results.killed(self.number, at);
        Ok(())
    }

    /// Signals the process, which has not been waited for: its id is still its own.
    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // One that has ended already is what was wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

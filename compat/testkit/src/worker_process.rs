//! A worker process, seen from the process that started it. It does not outlive the value that owns it.

use std::io;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often a process that is to end is asked whether it has.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct WorkerProcess {
    number: u32,
    child: Child,
    /// A worker ends when this is closed, also by the end of the process that has it.
    input: Option<ChildStdin>,
}

impl WorkerProcess {
    pub fn start(number: u32, command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let input = child.stdin.take();
        Ok(Self { number, child, input })
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Fails if the process has ended on its own.
    pub fn check(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                Err(io::Error::other(format!("worker {} ended before its time: {status}", self.number)))
            }
        }
    }

    /// Kills it on the spot, as the system does when memory runs out. It has ended when this returns.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Tells it to finish what it does, and to end.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits for its end, until `limit` at most. Returns what went wrong, in words.
    pub fn wait(&mut self, limit: Instant) -> io::Result<Option<String>> {
        loop {
            return Ok(match self.child.try_wait()? {
                Some(status) if status.success() => None,
                Some(status) => Some(format!("worker {} failed: {status}", self.number)),
                None if Instant::now() < limit => {
                    thread::sleep(LOOK);
                    continue;
                }
                None => Some(format!("worker {} did not end in time", self.number)),
            });
        }
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // One that has ended already is what was wanted.
        let _ = self.kill();
    }
}

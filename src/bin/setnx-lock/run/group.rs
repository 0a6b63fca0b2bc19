//! The command's process group.

use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How often a group is looked at that is ending.
const LOOK: Duration = Duration::from_millis(20);

/// The process group of a command.
#[derive(Debug)]
pub(super) struct Group(Pid);

impl Group {
    pub(super) fn of(id: Pid) -> Self {
        Self(id)
    }

    pub(super) fn id(&self) -> Pid {
        self.0
    }

    pub(super) fn send(&self, signal: Signal) {
        match killpg(self.0, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => log::warn!("cannot send {signal} to the command: {error}"),
        }
    }

    /// Waits for what is left of the group until then, and kills the rest; at once if no time is given.
    pub(super) fn end_rest(&self, until: Option<Instant>) {
        while self.exists() && until.is_some_and(|until| Instant::now() < until) {
            thread::sleep(LOOK);
        }
        if self.exists() {
            self.send(Signal::SIGKILL);
        }
    }

    fn exists(&self) -> bool {
        killpg(self.0, None) != Err(Errno::ESRCH)
    }
}

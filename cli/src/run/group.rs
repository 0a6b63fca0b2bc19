//! The command's process group.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::output;

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

    /// Returns true if it could be sent, or there is none to send it to. A failure is reported.
    pub(super) fn send(&self, signal: Signal) -> bool {
        match killpg(self.0, signal) {
            Ok(()) | Err(Errno::ESRCH) => true,
            Err(error) => {
                output::warning(&format!("cannot send {signal} to the command: {error}"));
                false
            }
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

    /// Returns true if a process of the group is still running. One that has ended and is not waited for, as under a process 1 that takes its
    /// time, counts only where the system does not tell the difference.
    pub(super) fn exists(&self) -> bool {
        killpg(self.0, None) != Err(Errno::ESRCH) && self.has_running().unwrap_or(true)
    }

    /// Looks at all processes; `None` without Linux's `/proc`.
    fn has_running(&self) -> Option<bool> {
        let group = self.0.to_string();
        let mut processes = fs::read_dir("/proc").ok()?.flatten();
        // Behind the name in parentheses: the state, the parent and the group.
        fs::metadata("/proc/self/stat").ok()?;
        Some(processes.any(|process| {
            let status = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            let mut fields = status.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
            fields.next().is_some_and(|state| state != "Z") && fields.nth(1) == Some(&group)
        }))
    }
}

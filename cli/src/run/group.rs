//! The command's process group.

use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, getpgid};
use rustix::process::{WaitOptions, WaitStatus, wait};

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
        while self.exists() {
            if until.is_none_or(|until| Instant::now() >= until) {
                self.send(Signal::SIGKILL);
                return;
            }
            thread::sleep(LOOK);
        }
    }

    /// Returns true if a process of the group is left, once the command itself has ended. What the kernel says counts:
    /// `/proc` may hide a process, and shows only the first thread of one. A process that has ended and is not waited
    /// for counts too, but those that the command leaves behind are waited for here.
    pub(super) fn exists(&self) -> bool {
        while let Ok(Some((child, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            self.go_on(child, status);
        }
        killpg(self.0, None) != Err(Errno::ESRCH)
    }

    /// Has those go on that were stopped before the command ended.
    pub(super) fn resume(&self) {
        // Nobody may be left.
        let _ = killpg(self.0, Signal::SIGCONT);
    }

    /// No shell can resume what the command has left behind. Without this process as its parent, the system would not
    /// stop it, and would refuse it the terminal.
    fn go_on(&self, child: rustix::process::Pid, status: WaitStatus) {
        let stopped_by = status.stopping_signal().and_then(|signal| Signal::try_from(signal).ok());
        let of_group = || getpgid(Some(Pid::from_raw(child.as_raw_pid()))) == Ok(self.0);
        let Some(Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU) = stopped_by.filter(|_| of_group())
        else {
            return;
        };
        if stopped_by != Some(Signal::SIGTSTP) {
            self.send(Signal::SIGHUP);
        }
        self.send(Signal::SIGCONT);
    }
}

/// Makes this process the parent of what the command leaves behind, so that it waits for those as soon as they have
/// ended. Process 1 might take its time.
pub(super) fn adopt_orphans() {
    // Before Linux 3.4 and elsewhere, process 1 has them.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

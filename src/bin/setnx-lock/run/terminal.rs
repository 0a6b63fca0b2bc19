//! The terminal: whose process group reads from it and gets its signals. Without one nothing happens.

use std::fs::{File, OpenOptions};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

fn open() -> Option<File> {
    OpenOptions::new().read(true).write(true).open("/dev/tty").ok()
}

/// Whether this process's group has the terminal.
pub(super) fn is_ours() -> bool {
    open().is_some_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

pub(super) fn give(group: Pid) {
    set(group);
}

pub(super) fn take() {
    set(getpgrp());
}

fn set(group: Pid) {
    let Some(terminal) = open() else { return };
    // A process that sets it from the background gets SIGTTOU, unless that is blocked.
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGTTOU);
    let before = blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    // The terminal may have gone, or the group have ended.
    let _ = tcsetpgrp(terminal, group);
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
}

/// Stops this process, or all of its group, as a job of a shell is stopped, and returns when it goes on. SIGTTOU does what SIGTSTP would,
/// which is received here: it stops a job that its shell can resume, and no other.
pub(super) fn stop(all: bool) {
    let _ = if all { kill(Pid::from_raw(0), Signal::SIGTTOU) } else { raise(Signal::SIGTTOU) };
}

//! The terminal: whose process group reads from it and gets its signals. Without one nothing happens.

use std::fs::{File, OpenOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, raise};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

fn open() -> Option<File> {
    OpenOptions::new().read(true).write(true).open("/dev/tty").ok()
}

/// Returns true if this process's group has the terminal.
pub(super) fn is_ours() -> bool {
    open().is_some_and(|terminal| tcgetpgrp(terminal) == Ok(getpgrp()))
}

pub(super) fn give(group: Pid) {
    set(group);
}

/// Takes it back from that group. A shell may have taken it meanwhile, and keeps it.
pub(super) fn take_from(group: Pid) {
    if open().is_some_and(|terminal| tcgetpgrp(terminal) == Ok(group)) {
        set(getpgrp());
    }
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

/// Set by SIGCONT.
static RESUMED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// How long after SIGCONT it may be noticed on another thread.
const NOTICED_WITHIN: Duration = Duration::from_millis(200);

/// Notes from now on that this process goes on after a stop.
pub(super) fn note_resumptions() -> io::Result<()> {
    signal_hook::flag::register(Signal::SIGCONT as i32, Arc::clone(&RESUMED)).map(drop)
}

/// Stops this process, or all of its group, as a job of a shell is stopped, and returns
/// when it goes on, with whether it was stopped. SIGTTOU does what SIGTSTP would, which
/// is received here: it stops a job that its shell can resume, and no other.
pub(super) fn stop(all: bool) -> bool {
    RESUMED.store(false, Ordering::SeqCst);
    let _ = if all { kill(Pid::from_raw(0), Signal::SIGTTOU) } else { raise(Signal::SIGTTOU) };
    let until = Instant::now() + NOTICED_WITHIN;
    while !RESUMED.load(Ordering::SeqCst) && Instant::now() < until {
        thread::sleep(Duration::from_millis(1));
    }
    RESUMED.load(Ordering::SeqCst)
}

//! Starts the command in two steps, so that it never runs without a guardian that knows it: a process of this very
//! program stops itself, and becomes the command when it is resumed. If the tool is killed in between, Linux kills the
//! process with it, also while it is stopped and whatever signals are ignored. Elsewhere a process that goes on sees
//! that it has another parent.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::{env, io};

use nix::sys::signal::{Signal, raise};
use nix::unistd::{getpid, getppid};

use crate::arguments::ExitCodes;
use crate::failure::Failure;

/// The first argument of the process that becomes the command.
const STARTER: &str = "guarded-start";

/// Whom systemd passes sockets to, and whom it expects to say that it is alive.
const LISTEN: &str = "LISTEN_PID";
const WATCHDOG: &str = "WATCHDOG_PID";
/// The same as the first, by a number of which no other process can have the same.
const LISTEN_BY_PIDFD: &str = "LISTEN_PIDFDID";

/// Returns the command line of a process that stops itself, and then becomes this command.
pub(super) fn stopped(program: &OsStr, arguments: &[OsString]) -> Command {
    let mut command = Command::new(this_program());
    command.arg0("setnx-lock").arg(STARTER).arg(getpid().to_string()).arg(program).args(arguments);
    command
}

/// This very program, also if its file was replaced meanwhile.
pub(super) fn this_program() -> PathBuf {
    if cfg!(target_os = "linux") {
        return PathBuf::from("/proc/self/exe");
    }
    std::env::current_exe().unwrap_or_else(|_| "setnx-lock".into())
}

pub(super) fn not_run(program: &OsStr, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    Failure::with_code(code, format!("cannot run {}: {error}", program.display()))
}

/// Stops and becomes the command, if this process was started for that.
pub(crate) fn start(words: &[OsString]) -> Option<ExitCode> {
    let [starter, parent, program, arguments @ ..] = words else { return None };
    let is_parent = || *parent == *getppid().to_string();
    if starter != STARTER {
        return None;
    }
    // Before the first look at the parent, which may end right after it.
    die_with_parent(true);
    if !is_parent() {
        return None;
    }
    // It cannot fail.
    let _ = raise(Signal::SIGSTOP);
    die_with_parent(false);
    if !is_parent() {
        return Some(ExitCode::FAILURE);
    }
    let mut command = Command::new(program);
    command.args(arguments);
    rename(&mut command, parent);
    let error = command.exec();
    Some(not_run(program, &error).report(&ExitCodes::default(), false))
}

/// Returns true if variables name this process, so that the command would not take what they say for itself.
pub(super) fn is_named() -> bool {
    !names_of(&getpid().to_string().into()).is_empty()
}

/// systemd names the process that it starts in variables. Those that name the tool, which has this id, are to name this
/// process, which becomes the command: what a service manager passes on, such as sockets, is meant for the command.
fn rename(command: &mut Command, tool: &OsString) {
    for name in names_of(tool) {
        command.env(name, getpid().to_string());
        if name == LISTEN {
            command.env_remove(LISTEN_BY_PIDFD);
        }
    }
}

/// The variables that name a process.
fn names_of(id: &OsString) -> Vec<&'static str> {
    [LISTEN, WATCHDOG].into_iter().filter(|name| env::var_os(name).as_ref() == Some(id)).collect()
}

/// Has the kernel kill this process when its parent ends, or not any more.
fn die_with_parent(dies: bool) {
    #[cfg(target_os = "linux")]
    {
        // It cannot fail.
        let _ =
            rustix::process::set_parent_process_death_signal(dies.then_some(rustix::process::Signal::KILL));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = dies;
}

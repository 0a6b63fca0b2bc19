//! The command: a process group of its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::{env, fs, io, thread};

use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};
use setnx_lock::{Error, Key};

use super::event::{Event, Status};
use super::group::Group;
use super::guardian::Guard;
use super::starter::{self, not_run};
use super::wanted::Hold;
use crate::arguments::{Run, TOKEN};
use crate::failure::Failure;

const SHELL: &str = "/bin/sh";

/// Starts the command, tells the guardian, and starts a thread that says what happens to the command.
pub(super) fn spawn(
    arguments: &Run,
    hold: Hold<'_>,
    guard: &Guard,
    events: &Sender<Event>,
) -> Result<Group, Failure> {
    let starts_stopped = guard.exists() || starter::is_named();
    let mut command = command(arguments, starts_stopped);
    command.process_group(0).env("SETNX_LOCK_KEY", keys_for_environment(hold));
    // Those of an enclosing `run` are of another lock.
    for name in ["SETNX_LOCK_EXPIRES_AT", "SETNX_LOCK_FENCING_TOKEN", "SETNX_LOCK_SLOT"] {
        command.env_remove(name);
    }
    if arguments.resume && arguments.token.token_file.is_none() {
        // It is used up.
        command.env_remove(TOKEN);
    }
    if let Some(end) = hold.expires_at() {
        command.env("SETNX_LOCK_EXPIRES_AT", end.timestamp().to_string());
    }
    if let Some(slot) = hold.slot {
        command.env("SETNX_LOCK_SLOT", slot.to_string());
    }
    if arguments.acquisition.fence {
        let tokens: Result<Vec<_>, Error> =
            hold.guards.iter().map(|guard| Ok(guard.fencing_token()?.to_string())).collect();
        command.env("SETNX_LOCK_FENCING_TOKEN", tokens?.join("\n"));
    }
    let child = command.spawn().map_err(|error| not_run(program(arguments), &error))?;
    let group = Pid::from_raw(child.id().cast_signed());
    if starts_stopped {
        // It stops before it becomes the command. If it has ended, the thread says so.
        let _ = waitid(Id::Pid(group), WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        guard.watch(group, &hold.names());
        Group::of(group).send(Signal::SIGCONT);
    }
    let events = events.clone();
    thread::Builder::new().name("command".into()).spawn(move || report(group, &events)).map_err(|error| {
        Group::of(group).send(Signal::SIGKILL);
        Failure::system("cannot wait for the command, which was killed", error)
    })?;
    Ok(Group::of(group))
}

/// The program that is run, by the shell or by itself.
fn program(arguments: &Run) -> &OsStr {
    if arguments.shell {
        OsStr::new(SHELL)
    } else {
        arguments.command.first().map_or(OsStr::new(""), |first| first)
    }
}

/// Fails if there is no such program, before the lock is acquired: with `--hold-at-least` it would be held for nothing.
pub(super) fn find(arguments: &Run) -> Result<(), Failure> {
    let program = Path::new(program(arguments));
    let is_path = program.as_os_str().as_bytes().contains(&b'/');
    // Without the variable the system knows where to look.
    let Some(folders) = (if is_path { Some(OsString::new()) } else { env::var_os("PATH") }) else {
        return Ok(());
    };
    let is_named = !program.as_os_str().is_empty();
    let files = env::split_paths(&folders).filter(|_| is_named).map(|folder| folder.join(program));
    let found: Vec<_> = files.filter_map(|file| file.metadata().ok()).collect();
    let is_executable = |file: &fs::Metadata| file.is_file() && file.permissions().mode() & 0o111 != 0;
    let (kind, problem) = match found.as_slice() {
        found if found.iter().any(is_executable) => return Ok(()),
        [_, ..] => (io::ErrorKind::PermissionDenied, "it is not executable"),
        [] if is_path => (io::ErrorKind::NotFound, "no such file"),
        [] => (io::ErrorKind::NotFound, "no such program in PATH"),
    };
    Err(not_run(program.as_os_str(), &io::Error::new(kind, problem)))
}

fn command(arguments: &Run, starts_stopped: bool) -> Command {
    let words = if arguments.shell {
        vec!["-c".into(), arguments.command.join(OsStr::new(" "))]
    } else {
        arguments.command.get(1..).unwrap_or_default().to_vec()
    };
    if starts_stopped {
        return starter::stopped(program(arguments), &words);
    }
    let mut command = Command::new(program(arguments));
    command.args(words);
    command
}

/// The bytes of each key on a line; with escapes if it has a zero, which no variable can.
fn keys_for_environment(hold: Hold<'_>) -> OsString {
    let bytes = |key: &Key| {
        if key.as_bytes().contains(&0) { key.to_string().into_bytes() } else { key.as_bytes().to_vec() }
    };
    OsString::from_vec(hold.keys().map(bytes).collect::<Vec<_>>().join(&b'\n'))
}

/// Sends what happens to the command, until it has ended. Meanwhile
/// waits for other children too: those that have lost their parents.
fn report(group: Pid, events: &Sender<Event>) {
    loop {
        let status = match wait(WaitOptions::UNTRACED) {
            Ok(Some((child, status))) if child.as_raw_pid() == group.as_raw() => status,
            Err(Errno::CHILD) => return,
            _ => continue,
        };
        let stopped_by = status.stopping_signal().and_then(|signal| Signal::try_from(signal).ok());
        let event = match (status.exit_status(), status.terminating_signal(), stopped_by) {
            (Some(code), ..) => Event::Ended(Status::Exited(u8::try_from(code).unwrap_or(u8::MAX))),
            (_, Some(signal), _) => Event::Ended(Status::Signaled(signal)),
            (.., Some(signal)) => Event::Stopped(signal),
            _ => continue,
        };
        let is_over = matches!(event, Event::Ended(_));
        // Nothing waits for it any more when this program ends.
        let _ = events.send(event);
        if is_over {
            return;
        }
    }
}

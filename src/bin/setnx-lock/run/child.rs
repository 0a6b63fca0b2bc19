//! The command: a process group of its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use setnx_lock::LockGuard;

use super::event::{Event, Status};
use crate::arguments::Run;
use crate::failure::Failure;

/// How often a group is looked at that is ending.
const LOOK: Duration = Duration::from_millis(20);

/// The process group of a command that was started.
#[derive(Debug)]
pub(super) struct Group(Pid);

impl Group {
    /// Starts the command, and a thread that says what happens to it.
    pub(super) fn spawn(arguments: &Run, held: &LockGuard, events: &Sender<Event>) -> Result<Self, Failure> {
        let mut command = command(arguments);
        command.process_group(0).env("SETNX_LOCK_KEY", key_for_environment(held));
        // Those of an enclosing `run` are of another lock.
        command.env_remove("SETNX_LOCK_EXPIRES_AT").env_remove("SETNX_LOCK_FENCING_TOKEN");
        if let Some(end) = held.expires_at() {
            command.env("SETNX_LOCK_EXPIRES_AT", end.timestamp().to_string());
        }
        if arguments.fence {
            command.env("SETNX_LOCK_FENCING_TOKEN", held.fencing_token()?.to_string());
        }
        let child = command.spawn().map_err(|error| not_run(&arguments.command, &error))?;
        let group = Pid::from_raw(child.id().cast_signed());
        let events = events.clone();
        thread::Builder::new().name("command".into()).spawn(move || report(group, &events)).map_err(
            |error| {
                Self(group).send(Signal::SIGKILL);
                Failure::system("cannot wait for the command, which was killed", error)
            },
        )?;
        Ok(Self(group))
    }

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

fn not_run(command: &[OsString], error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    let program = command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    Failure::with_code(code, format!("cannot run {program}: {error}"))
}

/// Fails if there is no such program, before the lock is acquired: with `--hold-at-least` it would be held for nothing.
pub(super) fn find(arguments: &Run) -> Result<(), Failure> {
    let program = Path::new(arguments.command.first().map_or(OsStr::new(""), |program| program));
    let is_path = program.as_os_str().as_bytes().contains(&b'/');
    let folders = if is_path { OsString::new() } else { env::var_os("PATH").unwrap_or_default() };
    if arguments.shell || env::split_paths(&folders).any(|folder| folder.join(program).exists()) {
        return Ok(());
    }
    let problem = if is_path { "no such file" } else { "no such program in PATH" };
    Err(not_run(&arguments.command, &io::Error::new(io::ErrorKind::NotFound, problem)))
}

fn command(arguments: &Run) -> Command {
    let (program, rest) =
        arguments.command.split_first().map_or((OsStr::new(""), &[][..]), |(p, r)| (p.as_os_str(), r));
    if arguments.shell {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(arguments.command.join(OsStr::new(" ")));
        return command;
    }
    let mut command = Command::new(program);
    command.args(rest);
    command
}

/// The key's bytes; with escapes if it has a zero, which no variable can.
fn key_for_environment(held: &LockGuard) -> OsString {
    let bytes = held.key().as_bytes();
    if bytes.contains(&0) { held.key().to_string().into() } else { OsStr::from_bytes(bytes).into() }
}

/// Sends what happens to the command, until it has ended. Goes on to wait for other children: the guardian, and as process 1 those that have
/// lost their parents.
fn report(group: Pid, events: &Sender<Event>) {
    loop {
        let status = match waitpid(None, Some(WaitPidFlag::WUNTRACED)) {
            Ok(status) => status,
            Err(Errno::ECHILD) => return,
            // A real-time signal has ended a child, and has no name here.
            Err(Errno::EINVAL) if kill(group, None) == Err(Errno::ESRCH) => {
                let _ = events.send(Event::Ended(Status::Exited(u8::MAX)));
                continue;
            }
            Err(_) => continue,
        };
        if status.pid() != Some(group) {
            continue;
        }
        let event = match status {
            WaitStatus::Exited(_, code) => {
                Event::Ended(Status::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
            }
            WaitStatus::Signaled(_, signal, _) => Event::Ended(Status::Signaled(signal)),
            WaitStatus::Stopped(_, signal) => Event::Stopped(signal),
            _ => continue,
        };
        // Nothing waits for it any more when this program ends.
        let _ = events.send(event);
    }
}

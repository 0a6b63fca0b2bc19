//! The command: a process group of its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use std::{io, thread};

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use setnx_lock::LockGuard;

use super::event::{Event, Status};
use crate::arguments::Run;
use crate::failure::Failure;
use crate::output;

/// How often a group is looked at that is ending.
const LOOK: Duration = Duration::from_millis(20);

/// The process group of a command that was started.
#[derive(Debug)]
pub(super) struct Group(Pid);

impl Group {
    /// Starts the command, and a thread that says how it fares.
    pub(super) fn spawn(arguments: &Run, held: &LockGuard, events: &Sender<Event>) -> Result<Self, Failure> {
        let mut command = command(arguments);
        command.process_group(0).env("SETNX_LOCK_KEY", key_for_environment(held));
        if let Some(end) = held.expires_at() {
            command.env("SETNX_LOCK_EXPIRES_AT", end.timestamp().to_string());
        }
        if arguments.fence {
            command.env("SETNX_LOCK_FENCING_TOKEN", held.fencing_token()?.to_string());
        }
        let child = command.spawn().map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            let program = command.get_program().to_string_lossy();
            Failure::with_code(code, format!("cannot run {program}: {error}"))
        })?;
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
            Err(error) => output::warning(&format!("cannot send {signal} to the command: {error}")),
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

/// Sends how the command fares, until it has ended.
fn report(group: Pid, events: &Sender<Event>) {
    loop {
        let event = match waitpid(group, Some(WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::Exited(_, code)) => {
                Event::Ended(Status::Exited(u8::try_from(code & 0xff).unwrap_or(u8::MAX)))
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => Event::Ended(Status::Signaled(signal)),
            Ok(WaitStatus::Stopped(_, signal)) => Event::Stopped(signal),
            Ok(_) | Err(Errno::EINTR) => continue,
            // A real-time signal, which has no name here.
            Err(_) => Event::Ended(Status::Exited(u8::MAX)),
        };
        let has_ended = matches!(event, Event::Ended(_));
        if events.send(event).is_err() || has_ended {
            return;
        }
    }
}

//! Ends the command if this process is killed: another process waits for that, since a killed one does nothing any
//! more. It holds the end of a pipe that is closed with this process. Unlike the signal that Linux sends to the
//! children of a process which ends, it reaches the command's whole group, and can kill what does not end.

use std::ffi::CStr;
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::group::Group;
use super::starter::this_program;
use crate::arguments::{Guardian, OnLoss, Run};
use crate::output;

/// The first argument of the guardian.
pub(crate) const GUARDIAN: &str = "guardian";

/// What the guardian reads when the command has ended.
const DISMISSED: &str = "done";

/// How long it waits at its end for a terminal that is stopped.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);

/// The guardian of a command, if one could be started and is wanted.
#[derive(Debug)]
pub(super) struct Guard(Option<ChildStdin>);

impl Guard {
    pub(super) fn start(arguments: &Run) -> Self {
        let on_loss = arguments.on_loss.to_possible_value();
        let Some(on_loss) = on_loss.filter(|_| arguments.on_loss != OnLoss::Warn) else { return Self(None) };
        let started = Command::new(this_program())
            .arg0("setnx-lock")
            .args([GUARDIAN, "--on-loss", on_loss.get_name(), "--kill-after"])
            .arg(arguments.kill_after.as_secs_f64().to_string())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn();
        match started {
            Ok(mut child) => Self(child.stdin.take()),
            Err(error) => {
                log::warn!(
                    "cannot start the guardian, so the command keeps running if this process is killed: {error}"
                );
                Self(None)
            }
        }
    }

    /// Returns true if there is one.
    pub(super) fn exists(&self) -> bool {
        self.0.is_some()
    }

    pub(super) fn watch(&self, group: Pid, keys: &str) {
        self.say(&format!("{group} {keys}"));
    }

    pub(super) fn dismiss(self) {
        self.say(DISMISSED);
    }

    fn say(&self, line: &str) {
        if let Some(mut pipe) = self.0.as_ref() {
            // If it has ended nothing can be done.
            let _ = writeln!(pipe, "{line}");
        }
    }
}

/// Names this process as `ps` shows it. Its file is `/proc/self/exe`, and so it would be called `exe`.
fn name_process(name: &CStr) {
    // The name only helps to find it.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(name);
    #[cfg(not(target_os = "linux"))]
    let _ = name;
}

/// Waits for the end of the process that started it, and ends the command if that did not say that it has ended.
pub(crate) fn guardian(arguments: &Guardian) -> ExitCode {
    name_process(c"setnx-guardian");
    let mut from = io::stdin().lock();
    let (mut group, mut rest) = (String::new(), String::new());
    // What cannot be read counts as the end of that process.
    let _ = from.read_line(&mut group);
    let _ = from.read_to_string(&mut rest);
    let (id, key) = group.trim_end().split_once(' ').unwrap_or_default();
    let Ok(id) = id.parse() else { return ExitCode::SUCCESS };
    if rest.trim() == DISMISSED {
        return ExitCode::SUCCESS;
    }
    let group = Group::of(Pid::from_raw(id));
    let kills = arguments.on_loss == OnLoss::Kill;
    let signal = if kills { Signal::SIGKILL } else { Signal::SIGTERM };
    group.send(signal);
    group.send(Signal::SIGCONT);
    output::write_on_a_thread();
    output::warning(&format!(
        "lock {key}: the tool was killed while its command ran; sending {signal} to the command; the lock stays held until it expires"
    ));
    group.end_rest((!kills).then(|| Instant::now() + arguments.kill_after));
    output::flush(Some(WRITTEN_WITHIN));
    ExitCode::SUCCESS
}

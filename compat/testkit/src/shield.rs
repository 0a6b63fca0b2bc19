//! The process that was started. It starts the conductor away from the terminal's Ctrl-C
//! and waits for it. However this process ends, the conductor notices by the closed pipe
//! and cleans up: a process that gets a signal cannot rely on doing that itself.

use std::io::{self, Read};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, thread};

use crate::Failure;

/// Conducts the run in a process of its own.
pub fn run() -> Result<ExitCode, Failure> {
    let mut command = Command::new(env::current_exe()?);
    command.arg("conduct").args(env::args_os().skip(1)).stdin(Stdio::piped());
    // Ctrl-C goes to the terminal's foreground group, so to this process alone.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut conductor = command.spawn()?;
    // Taken out, or waiting would close it.
    let input = conductor.stdin.take();
    let status = conductor.wait()?;
    drop(input);
    // The conductor has printed why it failed.
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether the process that started this one closed the pipe to it, or is gone.
#[derive(Clone, Debug)]
pub struct Parent(Arc<AtomicBool>);

impl Parent {
    /// Begins to watch the standard input, which must be that pipe.
    pub fn watch() -> Self {
        let gone = Arc::new(AtomicBool::new(false));
        let parent = Self(Arc::clone(&gone));
        thread::spawn(move || {
            // Nothing is ever written to it; an error ends it as well as the end of the input.
            let _ = io::stdin().lock().read_to_end(&mut Vec::new());
            gone.store(true, Ordering::Relaxed);
        });
        parent
    }

    pub fn is_gone(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

//! A terminal with an interactive shell, what is typed there, and what it shows.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::Child;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use pty_process::blocking::{Command, Pty, open};
use tempfile::TempDir;

use crate::support::tool::{program, tool};
use crate::support::{AnyServer, LONG, Outcome};

/// What the shell shows when it reads a command.
const PROMPT: &str = "<prompt>";

/// A terminal whose input is not echoed. Closed when dropped.
pub(super) struct Screen {
    shell: Child,
    terminal: Pty,
    output: Receiver<Vec<u8>>,
    /// What was shown and has not been looked for.
    shown: String,
    /// Has a pipe, `$NEVER`, from which nothing can be read.
    folder: TempDir,
}

impl Screen {
    /// Opens a terminal with a shell that knows the tool, for this server.
    pub(super) fn open(server: &impl AnyServer) -> Result<Self, Box<dyn std::error::Error>> {
        let (terminal, end) = open()?;
        let mut shell = Command::new("env").args(["--default-signal", "bash", "--norc", "--noprofile"]);
        shell = shell.args(["--noediting", "-i"]);
        for (name, value) in tool(&server.url()).get_envs() {
            shell = match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let shell = shell.env("PS1", PROMPT).env("TERM", "xterm").env("HISTFILE", "").spawn(end)?;
        let (sender, output) = mpsc::channel();
        let mut reader = File::from(terminal.as_fd().try_clone_to_owned()?);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error is the end of the last process on the terminal.
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                if sender.send(bytes[..read].to_vec()).is_err() {
                    return;
                }
            }
        });
        let mut screen = Self { shell, terminal, output, shown: String::new(), folder: tempfile::tempdir()? };
        screen.prompt()?;
        let folder = program().parent().ok_or("the program is in a folder")?;
        let (never, programs) = (screen.folder.path().join("never"), folder.display());
        screen.line(&format!("stty -echo; PATH='{programs}':$PATH; export NEVER='{}'", never.display()))?;
        screen.line("mkfifo \"$NEVER\"; echo ready | tr a-z A-Z")?;
        screen.shows("READY")?;
        screen.prompt()?;
        Ok(screen)
    }

    /// Types a line.
    pub(super) fn line(&mut self, line: &str) -> io::Result<()> {
        (&self.terminal).write_all(format!("{line}\n").as_bytes())
    }

    /// Types a letter with the control key.
    pub(super) fn control(&mut self, letter: char) -> io::Result<()> {
        let code = u8::try_from(letter).map_err(io::Error::other)? & 0b1_1111;
        (&self.terminal).write_all(&[code])
    }

    /// Waits until this is shown, and returns what was shown before.
    pub(super) fn shows(&mut self, text: &str) -> io::Result<String> {
        let end = Instant::now() + LONG;
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return Ok(std::mem::replace(&mut self.shown, rest));
            }
            let left = end.saturating_duration_since(Instant::now());
            let bytes = self.output.recv_timeout(left).map_err(|error| {
                io::Error::other(format!("{text:?} is not shown ({error}), but {:?}", self.shown))
            })?;
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    pub(super) fn prompt(&mut self) -> io::Result<String> {
        self.shows(PROMPT)
    }

    /// Stops the job by Ctrl-Z.
    pub(super) fn stops(&mut self) -> io::Result<String> {
        self.control('z')?;
        self.shows("Stopped")?;
        self.prompt()
    }

    /// Waits for the prompt, asserts that the last command has ended with this code, and returns what was shown before.
    #[track_caller]
    pub(super) fn exit_code(&mut self, code: i32) -> io::Result<String> {
        let shown = self.prompt()?;
        self.line("echo \"code $?;\"")?;
        self.shows("code ")?;
        assert_eq!(self.shows(";")?, format!("{code};"), "{shown:?}");
        self.prompt()?;
        Ok(shown)
    }

    /// Types a command again and again until this is shown.
    pub(super) fn until_shows(&mut self, command: &str, text: &str) -> io::Result<()> {
        let end = Instant::now() + LONG;
        loop {
            self.line(&format!("{command}; echo \"end\" of it"))?;
            if self.shows("end of it")?.contains(text) {
                return self.prompt().map(drop);
            }
            assert!(Instant::now() < end, "{command} never shows {text:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asserts that the shell has the terminal.
    pub(super) fn still_reads(&mut self) -> Outcome {
        self.line("read line; echo \"the shell got $line\"")?;
        self.line("this")?;
        self.shows("the shell got this")?;
        self.prompt()?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Processes on the terminal get SIGHUP when its shell ends.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

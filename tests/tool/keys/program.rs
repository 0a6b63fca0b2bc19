//! Runs the program: to its end, or beside the test, which reads its lines.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use crate::support::LONG;
use crate::support::tool::tool;

/// What a command of the tool printed, and how it exited.
pub(super) struct Ran {
    arguments: String,
    code: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs a command of the tool for this server to its end.
pub(super) fn ran<A: AsRef<OsStr>>(url: &str, arguments: impl IntoIterator<Item = A>) -> Ran {
    let mut command = tool(url);
    command.args(arguments);
    to_the_end(command)
}

/// Runs a command to its end. It is killed if it does not end by itself.
#[track_caller]
pub(super) fn to_the_end(command: Command) -> Ran {
    let arguments = format!("{:?}", command.get_args().collect::<Vec<_>>());
    let output = assert_cmd::Command::from_std(command).timeout(LONG).output().unwrap();
    Ran {
        arguments,
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Ran {
    /// Asserts the exit code.
    #[track_caller]
    pub(super) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        self
    }

    /// Asserts that it printed exactly this, and neither an error nor a warning.
    #[track_caller]
    pub(super) fn prints(self, out: &str) -> Self {
        assert_eq!(self.out, out, "{self}");
        assert_eq!(self.err, "", "{self}");
        self
    }

    /// Asserts that it printed nothing but an error, in one line with these words.
    #[track_caller]
    pub(super) fn says_only(self, words: &[&str]) -> Self {
        assert_eq!(self.out, "", "{self}");
        assert!(self.err.starts_with("setnx-lock: error: ") && self.err.lines().count() == 1, "{self}");
        self.says(words)
    }

    /// Asserts that these words are among the errors and warnings.
    #[track_caller]
    pub(super) fn says(self, words: &[&str]) -> Self {
        for words in words {
            assert!(self.err.contains(words), "without {words:?}: {self}");
        }
        self
    }

    /// Asserts that the output contains these words.
    #[track_caller]
    pub(super) fn shows(self, words: &[&str]) -> Self {
        for words in words {
            assert!(self.out.contains(words), "without {words:?}: {self}");
        }
        self
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ran { arguments, code, out, err } = self;
        write!(f, "{arguments} exited with {code:?}\noutput:\n{out}\nerrors:\n{err}")
    }
}

/// A command of the tool that runs beside the test. Killed when dropped.
pub(super) struct Running {
    process: Child,
    out: Option<Lines>,
    err: Lines,
}

type Lines = mpsc::Receiver<String>;

impl Running {
    pub(super) fn start(url: &str, arguments: &[&str]) -> io::Result<Self> {
        let mut command = tool(url);
        command.args(arguments);
        Self::of(command)
    }

    pub(super) fn of(mut command: Command) -> io::Result<Self> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn()?;
        let out = process.stdout.take().map(lines);
        let err = lines(process.stderr.take().expect("it is piped"));
        Ok(Self { process, out, err })
    }

    /// Returns the next line of output.
    #[track_caller]
    pub(super) fn line(&self) -> String {
        let out = self.out.as_ref().expect("the output is open");
        out.recv_timeout(LONG).expect("the program printed no further line")
    }

    /// Returns the next line among the errors, notes and warnings.
    #[track_caller]
    pub(super) fn note(&self) -> String {
        self.err.recv_timeout(LONG).expect("the program printed no further note")
    }

    /// Stops reading: the pipe is closed when the next line comes.
    pub(super) fn close_output(&mut self) {
        self.out = None;
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("it has an id");
        Ok(kill_process(pid, signal)?)
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for its end, and returns what it printed that was not read.
    #[track_caller]
    pub(super) fn ends(mut self) -> Ran {
        let limit = Instant::now() + LONG;
        let code = loop {
            match self.process.try_wait().unwrap() {
                Some(status) => break status.code(),
                None => assert!(Instant::now() < limit, "the program does not end"),
            }
            thread::sleep(std::time::Duration::from_millis(5));
        };
        let rest = |lines: &Lines| lines.iter().map(|line| line + "\n").collect();
        let out = self.out.take().iter().map(rest).collect();
        Ran { arguments: "a program".into(), code, out, err: rest(&self.err) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads the lines in a thread, until the end or until they are wanted no more.
fn lines(from: impl Read + Send + 'static) -> Lines {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    lines
}

//! A run of the tool in the background: its input, its output, its signals and its end.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Instant;
use std::{fs, thread};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::notified::until;
use crate::support::tool::tool;
use crate::support::{LONG, millis};

/// A command of `setnx-lock run`.
pub(super) fn run(url: &str) -> Command {
    let mut command = tool(url);
    command.arg("run");
    command
}

/// What shell scripts of the tests wait for a line of input by. A signal that comes just before a `read` is noticed
/// only after it, so each is short.
const READ: &str = "while read -t 0.1 go; [ $? -gt 128 ]; do :; done";

/// The arguments that run a shell script, in which `read go` waits for a line of input and notices signals.
pub(super) fn shell(script: &str) -> [String; 3] {
    ["bash".into(), "-c".into(), script.replace("read go", READ)]
}

/// Runs a command to its end, with an empty input.
pub(super) fn finished(command: &mut Command) -> io::Result<Ended> {
    let mut running = Running::start(command)?;
    running.close_input();
    running.ends()
}

/// A command that is running, in a process group of its own. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    process: Child,
    input: Option<ChildStdin>,
    output: Stream,
    errors: Stream,
}

impl Running {
    pub(super) fn start(command: &mut Command) -> io::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let input = process.stdin.take();
        let output = Stream::of(process.stdout.take().expect("it is piped"));
        let errors = Stream::of(process.stderr.take().expect("it is piped"));
        Ok(Self { process, input, output, errors })
    }

    /// The same, and waits until its command has printed `started`.
    pub(crate) fn started(command: &mut Command) -> io::Result<Self> {
        let running = Self::start(command)?;
        running.prints("started");
        Ok(running)
    }

    /// Waits for the next line of its output, which is this.
    #[track_caller]
    pub(super) fn prints(&self, line: &str) {
        match self.output.next() {
            Ok(bytes) => assert_eq!(String::from_utf8_lossy(&bytes), format!("{line}\n")),
            Err(problem) => panic!("{line:?} is not printed ({problem}); errors: {}", self.errors.so_far()),
        }
    }

    /// Returns true if it has printed a line, which is this.
    #[track_caller]
    pub(super) fn prints_any(&self, line: &str) -> bool {
        let printed = self.output.0.try_recv();
        if let Ok(bytes) = &printed {
            assert_eq!(String::from_utf8_lossy(bytes), format!("{line}\n"));
        }
        printed.is_ok()
    }

    /// Waits for the next line of its output, which is this. Until it is printed, something must hold.
    #[track_caller]
    pub(super) fn prints_while(&self, line: &str, mut holds: impl FnMut() -> bool) {
        let began = Instant::now();
        while began.elapsed() < LONG {
            // In this order: it may be printed in between.
            let held = holds();
            // What it has printed before may still be on its way.
            let patience = if held { millis(100) } else { millis(1000) };
            let printed = self.output.0.recv_timeout(patience).ok();
            if let Some(bytes) = printed {
                assert_eq!(String::from_utf8_lossy(&bytes), format!("{line}\n"));
                return;
            }
            assert!(held, "it did not hold before {line:?}");
        }
        panic!("{line:?} is not printed");
    }

    /// Waits for a line of errors that contains these words, and drops those before it.
    #[track_caller]
    pub(super) fn error_with(&self, words: &str) {
        let mut before = String::new();
        while let Ok(line) = self.errors.next() {
            let line = String::from_utf8_lossy(&line);
            if line.contains(words) {
                return;
            }
            before.push_str(&line);
        }
        panic!("no error contains {words:?}: {before}");
    }

    /// Writes a line to its input.
    pub(crate) fn say(&mut self, line: &str) -> io::Result<()> {
        self.input.as_mut().map_or(Ok(()), |input| writeln!(input, "{line}"))
    }

    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    pub(super) fn send(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(self.id(), signal)?)
    }

    pub(super) fn send_to_group(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process_group(self.id(), signal)?)
    }

    /// The number of its process.
    pub(super) fn number(&self) -> u32 {
        self.process.id()
    }

    /// The signals that have been sent and not delivered, a bit each; `None` after its end.
    pub(super) fn pending_signals(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(pending.trim(), 16).ok()
    }

    fn id(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.process.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for the end of the program, and for that of every process that has its output.
    #[track_caller]
    pub(crate) fn ends(mut self) -> io::Result<Ended> {
        until("the program ends", || self.has_ended());
        let status = self.process.wait()?;
        let (output, errors) = (self.output.rest(), self.errors.rest());
        let errors = String::from_utf8_lossy(&errors).into_owned();
        Ok(Ended { code: status.code(), signal: status.signal(), output, errors })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            // With what it has started, as a shell's loop does.
            let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
            let _ = self.process.wait();
        }
    }
}

/// The lines that a program prints, with their ends.
#[derive(Debug)]
struct Stream(Receiver<Vec<u8>>);

impl Stream {
    fn of(stream: impl Read + Send + 'static) -> Self {
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            loop {
                let mut line = Vec::new();
                let has_ended = stream.read_until(b'\n', &mut line).is_ok_and(|read| read == 0);
                if has_ended || sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(lines)
    }

    fn next(&self) -> Result<Vec<u8>, RecvTimeoutError> {
        self.0.recv_timeout(LONG)
    }

    /// What comes until the end of the stream.
    #[track_caller]
    fn rest(&self) -> Vec<u8> {
        let mut rest = Vec::new();
        loop {
            match self.next() {
                Ok(line) => rest.extend(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("a process still has the output; so far: {rest:?}"),
            }
        }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.0.try_iter().flatten().collect::<Vec<_>>()).into_owned()
    }
}

/// How a program ended, and what of its output had not been read.
#[derive(Debug)]
pub(crate) struct Ended {
    code: Option<i32>,
    signal: Option<i32>,
    pub(super) output: Vec<u8>,
    pub(super) errors: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    #[track_caller]
    pub(super) fn by_signal(self, signal: Signal) -> Self {
        assert_eq!(self.signal, Some(signal.as_raw()), "{self:?}");
        self
    }

    #[track_caller]
    pub(super) fn prints(self, output: &str) -> Self {
        assert_eq!(String::from_utf8_lossy(&self.output), output, "{self:?}");
        self
    }

    #[track_caller]
    pub(super) fn says_nothing(self) -> Self {
        assert_eq!(self.errors, "");
        self
    }

    /// Asserts that the errors are one line, which names the program and these words.
    #[track_caller]
    pub(super) fn says_one_line(self, words: &[&str]) -> Self {
        assert_eq!(self.errors.lines().count(), 1, "{}", self.errors);
        assert!(self.errors.starts_with("setnx-lock: error: "), "{}", self.errors);
        self.says(words)
    }

    #[track_caller]
    pub(super) fn says(self, words: &[&str]) -> Self {
        for words in words {
            assert!(self.errors.contains(words), "{words:?} is not in: {}", self.errors);
        }
        self
    }
}

//! A worker process, seen from the process that conducts: starts it, sends it instructions, receives its answers. The
//! process ends with the value that owns it. `worker.rs` lists the instructions.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::Failure;
use crate::candidates::Candidate;
use crate::moment::Moment;

/// The lease that the key names, unless it is to expire: longer than any workload.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(120);
/// How long an answer may take beyond the time that the instruction takes.
const LIMIT: Duration = Duration::from_secs(20);
/// The same where many threads start first: longer than a lock
/// that was left behind lasts, and than an acquisition may take.
const STEADY_LIMIT: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(crate) struct Peer {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Answers that were received and not yet asked for.
    pending: VecDeque<Vec<String>>,
    /// The versions that it reports.
    pub(crate) version: String,
}

/// One time that a thread had the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquisition {
    /// The number of the worker, and of the thread within it.
    pub(crate) thread: (usize, usize),
    pub(crate) entered: Moment,
    /// Before the release.
    pub(crate) left: Moment,
}

impl Peer {
    /// Starts a worker of so many threads, connected.
    pub(crate) fn open(candidate: &Candidate, url: &str, threads: u32) -> Result<Self, Failure> {
        Self::open_leasing(candidate, url, threads, LONG_LEASE)
    }

    /// Does the same with another lease.
    pub(crate) fn open_leasing(
        candidate: &Candidate,
        url: &str,
        threads: u32,
        lease: Duration,
    ) -> Result<Self, Failure> {
        let mut peer = Self::start(candidate, url)?;
        peer.send(format_args!("open {threads} {}", lease.as_millis()))?;
        peer.version = peer.receive("ready")?.join(" ");
        Ok(peer)
    }

    fn start(candidate: &Candidate, url: &str) -> Result<Self, Failure> {
        let mut command = candidate.command()?;
        command.env("REDIS_URL", url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "its interpreter is not installed; `make bench` installs it".into(),
            _ => Failure::from(error),
        })?;
        let input = process.stdin.take().ok_or("a worker has no input")?;
        let output = BufReader::new(process.stdout.take().ok_or("a worker has no output")?);
        let (send, lines) = mpsc::channel();
        // Ends with the worker's output.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Ok(Self { process, input, lines, pending: VecDeque::new(), version: String::new() })
    }

    pub(crate) fn send(&mut self, instruction: impl Display) -> Result<(), Failure> {
        let sent = writeln!(self.input, "{instruction}").and_then(|()| self.input.flush());
        // A worker that has ended has written why.
        sent.or_else(|error| self.receive("").map_or_else(Err, |_| Err(error.into())))
    }

    /// Returns the words after `word` of the next line that begins with it.
    fn receive(&mut self, word: &str) -> Result<Vec<String>, Failure> {
        self.receive_within(LIMIT, word)
    }

    fn receive_within(&mut self, limit: Duration, word: &str) -> Result<Vec<String>, Failure> {
        let mut words = self.receive_one_of(&[word], Instant::now() + limit)?;
        words.remove(0);
        Ok(words)
    }

    /// Returns the next line that begins with one of the words. Other lines are kept: a worker does several things at
    /// once, and answers each when it is done.
    fn receive_one_of(&mut self, wanted: &[&str], end: Instant) -> Result<Vec<String>, Failure> {
        let fits = |line: &Vec<String>| line.first().is_some_and(|first| wanted.contains(&first.as_str()));
        if let Some(line) = self.pending.iter().position(fits).and_then(|at| self.pending.remove(at)) {
            return Ok(line);
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).map_err(|error| match error {
                RecvTimeoutError::Timeout => "a worker did not answer in time",
                RecvTimeoutError::Disconnected => "a worker ended before its time",
            })?;
            if let Some(reason) = line.strip_prefix("failed ") {
                return Err(reason.into());
            }
            let line = line.split_whitespace().map(str::to_owned).collect();
            if fits(&line) {
                return Ok(line);
            }
            self.pending.push_back(line);
        }
    }

    /// Reopens connections that were closed for being idle.
    pub(crate) fn warm(&mut self) -> Result<(), Failure> {
        self.send("warm")?;
        self.receive("warm").map(drop)
    }

    /// Lets it acquire and release for a while. Returns the number of pairs, the nanoseconds they took together, and
    /// the 99th percentile of a release in nanoseconds.
    pub(crate) fn pairs(&mut self, keys: &str, time: Duration) -> Result<[u64; 3], Failure> {
        self.send(format_args!("pairs {keys} {}", time.as_millis()))?;
        let words = self.receive("pairs")?;
        Ok([number(&words, 0)?, number(&words, 1)?, number(&words, 2)?])
    }

    /// Lets so many threads acquire and release, and measures them from when all run. Returns the number of pairs, the
    /// nanoseconds they took together, the 99th percentiles of a release and of an acquisition, and the processor time
    /// of the process, in nanoseconds.
    pub(crate) fn steady(&mut self, keys: &str, threads: u32, time: Duration) -> Result<[u64; 5], Failure> {
        self.send(format_args!("steady {keys} {threads} {}", time.as_millis()))?;
        let words = self.receive_within(STEADY_LIMIT + time, "steady")?;
        let numbers = (0..5).map(|at| number(&words, at)).collect::<Result<Vec<_>, _>>()?;
        Ok(numbers.try_into().map_err(|_| "unexpected answer of a worker")?)
    }

    /// Returns the most memory that the process has had, in bytes; `None` where the system does not say.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        Some(peak?.trim().parse::<u64>().ok()? * 1024)
    }

    /// Returns the acquisitions of one lock that it was instructed to make, once all are over, and the lock's key.
    /// `worker` is the worker's number.
    pub(crate) fn acquisitions(&mut self, worker: usize) -> Result<(String, Vec<Acquisition>), Failure> {
        self.acquisitions_within(worker, Duration::ZERO)
    }

    /// The same, where that takes so long.
    pub(crate) fn acquisitions_within(
        &mut self,
        worker: usize,
        time: Duration,
    ) -> Result<(String, Vec<Acquisition>), Failure> {
        let (mut acquisitions, end) = (Vec::new(), Instant::now() + LIMIT + time);
        loop {
            let line = self.receive_one_of(&["acquisition", "done"], end)?;
            if line[0] == "done" {
                return Ok((number(&line, 1)?, acquisitions));
            }
            let thread = (worker, number(&line, 1)?);
            acquisitions.push(Acquisition { thread, entered: number(&line, 2)?, left: number(&line, 3)? });
        }
    }

    /// Lets it acquire a lock and hold it.
    pub(crate) fn acquire(&mut self, key: &str) -> Result<(), Failure> {
        self.send(format_args!("acquire {key}"))?;
        self.receive("held").map(drop)
    }

    /// Lets it release the lock, and returns when it began to.
    pub(crate) fn release(&mut self, key: &str) -> Result<Moment, Failure> {
        self.send(format_args!("release {key}"))?;
        number(&self.receive("released")?, 1)
    }

    /// Returns the processor time it has used, in nanoseconds.
    pub(crate) fn processor_time(&mut self) -> Result<u64, Failure> {
        self.send("cpu")?;
        number(&self.receive("cpu")?, 0)
    }

    /// Kills it on the spot, as the system does when memory runs out.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kill();
    }
}

fn number<T: FromStr>(words: &[String], at: usize) -> Result<T, Failure> {
    let word = words.get(at).and_then(|word| word.parse().ok());
    word.ok_or_else(|| format!("unexpected answer of a worker: {words:?}").into())
}

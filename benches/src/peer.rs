//! A worker process, seen from the process that conducts: starts it, tells it what to do, hears what it answers. Ends with the
//! value that owns it. What workers are told is listed in `worker.rs`.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::candidates::Candidate;
use crate::moment::Moment;

/// How long the lease shows in the key, unless it is to end: longer than any workload.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(120);
/// How long anything may take beyond its own time.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Peer {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// What it said that nobody wanted yet.
    heard: VecDeque<Vec<String>>,
    /// What it says it is.
    pub(crate) version: String,
}

/// A thread had the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Of which worker, and of which of its threads.
    pub(crate) who: (usize, usize),
    pub(crate) entered: Moment,
    /// Before the release.
    pub(crate) left: Moment,
}

impl Peer {
    /// Starts a worker of so many threads, connected.
    pub(crate) fn open(candidate: &Candidate, url: &str, threads: u32) -> Result<Self, Failure> {
        Self::open_leasing(candidate, url, threads, LONG_LEASE)
    }

    /// The same with another lease.
    pub(crate) fn open_leasing(
        candidate: &Candidate,
        url: &str,
        threads: u32,
        lease: Duration,
    ) -> Result<Self, Failure> {
        let mut peer = Self::start(candidate, url)?;
        peer.tell(format_args!("open {threads} {}", lease.as_millis()))?;
        peer.version = peer.hear("ready")?.join(" ");
        Ok(peer)
    }

    fn start(candidate: &Candidate, url: &str) -> Result<Self, Failure> {
        let mut command = candidate.command()?;
        command.env("REDIS_URL", url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "what it runs by is not installed; `make bench` installs it".into(),
            _ => Failure::from(error),
        })?;
        let input = process.stdin.take().ok_or("a worker without input")?;
        let output = BufReader::new(process.stdout.take().ok_or("a worker without output")?);
        let (send, lines) = mpsc::channel();
        // Ends with the worker's output.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Ok(Self { process, input, lines, heard: VecDeque::new(), version: String::new() })
    }

    pub(crate) fn tell(&mut self, what: impl Display) -> Result<(), Failure> {
        let told = writeln!(self.input, "{what}").and_then(|()| self.input.flush());
        // One that is gone has said why.
        told.or_else(|error| self.hear("").map_or_else(Err, |_| Err(error.into())))
    }

    /// Returns the words after `word` of the next line that begins with it.
    fn hear(&mut self, word: &str) -> Result<Vec<String>, Failure> {
        let mut words = self.hear_one_of(&[word], Instant::now() + LIMIT)?;
        words.remove(0);
        Ok(words)
    }

    /// Returns the next line that begins with one of the words. Others are kept for whoever wants them: answers come when
    /// something is done, and several things are done at once.
    fn hear_one_of(&mut self, wanted: &[&str], end: Instant) -> Result<Vec<String>, Failure> {
        let fits = |line: &Vec<String>| line.first().is_some_and(|first| wanted.contains(&first.as_str()));
        if let Some(line) = self.heard.iter().position(fits).and_then(|at| self.heard.remove(at)) {
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
            self.heard.push_back(line);
        }
    }

    /// Opens the connections again that were closed for being idle.
    pub(crate) fn warm(&mut self) -> Result<(), Failure> {
        self.tell("warm")?;
        self.hear("warm").map(drop)
    }

    /// Lets it acquire and release for a while; returns how many pairs there were, how many nanoseconds they took, and how many 99 of
    /// 100 releases take at most.
    pub(crate) fn pairs(&mut self, keys: &str, time: Duration) -> Result<[u64; 3], Failure> {
        self.tell(format_args!("pairs {keys} {}", time.as_millis()))?;
        let words = self.hear("pairs")?;
        Ok([number(&words, 0)?, number(&words, 1)?, number(&words, 2)?])
    }

    /// Returns the turns that it was told to take with one lock, when all are over, and the lock's key; `worker` is its number.
    pub(crate) fn turns(&mut self, worker: usize) -> Result<(String, Vec<Turn>), Failure> {
        let (mut turns, end) = (Vec::new(), Instant::now() + LIMIT);
        loop {
            let line = self.hear_one_of(&["turn", "done"], end)?;
            if line[0] == "done" {
                return Ok((number(&line, 1)?, turns));
            }
            let who = (worker, number(&line, 1)?);
            turns.push(Turn { who, entered: number(&line, 2)?, left: number(&line, 3)? });
        }
    }

    /// Lets it take a lock and keep it.
    pub(crate) fn take(&mut self, key: &str) -> Result<(), Failure> {
        self.tell(format_args!("take {key}"))?;
        self.hear("held").map(drop)
    }

    /// Lets it release the lock, and returns when it began to.
    pub(crate) fn give(&mut self, key: &str) -> Result<Moment, Failure> {
        self.tell(format_args!("give {key}"))?;
        number(&self.hear("gave")?, 1)
    }

    /// Returns the processor time it has used, in nanoseconds.
    pub(crate) fn processor_time(&mut self) -> Result<u64, Failure> {
        self.tell("cpu")?;
        number(&self.hear("cpu")?, 0)
    }

    /// Kills it on the spot, as the system does when memory runs out.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.kill();
    }
}

fn number<T: FromStr>(words: &[String], at: usize) -> Result<T, Failure> {
    let word = words.get(at).and_then(|word| word.parse().ok());
    word.ok_or_else(|| format!("a worker said {words:?}").into())
}

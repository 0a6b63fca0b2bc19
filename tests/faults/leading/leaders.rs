//! Processes of which one leads, and when each did.

use std::io::{BufRead as _, BufReader};
use std::mem;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::Outcome;
use crate::support::notified::until;
use crate::support::tool::example;

pub(super) const LEASE: Duration = Duration::from_secs(2);

/// How many processes there are.
const PROCESSES: usize = 5;

/// The key of the example.
pub(super) const KEY: &str = "setnx-lock:leader-example";

/// What a process has printed: when it led, by steps in each of which it relied on the lock.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) process: u32,
    pub(super) first: Duration,
    pub(super) last: Duration,
    is_over: bool,
}

pub(super) struct Leaders {
    url: String,
    processes: Vec<Child>,
    terms: Arc<Mutex<Vec<Term>>>,
    /// What reads the output of processes.
    readers: Vec<JoinHandle<()>>,
}

impl Leaders {
    pub(super) fn start(url: &str) -> Result<Self, std::io::Error> {
        let (url, terms) = (url.to_owned(), Arc::default());
        let mut leaders = Self { url, processes: Vec::new(), terms, readers: Vec::new() };
        for _ in 0..PROCESSES {
            leaders.add()?;
        }
        Ok(leaders)
    }

    pub(super) fn add(&mut self) -> Result<(), std::io::Error> {
        let mut command = Command::new(example("leader"));
        command.args([&self.url, &LEASE.as_millis().to_string()]);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let (id, terms) = (process.id(), Arc::clone(&self.terms));
        let reader = thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let Some((what, micros)) = line.rsplit_once(' ') else { continue };
                if what == "ready" {
                    continue;
                }
                let at = Duration::from_micros(micros.parse().expect("a time"));
                let mut terms = terms.lock().unwrap_or_else(PoisonError::into_inner);
                let own = terms.iter_mut().rev().find(|term| term.process == id && !term.is_over);
                match (what, own) {
                    ("leads", _) => terms.push(Term { process: id, first: at, last: at, is_over: false }),
                    ("step", Some(term)) => term.last = at,
                    (_, Some(term)) => term.is_over = true,
                    other => panic!("{other:?}"),
                }
            }
        });
        self.readers.push(reader);
        self.processes.push(process);
        Ok(())
    }

    pub(super) fn terms(&self) -> Vec<Term> {
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner).clone();
        terms.sort_by_key(|term| term.first);
        terms
    }

    /// Waits until a term has begun since then. Returns it.
    pub(super) fn next(&self, since: Duration) -> Term {
        let next = || self.terms().into_iter().find(|term| term.first > since && term.last > term.first);
        until("one leads", || next().is_some());
        next().expect("one leads")
    }

    pub(super) fn signal(&mut self, id: u32, signal: Signal) -> Result<Duration, std::io::Error> {
        let process = self.processes.iter().find(|process| process.id() == id).expect("it runs");
        let at = now();
        kill_process(Pid::from_child(process), signal)?;
        Ok(at)
    }

    /// One that has ended is replaced.
    pub(super) fn replace(&mut self, id: u32) -> Outcome {
        let position = self.processes.iter().position(|process| process.id() == id).expect("it ran");
        self.processes.swap_remove(position).wait()?;
        Ok(self.add()?)
    }

    /// Ends all. No two have led at the same time within their leases.
    pub(super) fn end(mut self) -> Result<Vec<Term>, Box<dyn std::error::Error>> {
        for process in &self.processes {
            kill_process(Pid::from_child(process), Signal::TERM)?;
        }
        for process in &mut self.processes {
            let status = process.wait()?;
            // One that has just begun may not handle signals yet.
            let code = status.code().or(status.signal().map(|signal| 128 + signal));
            assert_eq!(code, Some(0), "none has given up");
        }
        for reader in mem::take(&mut self.readers) {
            reader.join().unwrap();
        }
        let terms = self.terms();
        for pair in terms.windows(2) {
            assert!(pair[0].last < pair[1].first, "two have led: {pair:?}");
        }
        Ok(terms)
    }
}

impl Drop for Leaders {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

pub(super) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

//! The account of a run: which thread had the lock when, which worker crashed with it, and what the counter said in the
//! end. Put together from the lines of the logs; the table and the picture are made of it.

use std::time::Duration;

use crate::moment::Moment;
use crate::record::{Line, What};

/// How long it takes at most until a worker has noted that it was granted the lock.
const NOTED: Duration = Duration::from_millis(100);

/// Everything that is known of a run.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) began: Moment,
    pub(crate) ended: Moment,
    /// The workers' process ids; a worker's number is its place in here, from one on.
    pub(crate) pids: Vec<u32>,
    pub(crate) threads: u32,
    pub(crate) expiration: Duration,
    /// In the order of entering.
    pub(crate) acquisitions: Vec<Acquisition>,
    pub(crate) crash: Crash,
    /// What the counter's file says.
    pub(crate) counter: u64,
    /// What should not have happened, in words.
    pub(crate) troubles: Vec<String>,
}

/// One time that a thread had the lock.
#[derive(Clone, Debug)]
pub(crate) struct Acquisition {
    pub(crate) worker: u32,
    pub(crate) thread: u32,
    pub(crate) asked: Moment,
    pub(crate) entered: Moment,
    /// Before the release. Where there was none: the last moment at which the process certainly ran.
    pub(crate) left: Moment,
    pub(crate) counted: bool,
}

/// What was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    /// The worker that had the lock.
    Worker(u32),
    /// The server.
    Master,
}

/// What was killed, and what follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crash {
    pub(crate) victim: Victim,
    /// The last moment at which a worker was seen to run, just
    /// before the kill; the first at which the server did not run.
    pub(crate) at: Moment,
    /// When the worker's lease ended by its own clock, or a Sentinel named the new master.
    pub(crate) lease_end: Moment,
    /// The time that the worker's value in the key names, or when the
    /// new master has settled: from then on others may have the lock.
    pub(crate) expiry: Moment,
}

impl Crash {
    pub(crate) fn is_of(&self, worker: u32) -> bool {
        self.victim == Victim::Worker(worker)
    }
}

impl Account {
    /// Returns the acquisition that took the expired lock over.
    pub(crate) fn takeover(&self) -> Option<&Acquisition> {
        self.acquisitions.iter().find(|acquisition| acquisition.entered >= self.crash.expiry)
    }

    /// Returns how long no process had the lock after the kill.
    pub(crate) fn without_holder(&self) -> Option<Duration> {
        self.takeover().map(|takeover| takeover.entered.since(self.crash.at))
    }

    /// Returns the acquisitions from the kill to the expiry. There must not be any.
    pub(crate) fn intrusions(&self) -> impl Iterator<Item = &Acquisition> {
        // A worker notes a little later that it was granted the lock.
        let from =
            if self.crash.victim == Victim::Master { self.crash.at.after(NOTED) } else { self.crash.at };
        let locked = from..self.crash.expiry;
        self.acquisitions.iter().filter(move |acquisition| locked.contains(&acquisition.entered))
    }
}

/// Puts acquisitions together from lines.
#[derive(Debug, Default)]
pub(crate) struct Acquisitions {
    open: Vec<Acquisition>,
    done: Vec<Acquisition>,
    pub(crate) troubles: Vec<String>,
}

impl Acquisitions {
    pub(crate) fn add(&mut self, worker: u32, line: Line) {
        let thread = line.thread;
        match line.what {
            What::Entered { asked, at } => {
                let (entered, left) = (at, at);
                self.open.push(Acquisition { worker, thread, asked, entered, left, counted: false });
            }
            What::Leaves { at, counted } => {
                let open = self.open.iter().position(|open| open.worker == worker && open.thread == thread);
                let done = open.map(|open| self.open.swap_remove(open));
                self.done.extend(done.map(|done| Acquisition { left: at, counted, ..done }));
                if !counted {
                    self.troubles.push(format!(
                        "worker {worker}, thread {thread}: did not count, since its lease had expired"
                    ));
                }
            }
            What::Trouble(words) => self.troubles.push(format!("worker {worker}, thread {thread}: {words}")),
            What::Keeps { .. } => {}
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.open.len() + self.done.len()
    }

    /// Returns the first acquisition from this moment on.
    pub(crate) fn first_from(&self, moment: Moment) -> Option<Acquisition> {
        let all = self.done.iter().chain(&self.open);
        all.filter(|one| one.entered >= moment).min_by_key(|one| one.entered).cloned()
    }

    /// Returns all acquisitions in the order of entering. The last one of the crashed worker ends with the crash.
    pub(crate) fn finish(mut self, crash: Crash, ended: Moment) -> Vec<Acquisition> {
        for mut open in self.open {
            open.left = if crash.is_of(open.worker) { crash.at } else { ended };
            self.done.push(open);
        }
        self.done.sort_by_key(|acquisition| acquisition.entered);
        self.done
    }
}

//! The account of a run: who had the lock when, how one died with it, and what the counter said in the end. Put together
//! from the logs' lines; the table and the picture are made of it.

use std::time::Duration;

use crate::moment::Moment;
use crate::record::{Line, What};

/// Everything that is known of a run.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) began: Moment,
    pub(crate) ended: Moment,
    /// The workers' process ids; a worker's number is its place in here, from one on.
    pub(crate) pids: Vec<u32>,
    pub(crate) threads: u16,
    pub(crate) expiration: Duration,
    /// In the order of entering.
    pub(crate) turns: Vec<Turn>,
    pub(crate) death: Death,
    /// What the counter's file says.
    pub(crate) counter: u64,
    /// What should not have happened, in words.
    pub(crate) troubles: Vec<String>,
}

/// One turn with the lock.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) worker: u16,
    pub(crate) thread: u16,
    pub(crate) asked: Moment,
    pub(crate) entered: Moment,
    /// For a turn that never ended, when its process or the run did.
    pub(crate) left: Moment,
    pub(crate) counted: bool,
}

/// How a worker died with the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    pub(crate) worker: u16,
    pub(crate) at: Moment,
    /// Until when the lock was promised to it.
    pub(crate) promised: Moment,
    /// The time that its value in the key names, from which on others may take over.
    pub(crate) expiry: Moment,
}

impl Account {
    /// Returns the turn that took over from the dead.
    pub(crate) fn takeover(&self) -> Option<&Turn> {
        self.turns.iter().find(|turn| turn.entered >= self.death.expiry)
    }

    /// Returns the turns that began while the dead worker's lease lasted. There must not be any.
    pub(crate) fn intrusions(&self) -> impl Iterator<Item = &Turn> {
        let death = self.death;
        self.turns.iter().filter(move |turn| (death.at..death.expiry).contains(&turn.entered))
    }
}

/// Puts turns together from lines.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    open: Vec<Turn>,
    done: Vec<Turn>,
    pub(crate) troubles: Vec<String>,
}

impl Turns {
    pub(crate) fn add(&mut self, worker: u16, line: Line) {
        let thread = line.thread;
        match line.what {
            What::Entered { asked, at } => {
                self.open.push(Turn { worker, thread, asked, entered: at, left: at, counted: false });
            }
            What::Leaves { at, counted } => {
                let open = self.open.iter().position(|turn| turn.worker == worker && turn.thread == thread);
                self.done.extend(open.map(|open| Turn { left: at, counted, ..self.open.swap_remove(open) }));
                if !counted {
                    self.troubles.push(format!(
                        "worker {worker}, thread {thread}: gave a count up, its lease had passed"
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

    /// Returns the turn that was entered first from this moment on.
    pub(crate) fn first_from(&self, moment: Moment) -> Option<Turn> {
        let turns = self.done.iter().chain(&self.open);
        turns.filter(|turn| turn.entered >= moment).min_by_key(|turn| turn.entered).cloned()
    }

    /// Returns all turns in the order of entering. The dead worker's last one ends with its death.
    pub(crate) fn finish(mut self, death: Death, ended: Moment) -> Vec<Turn> {
        for mut turn in self.open {
            turn.left = if turn.worker == death.worker { death.at } else { ended };
            self.done.push(turn);
        }
        self.done.sort_by_key(|turn| turn.entered);
        self.done
    }
}

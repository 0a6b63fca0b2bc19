//! An attempt that a test steps, and what it does next.

use std::sync::Arc;

use setnx_lock_proto::acquire::{Params, acquire};
use setnx_lock_proto::choose::Attempts;
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::task::{Io, Rules, Task};
use setnx_lock_proto::values::{Key, Now};
use setnx_lock_proto::{Command, Cue, GiveUp, Note, Pause, Replies, Reply, Step, Trip};

/// What is done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// SETNX of one, and MGET of all behind it.
    Ask {
        slot: usize,
        trip: Trip,
    },
    /// MGET of all.
    Look,
    Send {
        slot: usize,
        trip: Trip,
    },
    Sleep(Pause),
    Held(Held),
    GiveUp(GiveUp),
}

/// The lock that was acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub slot: usize,
    pub lease: Lease,
    pub another_is_free: bool,
}

/// An attempt that a test steps.
#[derive(Debug)]
pub struct Stepped {
    pub task: Task<(Held, Vec<(usize, Lease)>)>,
    /// What else may have been acquired.
    pub owed: Vec<(usize, Lease)>,
}

impl Stepped {
    pub fn start(params: Params, slots: usize, now: Now) -> (Self, Action) {
        let slots: Arc<[Key]> = (0..slots).map(|slot| Key::from(format!("k{slot}"))).collect();
        let begin = async move |io: &Io| {
            let mut attempts = Attempts::new(params, Some(&slots));
            let lease = acquire(io, &mut attempts, Cue::Ask).await?;
            let held = Held { slot: io.slot(), lease, another_is_free: attempts.another_is_free() };
            Ok((held, attempts.into_unresolved().into_owed().collect()))
        };
        let (task, step) = Task::begin(now, begin);
        let mut stepped = Self { task, owed: Vec::new() };
        let action = stepped.action(step);
        (stepped, action)
    }

    fn action(&mut self, step: Step<(Held, Vec<(usize, Lease)>)>) -> Action {
        let slot = self.task.io().slot();
        match step {
            Step::Send(trip) if matches!(trip.command, Command::GetAll(_)) => Action::Look,
            Step::Send(trip) if trip.behind.is_some() => Action::Ask { slot, trip },
            Step::Send(trip) => Action::Send { slot, trip },
            Step::Sleep(pause) => Action::Sleep(pause),
            Step::Done((held, owed)) => {
                self.owed = owed;
                Action::Held(held)
            }
            Step::GiveUp(reason) => Action::GiveUp(reason),
        }
    }

    pub fn asked(&mut self, set: &Reply, found: &Reply, now: Now) -> Action {
        self.reply(Replies { behind: Some(found.clone()), ..set.clone().into() }, now)
    }

    pub fn reply(&mut self, replies: impl Into<Replies>, now: Now) -> Action {
        let step = self.task.resume(replies, now);
        self.action(step)
    }

    pub fn wake(&mut self, cue: Cue, now: Now) -> Action {
        let step = self.task.wake(cue, now);
        self.action(step)
    }

    pub fn woken(&mut self, now: Now) -> Action {
        self.wake(Cue::Look, now)
    }

    pub fn handed_over(&mut self, slot: usize, lease: Lease, in_doubt: bool, now: Now) -> Action {
        self.task.io().on(slot);
        self.wake(Cue::HandedOver { lease, in_doubt }, now)
    }

    pub fn notes(&self) -> Vec<(usize, Note)> {
        self.task.io().take_notes()
    }
}

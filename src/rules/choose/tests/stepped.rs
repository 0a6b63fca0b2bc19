//! An attempt that a test steps, and what it does next.

use std::sync::Arc;

use crate::rules::acquire::Params;
use crate::rules::choose::{Attempts, acquire};
use crate::rules::lease::Lease;
use crate::rules::task::{Io, Rules, Task};
use crate::rules::{Command, Cue, GiveUp, Note, Pause, Replies, Reply, Step, Trip};
use crate::values::clock::Now;
use crate::values::key::Key;

/// What is done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
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
pub(super) struct Held {
    pub(super) slot: usize,
    pub(super) lease: Lease,
    pub(super) another_is_free: bool,
}

/// An attempt that a test steps.
pub(super) struct Stepped {
    pub(super) task: Task<(Held, Vec<(usize, Lease)>)>,
    /// What else was acquired.
    pub(super) surplus: Vec<(usize, Lease)>,
}

impl Stepped {
    pub(super) fn start(params: Params, slots: usize, now: Now) -> (Self, Action) {
        let slots: Arc<[Key]> = (0..slots).map(|slot| Key::from(format!("k{slot}"))).collect();
        let begin = async move |io: &Io| {
            let mut attempts = Attempts::new(params, Some(&slots));
            let lease = acquire(io, &mut attempts, Cue::Ask).await?;
            let held = Held { slot: io.slot(), lease, another_is_free: attempts.another_is_free() };
            let Attempts::OfSeveral(choice) = attempts else { unreachable!("there are several") };
            Ok((held, choice.surplus))
        };
        let (task, step) = Task::begin(now, begin);
        let mut stepped = Self { task, surplus: Vec::new() };
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
            Step::Done((held, surplus)) => {
                self.surplus = surplus;
                Action::Held(held)
            }
            Step::GiveUp(reason) => Action::GiveUp(reason),
        }
    }

    pub(super) fn asked(&mut self, set: &Reply, found: &Reply, now: Now) -> Action {
        self.reply(Replies { behind: Some(found.clone()), ..set.clone().into() }, now)
    }

    pub(super) fn reply(&mut self, replies: impl Into<Replies>, now: Now) -> Action {
        let step = self.task.resume(replies, now);
        self.action(step)
    }

    pub(super) fn wake(&mut self, cue: Cue, now: Now) -> Action {
        let step = self.task.wake(cue, now);
        self.action(step)
    }

    pub(super) fn woken(&mut self, now: Now) -> Action {
        self.wake(Cue::Look, now)
    }

    pub(super) fn handed_over(&mut self, slot: usize, lease: Lease, in_doubt: bool, now: Now) -> Action {
        self.task.io().on(slot);
        self.wake(Cue::HandedOver { lease, in_doubt }, now)
    }

    pub(super) fn notes(&self) -> Vec<(usize, Note)> {
        self.task.io().take_notes()
    }
}

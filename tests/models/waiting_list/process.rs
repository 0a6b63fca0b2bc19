//! One process: a thread that holds the lock, a thread at the head
//! of the queue, others behind it, and the thread that listens.

use setnx_lock_proto::values::Uptime;
use setnx_lock_proto::waiting_list::{ListEntry, Owed, Waiting};

use super::{Action, Behavior, Server};

/// What the head of the queue does next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// None is queued.
    Idle,
    /// SETNX.
    Set,
    /// A command on the list, then a look.
    Enter(Waiting),
    /// GET.
    Look,
    /// A command on the list, then a look, by a thread that leaves the lock to another process.
    EnterLeaving(Waiting),
    /// GET. If the lock is held, it sleeps until it is notified.
    LookLeaving,
    /// It leaves the lock to another process for a while.
    Leaving,
    Asleep,
}

/// What a thread does next that releases, listens, or has left the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    No,
    /// It has deleted the key. What it does with the list.
    Take(Waiting),
    Publish(usize),
    /// It has left the queue without the lock. Whether it had a hint that the lock is free.
    Left(bool),
    /// LREM.
    Remove,
    /// A notification goes to a thread that waits.
    Deliver,
    /// LPOP, for a notification that no thread wants.
    TakeUnused,
    PublishUnused(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Hint {
    Changed,
    Freed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    number: usize,
    /// How often threads are still to be queued at the head, and then behind it.
    pub(super) left: u8,
    behind: u8,
    gives_up: bool,
    pub(super) step: Step,
    hint: Option<Hint>,
    entry: ListEntry,
    pub(super) is_holding: bool,
    /// Threads that release: the next may hold the lock before they are done.
    releasers: Vec<Pass>,
    /// The thread that listens, and a thread that leaves.
    listener: Pass,
    leaver: Pass,
    /// It has notified another process lately.
    has_notified: bool,
}

impl Process {
    pub(super) fn of(number: usize, behavior: Behavior) -> Self {
        Self {
            number,
            left: behavior.holds,
            behind: behavior.behind,
            gives_up: behavior.gives_up,
            step: Step::Idle,
            hint: None,
            entry: ListEntry::Out,
            is_holding: false,
            releasers: Vec::new(),
            listener: Pass::No,
            leaver: Pass::No,
            has_notified: false,
        }
    }

    /// Whether the queue knows of a thread of this process that has the lock.
    fn is_held(&self) -> bool {
        self.is_holding || !self.releasers.is_empty()
    }

    fn channel(&self) -> Vec<u8> {
        vec![u8::try_from(self.number).unwrap()]
    }

    /// Whether a thread is queued.
    fn is_waited_for(&self) -> bool {
        self.step != Step::Idle
    }

    pub(super) fn actions(&self, server: &Server) -> Vec<Action> {
        let mut actions = Vec::new();
        match &self.step {
            Step::Idle if self.left > 0 => {
                actions.push(Action::Comes { head_start: false });
                if self.has_notified {
                    actions.push(Action::Comes { head_start: true });
                }
            }
            Step::Idle => {}
            Step::Asleep if self.hint.is_none() => {}
            Step::Leaving if self.hint.is_none() => actions.push(Action::TimeIsOver),
            Step::Leaving => actions.extend([Action::Head, Action::TimeIsOver]),
            _ => actions.push(Action::Head),
        }
        let may_leave = matches!(self.step, Step::Set | Step::Leaving | Step::Asleep);
        if self.gives_up && may_leave && self.leaver == Pass::No {
            actions.push(Action::GivesUp);
        }
        if self.is_holding {
            actions.push(Action::Releases);
        }
        actions.extend((0..self.releasers.len()).map(Action::Releaser));
        if self.is_holding && self.step == Step::Asleep && self.hint.is_none() {
            actions.push(Action::PassesWithin);
        }
        if server.messages[self.number] > 0 && self.listener == Pass::No {
            actions.push(Action::Receives);
        }
        if self.listener != Pass::No {
            actions.push(Action::Listener);
        }
        if self.leaver != Pass::No {
            actions.push(Action::Leaver);
        }
        actions
    }

    pub(super) fn act(&mut self, action: Action, server: &mut Server) {
        match action {
            Action::Comes { head_start } => {
                self.left -= 1;
                self.step = Step::Set;
                if head_start {
                    self.step = match if self.is_held() { None } else { self.enter() } {
                        Some(waiting) => Step::EnterLeaving(waiting),
                        None => Step::Leaving,
                    };
                }
            }
            Action::Head => self.head(server),
            Action::TimeIsOver => self.step = Step::Set,
            Action::GivesUp => {
                let hint = self.hint.take();
                if self.behind > 0 {
                    // The next becomes the head, with the hint.
                    self.behind -= 1;
                    self.hint = hint;
                    self.step = if self.is_held() { Step::Asleep } else { Step::Set };
                } else {
                    self.step = Step::Idle;
                    self.leaver = Pass::Left(hint == Some(Hint::Freed));
                }
            }
            Action::Releases => {
                let channel = self.channel();
                let follows = self.is_waited_for();
                let waiting = if follows {
                    self.entry.next_behind(&channel, true, Uptime::default())
                } else {
                    Waiting::Next
                };
                (self.is_holding, server.holder) = (false, None);
                self.releasers.push(Pass::Take(waiting));
            }
            Action::Releaser(n) => {
                let pass = self.releasers.remove(n);
                self.release(&pass, server);
            }
            Action::PassesWithin => {
                self.next_head();
                self.entry.acquired();
            }
            Action::Receives => {
                server.messages[self.number] -= 1;
                self.has_notified = false;
                self.entry = ListEntry::Notified;
                self.listener = Pass::Deliver;
            }
            Action::Listener => {
                let pass = std::mem::replace(&mut self.listener, Pass::No);
                self.listener = self.pass_on(&pass, server);
            }
            Action::Leaver => {
                let pass = std::mem::replace(&mut self.leaver, Pass::No);
                self.leaver = self.pass_on(&pass, server);
            }
        }
    }

    fn enter(&mut self) -> Option<Waiting> {
        let channel = self.channel();
        self.entry.enter(&channel, true, Uptime::default())
    }

    /// What precedes a look; none where a thread of this process holds the lock.
    fn look(&mut self, look: Step) -> Step {
        if self.is_held() {
            return look;
        }
        self.enter().map_or(look, Step::Enter)
    }

    /// The head has the lock, and the next in the queue becomes the head. It knows what that has seen, and sleeps.
    fn next_head(&mut self) {
        self.hint = None;
        self.step = Step::Idle;
        if self.behind > 0 {
            self.behind -= 1;
            self.step = Step::Asleep;
        }
    }

    fn head(&mut self, server: &mut Server) {
        let number = self.number;
        match std::mem::replace(&mut self.step, Step::Idle) {
            Step::Idle => unreachable!("there is none"),
            Step::Set if server.holder.is_none() => {
                server.holder = Some(number);
                self.has_notified = false;
                self.entry.acquired();
                self.next_head();
                self.is_holding = true;
            }
            Step::Set => self.step = self.look(Step::Look),
            Step::Enter(waiting) => {
                self.carry_out(&waiting, server);
                self.step = Step::Look;
            }
            Step::Look if server.holder.is_none() => self.step = Step::Set,
            // Before it sleeps it is entered, if that is due since the holder of this process has gone.
            Step::Look => self.step = self.look(Step::Asleep),
            Step::EnterLeaving(waiting) => {
                self.carry_out(&waiting, server);
                self.step = Step::LookLeaving;
            }
            Step::LookLeaving if server.holder.is_none() => self.step = Step::Leaving,
            Step::LookLeaving => self.step = Step::Asleep,
            Step::Leaving => {
                self.hint = None;
                self.step = Step::Set;
            }
            Step::Asleep => {
                self.step = match self.hint.take() {
                    Some(Hint::Freed) => Step::Set,
                    Some(Hint::Changed) => self.look(Step::Look),
                    None => unreachable!("it has no reason to wake"),
                };
            }
        }
    }

    /// Carries out a command that enters the list.
    fn carry_out(&mut self, waiting: &Waiting, server: &mut Server) {
        match waiting {
            Waiting::Enter { .. } => server.list.push(self.number),
            Waiting::Check { .. } => {
                let is_there = server.list.contains(&self.number);
                if self.entry.found(is_there)
                    && let Some(again) = self.enter()
                {
                    self.carry_out(&again, server);
                }
            }
            other => unreachable!("{other:?} enters nothing"),
        }
    }

    fn release(&mut self, pass: &Pass, server: &mut Server) {
        let mut give = None;
        match pass {
            Pass::Take(Waiting::NextAfter { .. }) => {
                server.list.push(self.number);
                self.releasers.push(Pass::Take(Waiting::Next));
            }
            Pass::Take(_) => match Self::taken(server) {
                None => give = Some(Hint::Freed),
                Some(own) if own == self.number => {
                    self.entry = ListEntry::Notified;
                    if self.is_waited_for() {
                        give = Some(Hint::Freed);
                    } else {
                        self.entry = ListEntry::Out;
                        self.releasers.push(Pass::Take(Waiting::Next));
                    }
                }
                Some(other) => self.releasers.push(Pass::Publish(other)),
            },
            Pass::Publish(other) => {
                server.messages[*other] += 1;
                self.has_notified = true;
                if !self.entry.is_listed() {
                    give = Some(Hint::Changed);
                }
            }
            _ => unreachable!("the holder releases"),
        }
        if let Some(hint) = give {
            self.give(hint);
        }
    }

    fn give(&mut self, hint: Hint) -> bool {
        if self.is_waited_for() {
            self.hint = self.hint.max(Some(hint));
        }
        self.is_waited_for()
    }

    fn taken(server: &mut Server) -> Option<usize> {
        (!server.list.is_empty()).then(|| server.list.remove(0))
    }

    /// A notification that came, or what a thread owes that has left.
    fn pass_on(&mut self, pass: &Pass, server: &mut Server) -> Pass {
        match pass {
            Pass::Left(notified) => match self.entry.owes(*notified, self.is_waited_for()) {
                Owed::Nothing => Pass::No,
                Owed::Notification => Pass::Deliver,
                Owed::Entry => {
                    self.entry = ListEntry::Out;
                    Pass::Remove
                }
            },
            Pass::Remove => {
                if let Some(first) = server.list.iter().position(|entry| *entry == self.number) {
                    server.list.remove(first);
                }
                self.entry.doubt();
                self.give(Hint::Changed);
                Pass::No
            }
            Pass::Deliver if self.give(Hint::Freed) => Pass::No,
            Pass::Deliver => {
                self.entry = ListEntry::Out;
                Pass::TakeUnused
            }
            Pass::TakeUnused => match Self::taken(server) {
                Some(own) if own == self.number => {
                    self.entry = ListEntry::Notified;
                    if self.give(Hint::Freed) {
                        return Pass::No;
                    }
                    self.entry = ListEntry::Out;
                    Pass::TakeUnused
                }
                Some(other) => Pass::PublishUnused(other),
                None => {
                    self.give(Hint::Freed);
                    Pass::No
                }
            },
            Pass::PublishUnused(other) => {
                server.messages[*other] += 1;
                self.has_notified = true;
                Pass::No
            }
            _ => unreachable!("it has nothing to pass on"),
        }
    }
}

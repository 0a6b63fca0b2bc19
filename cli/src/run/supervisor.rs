//! What is to be done while the command runs: pure, so that each rule is tested without processes. The command has a
//! process group of its own, so that all of it can be ended; therefore signals have to be passed on to it, and the
//! terminal too when it asks for it.

use nix::sys::signal::Signal;

use super::event::Event;
use crate::arguments::OnLoss;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send a signal to the command's process group.
    Send(Signal),
    /// SIGTERM was sent; after the grace comes [`Event::GraceOver`].
    EndWithin,
    Kill,
    /// Make the command's process group the one that reads from the terminal.
    GiveTerminal,
    TakeTerminal,
    /// Stop this process, or all of its group, as the shell expects of a job.
    Stop {
        all: bool,
    },
}

#[derive(Debug)]
pub(super) struct Supervisor {
    on_loss: OnLoss,
    is_lost: bool,
    /// True if it was told to end.
    is_ending: bool,
    /// By which signal the command was stopped.
    stopped_by: Option<Signal>,
    /// True if the command's process group has the terminal, or is to have it again.
    has_terminal: bool,
}

impl Supervisor {
    pub(super) fn new(on_loss: OnLoss) -> Self {
        Self { on_loss, is_lost: false, is_ending: false, stopped_by: None, has_terminal: false }
    }

    /// Returns what is to be done; `is_ours` says whether this process's group has the terminal.
    pub(super) fn on(&mut self, event: &Event, is_ours: bool) -> Vec<Action> {
        match event {
            Event::Signal(signal) => {
                let mut actions = vec![Action::Send(*signal)];
                // A stopped command would not notice that it is to end.
                if self.stopped_by.is_some() && event.ending_signal().is_some() {
                    actions.push(self.go_on());
                }
                actions
            }
            Event::Lost(_) if std::mem::replace(&mut self.is_lost, true) => Vec::new(),
            Event::Lost(_) => match self.on_loss {
                OnLoss::Term => self.end(),
                OnLoss::Kill => vec![Action::Kill],
                OnLoss::Warn => Vec::new(),
            },
            Event::Overran => self.end(),
            Event::GraceOver => vec![Action::Kill],
            Event::Look => Vec::new(),
            // It wants the terminal, and may have it.
            Event::Stopped(Signal::SIGTTIN | Signal::SIGTTOU) if is_ours => {
                self.has_terminal = true;
                vec![Action::GiveTerminal, self.go_on()]
            }
            Event::Stopped(signal @ (Signal::SIGTTIN | Signal::SIGTTOU | Signal::SIGTSTP)) => {
                self.stopped_by = Some(*signal);
                vec![Action::Stop { all: self.has_terminal }]
            }
            // By `kill -STOP`: the command only.
            Event::Stopped(signal) => {
                self.stopped_by = Some(*signal);
                Vec::new()
            }
            // It would be stopped again and again: as Linux treats jobs that no shell can resume.
            Event::Resumed { was_stopped: false } if self.stopped_by != Some(Signal::SIGTSTP) => {
                vec![Action::Send(Signal::SIGHUP), self.go_on()]
            }
            Event::Resumed { .. } => {
                // In the background it has to ask again.
                self.has_terminal &= is_ours;
                let terminal = self.has_terminal.then_some(Action::GiveTerminal);
                terminal.into_iter().chain([self.go_on()]).collect()
            }
            Event::Ended(_) if self.has_terminal => vec![Action::TakeTerminal],
            Event::Ended(_) => Vec::new(),
        }
    }

    /// Tells the command once that it is to end.
    fn end(&mut self) -> Vec<Action> {
        if std::mem::replace(&mut self.is_ending, true) {
            return Vec::new();
        }
        vec![Action::Send(Signal::SIGTERM), self.go_on(), Action::EndWithin]
    }

    fn go_on(&mut self) -> Action {
        self.stopped_by = None;
        Action::Send(Signal::SIGCONT)
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Loss, Status};
    use super::*;
    use Signal::{SIGCONT, SIGHUP, SIGINT, SIGSTOP, SIGTERM, SIGTSTP, SIGTTIN};
    use setnx_lock::LossReason;

    const RESUMED: Event = Event::Resumed { was_stopped: true };
    const CONTINUE: Action = Action::Send(SIGCONT);

    fn lost() -> Event {
        Event::Lost(Loss { key: "k".into(), reason: LossReason::Gone })
    }

    #[test]
    fn signals_are_passed_on_and_wake_a_stopped_command() {
        let mut supervisor = Supervisor::new(OnLoss::Term);
        assert_eq!(supervisor.on(&Event::Signal(SIGINT), true), [Action::Send(SIGINT)]);
        assert_eq!(supervisor.on(&Event::Signal(SIGTSTP), true), [Action::Send(SIGTSTP)]);
        assert_eq!(supervisor.on(&Event::Stopped(SIGSTOP), true), []);
        assert_eq!(supervisor.on(&Event::Signal(SIGHUP), true), [Action::Send(SIGHUP), CONTINUE]);
        assert_eq!(supervisor.on(&Event::Signal(SIGHUP), true), [Action::Send(SIGHUP)]);
    }

    #[test]
    fn a_loss_ends_the_command_once_also_if_it_is_stopped() {
        let mut supervisor = Supervisor::new(OnLoss::Term);
        assert_eq!(supervisor.on(&lost(), true), [Action::Send(SIGTERM), CONTINUE, Action::EndWithin]);
        assert_eq!(supervisor.on(&lost(), true), []);
        assert_eq!(supervisor.on(&Event::GraceOver, true), [Action::Kill]);
        assert_eq!(Supervisor::new(OnLoss::Kill).on(&lost(), true), [Action::Kill]);
        assert_eq!(Supervisor::new(OnLoss::Warn).on(&lost(), true), []);
    }

    #[test]
    fn a_command_that_runs_too_long_is_told_once_to_end() {
        const END: [Action; 3] = [Action::Send(SIGTERM), CONTINUE, Action::EndWithin];
        let mut supervisor = Supervisor::new(OnLoss::Term);
        assert_eq!(supervisor.on(&Event::Overran, true), END);
        assert_eq!(supervisor.on(&lost(), true), [], "it is ending");
        let mut supervisor = Supervisor::new(OnLoss::Kill);
        assert_eq!(supervisor.on(&Event::Overran, true), END);
        assert_eq!(supervisor.on(&lost(), true), [Action::Kill], "it must not take its time");
        let mut supervisor = Supervisor::new(OnLoss::Term);
        assert_eq!(
            (supervisor.on(&lost(), true), supervisor.on(&Event::Overran, true)),
            (END.into(), vec![])
        );
        assert_eq!(Supervisor::new(OnLoss::Warn).on(&Event::Overran, true), END);
    }

    #[test]
    fn a_job_is_stopped_and_resumed_as_one() {
        let mut supervisor = Supervisor::new(OnLoss::Term);
        assert_eq!(supervisor.on(&Event::Stopped(SIGTSTP), true), [Action::Stop { all: false }]);
        assert_eq!(supervisor.on(&RESUMED, true), [CONTINUE]);
        assert_eq!(supervisor.on(&Event::Ended(Status::Exited(0)), true), []);
    }

    #[test]
    fn a_command_that_no_shell_can_resume_is_not_stopped_for_ever() {
        let mut supervisor = Supervisor::new(OnLoss::Term);
        let not_stopped = Event::Resumed { was_stopped: false };
        assert_eq!(supervisor.on(&Event::Stopped(SIGTSTP), true), [Action::Stop { all: false }]);
        assert_eq!(supervisor.on(&not_stopped, true), [CONTINUE]);
        assert_eq!(supervisor.on(&Event::Stopped(SIGTTIN), false), [Action::Stop { all: false }]);
        assert_eq!(supervisor.on(&not_stopped, false), [Action::Send(SIGHUP), CONTINUE]);
    }

    #[test]
    fn the_terminal_is_given_where_it_is_asked_for_and_taken_back() {
        let mut supervisor = Supervisor::new(OnLoss::Term);
        assert_eq!(
            supervisor.on(&Event::Stopped(SIGTTIN), false),
            [Action::Stop { all: false }],
            "in the background"
        );
        assert_eq!(supervisor.on(&RESUMED, true), [CONTINUE], "fg");
        assert_eq!(supervisor.on(&Event::Stopped(SIGTTIN), true), [Action::GiveTerminal, CONTINUE]);
        assert_eq!(supervisor.on(&Event::Stopped(SIGTSTP), false), [Action::Stop { all: true }], "Ctrl-Z");
        assert_eq!(supervisor.on(&RESUMED, true), [Action::GiveTerminal, CONTINUE], "fg");
        assert_eq!(supervisor.on(&Event::Stopped(SIGTSTP), false), [Action::Stop { all: true }], "Ctrl-Z");
        assert_eq!(supervisor.on(&RESUMED, false), [CONTINUE], "bg");
        assert_eq!(supervisor.on(&Event::Stopped(SIGTTIN), true), [Action::GiveTerminal, CONTINUE]);
        assert_eq!(supervisor.on(&Event::Ended(Status::Exited(0)), false), [Action::TakeTerminal]);
    }
}

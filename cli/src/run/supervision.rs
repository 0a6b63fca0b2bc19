//! Runs the command under a lock, and carries out what the supervisor says meanwhile.

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::child;
use super::event::{Event, Loss, Status};
use super::events::RunEvent;
use super::group::{self, Group};
use super::guardian::Guard;
use super::session::Session;
use super::supervisor::{Action, Supervisor};
use super::terminal;
use super::wanted::Hold;
use crate::arguments::{OnLoss, Run};
use crate::failure::Failure;
use crate::output;

/// How often the clocks are looked at while the command runs.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
/// How often a process group is looked at that outlives the command.
const GROUP_LOOK: Duration = Duration::from_millis(50);

/// How a command has run.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) status: Status,
    pub(super) loss: Option<Loss>,
    /// True if it was ended after the longest time that it may run.
    pub(super) overran: bool,
    /// The numbers of the signals that were passed on to it.
    signals: BTreeSet<i32>,
}

impl Outcome {
    /// Returns true if a signal ended the command that this process was sent.
    pub(super) fn is_by_passed_signal(&self) -> bool {
        matches!(self.status, Status::Signaled(signal) if self.signals.contains(&signal))
    }
}

/// Runs the command, and waits until it has ended.
pub(super) fn supervise(arguments: &Run, session: &Session, hold: Hold<'_>) -> Result<Outcome, Failure> {
    group::adopt_orphans();
    let guard = Guard::start(arguments);
    let group = child::spawn(arguments, hold, &guard, &session.events)?;
    let expires_at = hold.expires_at();
    output::event(None, &RunEvent::started(group.id().as_raw(), expires_at));
    let events = session.events.clone();
    hold.on_loss(move || {
        // Once the command has ended there is nothing to be done about it.
        let _ = events.send(Event::Look);
    });
    let outcome = Supervision::new(arguments, hold, &group).wait(&session.received);
    guard.dismiss();
    Ok(outcome)
}

struct Supervision<'a> {
    arguments: &'a Run,
    hold: Hold<'a>,
    group: &'a Group,
    supervisor: Supervisor,
    loss: Option<Loss>,
    overran: bool,
    signals: BTreeSet<i32>,
    overruns_at: Option<Instant>,
    kill_at: Option<Instant>,
}

impl<'a> Supervision<'a> {
    fn new(arguments: &'a Run, hold: Hold<'a>, group: &'a Group) -> Self {
        Self {
            arguments,
            hold,
            group,
            supervisor: Supervisor::new(arguments.on_loss),
            loss: None,
            overran: false,
            signals: BTreeSet::new(),
            overruns_at: arguments.max_runtime.and_then(|time| Instant::now().checked_add(time)),
            kill_at: None,
        }
    }

    fn wait(mut self, received: &Receiver<Event>) -> Outcome {
        let mut ended = None;
        loop {
            if let Some(status) = ended
                && !self.group.exists()
            {
                return self.outcome(status);
            }
            let Some(event) = self.next(received, ended.is_some()) else { continue };
            // No shell could resume what the command has left behind.
            if ended.is_some() && matches!(event, Event::Signal(Signal::SIGTSTP)) {
                continue;
            }
            self.note(&event);
            let mut actions = self.supervisor.on(&event, terminal::is_ours());
            if let Event::Ended(status) = event {
                self.carry_out(&actions);
                if self.overran || self.loss.is_some() && self.arguments.on_loss != OnLoss::Warn {
                    // What the command has left behind ends with it.
                    self.group.end_rest(self.kill_at);
                }
                output::event(None, &RunEvent::ended(status));
                if !self.arguments.wait_group {
                    return self.outcome(status);
                }
                self.group.resume();
                ended = Some(status);
                continue;
            }
            while let Some(was_stopped) = self.carry_out(&actions) {
                // After a stop: the lease may have passed meanwhile.
                actions = match self.hold.loss() {
                    Some(loss) => {
                        let event = Event::Lost(loss);
                        self.note(&event);
                        self.supervisor.on(&event, terminal::is_ours())
                    }
                    None => Vec::new(),
                };
                actions.extend(self.supervisor.on(&Event::Resumed { was_stopped }, terminal::is_ours()));
            }
        }
    }

    fn outcome(self, status: Status) -> Outcome {
        Outcome { status, loss: self.loss, overran: self.overran, signals: self.signals }
    }

    /// Waits for an event, but not long.
    fn next(&mut self, received: &Receiver<Event>, has_ended: bool) -> Option<Event> {
        let now = Instant::now();
        let due = [self.kill_at, self.overruns_at].into_iter().flatten().min();
        let look = self.until_next_look(has_ended);
        let left = due.map_or(look, |due| look.min(due.saturating_duration_since(now)));
        match received.recv_timeout(left) {
            Ok(Event::Look) | Err(_) => {}
            Ok(event) => return Some(event),
        }
        let is_over = |at: &mut Option<Instant>| at.take_if(|at| *at <= Instant::now()).is_some();
        if is_over(&mut self.kill_at) {
            return Some(Event::GraceOver);
        }
        if is_over(&mut self.overruns_at) {
            return Some(Event::Overran);
        }
        // The keeper thread of the locker may be waiting for a server that hangs.
        self.hold.loss().filter(|_| self.loss.is_none()).map(Event::Lost)
    }

    fn note(&mut self, event: &Event) {
        match event {
            Event::Lost(loss) => _ = self.loss.get_or_insert_with(|| loss.clone()),
            Event::Overran => self.overran = true,
            Event::Signal(signal) => _ = self.signals.insert(*signal as i32),
            _ => {}
        }
    }

    /// How long no event is waited for: until the lease ends, and not long, since a clock may be set.
    fn until_next_look(&self, has_ended: bool) -> Duration {
        if has_ended {
            return GROUP_LOOK;
        }
        let left = self.hold.remaining().filter(|_| self.loss.is_none());
        left.map_or(LONGEST_LOOK, |left| left.clamp(SHORTEST_LOOK, LONGEST_LOOK))
    }

    /// Returns true if this process was stopped, if it was to be, and goes on.
    fn carry_out(&mut self, actions: &[Action]) -> Option<bool> {
        let mut was_stopped = None;
        for action in actions {
            match action {
                Action::Send(signal) => _ = self.group.send(*signal),
                Action::EndWithin => {
                    let time = self.arguments.kill_after;
                    self.kill_at = Some(Instant::now() + time);
                    log::info!(
                        "sent SIGTERM to the command; SIGKILL follows in {}",
                        humantime::format_duration(time)
                    );
                }
                Action::Kill => {
                    self.kill_at = None;
                    if self.group.send(Signal::SIGKILL) {
                        log::info!("sent SIGKILL to the command");
                    } else {
                        let without = if self.loss.is_some() { "without the lock" } else { "after its time" };
                        output::warning(&format!(
                            "lock {}: the command goes on {without}: it runs as another user, and has to be ended by hand",
                            self.hold.names()
                        ));
                    }
                }
                Action::GiveTerminal => terminal::give(self.group.id()),
                Action::TakeTerminal => terminal::take_from(self.group.id()),
                Action::Stop { all } => {
                    was_stopped = Some(terminal::stop(*all));
                }
            }
        }
        was_stopped
    }
}

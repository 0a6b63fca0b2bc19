//! The faults that the proxy injects, and the commands that they apply to.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::asked::Asked;

/// How long a test waits for a command that it wants to hold: much longer than anything here takes.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What happens to one command.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is neither executed nor answered. The connection stays open, and later commands on it are served.
    SwallowRequest,
    /// It is executed and never answered; otherwise as above.
    SwallowAnswer,
    /// It is executed, and the reply is delayed by this.
    AnswerLate(Duration),
    /// The connection is closed before the command is executed.
    CutBefore,
    /// The command is executed, and the connection is closed without a reply.
    CutAfter,
    /// It is executed, half of the reply's bytes are sent, and then the connection is closed.
    CutWithin,
    /// From this command on nothing on the connection is read or answered. It stays open.
    HalfOpen,
    /// It is not executed; this is the reply.
    Say(&'static str),
    /// It is held before it is executed; see `Proxy::hold`.
    Hold(Arc<Held>),
}

/// A command that is held before it is executed.
#[derive(Debug, Default)]
pub struct Held {
    state: Mutex<HeldState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HeldState {
    #[default]
    NotReached,
    Waiting,
    LetGo,
}

impl Held {
    /// Waits until the command is let go.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        if *state == HeldState::NotReached {
            *state = HeldState::Waiting;
            self.changed.notify_all();
        }
        drop(self.changed.wait_while(state, |state| *state != HeldState::LetGo).unwrap());
    }

    fn let_go(&self) {
        *self.state.lock().unwrap() = HeldState::LetGo;
        self.changed.notify_all();
    }
}

/// The test's end of a command that is held, or is going to be. The command goes on when this is dropped.
#[derive(Debug)]
#[must_use = "the command goes on when this is dropped"]
pub struct Hold(Arc<Held>);

impl Hold {
    pub(super) fn new() -> (Self, Fault) {
        let held = Arc::new(Held::default());
        (Self(Arc::clone(&held)), Fault::Hold(held))
    }

    /// Waits until the command has arrived and is held.
    pub fn reached(&self) {
        let state = self.0.state.lock().unwrap();
        let (state, _) = self
            .0
            .changed
            .wait_timeout_while(state, LONGEST_WAIT, |state| *state == HeldState::NotReached)
            .unwrap();
        let is_reached = *state != HeldState::NotReached;
        // A panic under the mutex would be a second one when this is dropped.
        drop(state);
        assert!(is_reached, "the command that is to be held never came");
    }

    /// Lets the command go on.
    pub fn go_on(&self) {
        self.0.let_go();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// The command that a fault applies to.
#[derive(Debug)]
pub(super) enum Which {
    /// The next of this name without another fault.
    Next(&'static str),
    /// The nth of this name from now; the next is the first.
    Nth(&'static str, usize),
    /// The nth command from now. INFO does not count: the record leaves it out.
    At(usize),
    /// At this place of the next batch of at least so many commands.
    InBatch { place: usize, least: usize },
}

/// The faults that have not happened yet.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<(Which, Fault)>);

impl Faults {
    pub(super) fn add(&mut self, which: Which, fault: Fault) {
        self.0.push((which, fault));
    }

    /// Returns how many have not happened yet.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    /// Counts a command, and returns its fault. If two are due, the second applies to a later command.
    pub(super) fn due(&mut self, asked: &Asked) -> Option<Fault> {
        let (name, position) = (asked.name.as_str(), asked.position);
        let mut first = None;
        for (n, (which, _)) in self.0.iter_mut().enumerate() {
            let due = match which {
                Which::Next(command) => *command == name,
                Which::Nth(command, left) => *command == name && is_last(left),
                Which::At(left) => name != "INFO" && is_last(left),
                Which::InBatch { place, least } => position.place == *place && position.of >= *least,
            };
            if due && first.is_none() {
                first = Some(n);
            }
        }
        first.map(|n| self.0.remove(n).1)
    }
}

fn is_last(left: &mut usize) -> bool {
    *left = left.saturating_sub(1);
    *left == 0
}

//! The harm that can come to a command, and which command it comes to.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::proxy::Asked;

/// How long a test waits for a command that it wants to hold: much longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What becomes of one command.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// It is not carried out and never answered. The connection stays open, and what comes later on it is served.
    SwallowRequest,
    /// It is carried out and never answered; for the rest as above.
    SwallowAnswer,
    /// It is carried out, and the answer comes so much later.
    AnswerLate(Duration),
    /// The connection is closed before the command was carried out.
    CutBefore,
    /// The command is carried out, and the connection is closed instead of answered.
    CutAfter,
    /// It is carried out, half of the answer's bytes are sent, and then the connection is closed.
    CutWithin,
    /// From this command on nothing on the connection is read or answered, and it stays open.
    HalfOpen,
    /// It is not carried out, and this is said.
    Say(&'static str),
    /// It waits at the door; see [`Gate::hold`](super::Proxy::hold).
    Hold(Arc<Door>),
}

/// Where a held command waits before it is carried out.
#[derive(Debug, Default)]
pub(crate) struct Door {
    state: Mutex<DoorState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum DoorState {
    #[default]
    NobodyCame,
    SomebodyWaits,
    Open,
}

impl Door {
    /// Waits until the door is opened.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        if *state == DoorState::NobodyCame {
            *state = DoorState::SomebodyWaits;
            self.changed.notify_all();
        }
        drop(self.changed.wait_while(state, |state| *state != DoorState::Open).unwrap());
    }

    fn open(&self) {
        *self.state.lock().unwrap() = DoorState::Open;
        self.changed.notify_all();
    }
}

/// A command that is going to be held, or is. Goes on when this is dropped.
#[derive(Debug)]
#[must_use = "the command goes on when this is dropped"]
pub(crate) struct Hold(Arc<Door>);

impl Hold {
    pub(super) fn new() -> (Self, Fault) {
        let door = Arc::new(Door::default());
        (Self(Arc::clone(&door)), Fault::Hold(door))
    }

    /// Waits until the command has come and is held.
    pub(crate) fn reached(&self) {
        let state = self.0.state.lock().unwrap();
        let (state, _) = self
            .0
            .changed
            .wait_timeout_while(state, PATIENCE, |state| *state == DoorState::NobodyCame)
            .unwrap();
        assert_ne!(*state, DoorState::NobodyCame, "the command that is to be held never came");
    }

    /// Lets the command go on.
    pub(crate) fn go_on(&self) {
        self.0.open();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// Which command a fault waits for.
#[derive(Debug)]
pub(super) enum Which {
    /// The next of that name that nothing else happens to.
    Next(&'static str),
    /// So many of that name later, itself included.
    Nth(&'static str, usize),
    /// So many commands later, itself included; INFO does not count, as it does not show in the log.
    At(usize),
    /// At this place of a trip that carries at least so many.
    Aboard { place: usize, least: usize },
}

/// The faults that wait for their commands.
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

    /// Counts a command, and returns what is to become of it. Of two faults that are due the second waits.
    pub(super) fn due(&mut self, asked: &Asked) -> Option<Fault> {
        let (name, seat) = (asked.name.as_str(), asked.seat);
        let mut first = None;
        for (n, (which, _)) in self.0.iter_mut().enumerate() {
            let due = match which {
                Which::Next(command) => *command == name,
                Which::Nth(command, left) => *command == name && is_last(left),
                Which::At(left) => name != "INFO" && is_last(left),
                Which::Aboard { place, least } => seat.place == *place && seat.of >= *least,
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

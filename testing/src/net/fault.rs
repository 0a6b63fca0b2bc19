//! Faults, and the commands that they apply to.

use std::borrow::Cow;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::received::Received;

/// How long a test waits for a command that it wants to pause: much longer than anything takes.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What happens to one command.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// It is executed, and neither its reply nor a later one on the connection ever arrives, as TCP has it. The
    /// connection stays open, and later commands are executed.
    LoseReply,
    /// It is executed, and the reply comes this much later. Later commands on the connection wait for it.
    DelayReply(Duration),
    /// The connection is closed before the command is executed.
    CutBefore,
    /// The command is executed, and the connection is closed without a reply.
    CutAfter,
    /// It is executed, half of the reply's bytes are sent, and then the connection is closed.
    CutWithin,
    /// The request is lost: neither this command nor later ones on
    /// the connection are executed, as TCP has it. It stays open.
    Hang,
    /// It is not executed. This error is the reply, for example `OOM command not allowed when used memory >
    /// 'maxmemory'.`
    Refuse(Cow<'static, str>),
    /// It is not executed. These bytes are the reply.
    Say(&'static str),
    /// It is executed, and the server stops before it replies, as if it crashed.
    StopAfter,
    /// It waits before it is executed: see [`Proxy::pause`](crate::Proxy::pause).
    Pause(PauseHandle),
}

/// Refers to a command that is paused.
#[derive(Clone, Debug)]
pub struct PauseHandle(pub(super) Arc<Gate>);

/// Where a command waits.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    NotReached,
    Waiting,
    LetGo,
}

impl Gate {
    /// Waits until the command is let go.
    pub(super) fn wait(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::NotReached {
            *state = State::Waiting;
            self.changed.notify_all();
        }
        let waits = |state: &mut State| *state != State::LetGo;
        drop(self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner));
    }

    fn let_go(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::LetGo;
        self.changed.notify_all();
    }
}

/// A command that is paused before it is executed, or is going to be. It goes on when this is dropped.
#[derive(Debug)]
#[must_use = "the command goes on when this is dropped"]
pub struct Paused(Arc<Gate>);

impl Paused {
    /// Returns the handle of a command, and the fault that pauses it, for [`Proxy::at`](crate::Proxy::at) and its like.
    pub fn new() -> (Self, Fault) {
        let gate = Arc::new(Gate::default());
        (Self(Arc::clone(&gate)), Fault::Pause(PauseHandle(gate)))
    }

    /// Waits until the command has arrived.
    ///
    /// # Panics
    ///
    /// After a minute.
    pub fn reached(&self) {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |state: &mut State| *state == State::NotReached;
        let waited = self.0.changed.wait_timeout_while(state, LONGEST_WAIT, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_reached = *state != State::NotReached;
        // A panic under the mutex would be a second one when this is dropped.
        drop(state);
        assert!(is_reached, "the command to pause never came");
    }

    /// Lets the command go on.
    pub fn go_on(&self) {
        self.0.let_go();
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.go_on();
    }
}

/// The command that a fault applies to.
#[derive(Debug)]
pub(super) enum Which {
    /// The nth of this name from now; the next is the first.
    Nth(String, usize),
    /// All of this name.
    Every(String),
    /// The nth command from now. INFO does not count: the log leaves it out.
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

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns how many have not happened yet.
    pub(super) fn left(&self) -> usize {
        self.0.iter().filter(|(which, _)| !matches!(which, Which::Every(_))).count()
    }

    /// Counts a command, and returns its fault. If two are due, the second applies to a later command.
    pub(super) fn due(&mut self, received: &Received) -> Option<Fault> {
        let (name, position) = (received.name.as_str(), received.position);
        let mut first = None;
        for (n, (which, _)) in self.0.iter_mut().enumerate() {
            let due = match which {
                Which::Every(command) => *command == name,
                Which::Nth(command, left) => *command == name && is_last(left),
                Which::At(left) => name != "INFO" && is_last(left),
                Which::InBatch { place, least } => position.place == *place && position.of >= *least,
            };
            if due && first.is_none() {
                first = Some(n);
            }
        }
        let n = first?;
        let stays = matches!(self.0[n].0, Which::Every(_));
        Some(if stays { self.0[n].1.clone() } else { self.0.remove(n).1 })
    }
}

fn is_last(left: &mut usize) -> bool {
    *left = left.saturating_sub(1);
    *left == 0
}

//! What happens while a command runs.

use std::fmt;

use nix::sys::signal::Signal;
use setnx_lock::{Key, LossReason};

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// This process received a signal.
    Signal(Signal),
    /// A loss was noticed, of this command's lock or that of one before it.
    Look,
    Lost(Loss),
    /// The command was stopped by a signal.
    Stopped(Signal),
    /// This process has stopped itself and goes on; or it was not stopped, since no shell could resume it.
    Resumed {
        was_stopped: bool,
    },
    /// The command has run for the longest time that it may.
    Overran,
    /// The command was told to end, and its time is over.
    GraceOver,
    Ended(Status),
}

impl Event {
    /// Returns true for a signal that tells a program to end, and nothing else.
    pub(super) fn tells_to_end(&self) -> bool {
        matches!(self, Event::Signal(Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT))
    }

    /// The signal that ends a program which does not handle it.
    pub(super) fn ending_signal(&self) -> Option<Signal> {
        match self {
            Event::Signal(Signal::SIGTSTP | Signal::SIGWINCH) => None,
            Event::Signal(signal) => Some(*signal),
            _ => None,
        }
    }
}

/// That a lock was lost, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    pub(super) key: Key,
    pub(super) reason: LossReason,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Exited(u8),
    /// By the number: real-time signals have no name.
    Signaled(i32),
}

impl Status {
    /// The exit code that tells it.
    pub(super) fn code(self) -> u8 {
        match self {
            Status::Exited(code) => code,
            // There are 64 signals.
            Status::Signaled(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Exited(code) => write!(f, "exited with {code}"),
            Status::Signaled(number) => match Signal::try_from(*number) {
                Ok(signal) => write!(f, "was ended by {signal}"),
                Err(_) => write!(f, "was ended by signal {number}"),
            },
        }
    }
}

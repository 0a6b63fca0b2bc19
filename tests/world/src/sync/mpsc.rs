//! Channels, by the names of [`std::sync::mpsc`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{Condvar, Mutex, PoisonError};
use crate::scheduler::{Nanos, scheduler};
use crate::thread;

pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};

#[derive(Debug)]
struct Channel<T> {
    state: Mutex<ChannelState<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct ChannelState<T> {
    sent: VecDeque<T>,
    senders: usize,
    is_received: bool,
}

/// The end that is sent to.
#[derive(Debug)]
pub struct Sender<T>(Arc<Channel<T>>);

/// The end that is received from.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Channel<T>>);

/// Returns both ends of a channel.
#[must_use]
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = ChannelState { sent: VecDeque::new(), senders: 1, is_received: true };
    let channel = Arc::new(Channel { state: Mutex::new(state), changed: Condvar::new() });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl<T> Channel<T> {
    fn lock(&self) -> super::MutexGuard<'_, ChannelState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Sender<T> {
    /// Sends it.
    ///
    /// # Errors
    ///
    /// If there is no receiver any more.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.lock();
        if !state.is_received {
            return Err(SendError(value));
        }
        state.sent.push_back(value);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> Receiver<T> {
    /// Receives what is sent until a time.
    fn receive(&self, until: Option<Nanos>) -> Result<T, RecvTimeoutError> {
        let mut state = self.0.lock();
        loop {
            if let Some(value) = state.sent.pop_front() {
                return Ok(value);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            if until.is_some_and(|until| scheduler().now() >= until) {
                return Err(RecvTimeoutError::Timeout);
            }
            (state, _) = self.0.changed.wait_until(state, until);
        }
    }

    /// Receives what is sent within this time.
    ///
    /// # Errors
    ///
    /// If nothing was sent in time, or there is no sender any more.
    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        self.receive(Some(thread::after(time)))
    }

    /// Receives what is sent.
    ///
    /// # Errors
    ///
    /// If there is no sender any more.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.receive(None).map_err(|_| RecvError)
    }

    /// Receives what has been sent.
    ///
    /// # Errors
    ///
    /// If nothing has.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.lock();
        match state.sent.pop_front() {
            Some(value) => Ok(value),
            None if state.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }
}

impl<T> Receiver<T> {
    /// Returns what has been sent, until there is no more.
    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.try_recv().ok())
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_received = false;
        let left = std::mem::take(&mut state.sent);
        drop(state);
        drop(left);
    }
}

//! A connection, as its client has it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, mem};

use setnx_lock_testing::ClientId;

use super::faults::Fate;
use super::{Network, network};
use crate::process::Process;
use crate::run;
use crate::scheduler::{Nanos, ThreadId, own, scheduler};

#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) id: ClientId,
    pub(super) server: usize,
    pub(super) process: Process,
    /// Who it is in the trace.
    pub(super) name: String,
    state: Mutex<ConnectionState>,
}

/// Why no more comes.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndOfStream {
    /// The other end was closed.
    Orderly,
    Reset,
}

#[derive(Debug)]
struct ConnectionState {
    received: VecDeque<u8>,
    ended: Option<EndOfStream>,
    /// Nothing gets through any more.
    is_silent: bool,
    /// Replies are lost, and then the connection.
    loses_replies: bool,
    /// Only the beginning of the next reply arrives.
    halves_reply: bool,
    /// By how much the next reply is delayed.
    late: Nanos,
    reading: Option<ThreadId>,
    /// What is sent later arrives later.
    last_sent: Nanos,
    last_received: Nanos,
}

impl Connection {
    pub(super) fn new(id: ClientId, server: usize, process: Process, name: String) -> Self {
        let state = ConnectionState {
            received: VecDeque::new(),
            ended: None,
            is_silent: false,
            loses_replies: false,
            halves_reply: false,
            late: 0,
            reading: None,
            last_sent: 0,
            last_received: 0,
        };
        Self { id, server, process, name, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if not all of what is sent on it is answered.
    pub(super) fn is_broken(&self) -> bool {
        let state = self.state();
        state.ended.is_some() || state.is_silent || state.loses_replies || state.halves_reply
    }

    /// Takes what has come, or says how it has ended.
    pub(crate) fn received(&self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let mut state = self.state();
        if state.received.is_empty() {
            return state.ended.map(|why| match why {
                EndOfStream::Orderly => Ok(0),
                EndOfStream::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            });
        }
        let count = buffer.len().min(state.received.len());
        for (place, byte) in buffer.iter_mut().zip(state.received.drain(..count)) {
            *place = byte;
        }
        Some(Ok(count))
    }

    /// Waits until something comes, or until a time.
    pub(crate) fn wait(&self, until: Option<Nanos>) {
        self.state().reading = Some(own());
        scheduler().block(until);
        self.state().reading = None;
    }

    fn wake(state: &mut ConnectionState) {
        if let Some(reading) = state.reading.take() {
            scheduler().lock().wake(reading);
        }
    }

    /// Sends these bytes. Something may go wrong with them.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut network = network();
        let fate = network.fate();
        let mut arrives = network.arrival(self.process, self.server);
        let late = run::random(0..u64::try_from(network.faults.delay.as_nanos()).unwrap_or(1).max(1));
        if fate == Fate::Delayed {
            arrives += late;
        }
        if fate != Fate::Arrives {
            network.note_trouble(arrives + late);
        }
        drop(network);
        let mut state = self.state();
        if let Some(why) = state.ended {
            return Err(match why {
                EndOfStream::Orderly => io::ErrorKind::BrokenPipe.into(),
                EndOfStream::Reset => io::ErrorKind::ConnectionReset.into(),
            });
        }
        if fate != Fate::Arrives {
            run::note_of(&mut scheduler().lock(), &self.name, &format!("{fate:?}"));
        }
        state.is_silent |= fate == Fate::SilentBefore;
        if state.is_silent {
            return Ok(());
        }
        state.loses_replies |= fate == Fate::LostAfter;
        state.halves_reply |= fate == Fate::LostWithinReply;
        if fate == Fate::ReplyDelayed {
            state.late = late;
        }
        state.is_silent |= fate == Fate::SilentAfter;
        state.last_sent = arrives.max(state.last_sent + 1);
        let arrive = match fate {
            Fate::LostBefore => 0,
            Fate::LostWithin => usize::try_from(run::random(0..bytes.len() as u64)).unwrap_or_default(),
            _ => bytes.len(),
        };
        let cuts = state.loses_replies || state.halves_reply || arrive < bytes.len();
        let (at, id, bytes) = (state.last_sent, self.id, bytes[..arrive].to_vec());
        scheduler().at(at, move || super::network().arrive(id, bytes, cuts));
        Ok(())
    }

    /// What the server has sent is there at a time.
    pub(super) fn deliver(self: &std::sync::Arc<Self>, mut bytes: Vec<u8>, arrives: Nanos) {
        let mut state = self.state();
        if state.is_silent || state.loses_replies {
            return;
        }
        if state.halves_reply {
            bytes.truncate(usize::try_from(run::random(0..bytes.len() as u64)).unwrap_or_default());
            state.loses_replies = true;
        }
        let arrives = arrives + mem::take(&mut state.late);
        state.last_received = arrives.max(state.last_received + 1);
        let this = std::sync::Arc::clone(self);
        scheduler().at(state.last_received, move || {
            let mut state = this.state();
            if state.ended.is_none() {
                state.received.extend(bytes);
            }
            Self::wake(&mut state);
        });
    }

    /// The server closes it: the client learns so at a time, after what was sent before.
    pub(super) fn ends_at(self: &std::sync::Arc<Self>, arrives: Nanos) {
        let this = std::sync::Arc::clone(self);
        let at = arrives.max(self.state().last_received + 1);
        scheduler().at(at, move || this.end(EndOfStream::Orderly));
    }

    /// No more comes.
    pub(super) fn end(&self, why: EndOfStream) {
        let mut state = self.state();
        if matches!(why, EndOfStream::Reset) {
            state.received.clear();
        }
        if state.ended.is_none() && !state.is_silent {
            state.ended = Some(why);
        }
        Self::wake(&mut state);
    }

    /// The client closes it: the server learns so later, and executes no more of it.
    pub(crate) fn close(&self) {
        let mut network = network();
        network.open.remove(&self.id);
        if self.is_broken() {
            // A failure is remembered for a while.
            network.note_trouble(scheduler().now());
        }
        let arrives = network.arrival(self.process, self.server);
        drop(network);
        let mut state = self.state();
        state.ended = Some(EndOfStream::Orderly);
        if state.is_silent {
            return;
        }
        state.last_sent = arrives.max(state.last_sent + 1);
        let id = self.id;
        scheduler().at(state.last_sent, move || super::network().forget(id));
    }
}

impl Network {
    /// Chooses what happens to a message.
    pub(super) fn fate(&mut self) -> Fate {
        let faults = self.faults;
        let injected = &mut self.injected;
        for (one_in, count, fates) in [
            (faults.lost_requests, &mut injected.lost_requests, [Fate::LostBefore, Fate::LostWithin]),
            (faults.lost_replies, &mut injected.lost_replies, [Fate::LostAfter, Fate::LostWithinReply]),
            (faults.silences, &mut injected.silences, [Fate::SilentBefore, Fate::SilentAfter]),
            (faults.delays, &mut injected.delays, [Fate::Delayed, Fate::ReplyDelayed]),
        ] {
            if run::chance(one_in) {
                *count += 1;
                return fates[usize::from(run::chance(2))];
            }
        }
        Fate::Arrives
    }
}

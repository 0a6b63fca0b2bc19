//! The backend on connections of the library's own: commands of several threads share trips over a few of them.

mod leading;
mod source;
mod trip;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use super::connections::Manager;
use super::errors::{Failure, Refusal, TransportError};
use super::lanes::Told;
use super::limits::Limits;
use super::patience::SMALL;
use super::pipelining::{PackedNext, QueuedCommand};
use super::pooled::PooledBackend;
use super::{
    Answers, Backend, Changed, Heard, Inspect, KeyRequest, Next, ServerReport, WatchedAll, WatchedConnection,
};
use crate::clock::{self, Uptime};
use crate::key::Key;
use crate::protocol::{Change, Command, Reply, Request};
use crate::version::Version;
use leading::Leading;
use source::OwnSource;
use trip::{Ended, Job, Line};

/// A backend with connections of its own.
#[derive(Debug)]
pub(crate) struct OwnBackend {
    /// Sends what cannot go together with commands of other threads.
    alone: PooledBackend<OwnSource>,
}

type Slot = super::lanes::Slot<Job, Line>;
type Lane = super::lanes::Lane<Job, Line>;

thread_local! {
    /// The slot of this thread, while it is not in use.
    static SLOT: Cell<Option<Arc<Slot>>> = const { Cell::new(None) };
}

impl OwnBackend {
    pub(crate) fn new(manager: Manager, pool_size: u32, unreachable_timeout: Duration) -> Self {
        let [_, command_timeout] = manager.timeouts();
        let source = OwnSource::new(manager, pool_size);
        Self { alone: PooledBackend::over(source, command_timeout, unreachable_timeout) }
    }

    fn source(&self) -> &OwnSource {
        &self.alone.pool
    }

    /// Has the job sent, by this thread or by another. Code of the user may run meanwhile and send commands of its own, on another slot.
    fn carry(&self, job: Job, limits: &Limits<'_>) -> Ended {
        let began = clock::uptime();
        let kept = SLOT.try_with(Cell::take).ok().flatten();
        let slot = kept.unwrap_or_else(|| Slot::new(Job::default()));
        *slot.job() = job;
        match self.source().enter(&slot, false, limits) {
            Ok(Told::Lead(lane)) => self.lead(lane, &slot, limits),
            Ok(Told::Done) => {}
            Err(failure) => slot.job().result = Some(Err(failure)),
        }
        let ended = slot.job().end();
        if !slot.is_gone() {
            *slot.job() = Job::default();
            // The thread may be ending.
            let _ = SLOT.try_with(|kept| kept.set(Some(slot)));
        }
        ended.map_err(|failure| match failure {
            // It includes the wait for another thread.
            Failure::NoConnection { cause, .. } => {
                Failure::NoConnection { cause, waited: clock::uptime().since(began) }
            }
            other => other,
        })
    }

    /// Leads a lane until this thread's job is done.
    fn lead(&self, lane: Lane, slot: &Arc<Slot>, limits: &Limits<'_>) {
        let lanes = &self.source().lanes;
        let mut leading = Leading::of(lanes, slot, lane, limits.report);
        if let Some(lane) = leading.lane.as_mut().filter(|lane| lane.batch.is_empty()) {
            lane.batch.push(Arc::clone(slot));
            lanes.fill(lane);
            self.send(lane);
        }
        let mut answered_by = limits.answered_by;
        while let Some(lane) = &mut leading.lane
            && let Received::All { in_order } = self.receive(lane, answered_by)
        {
            // Two trips of a change take no longer than one command may.
            answered_by = answered_by.min(lane.connection.sent_at.after(self.alone.command_timeout));
            let open = lane.connection.is_open;
            if open {
                let is_done = |other: &mut Arc<Slot>| other.job().result.is_some();
                leading.finished.extend(lane.batch.extract_if(.., is_done));
            } else {
                mem::swap(&mut leading.finished, &mut lane.batch);
            }
            if !in_order {
                return;
            }
            lanes.fill(lane);
            self.send(lane);
            // A DISCARD alone has no thread that waits for it.
            let is_discarding = open && lane.batch.is_empty();
            if slot.job().result.is_some() && !is_discarding {
                return leading.pass_on();
            }
            leading.tell();
        }
        // Others wait for longer, and go on receiving.
        drop(slot.give_up());
        leading.pass_on();
    }

    /// Sends what the batch has, as far as it may be sent now.
    fn send(&self, lane: &mut Lane) {
        if lane.batch.is_empty() && !lane.connection.is_open {
            return;
        }
        // Read here: what was decided on before a wait may be too late by now (I5).
        let now = clock::now();
        lane.connection.send(&lane.batch, now, self.alone.command_timeout);
        self.source().patience.note_sent(lane.batch.len());
    }

    /// Receives the replies to a trip, and puts them into the slots of its batch.
    fn receive(&self, lane: &mut Lane, answered_by: Uptime) -> Received {
        let trip = &mut lane.connection;
        let (count, is_small) = (trip.count(), lane.batch.len() <= SMALL);
        let deadline = trip.sent_at.after(self.alone.command_timeout);
        let mut ended = trip.failed.take();
        if ended.is_none() && count > 0 {
            let until = deadline.min(answered_by);
            ended = trip.connection.receive(count, until, is_small, &mut trip.replies).err();
            let own_time_is_up = |error: &TransportError| {
                error.kind() == io::ErrorKind::TimedOut && clock::uptime() < deadline
            };
            if ended.as_ref().is_some_and(own_time_is_up) && lane.batch.len() > 1 {
                return Received::OwnTimeIsUp;
            }
        }
        trip.connection.used(trip.sent_at);
        if is_small && count > 0 {
            self.source().patience.note_trip(clock::uptime().since(trip.sent_at));
        }
        let left = trip.read(&lane.batch, ended);
        if left.read_only {
            self.alone.note_read_only();
        }
        Received::All { in_order: !left.out_of_order }
    }
}

/// What came of receiving.
enum Received {
    /// `in_order`: the connection may be used again.
    All { in_order: bool },
    /// The replies are still expected, but not by this thread.
    OwnTimeIsUp,
}

impl Backend for OwnBackend {
    fn call(&self, key: &Key, request: &Request, next: Option<&Next>, limits: &Limits<'_>) -> Answers {
        if !limits.pipelined {
            return self.alone.call(key, request, next, limits);
        }
        if let Err(failure) = self.alone.ensure_transactions(key, limits) {
            return Err(failure).into();
        }
        let limits = self.alone.limits(limits);
        let packed = next.map(|next| PackedNext::new(key, next));
        match self.carry(Job::new(QueuedCommand::new(key, request, packed, &limits)), &limits) {
            Ok((_, outcome)) => match outcome.answers() {
                Some(answers) => answers,
                // It may not be sent any more, or not to this server, or the server had no room.
                None => {
                    let limits = Limits { decided_at: clock::now(), ..limits };
                    self.alone.call(key, request, next, &limits)
                }
            },
            Err(failure) => Err(failure).into(),
        }
    }

    fn change(
        &self,
        key: &Key,
        own: &[u8],
        change: &Change,
        next: Option<&Next>,
        limits: &Limits<'_>,
    ) -> Result<(Reply, Changed), Failure> {
        if !limits.pipelined {
            return self.alone.change(key, own, change, next, limits);
        }
        let limits = self.alone.limits(limits);
        let packed = next.map(|next| PackedNext::new(key, next));
        let job = Job::change(QueuedCommand::change(key, change, packed, &limits), own);
        Ok(match self.carry(job, &limits)? {
            (Some(found), outcome) => (found, outcome.answers().map_or(Changed::Not, Changed::Sent)),
            // Nothing was sent.
            (None, _) => {
                let limits = Limits { decided_at: clock::now(), ..limits };
                return self.alone.change(key, own, change, next, &limits);
            }
        })
    }

    fn pipelines(&self) -> bool {
        self.alone.pipelines()
    }

    fn call_all(&self, requests: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers> {
        self.alone.call_all(requests, limits)
    }

    fn watch_all(&self, keys: &[Key], limits: &Limits<'_>) -> Result<WatchedAll, Failure> {
        self.alone.watch_all(keys, limits)
    }

    fn watch(
        &self,
        key: &Key,
        command: &Command,
        limits: &Limits<'_>,
    ) -> Result<(Reply, Box<dyn WatchedConnection>), Failure> {
        self.alone.watch(key, command, limits)
    }

    fn wake_waiting(&self) {
        self.alone.wake_waiting();
    }

    fn server_version(&self) -> Option<Version> {
        self.alone.server_version()
    }

    fn can_listen(&self) -> bool {
        self.alone.can_listen()
    }

    fn listen(&self, channel: &[u8], heard: &mut dyn FnMut(Heard<'_>) -> bool) -> Result<(), Failure> {
        self.alone.listen(channel, heard)
    }

    fn command_timeout(&self) -> Duration {
        self.alone.command_timeout()
    }

    fn unreachable_timeout(&self) -> Duration {
        self.alone.unreachable_timeout()
    }
}

impl Inspect for OwnBackend {
    fn inspect(&self, probe: &Key, limits: &Limits<'_>) -> Result<Result<ServerReport, Refusal>, Failure> {
        self.alone.inspect(probe, limits)
    }
}

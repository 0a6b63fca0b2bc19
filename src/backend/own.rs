//! The backend on connections of the library's own: commands of several threads share trips over a few of them.

mod leading;
mod trip;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem, thread};

use super::connections::Manager;
use super::errors::{Failure, Refusal, TransportError};
use super::lanes::{Lanes, Told};
use super::limits::Limits;
use super::patience::{Patience, SMALL};
use super::pipelining::{PackedNext, QueuedCommand};
use super::pooled::PooledBackend;
use super::{
    Answers, Backend, Changed, Heard, Inspect, KeyRequest, Next, ServerReport, WatchedAll, WatchedConnection,
};
use crate::clock::{self, Now, Uptime};
use crate::key::Key;
use crate::protocol::{Change, Command, Reply, Request};
use crate::version::Version;
use leading::{Leading, Waiting};
use trip::{Ended, Job, Line};

/// How often a queued thread looks whether the server is still waited for, while there is no connection.
const LOOK: Duration = Duration::from_millis(50);

/// A backend with connections of its own.
#[derive(Debug)]
pub(crate) struct OwnBackend {
    pooled: PooledBackend<Manager>,
    lanes: Lanes<Job, Line>,
    patience: Patience,
    connections: usize,
}

type Slot = super::lanes::Slot<Job, Line>;
type Lane = super::lanes::Lane<Job, Line>;

thread_local! {
    /// The slot of this thread, while it is not in use.
    static SLOT: Cell<Option<Arc<Slot>>> = const { Cell::new(None) };
}

impl OwnBackend {
    pub(crate) fn new(manager: Manager, pool_size: u32, unreachable_timeout: Duration) -> Self {
        let connections = usize::try_from(pool_size).unwrap_or(usize::MAX);
        let pooled = PooledBackend::own(manager, pool_size, unreachable_timeout);
        Self { pooled, lanes: Lanes::new(), patience: Patience::default(), connections }
    }

    /// Has the job sent, by this thread or by another. Code of the user may run meanwhile and send commands of its own, on another slot.
    fn carry(&self, job: Job, limits: &Limits<'_>) -> Ended {
        let began = clock::uptime();
        let kept = SLOT.try_with(Cell::take).ok().flatten();
        let slot = kept.unwrap_or_else(|| Slot::new(Job::default()));
        *slot.job() = job;
        let most = self.patience.lanes(self.connections);
        if self.lanes.enter(&slot, most) {
            self.lead(None, &slot, limits);
        } else {
            self.follow(&slot, limits);
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

    /// Waits until another thread has the reply, or makes this one lead.
    fn follow(&self, slot: &Arc<Slot>, limits: &Limits<'_>) {
        let mut waiting = Waiting::of(self, slot);
        let (mut queued, mut failure) = (true, None);
        let mut yields = self.patience.yields();
        let park = || {
            if queued && let Some(ended) = self.not_sent(limits) {
                if self.lanes.leave(slot) {
                    failure = Some(ended);
                    return false;
                }
                queued = false;
            }
            let until = if queued { limits.connected_by } else { limits.answered_by };
            let left = until.since(clock::uptime());
            if left.is_zero() {
                return queued;
            }
            thread::park_timeout(if self.pooled.pool.is_connected() { left } else { left.min(LOOK) });
            true
        };
        let told = slot.wait(|| yields.one(), park);
        drop(yields);
        waiting.ended = true;
        if let Some(failure) = failure {
            slot.job().result = Some(Err(failure));
            return;
        }
        if let Some(Told::Lead(lane)) = told.or_else(|| slot.give_up()) {
            // The clocks are read anew: what was decided on before the wait may be too late by now (I5).
            self.lead(lane, slot, &Limits { decided_at: clock::now(), ..*limits });
        }
    }

    /// Returns why a queued job waits no longer, if so.
    fn not_sent(&self, limits: &Limits<'_>) -> Option<Failure> {
        let over = clock::uptime() >= limits.connected_by || limits.stop.0();
        if over || !self.pooled.pool.is_connected() { self.pooled.pool.failure(limits) } else { None }
    }

    /// Leads a lane until this thread's job is done.
    fn lead(&self, lane: Option<Lane>, slot: &Arc<Slot>, limits: &Limits<'_>) {
        let mut leading = Leading::of(self, slot, lane, limits.report);
        if leading.lane.is_none() {
            match self.pooled.connection(&mut { *limits }) {
                Ok((connection, now)) => {
                    let lane = leading.lane.insert(Lane::over(Line::over(connection), slot));
                    self.lanes.fill(lane);
                    self.send(lane, Some(now));
                }
                Err(failure) => {
                    slot.job().result = Some(Err(failure));
                    return;
                }
            }
        }
        let mut answered_by = limits.answered_by;
        while let Some(lane) = &mut leading.lane
            && let Received::All { in_order } = self.receive(lane, answered_by)
        {
            // Two trips of a change take no longer than one command may.
            answered_by = answered_by.min(lane.connection.sent_at.after(self.pooled.command_timeout));
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
            let others_wait = self.pooled.pool.others_wait();
            if !others_wait {
                self.lanes.fill(lane);
            }
            if open || !others_wait {
                self.send(lane, None);
            }
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
    fn send(&self, lane: &mut Lane, now: Option<Now>) {
        if lane.batch.is_empty() && !lane.connection.is_open {
            return;
        }
        let now = if lane.batch.len() > 1 { clock::now() } else { now.unwrap_or_else(clock::now) };
        lane.connection.send(&lane.batch, now, self.pooled.command_timeout);
        self.patience.note_sent(lane.batch.len());
    }

    /// Receives the replies to a trip, and puts them into the slots of its batch.
    fn receive(&self, lane: &mut Lane, answered_by: Uptime) -> Received {
        let trip = &mut lane.connection;
        let (count, is_small) = (trip.count(), lane.batch.len() <= SMALL);
        let deadline = trip.sent_at.after(self.pooled.command_timeout);
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
        if is_small && count > 0 {
            self.patience.note_trip(clock::uptime().since(trip.sent_at));
        }
        let left = trip.read(&lane.batch, ended);
        if left.read_only {
            self.pooled.note_read_only();
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
            return self.pooled.call(key, request, next, limits);
        }
        if let Err(failure) = self.pooled.ensure_transactions(key, limits) {
            return Err(failure).into();
        }
        let limits = self.pooled.limits(limits);
        let packed = next.map(|next| PackedNext::new(key, next));
        match self.carry(Job::new(QueuedCommand::new(key, request, packed, &limits)), &limits) {
            Ok((_, outcome)) => match outcome.answers() {
                Some(answers) => answers,
                // It may not be sent any more, or not to this server, or the server had no room.
                None => {
                    let limits = Limits { decided_at: clock::now(), ..limits };
                    self.pooled.call(key, request, next, &limits)
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
            return self.pooled.change(key, own, change, next, limits);
        }
        let limits = self.pooled.limits(limits);
        let packed = next.map(|next| PackedNext::new(key, next));
        let job = Job::change(QueuedCommand::change(key, change, packed, &limits), own);
        Ok(match self.carry(job, &limits)? {
            (Some(found), outcome) => (found, outcome.answers().map_or(Changed::Not, Changed::Sent)),
            // Nothing was sent.
            (None, _) => {
                let limits = Limits { decided_at: clock::now(), ..limits };
                return self.pooled.change(key, own, change, next, &limits);
            }
        })
    }

    fn pipelines(&self) -> bool {
        self.pooled.pipelines()
    }

    fn call_all(&self, requests: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers> {
        self.pooled.call_all(requests, limits)
    }

    fn watch_all(&self, keys: &[Key], limits: &Limits<'_>) -> Result<WatchedAll, Failure> {
        self.pooled.watch_all(keys, limits)
    }

    fn watch(
        &self,
        key: &Key,
        command: &Command,
        limits: &Limits<'_>,
    ) -> Result<(Reply, Box<dyn WatchedConnection>), Failure> {
        self.pooled.watch(key, command, limits)
    }

    fn wake_waiting(&self) {
        self.pooled.wake_waiting();
        self.lanes.wake_queued();
    }

    fn server_version(&self) -> Option<Version> {
        self.pooled.server_version()
    }

    fn can_listen(&self) -> bool {
        self.pooled.can_listen()
    }

    fn listen(&self, channel: &[u8], heard: &mut dyn FnMut(Heard<'_>) -> bool) -> Result<(), Failure> {
        self.pooled.listen(channel, heard)
    }

    fn command_timeout(&self) -> Duration {
        self.pooled.command_timeout()
    }

    fn unreachable_timeout(&self) -> Duration {
        self.pooled.unreachable_timeout()
    }
}

impl Inspect for OwnBackend {
    fn inspect(&self, probe: &Key, limits: &Limits<'_>) -> Result<Result<ServerReport, Refusal>, Failure> {
        self.pooled.inspect(probe, limits)
    }
}

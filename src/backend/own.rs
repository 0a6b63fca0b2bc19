//! The backend on connections of the library's own: commands of several threads share trips over a few of them.

mod leading;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io, mem, thread};

use redis::Value;

use super::connections::{Checkout, LockConnection as _, Manager};
use super::errors::{Failure, Refusal, TransportError};
use super::lanes::{Lanes, Told};
use super::limits::Limits;
use super::patience::{Patience, SMALL};
use super::pipelining::{JobOutcome, Outcome, PackedNext, QueuedCommand, Replies, lost_in_batch};
use super::pooled::PooledBackend;
use super::{
    Answers, Backend, Heard, Inspect, KeyRequest, Next, ServerReport, WatchedAll, WatchedConnection,
};
use crate::clock::{self, Now, Uptime};
use crate::key::Key;
use crate::protocol::{Command, Reply, Request};
use crate::version::Version;
use leading::{Leading, Waiting};

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

/// What a thread has sent by a lane.
#[derive(Default)]
struct Job {
    command: Option<QueuedCommand>,
    /// Whether it was sent, and then whether the command behind it was, too.
    sent: Option<bool>,
    /// `Unread`: its thread is to send it alone.
    result: Option<Result<JobOutcome, Failure>>,
}

/// A connection, and the trip that is under way on it.
struct Line {
    connection: Checkout<Manager>,
    packed: Vec<u8>,
    replies: Vec<Value>,
    /// How many replies the trip has.
    count: usize,
    /// When it was sent.
    sent_at: Uptime,
    /// Why it cannot be received.
    failed: Option<TransportError>,
}

type Slot = super::lanes::Slot<Job, Line>;
type Lane = super::lanes::Lane<Job, Line>;

thread_local! {
    /// The slot of this thread, while it is not in use.
    static SLOT: Cell<Option<Arc<Slot>>> = const { Cell::new(None) };
}

fn unread() -> JobOutcome {
    JobOutcome { own: Outcome::Unread, next: Outcome::Unread }
}

impl OwnBackend {
    pub(crate) fn new(manager: Manager, pool_size: u32, unreachable_timeout: Duration) -> Self {
        let connections = usize::try_from(pool_size).unwrap_or(usize::MAX);
        let pooled = PooledBackend::own(manager, pool_size, unreachable_timeout);
        Self { pooled, lanes: Lanes::new(), patience: Patience::default(), connections }
    }

    /// Has the command sent, by this thread or by another. Code of the user may run meanwhile and send commands of its own, on another
    /// slot.
    fn carry(&self, command: QueuedCommand, limits: &Limits<'_>) -> Result<JobOutcome, Failure> {
        let kept = SLOT.try_with(Cell::take).ok().flatten();
        let slot = kept.unwrap_or_else(|| Slot::new(Job::default()));
        *slot.job() = Job { command: Some(command), sent: None, result: None };
        let most = self.patience.lanes(self.connections);
        if self.lanes.enter(&slot, most) {
            self.lead(None, &slot, limits);
        } else {
            self.follow(&slot, limits);
        }
        if slot.is_gone() {
            return Err(Failure::Lost(lost_in_batch()));
        }
        let result = mem::take(&mut *slot.job()).result;
        // The thread may be ending.
        let _ = SLOT.try_with(|kept| kept.set(Some(slot)));
        result.unwrap_or_else(|| Err(Failure::Lost(lost_in_batch())))
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
        let lane = match &mut leading.lane {
            Some(lane) => lane,
            none => match self.pooled.connection(&mut { *limits }) {
                Ok((connection, now)) => {
                    let lane = none.insert(Lane::over(Line::over(connection), slot));
                    self.send(lane, Some(now));
                    lane
                }
                Err(failure) => {
                    slot.job().result = Some(Err(failure));
                    return;
                }
            },
        };
        match self.receive(lane, limits.answered_by) {
            Received::All { in_order } => {
                mem::swap(&mut leading.finished, &mut lane.batch);
                if !in_order {
                    return;
                }
                if !self.pooled.pool.others_wait() {
                    self.send(lane, None);
                }
            }
            // Others wait for longer, and go on receiving.
            Received::OwnTimeIsUp => drop(slot.give_up()),
        }
        leading.pass_on();
    }

    /// Sends what is queued, and what the batch has already, as far as it may be sent now.
    fn send(&self, lane: &mut Lane, now: Option<Now>) {
        self.lanes.fill(lane);
        if lane.batch.is_empty() {
            return;
        }
        let now = if lane.batch.len() > 1 { clock::now() } else { now.unwrap_or_else(clock::now) };
        let Line { connection, packed, replies, count, sent_at, failed } = &mut lane.connection;
        let server = connection.server_version();
        packed.clear();
        replies.clear();
        (*count, *sent_at, *failed) = (0, now.uptime, None);
        let deadline = now.uptime.after(self.pooled.command_timeout);
        let alone = lane.batch.len() == 1;
        for slot in &lane.batch {
            let Job { command, sent, .. } = &mut *slot.job();
            let Some(ready) = command.as_ref().and_then(|command| command.job(server, now)) else { continue };
            *sent = Some(ready.next.is_some());
            *count += ready.commands().map(|encoded| encoded.replies).sum::<usize>();
            if alone && ready.next.is_none() {
                // Nothing has to be copied.
                *failed = connection.send(ready.own.packed, deadline).err();
            } else {
                ready.commands().for_each(|encoded| packed.extend_from_slice(encoded.packed));
            }
        }
        if !packed.is_empty() {
            *failed = connection.send(packed, deadline).err();
        }
        self.patience.note_sent(lane.batch.len());
    }

    /// Receives the replies to a trip, and puts them into the slots of its batch.
    fn receive(&self, lane: &mut Lane, answered_by: Uptime) -> Received {
        let Line { connection, replies, count, sent_at, failed, .. } = &mut lane.connection;
        let is_small = lane.batch.len() <= SMALL;
        let deadline = sent_at.after(self.pooled.command_timeout);
        let mut ended = failed.take();
        if ended.is_none() && *count > 0 {
            ended = connection.receive(*count, deadline.min(answered_by), is_small, replies).err();
            let own_time_is_up = |error: &TransportError| {
                error.kind() == io::ErrorKind::TimedOut && clock::uptime() < deadline
            };
            if ended.as_ref().is_some_and(own_time_is_up) && lane.batch.len() > 1 {
                return Received::OwnTimeIsUp;
            }
        }
        if is_small && *count > 0 {
            self.patience.note_trip(clock::uptime().since(*sent_at));
        }
        let mut replies = Replies::of(mem::take(replies), ended);
        let (mut in_order, mut read_only) = (true, false);
        for slot in &lane.batch {
            let mut job = slot.job();
            let outcome = match (&job.command, job.sent) {
                (Some(command), Some(with_next)) => replies.job_outcome(command.sent_job(with_next)),
                _ => unread(),
            };
            for outcome in [&outcome.own, &outcome.next] {
                in_order &= !outcome.ends_connection() && !outcome.is_read_only();
                read_only |= outcome.is_read_only();
            }
            // The server has read nothing of it.
            job.result = Some(Ok(if outcome.found_no_room().is_some() { unread() } else { outcome }));
        }
        if read_only {
            self.pooled.note_read_only();
        }
        Received::All { in_order }
    }
}

/// What came of receiving.
enum Received {
    /// `in_order`: the connection may be used again.
    All { in_order: bool },
    /// The replies are still expected, but not by this thread.
    OwnTimeIsUp,
}

impl Line {
    fn over(connection: Checkout<Manager>) -> Self {
        let (packed, replies) = (Vec::new(), Vec::new());
        Self { connection, packed, replies, count: 0, sent_at: Uptime::default(), failed: None }
    }
}

impl Backend for OwnBackend {
    fn call(&self, key: &Key, request: &Request, next: Option<&Next>, limits: &Limits<'_>) -> Answers {
        if !limits.pipelined {
            return self.pooled.call(key, request, next, limits);
        }
        if let Err(failure) = self.pooled.ensure_transactions(key, limits) {
            return Err(failure).into();
        }
        let (began, limits) = (clock::uptime(), self.pooled.limits(limits));
        let packed = next.map(|next| PackedNext::new(key, next));
        let answers = match self.carry(QueuedCommand::new(key, request, packed, &limits), &limits) {
            Ok(outcome) => match outcome.answers() {
                Some(answers) => Ok(answers),
                // It may not be sent any more, or not to this server, or the server had no room.
                None => {
                    let limits = Limits { decided_at: clock::now(), ..limits };
                    return self.pooled.call(key, request, next, &limits);
                }
            },
            Err(Failure::Lost(error)) => {
                let lost = || Err(Failure::Lost(error.clone()));
                Ok(Answers { own: lost(), next: next.map(|_| lost()) })
            }
            // It includes the wait for another thread.
            Err(Failure::NoConnection { cause, .. }) => {
                Err(Failure::NoConnection { cause, waited: clock::uptime().since(began) })
            }
            Err(other) => Err(other),
        };
        answers.unwrap_or_else(|failure| Err(failure).into())
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

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("sent", &self.sent).finish_non_exhaustive()
    }
}

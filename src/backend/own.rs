//! The backend on connections of the library's own: commands of several threads share trips over a few of them.

mod leading;
mod source;
mod trip;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::connections::Manager;
use super::errors::{Failure, Refusal, TransportError};
use super::lanes::Told;
use super::limits::Limits;
use super::patience::SMALL;
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
use trip::{Job, Line};

/// A backend with connections of its own.
#[derive(Debug)]
pub(crate) struct OwnBackend {
    /// Sends what cannot go together with commands of other threads.
    alone: PooledBackend<OwnSource>,
}

type Slot = super::lanes::Slot<Job, Line>;
type Lane = super::lanes::Lane<Job, Line>;

/// The slot of a thread, and room for a list of others.
type Kept = (Arc<Slot>, Vec<Arc<Slot>>);

thread_local! {
    /// Of this thread, while they are not in use.
    static SLOT: Cell<Option<Kept>> = const { Cell::new(None) };
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

    /// Has a job sent, by this thread or by another, and returns what `end` makes of it. `end` is also told whether the thread waits no
    /// longer. Code of the user may run meanwhile and send commands of its own, on another slot.
    fn carry<T>(
        &self,
        set: impl FnOnce(&mut Job),
        limits: &Limits<'_>,
        end: impl FnOnce(&mut Job, bool) -> T,
    ) -> Result<T, Failure> {
        let kept = SLOT.try_with(Cell::take).ok().flatten();
        let (slot, finished) = kept.unwrap_or_else(|| (Slot::new(Job::default()), Vec::new()));
        set(&mut slot.job());
        let finished = match self.source().enter(&slot, false, limits) {
            Ok(Told::Lead(lane)) => self.lead(lane, &slot, finished, limits),
            Ok(Told::Done) => finished,
            Err(Failure::NoConnection { cause, .. }) => {
                // It includes the wait for another thread.
                return Err(Failure::NoConnection {
                    cause,
                    waited: clock::uptime().since(limits.decided_at.uptime),
                });
            }
            Err(failure) => return Err(failure),
        };
        let ended = end(&mut slot.job(), slot.is_gone());
        if !slot.is_gone() {
            // The thread may be ending.
            let _ = SLOT.try_with(|kept| kept.set(Some((slot, finished))));
        }
        Ok(ended)
    }

    /// Leads a lane until this thread's job is done.
    fn lead(
        &self,
        lane: Lane,
        slot: &Arc<Slot>,
        finished: Vec<Arc<Slot>>,
        limits: &Limits<'_>,
    ) -> Vec<Arc<Slot>> {
        let lanes = &self.source().lanes;
        let mut leading = Leading::of(lanes, slot, lane, limits.report);
        leading.finished = finished;
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
            let is_done = |other: &mut Arc<Slot>| !open || other.job().is_done;
            leading.finished.extend(lane.batch.extract_if(.., is_done));
            if !in_order {
                return leading.end();
            }
            let done = slot.job().is_done;
            if done && !open {
                return leading.send_and_pass_on(|lane| self.send(lane));
            }
            lanes.fill(lane);
            self.send(lane);
            // A DISCARD alone has no thread that waits for it.
            if done && !lane.batch.is_empty() {
                return leading.pass_on();
            }
            leading.tell();
        }
        // Others wait for longer, and go on receiving.
        drop(slot.give_up());
        leading.pass_on()
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
        self.alone.note_role(&left);
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
        if let Err(failure) = self.alone.ensure_transactions(key, limits) {
            return Err(failure).into();
        }
        let limits = self.alone.limits(limits);
        let sent = self.carry(
            |job| job.set(key, request, next, limits.needs),
            &limits,
            |job, gone| {
                let answers = job.answers(&request.command, next);
                if gone && !job.is_done {
                    job.abandon(key, &request.command, next);
                }
                answers
            },
        );
        match sent {
            Ok(Some(answers)) => answers,
            // It may not be sent any more, or not to this server, or the server had no room.
            Ok(None) => {
                let limits = Limits { decided_at: clock::now(), ..limits };
                self.alone.call(key, request, next, &limits)
            }
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
        let limits = self.alone.limits(limits);
        let exec = Command::Exec(change.clone());
        let sent = self.carry(
            |job| job.set_change((key, own), change, next, limits.needs),
            &limits,
            |job, gone| {
                let (found, answers) = (job.found(), job.answers(&exec, next));
                if gone && !job.is_done {
                    job.abandon(key, &exec, next);
                }
                (found, answers)
            },
        );
        Ok(match sent? {
            (Some(found), answers) => (found?, answers.map_or(Changed::Not, Changed::Sent)),
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

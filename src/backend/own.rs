//! Sending over connections of the library's own: commands of several threads share trips over a few of them.

mod leading;
mod source;
mod trip;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::connections::{Opener, Source};
use super::errors::{Failure, TransportError};
use super::lanes::Told;
use super::limits::Limits;
use super::patience::SMALL;
use super::pooled::PooledBackend;
use super::{Answers, Changed, Next};
use crate::clock::{self, Now, Uptime};
use crate::key::Key;
use crate::protocol::{Change, Command, Reply, Request};
use leading::Leading;
pub(crate) use source::{Alone, OwnSource};
use trip::{Ended, Job, Line};

type Slot = super::lanes::Slot<Job, Line>;
type Lane = super::lanes::Lane<Job, Line>;

/// The slot of a thread, and room for a list of others.
type Kept = (Arc<Slot>, Vec<Arc<Slot>>);

thread_local! {
    /// Of this thread, while they are not in use.
    static SLOT: Cell<Option<Kept>> = const { Cell::new(None) };
}

impl PooledBackend<OwnSource> {
    /// A backend with connections of its own.
    pub(crate) fn own(opener: Opener, pool_size: u32, retry_for: Duration) -> Self {
        let command_timeout = opener.command_timeout;
        Self::over(OwnSource::new(opener, pool_size), command_timeout, retry_for)
    }
}

impl OwnSource {
    /// Has the job of a command sent, by this thread or by another. Code of the user may run meanwhile and send commands of its own, on
    /// another slot.
    fn carry(
        &self,
        set: impl FnOnce(&mut Job),
        (key, command, next): (&Key, &Command, Option<&Next>),
        limits: &Limits<'_>,
    ) -> Result<Ended, Failure> {
        let kept = SLOT.try_with(Cell::take).ok().flatten();
        let (slot, finished) = kept.unwrap_or_else(|| (Slot::new(Job::default()), Vec::new()));
        set(&mut slot.job());
        let finished = match self.enter(&slot, false, limits) {
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
        let ended = slot.job().end(slot.is_gone(), key, command, next);
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
        let lanes = &self.lanes;
        let mut leading = Leading::of(lanes, slot, lane, finished, limits.report);
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
            answered_by = answered_by.min(lane.connection.sent_at.after(self.opener.command_timeout));
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
        lane.connection.send(&lane.batch, now, self.opener.command_timeout);
        self.patience.note_sent(lane.batch.len());
    }

    /// Receives the replies to a trip, and puts them into the slots of its batch.
    fn receive(&self, lane: &mut Lane, answered_by: Uptime) -> Received {
        let trip = &mut lane.connection;
        let (count, is_small) = (trip.count(), lane.batch.len() <= SMALL);
        let deadline = trip.sent_at.after(self.opener.command_timeout);
        let mut ended = trip.failed.take();
        let resumes = trip.connection.resumes();
        if ended.is_none() && count > 0 {
            let alone = lane.batch.len() == 1;
            let until = if alone || resumes { deadline.min(answered_by) } else { deadline };
            ended = trip.connection.receive(count, until, is_small, &mut trip.replies).err();
            let own_time_is_up = |error: &TransportError| {
                error.kind() == io::ErrorKind::TimedOut && clock::uptime() < deadline
            };
            if resumes && !alone && ended.as_ref().is_some_and(own_time_is_up) {
                return Received::OwnTimeIsUp;
            }
        }
        trip.connection.used(trip.sent_at);
        if is_small && count > 0 {
            self.patience.note_trip(clock::uptime().since(trip.sent_at));
        }
        let left = trip.read(&lane.batch, ended);
        self.note_role(&left);
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

impl Source for OwnSource {
    type Checkout = Alone;

    fn checkout(&self, limits: &Limits<'_>) -> Result<(Alone, Now), Failure> {
        let slot = Slot::new(Job::default());
        let Told::Lead(lane) = self.enter(&slot, true, limits)? else {
            unreachable!("its job is in no batch")
        };
        Ok((Alone { lanes: Arc::clone(&self.lanes), lane: Some(lane) }, clock::now()))
    }

    /// `None`: it may not be sent any more, or not to this server, or the server had no room.
    fn share(
        &self,
        key: &Key,
        request: &Request,
        next: Option<&Next>,
        limits: &Limits<'_>,
    ) -> Option<Answers> {
        let set = |job: &mut Job| job.set(key, request, next, limits.needs);
        let answers = self.carry(set, (key, &request.command, next), limits).map(|ended| ended.answers);
        answers.unwrap_or_else(|failure| Some(Err(failure).into()))
    }

    fn share_change(
        &self,
        key: &Key,
        own: &[u8],
        change: &Change,
        next: Option<&Next>,
        limits: &Limits<'_>,
    ) -> Option<Result<(Reply, Changed), Failure>> {
        let exec = Command::Exec(change.clone());
        let set = |job: &mut Job| job.set_change((key, own), change, next, limits.needs);
        match self.carry(set, (key, &exec, next), limits) {
            Ok(Ended { found, answers }) => {
                Some(found?.map(|found| (found, answers.map_or(Changed::Not, Changed::Sent))))
            }
            Err(failure) => Some(Err(failure)),
        }
    }

    fn is_own(&self) -> bool {
        true
    }

    fn is_connected(&self) -> bool {
        self.opener.health.open() > 0
    }

    fn found_no_room(&self) {
        self.dialing.leave_alone(clock::uptime());
    }

    fn wake_waiting(&self) {
        self.lanes.wake_queued();
    }

    fn opener(&self) -> Option<&Opener> {
        Some(&self.opener)
    }
}

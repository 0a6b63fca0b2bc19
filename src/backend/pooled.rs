//! The backend on a pool: waits for a connection or for another thread's batch, sends, and returns the connection.

use std::time::Duration;
use std::{fmt, thread};

use redis::cmd;

use super::codec;
use super::connections::{Checkout, DEFAULT_COMMAND_TIMEOUT, LockConnection, Manager, Pool, ask};
use super::errors::{ConnectError, Failure};
use super::limits::Limits;
use super::pipelining::{
    Admission, Batch, Bounds, Combiner, Encoded, Job, JobOutcome, Joined, Outcomes, PackedNext,
    QueuedCommand, SpinPolicy, lost_in_batch, report_abandoned, send,
};
use super::transactions::Transactions;
use super::watch::PooledWatch;
use super::{Answers, Backend, Heard, KeyRequest, Next, WatchedAll, WatchedConnection};
use crate::clock::{self, Now};
use crate::key::Key;
use crate::protocol::{Command, Reply, Request};
use crate::version::Version;

/// How long a server that takes no more clients is left alone.
const TOO_MANY_CLIENTS_PAUSE: Duration = Duration::from_millis(50);
/// How many commands go together at most.
const MAX_BATCH: usize = 512;
/// Which threads share batches at a time, so that the others sleep for longer.
const ADMITTED: Bounds = Bounds { unrestricted: 256, most: 128, fewest: 64, share: 32 };

/// A backend on a pool.
pub(crate) struct PooledBackend<M: r2d2::ManageConnection> {
    pub(super) pool: Pool<M>,
    admission: Admission,
    combiner: Combiner<QueuedCommand, JobOutcome>,
    spin_policy: SpinPolicy,
    transactions: Transactions,
    pub(super) command_timeout: Duration,
    unreachable_timeout: Duration,
}

impl PooledBackend<Manager> {
    /// A backend with connections of its own.
    pub(crate) fn own(manager: Manager, pool_size: u32, unreachable_timeout: Duration) -> Self {
        let [_, command_timeout] = manager.timeouts();
        Self::over(Pool::own(manager, pool_size), command_timeout, unreachable_timeout)
    }

    /// A backend on an r2d2 pool of this manager.
    pub(crate) fn managed(pool: r2d2::Pool<Manager>, manager: &Manager) -> Self {
        let [_, command_timeout] = manager.timeouts();
        let unreachable_timeout = pool.connection_timeout();
        Self::over(Pool::managed(pool, manager.clone()), command_timeout, unreachable_timeout)
    }
}

impl<M: r2d2::ManageConnection> PooledBackend<M>
where
    M::Connection: LockConnection,
{
    /// A backend on an r2d2 pool of another manager.
    pub(crate) fn new(pool: r2d2::Pool<M>) -> Self {
        let unreachable_timeout = pool.connection_timeout();
        Self::over(Pool::shared(pool), DEFAULT_COMMAND_TIMEOUT, unreachable_timeout)
    }

    fn over(pool: Pool<M>, command_timeout: Duration, unreachable_timeout: Duration) -> Self {
        // How long replies may take on connections of another manager is not known.
        let replies_within = if pool.manager.is_some() { command_timeout } else { Duration::MAX };
        let connections = usize::try_from(pool.max_size()).unwrap_or(usize::MAX);
        Self {
            pool,
            admission: Admission::new(ADMITTED),
            combiner: Combiner::new(MAX_BATCH, connections),
            spin_policy: SpinPolicy::new(connections, replies_within),
            transactions: Transactions::default(),
            command_timeout,
            unreachable_timeout,
        }
    }

    /// Sends one command and the one behind it on a connection of the pool and, if it leads a batch, the commands of other threads.
    /// Returns the answers, and the connection if that is in good order and is to be kept; otherwise the connection is back in its pool
    /// before any thread gets its result (I9).
    fn send(
        &self,
        key: &Key,
        request: &Request,
        next: Option<&PackedNext>,
        limits: &Limits<'_>,
        keeps: bool,
        mut batch: Option<Batch<'_, QueuedCommand, JobOutcome>>,
    ) -> Result<(Answers, Option<Checkout<M>>), Failure> {
        let Request { command, before } = request;
        let (packed, replies) = codec::packed(key, command);
        let own = Encoded { command, packed: &packed, replies };
        let mut limits = self.limits(limits);
        loop {
            let (mut connection, now) = self.connection(&mut limits)?;
            let limit = limits.answered_by.since(now.uptime);
            if before.is_some_and(|end| end.has_passed(now)) {
                return Err(Failure::TooLate);
            }
            if let Some(batch) = &mut batch {
                batch.fill(|queued| queued.is_answered_in_time_by(&limits, now.uptime, self.command_timeout));
            }
            let others = batch.iter().flat_map(Batch::jobs);
            let server = connection.server_version();
            let job = Job { own, next: next.and_then(|next| next.encoded(server, now)) };
            let outcomes = send(&mut *connection, job, others, clock::now, limit);
            self.spin_policy.note_replies(clock::uptime().since(now.uptime));
            self.note_role(&outcomes);
            let connection = if outcomes.leave_in_order(own) {
                keeps.then_some(connection)
            } else {
                connection.invalidate();
                None
            };
            if let Some(batch) = &mut batch {
                batch
                    .end(outcomes.others, |queued, outcome| report_abandoned(queued, outcome, limits.report));
            }
            let Some(refusal) = outcomes.own.found_no_room().cloned() else {
                match outcomes.own.answers() {
                    Some(answers) => return Ok((answers, connection)),
                    None => unreachable!("it is the first of its batch"),
                }
            };
            if !self.wait_for_room(&mut limits) {
                return Err(Failure::Refused(refusal));
            }
        }
    }

    /// Returns the limits as they are with the connections of this pool.
    pub(super) fn limits<'a>(&self, limits: &Limits<'a>) -> Limits<'a> {
        if self.pool.is_own() { limits.for_own_connections(self.command_timeout) } else { *limits }
    }

    /// Waits a moment before commands are sent again that the server has not read, since it had no room for the connection: their outcome is
    /// known, so that does not break I6. Returns whether there is time.
    pub(super) fn wait_for_room(&self, limits: &mut Limits<'_>) -> bool {
        let waits_until = if self.pool.is_connected() { limits.connected_by } else { limits.accepted_by };
        self.pool.found_no_room();
        if clock::uptime().after(TOO_MANY_CLIENTS_PAUSE) >= waits_until || limits.stop.0() {
            return false;
        }
        thread::sleep(TOO_MANY_CLIENTS_PAUSE);
        limits.decided_at = clock::now();
        true
    }

    /// Returns a connection to a server that is not too old.
    pub(super) fn connection(&self, limits: &mut Limits<'_>) -> Result<(Checkout<M>, Now), Failure> {
        loop {
            let began = limits.decided_at.uptime;
            let (mut connection, now) = self.pool.checkout(limits)?;
            let version = connection.server_version().filter(|version| *version < limits.needs.needs());
            let Some(version) = version else { return Ok((connection, now)) };
            // The version when this connection was opened. The server may have been upgraded since, and the connection be closed.
            let limit = limits.answered_by.since(now.uptime);
            let Err(error) = ask(&mut *connection, &cmd("PING"), limit) else {
                return Err(Failure::TooOld(version));
            };
            connection.invalidate();
            limits.decided_at = clock::now();
            if limits.decided_at.uptime >= limits.answered_by {
                let waited = limits.decided_at.uptime.since(began);
                return Err(Failure::of_connecting(ConnectError::Failed(error), waited));
            }
        }
    }

    /// A master that has become a replica: a new connection finds out where the address leads now.
    pub(super) fn note_role(&self, outcomes: &Outcomes) {
        if outcomes.any_read_only()
            && let Some(manager) = &self.pool.manager
        {
            manager.health().found_closed();
        }
    }

    /// Leads a batch, or has another thread's batch carry the command.
    fn combine(
        &self,
        key: &Key,
        request: &Request,
        next: Option<PackedNext>,
        limits: &Limits<'_>,
    ) -> Result<Answers, Failure> {
        let (began, limits) = (clock::uptime(), &self.limits(limits));
        // The commands that read, release or replace a value do not wait for admission. Half of the time is left for a connection and the
        // reply, and a call that tries once does not wait.
        let admitted_by = limits.accepted_by.min(began.after(limits.connected_by.since(began) / 2));
        let admitted = match request.command.unfenced() {
            Command::SetNx(_) | Command::SetNxAll(..) => self.admission.enter_in_turn(|| {
                let left = admitted_by.since(clock::uptime());
                let goes_on = !left.is_zero() && !limits.stop.0();
                if goes_on {
                    thread::park_timeout(left);
                }
                goes_on
            }),
            _ => self.admission.enter(),
        };
        let job = || QueuedCommand::new(key, request, next.clone(), limits);
        let is_contended = |threads| self.spin_policy.is_contended(threads);
        let waiting = self.spin_policy.waiting(limits, || self.combiner.dequeued(), &admitted);
        let (batch, waited) = match self.combiner.join(job, is_contended, waiting) {
            Joined::Leader { batch, waited } => (Some(batch), waited),
            Joined::Completed(outcome) => match outcome.answers() {
                Some(answers) => return Ok(answers),
                None => (None, true),
            },
            Joined::Abandoned => {
                let lost = || Err(Failure::Lost(lost_in_batch()));
                return Ok(Answers { own: lost(), next: next.map(|_| lost()) });
            }
        };
        let decided_at = if waited || admitted.waited { clock::now() } else { limits.decided_at };
        // Until it has a connection and the reply it takes no processor time from others.
        admitted.give_up_place();
        let sent = self.send(key, request, next.as_ref(), &Limits { decided_at, ..*limits }, false, batch);
        sent.map(|(answers, _)| answers).map_err(|failure| match failure {
            // It includes the waits for admission and for another thread's batch.
            Failure::NoConnection { cause, .. } => {
                Failure::NoConnection { cause, waited: clock::uptime().since(began) }
            }
            other => other,
        })
    }
}

impl<M: r2d2::ManageConnection> Backend for PooledBackend<M>
where
    M::Connection: LockConnection,
{
    fn call(&self, key: &Key, request: &Request, next: Option<&Next>, limits: &Limits<'_>) -> Answers {
        if let Err(failure) = self.transactions.ensure(key, limits, |limits| self.connection(limits)) {
            return Err(failure).into();
        }
        let next = next.map(|next| PackedNext::new(key, next));
        let answers = if M::Connection::PIPELINES && limits.pipelined {
            self.combine(key, request, next, limits)
        } else {
            // Behind a proxy that spreads keys over several servers, two commands on one key may go together as well.
            self.send(key, request, next.as_ref(), limits, false, None).map(|(answers, _)| answers)
        };
        answers.unwrap_or_else(|failure| Err(failure).into())
    }

    fn pipelines(&self) -> bool {
        M::Connection::PIPELINES
    }

    fn call_all(&self, requests: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers> {
        self.send_all(requests, self.limits(limits))
    }

    fn watch_all(&self, keys: &[Key], limits: &Limits<'_>) -> Result<WatchedAll, Failure> {
        self.watch_each(keys, self.limits(limits))
    }

    fn watch(
        &self,
        key: &Key,
        command: &Command,
        limits: &Limits<'_>,
    ) -> Result<(Reply, Box<dyn WatchedConnection>), Failure> {
        let request = Request::at_any_time(command.clone());
        let (answers, connection) = self.send(key, &request, None, limits, true, None)?;
        let reply = answers.own?;
        let Some(connection) = connection else { unreachable!("it has its reply, and is kept") };
        Ok((reply, Box::new(PooledWatch::on(connection))))
    }

    fn wake_waiting(&self) {
        self.pool.wake_waiting();
        self.admission.wake_queued();
        self.combiner.wake_queued();
    }

    fn server_version(&self) -> Option<Version> {
        self.pool.manager.as_ref()?.health().server_version()
    }

    fn can_listen(&self) -> bool {
        self.pool.manager.is_some()
    }

    fn listen(&self, channel: &[u8], heard: &mut dyn FnMut(Heard<'_>) -> bool) -> Result<(), Failure> {
        let Some(manager) = &self.pool.manager else {
            unreachable!("a pool of another manager does not listen")
        };
        manager.listen(channel, heard)
    }

    fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    fn unreachable_timeout(&self) -> Duration {
        self.unreachable_timeout
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for PooledBackend<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledBackend")
            .field("pool", &self.pool)
            .field("admission", &self.admission)
            .field("combiner", &self.combiner)
            .field("command_timeout", &self.command_timeout)
            .field("unreachable_timeout", &self.unreachable_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

//! The window through a pool: waits for a connection or for another thread's trip, sends, and gives the connection back.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{fmt, thread};

use redis::Value;

use super::burst::{self, Watching};
use super::carrier::{Carrier, exchanged};
use super::combining::{Joined, Trip, Trips};
use super::form;
use super::manager::{self, Manager};
use super::pace::Pace;
use super::pool::{Pool, retire};
use super::report::survey::Survey;
use super::token::{self, Listener};
use super::trip::{self, Load, Outcome, Part};
use super::{Burst, Ear, Failure, Limits, Server, Window, failure_of, refusal_in};
use crate::clock;
use crate::error::NoConnection;
use crate::key::Key;
use crate::protocol::{Command, Reply, Request};

/// How long we leave a server alone that takes no more clients.
const CROWDED_PAUSE: Duration = Duration::from_millis(50);
/// So many commands go together at most.
const SEATS: usize = 128;
/// How much less than others a leader may be willing to wait for the answers.
const SLACK: Duration = Duration::from_millis(10);

/// A window through a pool.
pub(crate) struct Pooled<M: r2d2::ManageConnection> {
    pool: Pool<M>,
    trips: Trips<Load, Outcome>,
    pace: Pace,
    command_timeout: Duration,
    patience: Duration,
    /// Whether the server has accepted a MULTI.
    multi_is_known: Arc<AtomicBool>,
}

impl Pooled<Manager> {
    /// Looks through a pool of this manager.
    pub(crate) fn managed(pool: r2d2::Pool<Manager>, manager: &Manager, patience: Duration) -> Self {
        let [_, command_timeout] = manager.limits();
        Self::over(Pool { pool, manager: Some(manager.clone()) }, command_timeout, patience)
    }
}

impl<M: r2d2::ManageConnection> Pooled<M>
where
    M::Connection: Carrier,
{
    /// Looks through a pool of somebody else's.
    pub(crate) fn new(pool: r2d2::Pool<M>) -> Self {
        let patience = pool.connection_timeout();
        Self::over(Pool { pool, manager: None }, manager::DEFAULT_COMMAND_TIMEOUT, patience)
    }

    fn over(pool: Pool<M>, command_timeout: Duration, patience: Duration) -> Self {
        // How long the answers of somebody else's connections may take is not known.
        let answers_within = if pool.manager.is_some() { command_timeout } else { Duration::MAX };
        let pace = Pace::new(pool.pool.max_size(), answers_within);
        let trips = Trips::new(SEATS);
        Self { pool, trips, pace, command_timeout, patience, multi_is_known: Arc::default() }
    }

    /// Sends one command on a connection of the pool and, where it leads a trip, what others want. Returns its reply, and the connection
    /// if that is in good order and the command was to go alone; otherwise it is back in its pool before anybody gets an answer (I9).
    fn send(
        &self,
        key: &Key,
        request: &Request,
        limits: &Limits<'_>,
        mut trip: Option<Trip<'_, Load, Outcome>>,
    ) -> Result<(Reply, Option<r2d2::PooledConnection<M>>), Failure> {
        let Request { command, before } = request;
        let (packed, replies) = form::packed(key, command);
        let own = Part { command, packed: &packed, replies };
        let mut limits = *limits;
        loop {
            let began = limits.asked.uptime;
            let (mut connection, now) = self.pool.checkout(&limits)?;
            let limit = limits.answered_by.since(now.uptime);
            let version = connection.server_version().filter(|version| *version < limits.needs.needs());
            if let Some(version) = version {
                // What it was when this connection was opened. It may have been upgraded since, and the connection be closed.
                let Err(error) = answers(&mut *connection, limit) else {
                    return Err(Failure::TooOld(version));
                };
                retire(connection);
                limits.asked = clock::now();
                if limits.asked.uptime < limits.answered_by {
                    continue;
                }
                let (cause, waited) = (NoConnection::Failed(error), limits.asked.uptime.since(began));
                return Err(Failure::NoConnection { cause, waited });
            }
            if before.is_some_and(|end| end.has_passed(now)) {
                return Err(Failure::TooLate);
            }
            // Nobody's answer is to be given up sooner than its own thread would.
            let has_time = limit >= self.command_timeout.saturating_sub(SLACK);
            if let Some(trip) = &mut trip
                && has_time
            {
                trip.take_along();
            }
            let others = trip.iter().flat_map(Trip::jobs);
            let outcomes = trip::go(&mut *connection, own, others, clock::now, limit);
            if outcomes.any_read_only()
                && let Some(manager) = &self.pool.manager
            {
                // Its master has become a replica: where the address leads to now is found out by connecting anew.
                manager.health().found_closed();
            }
            let mut connection = if outcomes.leave_in_order(own) {
                Some(connection)
            } else {
                retire(connection);
                None
            };
            if let Some(trip) = &mut trip {
                connection = None;
                trip.end(outcomes.others, trip::orphaned);
            }
            let refusal = match outcomes.own {
                Outcome::Reply(reply) => return Ok((reply, connection)),
                Outcome::Refused(refusal) if refusal.ends_the_connection() => refusal,
                Outcome::Refused(refusal) => return Err(Failure::Refused(refusal)),
                Outcome::Lost(error) => return Err(failure_of(error)),
                Outcome::Unread => unreachable!("it is the first of its trip"),
            };
            // The server has no room for this connection, and has not read the command: its outcome is known, so sending it
            // on one of the others is no breach of I6.
            let others = self.pool.manager.is_some() && self.pool.pool.state().connections > 0;
            if !others || clock::uptime().after(CROWDED_PAUSE) >= limits.connected_by {
                return Err(Failure::Refused(refusal));
            }
            thread::sleep(CROWDED_PAUSE);
            limits.asked = clock::now();
        }
    }

    /// Leads a trip, or has the command taken along by another thread's.
    fn combine(&self, key: &Key, request: &Request, limits: &Limits<'_>) -> Result<Reply, Failure> {
        let load = || Load::new(key, request, limits.needs);
        let is_crowd = |threads| self.pace.is_crowd(threads);
        let waiting = self.pace.waiting(limits, || self.trips.moved());
        let (trip, limits) = match self.trips.join(load, is_crowd, waiting) {
            Joined::Leads { trip, waited: false } => (Some(trip), *limits),
            Joined::Leads { trip, waited: true } => (Some(trip), Limits { asked: clock::now(), ..*limits }),
            Joined::Answered(outcome) => match outcome.told() {
                Some(told) => return told,
                None => (None, Limits { asked: clock::now(), ..*limits }),
            },
            Joined::Unanswered => return Err(Failure::Lost(trip::unanswered())),
        };
        self.send(key, request, &limits, trip).map(|(reply, _)| reply)
    }
}

/// Whether there is a server at the other end, whatever it says.
fn answers(connection: &mut impl Carrier, limit: Duration) -> Result<(), redis::RedisError> {
    match exchanged(connection, &redis::cmd("PING").get_packed_command(), 1, limit) {
        Err(error) if refusal_in(&error).is_none() => Err(error),
        _ => Ok(()),
    }
}

impl<M: r2d2::ManageConnection> Window for Pooled<M>
where
    M::Connection: Carrier,
{
    fn call(&self, key: &Key, request: &Request, limits: &Limits<'_>) -> Result<Reply, Failure> {
        if M::Connection::COMBINES && limits.combines {
            return self.combine(key, request, limits);
        }
        self.send(key, request, limits, None).map(|(reply, _)| reply)
    }

    fn watch(&self, key: &Key, limits: &Limits<'_>) -> Result<(Reply, Box<dyn Burst>), Failure> {
        let (reply, connection) = self.send(key, &Request::at_any_time(Command::WatchGet), limits, None)?;
        let Some(connection) = connection else { unreachable!("it went alone, and has its answer") };
        Ok((reply, Box::new(Watching::on(connection, Arc::clone(&self.multi_is_known)))))
    }

    fn survey(&self, probe: &Key, limits: &Limits<'_>) -> Result<Server, Failure> {
        let mut asked_before = false;
        loop {
            let (mut connection, _) = self.pool.checkout(limits)?;
            let answer = Survey::over(&mut *connection, self.command_timeout, probe).ask();
            // Whatever was refused, or not answered: the next one is not to find a transaction open, or something watched.
            retire(connection);
            match answer {
                // One that was closed while it was idle. Asking again changes nothing.
                Err(error) if error.is_connection_dropped() && !asked_before => asked_before = true,
                Err(error) => {
                    // It may have been left behind. If it cannot be removed either, that is all that could be done.
                    let _ = self.call(probe, &Request::at_any_time(Command::Del), limits);
                    return Err(failure_of(error));
                }
                Ok(answer) => return answer.map_err(Failure::Refused),
            }
        }
    }

    fn leave_token(&self, list: &[u8], limits: &Limits<'_>) -> Result<(), Failure> {
        let (mut connection, _) = self.pool.checkout(limits)?;
        if connection.server_version().is_some_and(|version| version < token::NEEDS) {
            return Ok(());
        }
        let (packed, replies) = token::packed(list);
        match burst::transact(&mut *connection, &self.multi_is_known, &packed, replies, limits) {
            Ok(replies) => {
                // Unless EXEC was carried out, a transaction may be open on it.
                if !matches!(replies.last(), Some(Value::Array(_))) {
                    retire(connection);
                }
                token::objection(replies).map_or(Ok(()), |refusal| Err(Failure::Refused(refusal)))
            }
            Err(error) => {
                retire(connection);
                Err(refusal_in(&error).map_or_else(|| failure_of(error), Failure::Refused))
            }
        }
    }

    fn can_listen(&self) -> bool {
        self.pool.manager.is_some()
    }

    fn listen(&self) -> Result<Box<dyn Ear>, Failure> {
        let Some(manager) = &self.pool.manager else {
            unreachable!("a pool of somebody else's is not asked to")
        };
        Ok(Box::new(Listener::on(manager.connect_to_listen()?)?))
    }

    fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for Pooled<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pooled")
            .field("pool", &self.pool.pool.state())
            .field("max_size", &self.pool.pool.max_size())
            .field("trips", &self.trips)
            .field("command_timeout", &self.command_timeout)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Over;
    use super::super::fake::Fake;
    use super::*;
    use crate::clock::Uptime;
    use crate::options::Protocol;

    const LONG: Duration = Duration::from_secs(60);

    fn limits(answered_by: Uptime) -> Limits<'static> {
        Limits {
            needs: Protocol::Classic,
            asked: clock::now(),
            reachable_by: answered_by,
            connected_by: answered_by,
            answered_by,
            over: Over::NEVER,
            combines: true,
        }
    }

    /// Sends a command whose answer may take so long while so many others are in the queue, patiently. Returns how many commands go in
    /// each trip, the first and those that follow.
    fn trips(others: usize, limit: Duration) -> Vec<usize> {
        let fake = Fake::answering(|count| (vec![Value::Int(1); count], None));
        let sent = Arc::clone(&fake.sent);
        let builder = r2d2::Pool::builder().max_size(1).test_on_check_out(false);
        let pooled = Pooled::new(builder.build(fake).unwrap());
        let (key, request) = (Key::from("k"), Request::at_any_time(Command::Del));
        let drive = |limit, trip| {
            let limits = limits(clock::uptime().after(limit));
            assert_eq!(pooled.send(&key, &request, &limits, Some(trip)).unwrap().0, Reply::Integer(1));
        };
        let join = || {
            let load = || Load::new(&key, &request, Protocol::Classic);
            pooled.trips.join(
                load,
                |_| true,
                |_| {
                    thread::park_timeout(LONG);
                    true
                },
            )
        };
        thread::scope(|scope| {
            let Joined::Leads { trip, .. } = join() else { panic!("there is no other") };
            for _ in 0..others {
                scope.spawn(|| match join() {
                    Joined::Leads { trip, .. } => drive(LONG, trip),
                    Joined::Answered(outcome) => {
                        assert_eq!(outcome.told().unwrap().unwrap(), Reply::Integer(1));
                        // I9: nobody else is there to have taken it since.
                        let is_back = pooled.pool.pool.state().idle_connections == 1;
                        assert!(is_back || others >= SEATS);
                    }
                    Joined::Unanswered => panic!("all are answered"),
                });
            }
            while !format!("{:?}", pooled.trips).contains(&format!("queued: {others},")) {
                thread::sleep(Duration::from_millis(1));
            }
            drive(limit, trip);
        });
        let sent = sent.lock().unwrap();
        sent.iter().map(|(_, count)| *count).collect()
    }

    #[test]
    fn a_trip_has_so_many_seats_and_the_rest_take_the_next() {
        assert_eq!(trips(SEATS - 1, LONG), [SEATS]);
        assert_eq!(trips(SEATS + 20, LONG), [SEATS, 21]);
    }

    #[test]
    fn who_has_less_time_than_others_takes_nobody_along() {
        assert_eq!(trips(5, manager::DEFAULT_COMMAND_TIMEOUT / 2), [1, 5]);
    }
}

//! A Ruby client of gem 1.4.3 or later in the random search. It writes an empty value with a time to live, and replaces a time in the past
//! by a plain SET, after a GET: if several have read the same value, each of them has the lock then.

use std::time::Duration;

use super::{Doing, Run, one_in};
use crate::rules::acquire::{Held, Pause};
use crate::rules::lease::{End, Lease};
use crate::rules::task::{Io, Task};
use crate::rules::{Command, GiveUp, NewValue, Reply, Request};
use crate::simulated::Server;
use crate::values::clock::Now;
use crate::values::options::Protocol;
use crate::values::value::{Expiry, LockState};

const POLL_INTERVAL: Duration = Duration::from_millis(100);

async fn acquire(io: &Io, expiration: Duration) -> Result<Held, GiveUp> {
    loop {
        let lease = lease(io.now(), expiration);
        match io.send(Request::at_any_time(Command::SetNx(lease.new_value()))).await {
            Reply::Integer(0) => {}
            Reply::Integer(_) => return Ok(held(lease)),
            _ => return Err(GiveUp::Io),
        }
        let Reply::Bulk(found) = io.send(Request::at_any_time(Command::Get)).await else {
            return Err(GiveUp::Io);
        };
        let is_past = |until: Expiry| until.0 < io.now().wall;
        if matches!(LockState::of_value(found.as_deref()), LockState::Until(until) if is_past(until)) {
            // Stands for a plain SET with PX.
            return match io.send(Request::at_any_time(Command::GetSet(lease.value))).await {
                Reply::Bulk(_) => Ok(held(lease)),
                _ => Err(GiveUp::Io),
            };
        }
        io.sleep(Pause { time: POLL_INTERVAL, seen: None, in_doubt: false, leaves: false }).await;
    }
}

fn lease(now: Now, expiration: Duration) -> Lease {
    let mut lease = Lease::none();
    (lease.ttl, lease.end) = (Some(expiration), Some(End::of(now, expiration)));
    lease
}

fn held(lease: Lease) -> Held {
    Held { slot: 0, lease, protocol: Protocol::Ttl, another_is_free: false }
}

/// Carries out the plain SET of a gem; `None` if it is another command.
pub(super) fn carry_out(
    server: &mut Server,
    command: &Command,
    ttl: Duration,
    now: Duration,
) -> Option<Reply> {
    let Command::GetSet(value) = command else { return None };
    if !value.is_empty() {
        return None;
    }
    server.put(&NewValue { value: *value, ttl: Some(ttl) }, now);
    Some(Reply::Bulk(None))
}

impl Run {
    pub(super) fn is_gem(&self, n: usize) -> bool {
        self.conditions.gems && n > 0
    }

    pub(super) fn start_gem(&mut self, n: usize, now: Now) {
        let expiration = self.clients[n].expiration;
        let (attempt, step) = Task::begin(now, async move |io| acquire(io, expiration).await);
        self.clients[n].attempt = Some(attempt);
        self.act(n, step);
    }

    /// A gem works on, or crashes: what its DEL does to others is no matter of ours.
    pub(super) fn work_as_gem(&mut self, n: usize, choice: u8) {
        if one_in(3, choice) {
            self.clients[n].held = None;
        } else {
            self.clients[n].doing = Doing::Working;
        }
    }
}

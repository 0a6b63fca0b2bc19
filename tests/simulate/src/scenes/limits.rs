//! Each call ends in the time of its row in limits.md, How long a call takes: over a slow network, where all calls
//! succeed, and over one that breaks.

use std::time::Duration;

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, MultiLock, Protocol, Semaphore};
use world::network::{self, Faults, ServerId};
use world::run::{self, chance, random};
use world::thread;

use super::{COMMAND, SECOND, a_server, builder, limits, millis, start, sure};
use crate::calls::{one_of, timed};
use crate::laws;

const LEASE: Duration = Duration::from_secs(20);

pub(super) fn each_call_ends_in_the_time_of_its_row() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    // Two round trips fit into one command timeout.
    let latency = (10_000, 60_000 + random(0..80_000));
    let server = a_server(latency, protocol);
    let breaks = chance(2);
    start("process", move || {
        let locker = sure(builder(server).pool_size(4).connect_timeout(COMMAND).build());
        let options = LockOptions::expiring_after(LEASE).protocol(protocol).notify_waiters(false);
        let timeout = millis(0, 1500);
        let (calls, waits) = if breaks { (2 * COMMAND, LEASE) } else { (COMMAND, Duration::ZERO) };
        let caller = Caller { locker, options: options.timeout(timeout), timeout, calls, waits, server };
        // The first call connects, and finds out what the server can do.
        let _first = caller.lock("first").lock();
        if breaks {
            let faults = Faults { latency, lost_requests: 8, lost_replies: 8, silences: 16, ..Faults::NONE };
            network::set_faults(Faults { delays: 8, delay: 2 * SECOND, ..faults });
        }
        while run::now() < 200 * SECOND {
            caller.call();
            thread::sleep(millis(0, 300));
        }
    });
    thread::sleep(240 * SECOND);
}

struct Caller {
    locker: Locker,
    options: LockOptions,
    timeout: Duration,
    /// How long a call on a guard may take: it first waits for an
    /// unfinished command of the guard, such as a look after a lost reply.
    calls: Duration,
    /// How long a release may wait for a connection.
    waits: Duration,
    server: ServerId,
}

/// Times a call.
fn call<T>(what: &str, limit: Duration, call: impl FnOnce() -> Result<T, Error>) -> Option<T> {
    let outcome = timed(what, limit, call);
    outcome.inspect_err(laws::failed).ok()
}

impl Caller {
    fn lock(&self, key: &str) -> Lock {
        sure(Lock::new(&self.locker, key, self.options))
    }

    fn call(&self) {
        let waits = limits().waiting(self.timeout);
        match random(0..6) {
            0 => {
                let count = one_of(&[1, 3, 10]);
                // What an earlier call has left would be taken over, key by key.
                for n in 0..count {
                    let _left = self.server.look(&["DEL", &format!("several {n}")]);
                }
                let locks = sure(MultiLock::new(
                    &self.locker,
                    (0..count).map(|n| format!("several {n}")),
                    self.options,
                ));
                let Ok(guard) = timed("lock of several", waits + 4 * COMMAND, || locks.lock()) else {
                    return;
                };
                // The keeper may look at one key after the other.
                let calls = self.calls + self.waits.min(COMMAND);
                for _ in 0..random(0..4) {
                    match random(0..3) {
                        0 => drop(call("extend several", calls, || guard.extend())),
                        1 => drop(call("verify several", calls, || guard.verify())),
                        _ => drop(call("tokens of several", calls, || guard.fencing_tokens())),
                    }
                }
                call("release several", calls + self.waits, || guard.release());
            }
            1 => {
                let permits = sure(Semaphore::new(&self.locker, "permits", 3, self.options));
                if let Some(permit) = call("acquire", waits + 4 * COMMAND, || permits.acquire()) {
                    call("release a permit", self.calls + self.waits, || permit.release());
                }
            }
            2 => {
                call("state", COMMAND, || self.lock("k").state());
                call("holder", COMMAND, || self.lock("k").holder());
            }
            3 => {
                call("clear", COMMAND, || self.lock("k").clear());
            }
            4 => {
                // Left by somebody. A takeover takes four trips, for which
                // there may be no time; and then the keeper looks at the key.
                let _left = self.server.look(&["SET", "left", "1532000016.5"]);
                self.hold(timed("lock", waits, || self.lock("left").lock()).ok(), 2 * COMMAND);
            }
            _ => self.hold(call("try_lock", COMMAND, || self.lock("k").try_lock()).flatten(), self.calls),
        }
    }

    fn hold(&self, acquired: Option<LockGuard>, limit: Duration) {
        let Some(mut guard) = acquired else { return };
        for _ in 0..random(0..4) {
            match random(0..4) {
                0 => drop(call("extend", limit, || guard.extend())),
                1 => drop(call("verify", limit, || guard.verify())),
                2 => drop(call("fencing_token", limit, || guard.fencing_token())),
                _ => {
                    let lock = self.lock(&guard.key().to_string());
                    // One that fails releases the lock.
                    let Some(token) = call("into_token", limit + COMMAND + self.waits, || guard.into_token())
                    else {
                        return;
                    };
                    if chance(2) {
                        call("release_token", 2 * COMMAND + self.waits, || self.locker.release_token(&token));
                        return;
                    }
                    let Some(resumed) = call("resume", COMMAND, || lock.resume(&token)) else { return };
                    guard = resumed;
                }
            }
            timed("ensure_held", Duration::ZERO, || guard.ensure_held().ok());
        }
        call("release", limit + self.waits, || guard.release());
    }
}

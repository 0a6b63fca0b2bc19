//! Threads of one process that want permits, or to read and write, and never poll: each is woken by who releases.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use setnx_lock::{CancelToken, Error, LockOptions, Permit, Protocol, RwLock, Semaphore};
use world::run::{self, chance, random};
use world::thread;

use super::{SECOND, a_server, limits, locker, millis, start, sure};
use crate::calls::{Holding, Released, one_of, timed};
use crate::laws::{self, broken};

/// All threads have had a permit for a while by then, also if the process leaves the keys to pollers.
const WOKEN_BY: Duration = Duration::from_secs(4);

pub(super) fn each_is_woken_by_who_releases() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    let server = a_server((30, one_of(&[90, 2000])), protocol);
    start("process", move || {
        let locker = locker(server);
        let options = LockOptions::expiring_after(200 * SECOND)
            .protocol(protocol)
            .poll_interval(100 * SECOND)
            .timeout(90 * SECOND);
        let permits = sure(Semaphore::new(&locker, "permits", one_of(&[1, 2, 3]), options));
        let shared = sure(RwLock::new(&locker, "shared", one_of(&[1, 2, 3]), options));
        let reads_only = chance(3);
        let threads: Vec<_> = (0..random(3..7))
            .map(|_| {
                let each = Each { permits: permits.clone(), shared: shared.clone(), reads_only };
                thread::spawn(move || {
                    while run::now() < 15 * SECOND {
                        each.turn();
                        if chance(3) {
                            thread::sleep(millis(0, 40));
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap_or_else(|_| broken("a thread panics"));
        }
    });
    // One that is not woken says so at its deadline.
    thread::sleep(120 * SECOND);
    for name in ["permits", "shared"] {
        for slot in 0..3 {
            let key = format!("{name}:{slot}");
            if server.look(&["EXISTS", &key]) != "0" {
                broken(&format!("{key} is left: {}", server.look(&["GET", &key])));
            }
        }
    }
}

struct Each {
    permits: Semaphore,
    shared: RwLock,
    reads_only: bool,
}

impl Each {
    fn turn(&self) {
        match random(0..6) {
            0 if !self.reads_only => self.write(),
            1 => permit_in_a_moment(&self.permits),
            2 => cancelled(&self.permits),
            3 => work(waited("read", || self.shared.read())),
            _ => work(waited("acquire", || self.permits.acquire())),
        }
    }

    fn write(&self) {
        if chance(4) {
            // It gives up what it has, and readers learn of it.
            let given_up = self.shared.try_write_for(millis(0, 30));
            return drop(sure(given_up));
        }
        let guard = waited("write", || self.shared.write());
        let holding = Holding::begin(guard.guards(), None, limits());
        holding.work(millis(0, 20));
        match random(0..4) {
            0 => holding.end().by(|| guard.release()),
            3 => {
                holding.end().done();
                guard.release_later();
            }
            1 => holding.end().by_dropping(guard),
            _ => {
                let released = holding.end();
                let permit = timed("downgrade", released.limit, || guard.downgrade());
                let before = released.id_of(&permit.key().to_string());
                released.done();
                let holding = Holding::begin([&*permit], None, limits());
                laws::same_hold(holding.id(), before);
                holding.work(millis(0, 20));
                end(holding.end(), permit);
            }
        }
    }
}

fn waited<T>(what: &str, call: impl FnOnce() -> Result<T, Error>) -> T {
    sure(timed(what, WOKEN_BY, call))
}

fn permit_in_a_moment(permits: &Semaphore) {
    if let Some(permit) = sure(permits.try_acquire_for(millis(0, 30))) {
        work(permit);
    }
}

/// A thread that waits is told to stop.
fn cancelled(permits: &Semaphore) {
    let token = CancelToken::new();
    let of_this_call = permits.clone().cancelled_by(&token);
    let waiting = thread::spawn(move || timed("acquire", WOKEN_BY, || of_this_call.acquire()));
    thread::sleep(millis(0, 10));
    token.cancel();
    match waiting.join().unwrap_or_else(|_| broken("a thread panics")) {
        Ok(permit) => work(permit),
        Err(Error::Cancelled { .. }) => {}
        Err(error) => broken(&format!("cancelled, and it says {}", error.chain())),
    }
}

fn work(permit: Permit) {
    let holding = Holding::begin([&*permit], None, limits());
    holding.work(millis(0, 20));
    end(holding.end(), permit);
}

fn end(released: Released, permit: Permit) {
    match random(0..4) {
        0 => released.by(|| permit.release()),
        1 => {
            released.done();
            permit.release_later();
        }
        2 => {
            released.done();
            let panics = AssertUnwindSafe(|| {
                let _permit = permit;
                resume_unwind(Box::new("on purpose"))
            });
            drop(catch_unwind(panics));
        }
        _ => released.by_dropping(permit),
    }
}

//! Threads of one process that want permits, or to read and write, and never poll: each is woken by who releases.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use setnx_lock::{CancelToken, Error, LockOptions, Permit, Protocol, RwLock, Semaphore};
use world::network::ServerId;
use world::process::{Clocks, Process};
use world::run::{self, chance, random};
use world::thread;

use super::{SECOND, a_server, limits, locker, millis, start, sure};
use crate::calls::{Holding, Released, one_of, timed, up_to};
use crate::laws::{self, broken};

/// All threads have had a permit for a while by then, also if the process leaves the keys to pollers.
const WOKEN_BY: Duration = Duration::from_secs(4);

/// Also those of all processes.
const NOTIFIED_BY: Duration = Duration::from_secs(8);

pub(super) fn each_is_woken_by_who_releases() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    let server = a_server((30, one_of(&[90, 2000])), protocol);
    let (permits, readers) = (one_of(&[1, 2, 3]), one_of(&[1, 2, 3]));
    let options = LockOptions::expiring_after(200 * SECOND)
        .protocol(protocol)
        .poll_interval(100 * SECOND)
        .timeout(90 * SECOND);
    start("process", move || {
        let (locker, reads_only) = (locker(server), chance(3));
        let permits = sure(Semaphore::new(&locker, "permits", permits, options));
        let shared = sure(RwLock::new(&locker, "shared", readers, options));
        let (rests_for, woken_by) = (millis(39, 40), WOKEN_BY);
        loop_in_threads(random(3..7), &Each { permits, shared, reads_only, rests_for, woken_by });
    });
    none_is_left(server);
}

/// As before, and the threads are those of several processes, each of which is notified when it is its turn.
pub(super) fn processes_are_woken() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    let server = a_server((30, one_of(&[90, 2000])), protocol);
    let (permits, readers, reads_only) = (one_of(&[1, 2, 3]), one_of(&[1, 2, 3]), chance(3));
    let options = LockOptions::expiring_after(200 * SECOND)
        .protocol(protocol)
        .notify_waiters(true)
        .poll_interval(100 * SECOND)
        .timeout(90 * SECOND);
    // Those that rest for long show who is not woken: no other release makes up for it.
    let rests_for = Duration::from_millis(one_of(&[40, 400, 2000]));
    for number in 0..random(2..5) {
        Process::start(&format!("process {number}"), Clocks::default(), move || {
            let locker = locker(server);
            let permits = sure(Semaphore::new(&locker, "permits", permits, options));
            let shared = sure(RwLock::new(&locker, "shared", readers, options));
            let woken_by = NOTIFIED_BY;
            loop_in_threads(random(1..4), &Each { permits, shared, reads_only, rests_for, woken_by });
        });
    }
    none_is_left(server);
}

/// Processes read again and again, and a writer is next after the readers that are in. If another writer is killed as it
/// waits, all wait until it is known to be gone.
pub(super) fn a_writer_gets_in_among_readers() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    let server = a_server((30, one_of(&[90, 2000])), protocol);
    let (readers, holds_for) = (one_of(&[5, 6, 8]), millis(50, 300));
    let options = LockOptions::expiring_after(20 * SECOND).protocol(protocol).timeout(20 * SECOND);
    let shared = move || sure(RwLock::new(&locker(server), "shared", readers, options));
    for number in 0..6 {
        Process::start(&format!("reader {number}"), Clocks::default(), move || {
            let shared = shared();
            while run::now() < 20 * SECOND {
                let began = run::now();
                let permit = sure(shared.read());
                let waited = run::now().saturating_sub(began);
                if waited > millis(6000, 6001) {
                    broken(&format!("a reader has waited {waited:?}"));
                }
                thread::sleep(up_to(holds_for));
                sure(permit.release());
            }
        });
    }
    let rests_for = millis(50, one_of(&[200, 2000]));
    let writers = random(1..4);
    // Several poll for their turn, in no order.
    let writes_within = if writers == 1 { millis(3500, 3501) } else { 8 * SECOND };
    for number in 0..writers {
        Process::start(&format!("writer {number}"), Clocks::default(), move || {
            let shared = shared();
            thread::sleep(up_to(SECOND));
            while run::now() < 18 * SECOND {
                let began = run::now();
                let guard = sure(shared.write());
                let waited = run::now().saturating_sub(began);
                run::note(&format!("waited {waited:?}"));
                if waited > writes_within {
                    broken(&format!("a writer has waited {waited:?}"));
                }
                let holding = Holding::begin(guard.guards(), None, limits());
                holding.work(millis(0, 20));
                holding.end().by(|| guard.release());
                thread::sleep(up_to(rests_for));
            }
        });
    }
    let killed = Process::start("killed", Clocks::default(), move || {
        let options = LockOptions::expiring_after(SECOND).protocol(protocol).timeout(20 * SECOND);
        let shared = sure(RwLock::new(&locker(server), "shared", readers, options));
        thread::sleep(up_to(12 * SECOND));
        loop {
            drop(shared.write());
            thread::sleep(up_to(millis(50, 200)));
        }
    });
    thread::sleep(up_to(16 * SECOND));
    killed.kill(chance(2));
    none_is_left(server);
}

fn loop_in_threads(threads: u64, each: &Each) {
    let looping = |_| {
        let each = each.clone();
        thread::spawn(move || {
            while run::now() < 15 * SECOND {
                each.turn();
                if chance(3) {
                    thread::sleep(up_to(each.rests_for));
                }
            }
        })
    };
    let threads: Vec<_> = (0..threads).map(looping).collect();
    for thread in threads {
        thread.join().unwrap_or_else(|_| broken("a thread panics"));
    }
}

/// Waits until a thread that is not woken has said so, at its deadline.
fn none_is_left(server: ServerId) {
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

#[derive(Clone)]
struct Each {
    permits: Semaphore,
    shared: RwLock,
    reads_only: bool,
    rests_for: Duration,
    woken_by: Duration,
}

impl Each {
    fn turn(&self) {
        match random(0..6) {
            0 if !self.reads_only => self.write(),
            1 => permit_in_a_moment(&self.permits),
            2 => self.cancelled(),
            3 => work(self.waited("read", || self.shared.read())),
            _ => work(self.waited("acquire", || self.permits.acquire())),
        }
    }

    fn write(&self) {
        if chance(4) {
            // It gives up what it has, and readers learn of it.
            let given_up = self.shared.try_write_for(millis(0, 30));
            return drop(sure(given_up));
        }
        let guard = self.waited("write", || self.shared.write());
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

    fn waited<T>(&self, what: &str, call: impl FnOnce() -> Result<T, Error>) -> T {
        sure(timed(what, self.woken_by, call))
    }

    /// A thread that waits is told to stop.
    fn cancelled(&self) {
        let (token, woken_by) = (CancelToken::new(), self.woken_by);
        let of_this_call = self.permits.clone().cancelled_by(&token);
        let waiting = thread::spawn(move || timed("acquire", woken_by, || of_this_call.acquire()));
        thread::sleep(millis(0, 10));
        token.cancel();
        match waiting.join().unwrap_or_else(|_| broken("a thread panics")) {
            Ok(permit) => work(permit),
            Err(Error::Cancelled { .. }) => {}
            Err(error) => broken(&format!("cancelled, and it says {}", error.chain())),
        }
    }
}

fn permit_in_a_moment(permits: &Semaphore) {
    if let Some(permit) = sure(permits.try_acquire_for(millis(0, 30))) {
        work(permit);
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

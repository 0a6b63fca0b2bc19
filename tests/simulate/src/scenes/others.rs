//! Worlds in which others want the same locks: gems, and processes that are to be woken.

use std::time::Duration;

use setnx_lock::{Lock, LockOptions, Protocol};
use setnx_lock_testing::ServerVersion;
use world::network::{self, Faults};
use world::process::{Clocks, Process};
use world::run::{self, random};
use world::thread;

use super::{SECOND, a_server, builder, limits, millis, start, sure};
use crate::calls::{Holding, one_of, refused, timed, up_to};
use crate::laws::{self, Losers, Rules, Tokens, broken};
use crate::others::{self, Others};
use crate::servers::{Servers, Topology};

/// Gems ask just as the lock is released, and their GETSET comes late: it replaces the value of the next holder, who
/// has the lock all the same.
pub(super) fn gems_overwrite_a_holder() {
    let protocol = one_of(&[Protocol::Watched, Protocol::Ttl]);
    let server = a_server((20, 8000), protocol);
    for name in ["gem a", "gem b", "gem c", "gem d", "gem e", "gem f"] {
        start(name, move || {
            others::loop_on(&Servers::one(server), Others::OldGems, "k", 2 * SECOND, 60 * SECOND);
        });
    }
    for name in ["one", "other"] {
        start(name, move || {
            let locker = sure(builder(server).build());
            let options = LockOptions::expiring_after(2 * SECOND).protocol(protocol).timeout(5 * SECOND);
            let lock = sure(Lock::new(&locker, "k", options));
            while run::now() < 60 * SECOND {
                let began = run::now();
                let guard = match timed("lock", limits().waiting(5 * SECOND), || lock.lock()) {
                    Ok(guard) => guard,
                    Err(error) => {
                        refused("k", began, &error);
                        continue;
                    }
                };
                thread::sleep(millis(20, 300));
                if let Err(error) = guard.verify()
                    && error.is_lost()
                {
                    broken(&format!("a gem that has lost a takeover counts as a holder: {}", error.chain()));
                }
                let _released = guard.release();
            }
        });
    }
    thread::sleep(120 * SECOND);
}

/// Processes wait for each other on keys of all nodes of a cluster.
/// Each is woken when the lock is free, long before it would ask.
pub(super) fn processes_of_a_cluster_are_woken() {
    let servers = Servers::start(Topology::Cluster, ServerVersion::V7);
    network::set_faults(Faults::NONE);
    let free_at_most = Some(Duration::from_millis(400));
    let rules = Rules {
        is_exclusive: true,
        losers: Losers::None,
        tokens: Tokens::Grow,
        keeps_keys: true,
        free_at_most,
    };
    laws::set_rules(&servers, rules);
    for _ in 0..3 {
        let copy = servers.clone();
        Process::start("process", Clocks::default(), move || {
            let locker = sure(sure(copy.builder()).build());
            let options = LockOptions::expiring_after(20 * SECOND).protocol(Protocol::Auto);
            let options = options.poll_interval(4 * SECOND).timeout(20 * SECOND);
            while run::now() < 60 * SECOND {
                let key = one_of(&["b", "c", "d"]);
                let lock = sure(Lock::new(&locker, key, options));
                let began = run::now();
                let guard = sure(lock.lock());
                let holding = Holding::begin([&guard], Some(began), limits());
                thread::sleep(millis(100, 1500));
                holding.end().by(|| guard.release());
                thread::sleep(millis(0, random(1..1500)));
            }
        });
    }
    thread::sleep(120 * SECOND);
}

/// Gems poll a key that processes keep busy, and get it in the windows in which these leave it alone.
pub(super) fn pollers_get_a_busy_key() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Auto]);
    let server = a_server((20, 300), protocol);
    let (gems, threads) = (random(1..4), one_of(&[1, 3]));
    // A process that has only waited for long polls as a gem does.
    for number in 0..gems.min(2) {
        Process::start(&format!("busy {number}"), Clocks::default(), move || {
            let locker = sure(builder(server).build());
            let options = LockOptions::expiring_after(5 * SECOND).protocol(protocol).timeout(30 * SECOND);
            let lock = sure(Lock::new(&locker, "k", options));
            for _ in 0..threads {
                let lock = lock.clone();
                thread::spawn(move || {
                    while run::now() < 25 * SECOND {
                        sure(lock.with(|_| thread::sleep(up_to(millis(1, 3)))));
                    }
                });
            }
        });
    }
    for number in 0..gems {
        Process::start(&format!("gem {number}"), Clocks::default(), move || {
            thread::sleep(2 * SECOND + up_to(SECOND));
            while run::now() < 20 * SECOND {
                let began = run::now();
                others::have_once(&Servers::one(server), Others::OldGems, "k", 5 * SECOND, millis(1, 10));
                let waited = run::now().saturating_sub(began);
                // One alone finds a window each second. Several meet each other there, and a lone thread has to meet one
                // first.
                let is_alone = gems == 1 && threads > 1;
                let at_most = if is_alone { millis(2100, 2101) } else { 8 * SECOND };
                if waited > at_most {
                    broken(&format!("one of {gems} gems has waited {waited:?} for a key that is busy"));
                }
                run::note(&format!("waited {waited:?}"));
                thread::sleep(up_to(SECOND));
            }
        });
    }
    thread::sleep(30 * SECOND);
}

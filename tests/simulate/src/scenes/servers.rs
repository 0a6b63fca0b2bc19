//! Worlds in which something is wrong with servers or with the way to them.

use std::time::Duration;

use setnx_lock::{Lock, LockOptions, Protocol};
use setnx_lock_testing::ServerVersion;
use world::network::{self, Faults, ServerId};
use world::process::{Clocks, Process};
use world::run::{self, chance};
use world::thread;

use super::{COMMAND, SECOND, a_server, builder, limits, millis, start, sure};
use crate::calls::{Holding, one_of, refused, timed};
use crate::laws::{self, Losers, Rules, Tokens};
use crate::mishaps::REFUSALS;
use crate::servers::{Failover, Servers, Topology};

/// Processes come and go, and their first connections break. `Auto` does not take the server for one without INFO, and
/// decide by the clocks, which differ by more than a second.
pub(super) fn connections_break_while_they_are_opened() {
    let server = a_server((30, 90), Protocol::Auto);
    network::set_faults(Faults { lost_requests: 50, lost_replies: 50, ..Faults::NONE });
    let options = LockOptions::expiring_after(3 * SECOND).protocol(Protocol::Auto).timeout(2 * SECOND);
    for number in 0..80_i64 {
        Process::start("process", Clocks { ahead: number % 2 * 5_000_000, faster: 0 }, move || {
            let lock = sure(Lock::new(&sure(builder(server).build()), "k", options));
            let began = run::now();
            match timed("lock", limits().waiting(2 * SECOND), || lock.lock()) {
                Ok(guard) => {
                    let holding = Holding::begin([&guard], None, limits());
                    thread::sleep(millis(10, 2000));
                    holding.end().by(|| guard.release());
                }
                Err(error) => refused("k", began, &error),
            }
        });
        thread::sleep(millis(10, 1500));
    }
    thread::sleep(60 * SECOND);
}

fn a_cluster(tokens: Tokens) -> Servers {
    several(Topology::Cluster, tokens)
}

pub(super) fn several(topology: Topology, tokens: Tokens) -> Servers {
    let servers = Servers::start(topology, ServerVersion::V7);
    laws::set_rules(
        &servers,
        Rules {
            is_exclusive: tokens == Tokens::Grow,
            losers: Losers::None,
            tokens,
            keeps_keys: tokens == Tokens::Grow,
            free_at_most: None,
        },
    );
    servers
}

/// Nodes hang as a process has to find out what they can do: all of them together take no longer than one command may.
pub(super) fn nodes_hang_that_are_probed() {
    let servers = a_cluster(Tokens::Grow);
    for _ in 0..6 {
        network::set_faults(Faults::NONE);
        let copy = servers.clone();
        Process::start("process", Clocks::default(), move || {
            let locker = sure(sure(copy.builder()).command_timeout(SECOND).build());
            let options = LockOptions::expiring_after(3 * SECOND);
            // There are connections to all of them.
            for key in ["a", "b", "c", "d"] {
                drop(sure(sure(Lock::new(&locker, key, options)).try_lock()));
            }
            thread::sleep(SECOND / 4);
            let lock = sure(Lock::new(&locker, "k", options.protocol(Protocol::Ttl)));
            let began = run::now();
            match timed("try_lock", SECOND, || lock.try_lock()) {
                Ok(guard) => drop(guard),
                Err(error) => refused("k", began, &error),
            }
        });
        thread::sleep(SECOND / 5);
        network::set_faults(Faults { delays: 2, delay: 5 * SECOND, ..Faults::NONE });
        thread::sleep(10 * SECOND);
    }
    thread::sleep(60 * SECOND);
}

/// New processes look at a lock on a distant server, of which many
/// replies are late: what the first call finds out counts as its time.
pub(super) fn a_lock_is_looked_at_first() {
    let server = a_server((60_000, 100_000), Protocol::Auto);
    network::set_faults(Faults { latency: (60_000, 100_000), delays: 8, delay: 5 * SECOND, ..Faults::NONE });
    for _ in 0..40 {
        Process::start("process", Clocks::default(), move || {
            let lock =
                sure(Lock::new(&sure(builder(server).build()), "k", LockOptions::without_expiration()));
            if let Err(error) = timed("state", COMMAND, || lock.state()) {
                laws::failed(&error);
            }
        });
        thread::sleep(SECOND / 4);
    }
    thread::sleep(60 * SECOND);
}

/// A process of a cluster comes now and then, tries once, and meets nodes that have become replicas meanwhile: the
/// master is asked instead.
pub(super) fn nodes_have_become_replicas() {
    let servers = a_cluster(Tokens::Grow);
    let copy = servers.clone();
    Process::start("process", Clocks::default(), move || {
        let locker = sure(sure(copy.builder()).command_timeout(SECOND).build());
        let options = LockOptions::expiring_after(3 * SECOND).protocol(Protocol::Auto);
        let locks = ["a", "b", "c", "d"].map(|key| sure(Lock::new(&locker, key, options)));
        while run::now() < 120 * SECOND {
            for lock in &locks {
                let began = run::now();
                match timed("try_lock", SECOND, || lock.try_lock()) {
                    Ok(guard) => drop(guard),
                    Err(error) => refused(&lock.key().to_string(), began, &error),
                }
            }
            thread::sleep(millis(14_000, 20_000));
        }
    });
    while run::now() < 110 * SECOND {
        servers.fail_over(Failover { is_planned: true, lost: Duration::ZERO });
        thread::sleep(millis(2500, 6000));
    }
    thread::sleep(60 * SECOND);
}

/// Failovers lose numbers, and then the slot goes to a node that
/// processes have had connections to: its epoch counts that it has now.
pub(super) fn slots_move_after_failovers() {
    let servers = a_cluster(Tokens::Differ);
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl]);
    for _ in 0..3 {
        let copy = servers.clone();
        Process::start("process", Clocks::default(), move || {
            let locker = sure(sure(copy.builder()).command_timeout(SECOND).build());
            let options = LockOptions::expiring_after(SECOND).protocol(protocol).timeout(3 * SECOND);
            // Connections to all nodes are used all the time, and numbers are taken now and then.
            let locks = ["a", "b", "c", "d"].map(|key| sure(Lock::new(&locker, key, options)));
            while run::now() < 100 * SECOND {
                for lock in &locks {
                    let Ok(guard) = lock.lock() else { continue };
                    let holding = Holding::begin([&guard], None, limits());
                    if chance(40)
                        && let Ok(number) = guard.fencing_token()
                    {
                        laws::token(holding.id(), number, None);
                    }
                    holding.end().done();
                    thread::sleep(millis(1, 100));
                }
            }
        });
    }
    while run::now() < 90 * SECOND {
        servers.fail_over(Failover { is_planned: true, lost: millis(500, 1000) });
        thread::sleep(millis(3000, 4000));
        servers.move_a_slot(one_of(&["a", "b", "c", "d"]));
        thread::sleep(millis(2000, 5000));
    }
    thread::sleep(60 * SECOND);
}

/// Failovers lose the last extensions of locks that are kept, whose
/// leases outlast them: they go on with the values of before.
pub(super) fn extensions_are_lost() {
    let servers = several(Topology::Sentinels, Tokens::Differ);
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl]);
    let copy = servers.clone();
    Process::start("keeper", Clocks::default(), move || {
        let builder = sure(copy.builder()).command_timeout(SECOND).settle_after_failover(24 * SECOND);
        let locker = sure(builder.build());
        let options = LockOptions::expiring_after(24 * SECOND).protocol(protocol).auto_extend(300 * SECOND);
        let mut guards = Vec::new();
        for number in 0..40 {
            guards.push(sure(sure(Lock::new(&locker, format!("kept {number}"), options)).lock()));
            thread::sleep(SECOND / 4);
        }
        while run::now() < 100 * SECOND {
            thread::sleep(SECOND / 4);
            for guard in &guards {
                if let Err(error) = guard.ensure_held() {
                    laws::broken(&format!(
                        "a lock is lost although its lease outlasts a failover: {}",
                        error.chain()
                    ));
                }
            }
        }
        guards.clear();
    });
    thread::sleep(12 * SECOND);
    for _ in 0..4 {
        servers.fail_over(Failover { is_planned: true, lost: millis(300, 1000) });
        thread::sleep(22 * SECOND);
    }
    thread::sleep(120 * SECOND);
}

/// Starts a process that takes a lock again and again, and waits for long enough: no call fails, unless turns are a
/// matter of chance (`has_turns`). `why`: what went wrong with one that does.
pub(super) fn start_worker(name: &str, server: ServerId, lease: Duration, why: &'static str) {
    start(name, move || {
        let locker = sure(builder(server).pool_size(2).build());
        let options = LockOptions::expiring_after(lease).protocol(Protocol::Auto).timeout(20 * SECOND);
        let lock = sure(Lock::new(&locker, "k", options));
        while run::now() < 60 * SECOND {
            let began = run::now();
            match timed("lock", limits().waiting(20 * SECOND), || lock.lock()) {
                Ok(guard) => {
                    let holding = Holding::begin([&guard], None, limits());
                    thread::sleep(millis(1, 1500));
                    holding.end().by(|| guard.release());
                }
                // While the server fails again and again, nobody is woken in turn.
                Err(error) if error.is_contention() || run::now() >= began + 20 * SECOND => {}
                Err(error) => laws::broken(&format!("{why}: {}", error.chain())),
            }
        }
    });
}

/// A server refuses for now, in each way. Calls that wait go on until it does no more.
pub(super) fn a_server_refuses_for_now() {
    let server = a_server((30, 90), Protocol::Auto);
    for name in ["one", "other"] {
        start_worker(name, server, 4 * SECOND, "a refusal ends a wait that has time");
    }
    while run::now() < 50 * SECOND {
        thread::sleep(millis(100, 2000));
        server.set_refusing(Some(one_of(&REFUSALS)));
        let time = millis(1, 3000);
        network::trouble_for(time);
        thread::sleep(time);
        server.set_refusing(None);
    }
    thread::sleep(120 * SECOND);
}

/// Connections are opened all the time, also while a Sentinel learns of a failover: between two of its answers, one of
/// which has the address of the old master, and the other the epoch of the new one.
pub(super) fn sentinels_learn_while_they_are_asked() {
    let servers = several(Topology::Sentinels, Tokens::Differ);
    network::set_faults(Faults { latency: (500, 4000), ..Faults::NONE });
    for _ in 0..8 {
        let copy = servers.clone();
        Process::start("process", Clocks::default(), move || {
            let builder = sure(copy.builder()).command_timeout(SECOND).max_connection_age(SECOND / 50);
            let locker = sure(builder.build());
            let options = LockOptions::expiring_after(SECOND).timeout(SECOND);
            while run::now() < 45 * SECOND {
                let key = one_of(&["a", "b", "c", "d", "e", "f"]);
                let Ok(guard) = sure(Lock::new(&locker, key, options)).lock() else { continue };
                let holding = Holding::begin([&guard], None, limits());
                if let Ok(number) = guard.fencing_token() {
                    laws::token(holding.id(), number, None);
                }
                holding.end().done();
            }
        });
    }
    while run::now() < 40 * SECOND {
        servers.fail_over(Failover { is_planned: true, lost: millis(100, 500) });
        thread::sleep(13 * SECOND);
    }
    thread::sleep(120 * SECOND);
}

//! Fleets that do one thing, which a random program does rarely.
//! Each is a world in which a mistake once broke a law, or would.

mod alone;
mod changes;
mod given;
mod limits;
mod orders;
mod others;
mod permits;
mod servers;
mod settled;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use setnx_lock::{Error, Lock, LockOptions, LockToken, Locker, LockerBuilder, MultiLock, Protocol};
use setnx_lock_testing::ServerVersion;
use world::network::{self, Faults, ServerId};
use world::process::{Clocks, Process};
use world::run::{self, chance, random};
use world::thread;

use crate::Arguments;
use crate::calls::{Holding, Limits, left, one_of, refused, timed, up_to};
use crate::laws::{self, Losers, Rules, Tokens, broken};
use crate::plan::{Conditions, Plan};
use crate::program;
use crate::servers::{Servers, Topology};

/// Each with its name.
pub(crate) const SCENES: [(&str, fn()); 28] = [
    ("kept", many_are_kept),
    ("spent", tokens_are_used_again),
    ("vain", waits_in_vain),
    ("outlasts", holders_outlast_their_leases),
    ("stopped", a_stopped_process_releases_several),
    ("orders", orders::calls_want_keys_in_different_company),
    ("permits", permits::each_is_woken_by_who_releases),
    ("notified", permits::processes_are_woken),
    ("writers", permits::a_writer_gets_in_among_readers),
    ("together", keys_of_others_change),
    ("memory", nothing_is_left_in_memory),
    ("back", a_server_is_back),
    ("demoted", servers::nodes_have_become_replicas),
    ("hanging", servers::nodes_hang_that_are_probed),
    ("given", given::a_lock_that_is_given_up_in_time_is_not_lost),
    ("alone", alone::each_call_says_what_the_keys_hold),
    ("limits", limits::each_call_ends_in_the_time_of_its_row),
    ("looked", servers::a_lock_is_looked_at_first),
    ("moved", servers::slots_move_after_failovers),
    ("earlier", servers::extensions_are_lost),
    ("refusing", servers::a_server_refuses_for_now),
    ("epochs", servers::sentinels_learn_while_they_are_asked),
    ("older", changes::a_server_becomes_older),
    ("settling", changes::a_new_master_settles),
    ("gems", others::gems_overwrite_a_holder),
    ("pollers", others::pollers_get_a_busy_key),
    ("woken", others::processes_of_a_cluster_are_woken),
    ("opened", servers::connections_break_while_they_are_opened),
];

const SECOND: Duration = Duration::from_secs(1);
const COMMAND: Duration = Duration::from_millis(900);

/// How much memory a process may leave that has ended: threads that the run has had, with their names.
const LEFT_AT_MOST: usize = 6 << 10;

fn millis(from: u64, to: u64) -> Duration {
    Duration::from_millis(random(from..to))
}

fn a_server(latency: (u64, u64), protocol: Protocol) -> ServerId {
    let version = one_of(&[ServerVersion::V2_6, ServerVersion::V7, ServerVersion::Valkey9]);
    let server = ServerId::start("server", version, &[]);
    network::set_faults(Faults { latency, ..Faults::NONE });
    laws::set_rules(
        &Servers::one(server),
        Rules {
            is_exclusive: true,
            losers: if protocol == Protocol::Classic { Losers::Some } else { Losers::None },
            tokens: Tokens::Grow,
            keeps_keys: true,
            free_at_most: None,
        },
    );
    server
}

fn limits() -> Limits {
    Limits { command: COMMAND, connect: COMMAND, retry: 4 * SECOND, lengthens: true, in_cluster: false }
}

fn builder(server: ServerId) -> LockerBuilder {
    let builder = sure(Locker::builder(&server.url()));
    builder.command_timeout(COMMAND).connect_timeout(COMMAND).retry_for(4 * SECOND)
}

fn locker(server: ServerId) -> Locker {
    sure(builder(server).build())
}

/// What is not what a scene is about works.
fn sure<T>(outcome: Result<T, Error>) -> T {
    outcome.unwrap_or_else(|error| broken(&format!("not expected: {}", error.chain())))
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Process {
    let ahead = i64::try_from(random(0..400_000)).unwrap_or_default();
    Process::start(name, Clocks { ahead, faster: 0 }, body)
}

/// A process keeps hundreds of locks on a server that is far away. None is lost.
fn many_are_kept() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    let server = a_server((2000, 5000), protocol);
    start("keeper", move || {
        let locker = locker(server);
        let options = LockOptions::expiring_after(2 * SECOND).protocol(protocol).auto_extend(60 * SECOND);
        let mut guards = Vec::new();
        for number in 0..random(300..600) {
            let lock = sure(Lock::new(&locker, format!("kept {number}"), options));
            guards.extend(sure(lock.try_lock()));
        }
        let until = run::now() + 10 * SECOND;
        while run::now() < until {
            thread::sleep(SECOND / 4);
            for guard in &guards {
                if let Err(error) = guard.ensure_held() {
                    broken(&format!("a kept lock is lost although nothing was wrong: {}", error.chain()));
                }
            }
        }
        for guard in guards {
            sure(guard.release());
        }
    });
    thread::sleep(60 * SECOND);
}

/// Tokens that were used are used again, while others take the lock and
/// numbers. Their counter is kept as long as the last of these say.
fn tokens_are_used_again() {
    static SPENT: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let spent = || SPENT.lock().unwrap_or_else(PoisonError::into_inner);
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl]);
    let server = a_server((30, 90), protocol);
    let options = LockOptions::expiring_after(2 * SECOND).protocol(protocol);
    let take = move |forget: Duration, hands_over: bool| {
        let lock = sure(Lock::new(&locker(server), "k", options.forget_tokens_after(forget)));
        let began = run::now();
        let guard = match timed("lock", limits().waiting(5 * SECOND), || lock.lock()) {
            Ok(guard) => guard,
            Err(error) => return refused("k", began, &error),
        };
        let holding = Holding::begin([&guard], None, limits());
        laws::token(holding.id(), sure(guard.fencing_token()), Some(forget));
        holding.end().done();
        if hands_over {
            let token = sure(guard.into_token());
            sure(sure(lock.resume(&token)).release());
            spent().push(token.to_string());
        } else {
            sure(guard.release());
        }
    };
    let use_again = move || {
        let Some(text) = spent().last().cloned() else { return };
        let token: LockToken = sure(text.parse());
        let lock = sure(Lock::new(&locker(server), "k", options.forget_tokens_after(3 * SECOND)));
        if let Ok(guard) = lock.resume(&token) {
            broken(&format!("a token was used twice: {guard:?}"));
        }
    };
    for round in 0..8_u32 {
        start("short", move || take(3 * SECOND, true));
        thread::sleep(millis(5, 200));
        let (long, pause) = (round % 2 == 0, millis(0, 300));
        start("long", move || take(if long { 60 * SECOND } else { 50 * SECOND }, false));
        thread::sleep(pause);
        start("again", use_again);
        thread::sleep(millis(100, 6000));
    }
}

/// Threads wait for a lock that another process has, and the server stops answering.
fn waits_in_vain() {
    let server = a_server((3000, 30_000), Protocol::Auto);
    let options =
        LockOptions::expiring_after(3 * SECOND).protocol(one_of(&[Protocol::Watched, Protocol::Auto]));
    let options = options.notify_waiters(true);
    for name in ["holder", "waiter"] {
        let process = start(name, move || {
            let locker = locker(server);
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let lock = sure(Lock::new(&locker, "k", options.timeout(SECOND)));
                    thread::spawn(move || {
                        while run::now() < 30 * SECOND {
                            let began = run::now();
                            match timed("lock", limits().waiting(SECOND), || lock.lock()) {
                                Ok(guard) => {
                                    thread::sleep(up_to(SECOND / 20));
                                    timed("drop", limits().of_release(left(&guard)), || drop(guard));
                                }
                                Err(error) => refused("k", began, &error),
                            }
                        }
                    })
                })
                .collect();
            for thread in threads {
                let _ended = thread.join();
            }
        });
        if name == "waiter" {
            for _ in 0..8 {
                thread::sleep(millis(500, 6000));
                server.separate(process, millis(2000, 4000));
            }
        }
    }
    thread::sleep(120 * SECOND);
}

/// Holders work for longer than their leases last, and release then what others have by now.
fn holders_outlast_their_leases() {
    let is_slow = chance(2);
    // A transaction takes too many trips for the deadline.
    let protocol = if is_slow {
        Protocol::Classic
    } else {
        one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl])
    };
    // Some leases end while their grant is on its way.
    let (latency, lease) = if is_slow { ((40_000, 110_000), SECOND / 7) } else { ((100, 2000), SECOND) };
    let server = a_server(latency, protocol);
    for _ in 0..3 {
        start("holder", move || {
            let locker = locker(server);
            let options = LockOptions::expiring_after(lease).protocol(protocol).timeout(5 * SECOND);
            let lock = sure(Lock::new(&locker, "k", options));
            while run::now() < 60 * SECOND {
                let began = run::now();
                match timed("lock", limits().waiting(5 * SECOND), || lock.lock()) {
                    Ok(guard) => {
                        let holding = Holding::begin([&guard], Some(began), limits());
                        thread::sleep(up_to(2 * lease));
                        holding.end().by(|| guard.release());
                    }
                    Err(error) => refused("k", began, &error),
                }
            }
        });
    }
    thread::sleep(120 * SECOND);
}

/// A process that extends several locks is stopped, and releases
/// them when it goes on, while the server does not answer.
fn a_stopped_process_releases_several() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl]);
    let server = a_server((30, 90), protocol);
    for _ in 0..6 {
        let process = start("keeper", move || {
            let options =
                LockOptions::expiring_after(millis(2000, 4000)).protocol(protocol).auto_extend(40 * SECOND);
            let locks = sure(MultiLock::new(&locker(server), ["a", "b", "c"], options));
            let Ok(guard) = locks.lock() else { return };
            let holding = Holding::begin(guard.guards(), None, limits());
            // Some are extended, so that they end at different times.
            holding.work(millis(500, 6000));
            holding.end().by(|| guard.release());
        });
        thread::sleep(millis(300, 5500));
        process.stop(true);
        thread::sleep(millis(300, 5500));
        server.separate(process, millis(2000, 7000));
        process.stop(false);
        if chance(3) {
            thread::sleep(millis(100, 2000));
            server.cut_all();
        }
        thread::sleep(12 * SECOND);
    }
}

/// Threads of one process share transactions, and the keys of some of them are overwritten all the time. The others
/// have their locks in peace.
fn keys_of_others_change() {
    let protocol = one_of(&[Protocol::Watched, Protocol::Ttl]);
    let server = a_server((500, 3000), protocol);
    start("process", move || {
        let locker = sure(builder(server).pool_size(1).build());
        let options = LockOptions::expiring_after(4 * SECOND).protocol(protocol);
        let threads: Vec<_> = (0..12)
            .map(|number| {
                let is_victim = number % 4 == 0;
                let name = if is_victim { format!("victim {number}") } else { format!("own {number}") };
                let lock = sure(Lock::new(&locker, name, options));
                thread::spawn(move || {
                    while run::now() < 8 * SECOND {
                        let Ok(Some(guard)) = lock.try_lock() else { continue };
                        let outcomes = [guard.extend(), guard.verify(), guard.extend(), guard.release()];
                        if !is_victim {
                            outcomes.into_iter().for_each(sure);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            let _ended = thread.join();
        }
    });
    while run::now() < 8 * SECOND {
        let victim = format!("victim {}", 4 * random(0..3));
        let _done = if chance(2) {
            server.look(&["SET", &victim, "1795000900.5"])
        } else {
            server.look(&["DEL", &victim])
        };
        thread::sleep(Duration::from_micros(random(100..3000)));
    }
    thread::sleep(30 * SECOND);
}

/// Processes that open a locker, use it while connections break, and drop it, one after the other. None leaves memory,
/// but for what the run itself knows of its threads.
fn nothing_is_left_in_memory() {
    let chosen = Plan::choose(&Arguments::default());
    let plan = Plan {
        conditions: Conditions::BrokenConnections,
        topology: Topology::One,
        version: ServerVersion::V7,
        rotates: false,
        others: None,
        settles: false,
        changes_version: false,
        kept: 10,
        ..chosen
    };
    let server = a_server((30, 90), plan.protocol);
    network::set_faults(Faults { lost_replies: 200, lost_requests: 400, ..Faults::NONE });
    let round = |number| {
        let plan = Plan { length: run::now() + 3 * SECOND, ..plan.clone() };
        let process = start("process", move || program::run(&plan, &Servers::one(server), number));
        while !process.threads().is_empty() {
            thread::sleep(SECOND);
        }
        run::settle();
        crate::MEMORY.allocated()
    };
    let used: Vec<usize> = (0..24).map(round).collect();
    let growth = used[23].saturating_sub(used[7]) / 16;
    if growth > LEFT_AT_MOST {
        broken(&format!("a process that has ended leaves {growth} bytes: {used:?}"));
    }
}

/// A process that never waits finds the server gone, and comes again once it is back.
fn a_server_is_back() {
    let server = a_server((30, 90), Protocol::Auto);
    start("process", move || {
        let lock = sure(Lock::new(&locker(server), "k", LockOptions::expiring_after(2 * SECOND)));
        while run::now() < 30 * SECOND {
            let began = run::now();
            match timed("try_lock", COMMAND, || lock.try_lock()) {
                Ok(guard) => drop(guard),
                Err(error) => refused("k", began, &error),
            }
            thread::sleep(millis(100, 2500));
        }
    });
    while run::now() < 30 * SECOND {
        thread::sleep(millis(500, 4000));
        server.kill();
        thread::sleep(millis(100, 2000));
        server.restart(true);
    }
    thread::sleep(60 * SECOND);
}

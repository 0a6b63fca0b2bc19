//! Many threads that share a few connections, while these are killed, the server stops, or the keys are overwritten: no
//! thread gets the reply to another's command, which its own key would show, and none hangs.
//!
//! `SETNX_LOCK_FAULT_COMMANDS=10000000` sends as many commands; each night that is done.

use std::env;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, Protocol};

use crate::support::{Connections, LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials_on_both(
        "shared_connections",
        tests![connections_are_killed, the_server_stops_for_a_while, keys_are_overwritten],
    )
}

const THREADS: usize = 64;
/// Shorter than the server stops for.
const LIMIT: Duration = millis(500);
/// Of a pair that no fault meets: SETNX, GET, and DEL.
const COMMANDS_OF_A_PAIR: usize = 3;

/// What the threads found.
#[derive(Debug, Default)]
struct Found {
    pairs: AtomicUsize,
    failures: AtomicUsize,
    wrong: AtomicUsize,
}

fn connections_are_killed(connections: Connections) -> Outcome {
    let found = run(connections, LIMIT, |server| {
        thread::sleep(millis(20));
        let _ = server.say(&["CLIENT", "KILL", "TYPE", "normal"]);
    })?;
    assert!(found.failures.load(Relaxed) > 0, "{found:?}");
    assert_eq!(found.wrong.load(Relaxed), 0, "{found:?}");
    Ok(())
}

fn the_server_stops_for_a_while(connections: Connections) -> Outcome {
    let found = run(connections, LIMIT, |server| {
        thread::sleep(millis(100));
        server.freeze();
        thread::sleep(millis(900));
        server.thaw();
    })?;
    assert!(found.failures.load(Relaxed) > 0, "{found:?}");
    assert_eq!(found.wrong.load(Relaxed), 0, "{found:?}");
    Ok(())
}

/// Whose lock was overwritten finds that out, which is no reply to another.
fn keys_are_overwritten(connections: Connections) -> Outcome {
    let found = run(connections, LONG, |server| {
        for n in 0..THREADS {
            let _ = server.say(&["SET", &format!("own:{n}:0"), "1"]);
        }
    })?;
    assert!(found.wrong.load(Relaxed) > 0, "{found:?}");
    assert_eq!(found.failures.load(Relaxed), 0, "{found:?}");
    Ok(())
}

/// Each thread locks a key of its own again and again, and another one after a failure, while `disturb` is called.
fn run(
    connections: Connections,
    command_timeout: Duration,
    disturb: impl Fn(&RedisServer) + Sync,
) -> Result<Found, libtest_mimic::Failed> {
    let commands =
        env::var("SETNX_LOCK_FAULT_COMMANDS").map_or(Ok(20_000), |count| count.parse::<usize>())?;
    let pairs = commands / THREADS / COMMANDS_OF_A_PAIR;
    let server = RedisServer::start()?;
    let locker = connections.to(&server.url(), 16);
    let locker = locker.command_timeout(command_timeout).retry_for(LONG).build()?;
    let (found, over) = (Found::default(), AtomicBool::new(false));
    thread::scope(|scope| {
        let disturbing = scope.spawn(|| {
            while !over.load(Relaxed) {
                disturb(&server);
            }
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                // On a pool a DEL of Classic may arrive late.
                let is_classic = n % 2 == 0 && matches!(connections, Connections::Own);
                let protocol = if is_classic { Protocol::Classic } else { Protocol::Watched };
                let (locker, found) = (&locker, &found);
                let options = expiring().protocol(protocol);
                let lock = move |failed| Lock::new(locker, format!("own:{n}:{failed}"), options).unwrap();
                scope.spawn(move || {
                    // What a pair may have left behind, now or later, concerns no other.
                    let mut failed = 0;
                    (0..pairs).for_each(|_| failed += usize::from(!found.note(&pair(&lock(failed)))));
                })
            })
            .collect();
        let ended: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        over.store(true, Relaxed);
        disturbing.join().unwrap();
        assert!(ended.iter().all(Result::is_ok));
    });
    Ok(found)
}

/// Acquires, looks and releases. Returns whether each reply was what
/// no one but this thread changes; `None` if the lock was held.
fn pair(lock: &Lock) -> Result<Option<bool>, Error> {
    let Some(guard) = lock.try_lock()? else { return Ok(None) };
    let held = !guard.verify().is_err_and(|error| error.is_lost());
    match guard.release() {
        Err(error) if error.is_lost() => Ok(Some(false)),
        released => released.map(|()| Some(held)),
    }
}

impl Found {
    /// Counts a pair, and returns whether each reply was right.
    fn note(&self, pair: &Result<Option<bool>, Error>) -> bool {
        self.pairs.fetch_add(1, Relaxed);
        match pair {
            Ok(Some(true)) => return true,
            Ok(_) => self.wrong.fetch_add(1, Relaxed),
            Err(_) => self.failures.fetch_add(1, Relaxed),
        };
        false
    }
}

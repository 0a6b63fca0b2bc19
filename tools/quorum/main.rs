//! A lock on three independent servers: four threads take turns while one server after the other is killed and starts
//! again without its locks. `make demo-quorum`; with `measure`, how long an acquisition takes on 1, 3 and 5 servers.

mod measure;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, error, thread};

use setnx_lock::{Error, LockOptions, Locker, Protocol, Quorum};
use testkit::RedisServer;

/// How long a holder has the lock, and how long a server is not
/// used after its restart: by then each of its leases has ended.
const LEASE: Duration = Duration::from_secs(1);
const OPTIONS: LockOptions = LockOptions::expiring_after(LEASE)
    .protocol(Protocol::Auto)
    .timeout(Duration::from_secs(20))
    .poll_interval(Duration::from_millis(20));

fn main() -> Result<(), Box<dyn error::Error>> {
    if env::args().nth(1).is_some_and(|argument| argument == "measure") {
        return measure::run();
    }
    let mut servers = [RedisServer::start()?, RedisServer::start()?, RedisServer::start()?];
    let lockers = servers.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let lock = Quorum::new(&lockers, "nightly_report", OPTIONS)?;
    println!("three servers have started; each is used once it has run for {LEASE:?}");
    lock.with(|held| println!("acquired, for at most {:?}", held.remaining()))?;

    let (over, entered) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 4]);
    let inside = AtomicUsize::new(0);
    let collisions = AtomicUsize::new(0);
    thread::scope(|scope| -> Result<(), Box<dyn error::Error>> {
        let workers: Vec<_> = entered
            .iter()
            .map(|entered| {
                let (lock, over, inside, collisions) = (&lock, &over, &inside, &collisions);
                scope.spawn(move || -> Result<(), Error> {
                    while !over.load(Ordering::Relaxed) {
                        lock.with(|_| {
                            collisions.fetch_add(inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                            thread::sleep(Duration::from_millis(2));
                            inside.fetch_sub(1, Ordering::SeqCst);
                            entered.fetch_add(1, Ordering::Relaxed);
                        })?;
                    }
                    Ok(())
                })
            })
            .collect();
        let count = || entered.iter().map(|entered| entered.load(Ordering::Relaxed)).sum::<usize>();
        for server in &mut servers {
            let address = server.address();
            server.stop();
            let before = count();
            thread::sleep(Duration::from_secs(1));
            println!("without {address}: {} acquisitions in a second", count() - before);
            server.restart()?;
            let before = count();
            thread::sleep(3 * LEASE);
            println!(
                "{address} is back, without its locks: {} acquisitions in {:?}",
                count() - before,
                3 * LEASE
            );
        }
        over.store(true, Ordering::Relaxed);
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| "a thread panicked")?.map_err(Into::into))
    })?;
    let entered = entered.map(AtomicUsize::into_inner);
    println!("each thread had the lock {entered:?} times; two at once: {}", collisions.into_inner());
    Ok(())
}

fn open(server: &RedisServer) -> Result<Locker, Error> {
    let quick = Duration::from_millis(500);
    Locker::builder(&server.url())?.command_timeout(quick).settle_after_restart(LEASE).build()
}

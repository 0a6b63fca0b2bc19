//! Semaphores, and readers and writers: the commands, many threads, several processes, and threads that leave a queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redis::Commands as _;
use setnx_lock::{Error, LockOptions, Locker, Permit, Protocol, RwLock, Semaphore};
use setnx_lock_testing::TestServer;

use crate::support::asleep::Sleeper;
use crate::support::notified::{Worker, connection};
use crate::support::processes::TaskOutcome;
use crate::support::scenario::opened;
use crate::support::sent::probed;
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer, LONG, Outcome, expiring, millis, trials_of, waited};

trials_of! {
    "permits";
    a_free_permit_takes_one_trip,
    a_shutdown_ends_all_waits,
    a_writer_that_releases_later_lets_readers_in,
    each_thread_polls_at_its_own_interval,
    several_processes_get_their_turn_among_the_threads_of_another,
    readers_of_a_prefix_are_waited_for_as_their_number_changes,
}

/// Options of a waiter that asks the server only when it is woken, or much too late.
const UNPOLLED: LockOptions = LockOptions::expiring_after(Duration::from_secs(3600))
    .poll_interval(Duration::from_secs(3600))
    .timeout(Duration::from_secs(2 * LONG.as_secs()));

const NAME: &str = "pool";

fn pool(locker: &Locker, permits: usize, options: LockOptions) -> Semaphore {
    Semaphore::new(locker, NAME, permits, options).unwrap()
}

fn key(slot: usize) -> String {
    format!("{NAME}:{slot}")
}

fn slot(held: &Permit) -> usize {
    held.slot()
}

/// Which permits have a key on the server.
fn held(server: &impl AnyServer, permits: usize) -> Vec<usize> {
    let keys: Vec<String> = (0..permits).map(key).collect();
    let values: Vec<Option<String>> = connection(server).mget(keys).unwrap();
    (0..permits).filter(|slot| values[*slot].is_some()).collect()
}

fn waiting<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> Sleeper<T> {
    let sleeper = Sleeper::start(wait);
    sleeper.rests();
    sleeper
}

/// A server, and a locker that has a connection.
struct Recorded {
    server: TestServer,
    locker: Locker,
}

impl Recorded {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let server = TestServer::start();
        let locker = opened(&server.url())?;
        probed(&locker, Protocol::Ttl)?;
        server.clear_log();
        Ok(Self { server, locker })
    }

    /// The names of the recorded commands, trip by trip, and forgets them.
    fn trips(&self) -> Vec<Vec<String>> {
        let trips = self.server.batches().into_iter();
        let trips = trips.map(|trip| trip.into_iter().map(|asked| asked.name).collect()).collect();
        self.server.clear_log();
        trips
    }
}

fn first(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Ttl { "SET" } else { "SETNX" }
}

fn release(protocol: Protocol) -> Vec<Vec<&'static str>> {
    match protocol {
        Protocol::Classic => vec![vec!["DEL"]],
        _ => vec![vec!["WATCH", "GET", "MULTI"], vec!["DEL", "EXEC"]],
    }
}

fn a_free_permit_takes_one_trip() -> Outcome {
    for protocol in PROTOCOLS {
        let recorded = Recorded::new()?;
        let semaphore = pool(&recorded.locker, 3, expiring().protocol(protocol));
        let held = semaphore.acquire()?;
        let asked = recorded.server.log();
        assert_eq!(recorded.trips(), [[first(protocol), "MGET"]]);
        assert_eq!(asked[0].arguments[0], key(slot(&held)));
        assert_eq!(asked[1].arguments, [key(0), key(1), key(2)]);
        held.release()?;
        assert_eq!(recorded.trips(), release(protocol));

        semaphore.states()?;
        assert_eq!(recorded.trips(), [["MGET"]]);
        // One permit is a lock.
        pool(&recorded.locker, 1, expiring().protocol(protocol)).acquire()?.leave_to_expire()?;
        assert_eq!(recorded.trips(), [[first(protocol)]]);
    }
    Ok(())
}

/// Has so many threads hold permits so many times each, and count that on the server.
fn contend(semaphore: &Semaphore, url: &str, threads: usize, rounds: usize) -> TaskOutcome {
    thread::scope(|scope| {
        let contend = || -> TaskOutcome {
            let mut connection = redis::Client::open(url)?.get_connection()?;
            (0..rounds).try_for_each(|_| {
                semaphore.with_result(|held| count_inside(&mut connection, held, semaphore.keys().len()))
            })
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(contend)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

/// Counts the holders, of this permit and of all.
fn count_inside(connection: &mut redis::Connection, held: &Permit, permits: usize) -> TaskOutcome {
    assert!(waited() < LONG, "it was not woken: {held:?}");
    let own = format!("inside:{}", slot(held));
    let count: usize = connection.incr(&own, 1)?;
    let all: usize = connection.incr("inside", 1)?;
    if count != 1 || all > permits {
        return Err(format!("{count} holders of a permit, {all} of all").into());
    }
    thread::sleep(millis(1));
    let () = connection.decr("inside", 1)?;
    let () = connection.decr(&own, 1)?;
    held.ensure_held()?;
    let () = connection.incr("rounds", 1)?;
    Ok(())
}

fn a_shutdown_ends_all_waits() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let lock = RwLock::new(&locker, NAME, 2, UNPOLLED)?;
    let permits = [lock.read()?, lock.read()?];
    let waiters = [true, false].map(|reads| {
        let lock = lock.clone();
        waiting(move || if reads { lock.read().map(drop) } else { lock.write().map(drop) })
    });
    locker.shut_down();
    let refused = [lock.try_read().map(drop), lock.try_write().map(drop)];
    for ended in waiters.map(Sleeper::join).into_iter().chain(refused) {
        assert!(matches!(ended, Err(Error::ShutDown { .. })), "{ended:?}");
    }
    // What is held is held, and can be released.
    permits.iter().try_for_each(|permit| permit.ensure_held())?;
    drop(permits);
    assert_eq!(held(&server, 2), [0_usize; 0]);
    Ok(())
}

fn a_writer_that_releases_later_lets_readers_in() -> Outcome {
    for protocol in PROTOCOLS {
        let server = TestServer::start();
        let locker = opened(&server.url())?;
        let lock = RwLock::new(&locker, NAME, 3, UNPOLLED.protocol(protocol))?;
        let writing = lock.write()?;
        let readers = [(); 4].map(|()| {
            let lock = lock.clone();
            waiting(move || lock.read()?.release())
        });
        writing.release_later();
        readers.into_iter().try_for_each(Sleeper::join)?;
        assert!(locker.drain(LONG).unsettled.is_empty());
        assert_eq!(held(&server, 3), [0_usize; 0], "{protocol:?}");
    }
    Ok(())
}

/// The first of the queue would look much later.
fn each_thread_polls_at_its_own_interval() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let others = pool(&opened(&server.url())?, 2, expiring());
    let (first, second) = (others.acquire()?, others.acquire()?);
    let patient = pool(&locker, 2, UNPOLLED);
    let patient = waiting(move || patient.acquire());
    let eager = pool(&locker, 2, UNPOLLED.poll_interval(millis(20)));
    let eager = Sleeper::start(move || eager.acquire());
    first.release()?;
    // Another that is released wakes the first.
    eager.join()?.release()?;
    patient.join()?.release()?;
    second.release()?;
    Ok(())
}

/// The task of a worker.
pub(crate) fn as_worker(task: &[&str]) -> TaskOutcome {
    match task {
        ["contend", url, permits, rounds] => {
            let semaphore = pool(&opened(url)?, permits.parse()?, expiring().poll_interval(millis(5)));
            println!("ready");
            std::io::stdin().read_line(&mut String::new())?;
            contend(&semaphore, url, 3, rounds.parse()?)
        }
        // Acquires a permit with a brief lease, and holds it until killed.
        ["hold", url, permits] => {
            let options = LockOptions::expiring_after(millis(500)).timeout(LONG);
            let _held = pool(&opened(url)?, permits.parse()?, options).acquire()?;
            println!("ready");
            thread::sleep(LONG);
            Ok(())
        }
        _ => Err(format!("no such task: {task:?}").into()),
    }
}

/// Starts a worker, and returns once it is ready.
fn ready(task: &[&str]) -> std::io::Result<Worker> {
    let mut worker = Worker::performing(&[&["permits"], task].concat())?;
    assert_eq!(worker.says()?, "ready");
    Ok(worker)
}

fn readers_of_a_prefix_are_waited_for_as_their_number_changes() -> Outcome {
    let server = TestServer::start();
    let locker = Locker::builder(&server.url())?.key_prefix("app:").build()?;
    let shared = |readers| RwLock::new(&locker, NAME, readers, expiring().timeout(millis(50)));
    let reading = shared(4)?.read()?;
    let error = shared(2)?.set_readers().expect_err("one reads");
    assert!(error.is_contention(), "{error:?}");
    assert!(error.key().is_some_and(|key| key.to_string().starts_with("app:pool:")), "{error}");
    reading.release()?;
    shared(2)?.set_readers()?;
    drop(shared(2)?.write()?);
    Ok(())
}

/// One of several processes has threads that pass the permits on all the time.
fn several_processes_get_their_turn_among_the_threads_of_another() -> Outcome {
    const PERMITS: usize = 3;
    let server = TestServer::start();
    let url = server.url();
    let task = ["contend", &url, &PERMITS.to_string(), "10"];
    let mut workers = [ready(&task)?, ready(&task)?, ready(&task)?];
    // One permit is held by a process that crashes meanwhile.
    let crashing = ready(&["hold", &url, &PERMITS.to_string()])?;
    let semaphore = pool(&opened(&url)?, PERMITS, expiring());
    let over = AtomicBool::new(false);
    let ended = thread::scope(|scope| {
        let busy = || {
            while !over.load(Ordering::SeqCst) {
                semaphore.with(|_| thread::sleep(millis(1)))?;
            }
            Ok::<_, Error>(())
        };
        let threads = [(); 6].map(|()| scope.spawn(busy));
        workers.iter_mut().for_each(Worker::goes_on);
        drop(crashing);
        let ended: Vec<_> = workers.iter_mut().map(Worker::ends_well).collect();
        over.store(true, Ordering::SeqCst);
        threads.into_iter().try_for_each(|thread| thread.join().unwrap()).map(|()| ended)
    })?;
    assert!(ended.iter().all(|ended| matches!(ended, Ok(true))), "{ended:?}");
    let done: usize = connection(&server).get("rounds")?;
    assert_eq!(done, 3 * 3 * 10);
    let all: Vec<Permit> = (0..PERMITS).map(|_| semaphore.acquire()).collect::<Result<_, _>>()?;
    assert!(semaphore.try_acquire()?.is_none());
    drop(all);
    assert_eq!(held(&server, PERMITS), [0_usize; 0]);
    Ok(())
}

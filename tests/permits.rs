//! Semaphores, and readers and writers: the commands, many threads, several processes, and threads that leave a queue.

use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{
    CancelToken, Error, LockGuard, LockOptions, LockState, Locker, Protocol, Release, RwLock, Semaphore,
};

use crate::processes::{TaskOutcome, worker};
use crate::servers::{Fault, Proxy};
use crate::support::asleep::Sleeper;
use crate::support::scenario::{FOREIGN, Scenario, opened, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, PAST, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "permits",
        tests![
            a_free_permit_takes_one_trip,
            one_that_was_seen_free_is_asked_for_next,
            an_expired_one_is_taken_over_by_the_commands_of_a_lock,
            a_release_asks_for_the_next_thread_in_its_trip,
            a_downgrade_releases_the_others_in_one_trip,
            all_permits_are_in_use_and_none_has_two_holders,
            threads_wait_without_a_poll_while_permits_are_left_to_other_processes,
            one_connection_is_enough,
            a_writer_that_leaves_its_queue_passes_a_release_on_to_readers,
            readers_are_asked_for_before_the_next_writer_goes_on,
            a_lock_that_is_not_waited_for_any_more_passes_a_release_on_to_the_permits,
            a_permit_that_is_released_while_another_is_acquired_is_found,
            a_shutdown_ends_all_waits,
            several_processes_and_their_threads,
            the_permits_of_a_killed_process_are_taken_over,
            a_process_gets_its_turn_among_the_threads_of_another,
        ],
    )
}

const HOUR: Duration = Duration::from_secs(3600);

/// Options of a waiter that asks the server only when it is woken, or much too late.
const UNPOLLED: LockOptions =
    LockOptions::expiring_after(HOUR).poll_interval(HOUR).timeout(Duration::from_secs(2 * LONG.as_secs()));

const NAME: &str = "pool";

fn pool(locker: &Locker, permits: usize, options: LockOptions) -> Semaphore {
    Semaphore::new(locker, NAME, permits, options).unwrap()
}

fn key(slot: usize) -> String {
    format!("{NAME}:{slot}")
}

fn slot(held: &LockGuard) -> usize {
    held.slot().expect("it is a permit")
}

fn connection(server: &RedisServer) -> redis::Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Which permits have a key on the server.
fn held(server: &RedisServer, permits: usize) -> Vec<usize> {
    let keys: Vec<String> = (0..permits).map(key).collect();
    let values: Vec<Option<String>> = connection(server).mget(keys).unwrap();
    (0..permits).filter(|slot| values[*slot].is_some()).collect()
}

/// Asserts that the thread did not have to find out itself, at its deadline.
#[track_caller]
fn assert_was_woken(held: &LockGuard) {
    assert!(held.waited() < LONG, "it was not woken: {held:?}");
}

fn waiting<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> Sleeper<T> {
    let sleeper = Sleeper::start(wait);
    sleeper.rests();
    sleeper
}

/// A server and a proxy, and a locker that has a connection.
struct Recorded {
    server: RedisServer,
    proxy: Proxy,
    locker: Locker,
}

impl Recorded {
    fn new() -> Result<Self, Box<dyn std::error::Error>> {
        let server = RedisServer::start()?;
        let proxy = Proxy::before(server.address())?;
        let locker = opened(&proxy.url())?;
        pool(&locker, 2, expiring()).states()?;
        proxy.forget();
        Ok(Self { server, proxy, locker })
    }

    fn set(&self, slot: usize, value: &str) {
        let () = connection(&self.server).set(key(slot), value).unwrap();
    }

    /// The names of the recorded commands, trip by trip, and forgets them.
    fn trips(&self) -> Vec<Vec<String>> {
        let trips = self.proxy.batches().into_iter();
        let trips = trips.map(|trip| trip.into_iter().map(|asked| asked.name).collect()).collect();
        self.proxy.forget();
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
        let asked = recorded.proxy.asked();
        assert_eq!(recorded.trips(), [[first(protocol), "MGET"]]);
        assert_eq!(asked[0].arguments[0], key(slot(&held)));
        assert_eq!(asked[1].arguments, [key(0), key(1), key(2)]);
        held.release()?;
        assert_eq!(recorded.trips(), release(protocol));

        // The token comes with the command that may acquire.
        let held = semaphore.with_options(expiring().protocol(protocol).fenced())?.acquire()?;
        assert_eq!(recorded.trips(), [[first(protocol), "INCR", "MGET"]]);
        held.fencing_token()?;
        assert_eq!(recorded.trips(), [[""; 0]; 0], "it has come already");
        drop(held);
        recorded.proxy.forget();

        semaphore.states()?;
        assert_eq!(recorded.trips(), [["MGET"]]);
        // One permit is a lock.
        pool(&recorded.locker, 1, expiring().protocol(protocol)).acquire()?.keep();
        assert_eq!(recorded.trips(), [[first(protocol)]]);
    }
    Ok(())
}

fn one_that_was_seen_free_is_asked_for_next() -> Outcome {
    for protocol in PROTOCOLS {
        let recorded = Recorded::new()?;
        let semaphore = pool(&recorded.locker, 3, expiring().protocol(protocol));
        let (mut at_first, mut then) = (false, false);
        let end = Instant::now() + LONG;
        // Which is asked for first is left to chance.
        while !(at_first && then) {
            assert!(Instant::now() < end, "by chance: {at_first}, by the look: {then}");
            recorded.set(0, FOREIGN);
            recorded.set(2, FOREIGN);
            let held = semaphore.try_acquire()?.expect("one is free");
            assert_eq!(slot(&held), 1);
            let asked = recorded.proxy.asked();
            let trips = recorded.trips();
            if trips.len() == 1 {
                at_first = true;
                assert_eq!(trips, [[first(protocol), "MGET"]]);
            } else {
                then = true;
                assert_eq!(trips, [vec![first(protocol), "MGET"], vec![first(protocol)]]);
                assert_ne!(asked[0].arguments[0], key(1));
                assert_eq!(asked[2].arguments[0], key(1));
                assert_ne!(asked[0].arguments[1], asked[2].arguments[1], "no value is sent twice");
            }
            drop(held);
            recorded.proxy.forget();
        }
        recorded.set(1, FOREIGN);
        assert!(semaphore.try_acquire()?.is_none());
        assert_eq!(recorded.trips(), [[first(protocol), "MGET"]]);
    }
    Ok(())
}

fn an_expired_one_is_taken_over_by_the_commands_of_a_lock() -> Outcome {
    for protocol in PROTOCOLS {
        let recorded = Recorded::new()?;
        let semaphore = pool(&recorded.locker, 3, expiring().protocol(protocol));
        for other in [0, 2] {
            recorded.set(other, FOREIGN);
        }
        recorded.set(1, PAST);
        let held = semaphore.try_acquire()?.expect("one has expired");
        assert_eq!(slot(&held), 1);
        let trips = recorded.trips();
        let takeover = match protocol {
            Protocol::Classic => vec![vec!["GET"], vec!["GETSET"]],
            Protocol::Ttl => vec![vec!["GET"], vec!["WATCH", "GET", "PTTL", "MULTI"], vec!["SET", "EXEC"]],
            _ => vec![vec!["GET"], vec!["WATCH", "GET", "MULTI"], vec!["SET", "EXEC"]],
        };
        assert_eq!(trips[0], [first(protocol), "MGET"]);
        assert_eq!(trips[1..], takeover);
    }
    Ok(())
}

fn a_release_asks_for_the_next_thread_in_its_trip() -> Outcome {
    for protocol in PROTOCOLS {
        let recorded = Recorded::new()?;
        let semaphore = pool(&recorded.locker, 2, UNPOLLED.protocol(protocol));
        let held = semaphore.acquire()?;
        let _other = semaphore.acquire()?;
        let waiters = [(); 2].map(|()| {
            let semaphore = semaphore.clone();
            waiting(move || semaphore.acquire())
        });
        recorded.proxy.forget();
        let mut held = held;
        let freed = slot(&held);
        for (number, waiter) in waiters.into_iter().enumerate() {
            held.release()?;
            let asked = recorded.proxy.asked();
            let mut trips = release(protocol);
            trips.last_mut().expect("it deletes").push(first(protocol));
            assert_eq!(recorded.trips(), trips, "{protocol:?}, {number}");
            assert_eq!(asked.last().expect("it is sent").arguments[0], key(freed));
            held = waiter.join()?;
            assert_was_woken(&held);
            assert_eq!(slot(&held), freed);
            held.ensure_held()?;
            assert_eq!(recorded.trips(), [[""; 0]; 0], "the thread has sent nothing");
        }
    }
    Ok(())
}

fn a_downgrade_releases_the_others_in_one_trip() -> Outcome {
    let recorded = Recorded::new()?;
    let lock = RwLock::new(&recorded.locker, NAME, 4, expiring())?;
    let writing = lock.write()?;
    recorded.proxy.forget();
    let reading = writing.downgrade();
    assert_eq!(recorded.trips(), [["DEL", "DEL", "DEL"]]);
    assert_eq!(held(&recorded.server, 4), [slot(&reading)]);
    Ok(())
}

/// Counts the threads that hold a permit, by permit.
struct Inside {
    slots: Vec<AtomicBool>,
    count: AtomicUsize,
    most: AtomicUsize,
}

impl Inside {
    fn of(permits: usize) -> Self {
        let slots = (0..permits).map(|_| AtomicBool::new(false)).collect();
        Self { slots, count: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    fn hold(&self, held: &LockGuard, body: impl FnOnce()) {
        assert!(!self.slots[slot(held)].swap(true, Ordering::SeqCst), "two threads hold a permit");
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        assert!(count <= self.slots.len(), "{count} threads hold permits");
        self.most.fetch_max(count, Ordering::SeqCst);
        body();
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.slots[slot(held)].store(false, Ordering::SeqCst);
    }

    /// Waits until all permits have been held at a time.
    fn until_all_are_in_use(&self) {
        let end = Instant::now() + LONG;
        while self.most.load(Ordering::SeqCst) < self.slots.len() {
            assert!(Instant::now() < end, "never more than {:?} permits are in use", self.most);
            thread::sleep(millis(1));
        }
    }
}

/// Has each thread acquire a permit so many times.
fn rounds(semaphore: &Semaphore, threads: usize, rounds: usize, body: impl Fn() + Sync) -> Outcome {
    let inside = Inside::of(semaphore.permits());
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    (0..rounds).try_for_each(|round| {
                        semaphore.with(|held| {
                            assert_was_woken(held);
                            inside.hold(held, || {
                                if round == 0 {
                                    inside.until_all_are_in_use();
                                }
                                body();
                            });
                        })
                    })
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    Ok(())
}

fn all_permits_are_in_use_and_none_has_two_holders() -> Outcome {
    for protocol in PROTOCOLS {
        let server = RedisServer::start()?;
        let options = UNPOLLED.protocol(protocol);
        let semaphore = pool(&opened(&server.url())?, 8, options);
        rounds(&semaphore, 64, 12, || thread::sleep(Duration::from_micros(300)))?;
        assert_eq!(held(&server, 8), [0_usize; 0]);
    }
    Ok(())
}

/// A permit that is left free is one that the thread knows of that was told so. It tells the others when it gets another.
fn threads_wait_without_a_poll_while_permits_are_left_to_other_processes() -> Outcome {
    let server = RedisServer::start()?;
    let semaphore = pool(&opened(&server.url())?, 4, UNPOLLED);
    // For two windows at least.
    rounds(&semaphore, 16, 50, || thread::sleep(millis(15)))?;
    assert_eq!(held(&server, 4), [0_usize; 0]);
    Ok(())
}

fn one_connection_is_enough() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    for protocol in PROTOCOLS {
        let locker = patient(&proxy.url())?.pool_size(1).build()?;
        let semaphore = pool(&locker, 3, UNPOLLED.protocol(protocol));
        rounds(&semaphore, 9, 10, thread::yield_now)?;
    }
    assert_eq!(held(&server, 3), [0_usize; 0]);
    Ok(())
}

/// A thread that waits for the first permit has its look delayed while that is released. Then its wait is cancelled.
fn leaves_with_a_hint<T>(wait: impl FnOnce(&Locker, &CancelToken) -> T) -> Outcome
where
    T: FnOnce() -> Result<(), Error> + Send + 'static,
{
    let recorded = Recorded::new()?;
    let semaphore = pool(&recorded.locker, 2, UNPOLLED);
    let mut permits = vec![semaphore.acquire()?, semaphore.acquire()?];
    permits.sort_by_key(slot);
    // It has read that the permit is held, and learns that later.
    recorded.proxy.next("GET", Fault::AnswerLate(Duration::from_secs(2)));
    let token = CancelToken::new();
    let leaver = Sleeper::start(wait(&recorded.locker, &token));
    let reader = waiting(move || semaphore.acquire());
    let end = Instant::now() + LONG;
    while recorded.proxy.faults_left() > 0 {
        assert!(Instant::now() < end, "it never looks");
        thread::sleep(millis(1));
    }
    drop(permits.remove(0));
    token.cancel();
    let error = leaver.join().expect_err("it was cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    let reader = reader.join()?;
    assert_eq!(slot(&reader), 0, "it is free");
    assert_was_woken(&reader);
    drop(permits);
    Ok(())
}

fn a_writer_that_leaves_its_queue_passes_a_release_on_to_readers() -> Outcome {
    leaves_with_a_hint(|locker, token| {
        let lock = RwLock::new(locker, NAME, 2, UNPOLLED.poll_interval(millis(10))).unwrap();
        let lock = lock.cancelled_by(token);
        move || lock.write().map(drop)
    })
}

fn readers_are_asked_for_before_the_next_writer_goes_on() -> Outcome {
    let scenario = Scenario::set()?;
    let locker = scenario.open(patient(&scenario.proxy.url())?.pool_size(4)).pipelining(false);
    let lock = RwLock::new(&locker, NAME, 3, UNPOLLED)?;
    let writing = lock.write()?;
    let (next, there) = (lock.clone(), lock.clone());
    let writer = Sleeper::start(move || next.write());
    writer.rests();
    let reader = Sleeper::start(move || there.read());
    reader.rests();
    // Without pipelining each permit is released by itself. The writer would be quick enough to have them all.
    let second = scenario.proxy.hold("DEL", 2);
    let releasing = thread::spawn(move || writing.release());
    second.reached();
    let reading = reader.join()?;
    assert_eq!(slot(&reading), 2);
    second.go_on();
    for (key, outcome) in releasing.join().unwrap() {
        assert!(matches!(outcome, Ok(Release::Released { .. })), "{key}: {outcome:?}");
    }
    drop(reading);
    drop(writer.join()?);
    Ok(())
}

fn a_lock_that_is_not_waited_for_any_more_passes_a_release_on_to_the_permits() -> Outcome {
    leaves_with_a_hint(|locker, token| {
        let lock = setnx_lock::Lock::new(locker, key(0), UNPOLLED.poll_interval(millis(10))).unwrap();
        let lock = lock.cancelled_by(token);
        move || lock.lock().map(drop)
    })
}

fn a_permit_that_is_released_while_another_is_acquired_is_found() -> Outcome {
    let recorded = Recorded::new()?;
    let semaphore = pool(&recorded.locker, 2, UNPOLLED);
    let released = semaphore.acquire()?;
    // It sees both held, and learns that later.
    recorded.proxy.next("MGET", Fault::AnswerLate(Duration::from_secs(1)));
    let there = semaphore.clone();
    let trying = thread::spawn(move || there.try_acquire());
    let end = Instant::now() + LONG;
    while recorded.proxy.faults_left() > 0 {
        assert!(Instant::now() < end, "it never looks");
        thread::sleep(millis(1));
    }
    drop(released);
    let tried = trying.join().unwrap()?.expect("one was free");
    let held = semaphore.acquire()?;
    assert_was_woken(&held);
    assert_ne!(slot(&held), slot(&tried));
    Ok(())
}

fn a_shutdown_ends_all_waits() -> Outcome {
    let server = RedisServer::start()?;
    let locker = opened(&server.url())?;
    let lock = RwLock::new(&locker, NAME, 2, UNPOLLED)?;
    let permits = [lock.read()?, lock.read()?];
    let readers = [(); 2].map(|()| {
        let lock = lock.clone();
        waiting(move || lock.read().map(drop))
    });
    let there = lock.clone();
    let writer = waiting(move || there.write().map(drop));
    locker.shut_down();
    for ended in readers.into_iter().chain([writer]).map(Sleeper::join) {
        let error = ended.expect_err("all waiting has ended");
        assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
    }
    assert!(matches!(lock.try_read(), Err(Error::ShutDown { .. })));
    assert!(matches!(lock.try_write(), Err(Error::ShutDown { .. })));
    // What is held is held, and can be released.
    permits.iter().try_for_each(LockGuard::ensure_held)?;
    drop(permits);
    assert_eq!(held(&server, 2), [0_usize; 0]);
    Ok(())
}

/// The task of a worker.
pub(crate) fn as_worker(task: &[&str]) -> TaskOutcome {
    match task {
        ["contend", url, permits, rounds] => contend(url, permits.parse()?, rounds.parse()?),
        ["hold", url, permits, held] => hold(url, permits.parse()?, held.parse()?),
        _ => Err(format!("no such task: {task:?}").into()),
    }
}

/// Prints `ready`, waits for a line of input, and has three threads hold permits so many times each, and count that on the server.
fn contend(url: &str, permits: usize, rounds: usize) -> TaskOutcome {
    let semaphore = pool(&opened(url)?, permits, expiring().poll_interval(millis(5)));
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| -> TaskOutcome {
                    let mut connection = redis::Client::open(url)?.get_connection()?;
                    for _ in 0..rounds {
                        semaphore.try_with(|held| count_inside(&mut connection, held, permits))?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

/// Counts the holders, of this permit and of all.
fn count_inside(connection: &mut redis::Connection, held: &LockGuard, permits: usize) -> TaskOutcome {
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

/// Acquires so many permits with a brief lease, prints `ready`, and holds them until killed.
fn hold(url: &str, permits: usize, held: usize) -> TaskOutcome {
    let options = LockOptions::expiring_after(millis(500)).timeout(LONG);
    let semaphore = pool(&opened(url)?, permits, options);
    let held: Vec<LockGuard> = (0..held).map(|_| semaphore.acquire()).collect::<Result<_, _>>()?;
    println!("ready");
    thread::sleep(LONG);
    drop(held);
    Ok(())
}

/// Starts a worker, and returns once it is ready.
fn ready(task: &[&str]) -> Result<Child, Box<dyn std::error::Error>> {
    let mut child = worker(&[&["permits"], task].concat())?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("a pipe")?.take(100)).read_line(&mut line)?;
    assert_eq!(line, "ready\n");
    Ok(child)
}

fn several_processes_and_their_threads() -> Outcome {
    const PERMITS: usize = 3;
    let server = RedisServer::start()?;
    let url = server.url();
    let task = ["contend", &url, &PERMITS.to_string(), "15"];
    let workers: Vec<Child> = (0..3).map(|_| ready(&task)).collect::<Result<_, _>>()?;
    // One permit is held by a process that crashes meanwhile.
    let mut crashing = ready(&["hold", &url, &PERMITS.to_string(), "1"])?;
    let begin = |mut worker: Child| {
        drop(worker.stdin.take());
        worker
    };
    let workers: Vec<Child> = workers.into_iter().map(begin).collect();
    crashing.kill()?;
    crashing.wait()?;
    for mut worker in workers {
        assert!(worker.wait()?.success());
    }
    let done: usize = connection(&server).get("rounds")?;
    assert_eq!(done, 3 * 3 * 15);
    let left = pool(&opened(&url)?, PERMITS, expiring());
    let all: Vec<LockGuard> = (0..PERMITS).map(|_| left.acquire()).collect::<Result<_, _>>()?;
    assert!(left.try_acquire()?.is_none());
    drop(all);
    assert_eq!(held(&server, PERMITS), [0_usize; 0]);
    Ok(())
}

fn the_permits_of_a_killed_process_are_taken_over() -> Outcome {
    const PERMITS: usize = 3;
    let server = RedisServer::start()?;
    let url = server.url();
    for protocol in PROTOCOLS {
        let mut crashing = ready(&["hold", &url, &PERMITS.to_string(), "2"])?;
        crashing.kill()?;
        crashing.wait()?;
        let semaphore = pool(&opened(&url)?, PERMITS, expiring().protocol(protocol));
        let until: Vec<Option<SystemTime>> = semaphore
            .states()?
            .into_iter()
            .map(|state| match state {
                LockState::Until(expiry) => expiry.system_time(),
                _ => None,
            })
            .collect();
        assert_eq!(until.iter().flatten().count(), 2, "{until:?}");
        let mut all = Vec::new();
        for _ in 0..PERMITS {
            let held = semaphore.acquire()?;
            let expired = until[slot(&held)].is_none_or(|until| until < SystemTime::now());
            assert!(expired, "taken over too early");
            all.push(held);
        }
        assert!(semaphore.try_acquire()?.is_none());
    }
    Ok(())
}

fn a_process_gets_its_turn_among_the_threads_of_another() -> Outcome {
    const PERMITS: usize = 2;
    let server = RedisServer::start()?;
    let url = server.url();
    let semaphore = pool(&opened(&url)?, PERMITS, expiring());
    let over = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..6)
        .map(|_| {
            let (semaphore, over) = (semaphore.clone(), Arc::clone(&over));
            thread::spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    semaphore.with(|_| thread::sleep(millis(1)))?;
                }
                Ok::<_, Error>(())
            })
        })
        .collect();
    let task = ["contend", &url, &PERMITS.to_string(), "3"];
    let outcome = ready(&task).and_then(|mut worker| {
        drop(worker.stdin.take());
        Ok(worker.wait()?)
    });
    over.store(true, Ordering::SeqCst);
    for thread in busy {
        thread.join().unwrap()?;
    }
    assert!(outcome?.success());
    Ok(())
}

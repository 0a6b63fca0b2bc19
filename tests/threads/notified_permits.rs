//! Permits, readers and writers whose releases notify waiters of other processes. Nobody polls, so that only a notification wakes a waiter. A
//! locker of its own stands for a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands as _;
use setnx_lock::{CancelToken, Error, LockOptions, Locker, Permit, Protocol, RwLock, Semaphore};
use setnx_lock_testing::TestServer;

use crate::support::asleep::Sleeper;
use crate::support::notified::{
    Listening, NEVER, NOTIFIED, Worker, connection, keys, list_of, until, until_listening, until_waiting,
};
use crate::support::processes::TaskOutcome;
use crate::support::scenario::opened;
use crate::support::sent::{names, probed, recorded};
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer, LONG, Outcome, expiring, millis, trials_of};

trials_of! {
    "notified_permits";
    a_released_permit_wakes_a_waiter_of_another_process,
    a_release_takes_the_next_process_in_its_trip_and_only_with_the_option,
    processes_are_notified_in_their_order,
    a_process_that_has_a_permit_is_notified_too,
    a_process_that_asks_again_at_once_leaves_the_permit_to_the_one_that_it_has_notified,
    a_notification_that_nobody_wants_any_more_goes_on,
    a_process_that_is_killed_is_passed_over,
    a_writer_is_next_after_the_readers_that_are_in,
    a_reader_that_leaves_the_permits_to_a_writer_keeps_none,
    a_writer_that_gives_up_lets_readers_in,
    a_writer_that_is_killed_holds_readers_up_for_a_moment,
}

/// What the list of the processes belongs to that wait for one of two permits.
const LINE: &str = "pool:setnx-lock:permits:2";

fn pool(locker: &Locker, options: LockOptions) -> Semaphore {
    Semaphore::new(locker, "pool", 2, options).unwrap()
}

fn process(server: &impl AnyServer) -> Result<Locker, Error> {
    opened(&server.url())
}

fn wait_for(semaphore: Semaphore) -> Sleeper<Result<Permit, Error>> {
    Sleeper::start(move || semaphore.acquire())
}

/// Both permits, of a process of their own.
fn both(server: &impl AnyServer, options: LockOptions) -> Result<[Permit; 2], Error> {
    let semaphore = pool(&process(server)?, options);
    Ok([semaphore.acquire()?, semaphore.acquire()?])
}

pub(crate) fn as_worker(part: &[&str]) -> TaskOutcome {
    match part {
        ["wait", url] => pool(&opened(url)?, NOTIFIED).acquire()?.release()?,
        ["write", url] => {
            let options = LockOptions::expiring_after(millis(1000)).timeout(LONG).notify_waiters(true);
            shared(&opened(url)?, options).write()?.release()?;
        }
        _ => return Err(format!("no such part: {part:?}").into()),
    }
    Ok(())
}

/// What shows readers that a writer is next.
const NEXT_WRITER: &str = "pool:setnx-lock:next-writer:{pool}";

fn shared(locker: &Locker, options: LockOptions) -> RwLock {
    RwLock::new(locker, "pool", 2, options).unwrap()
}

fn until_announced(server: &impl AnyServer) {
    until("a writer is next", || connection(server).exists(NEXT_WRITER).unwrap());
}

fn a_released_permit_wakes_a_waiter_of_another_process() -> Outcome {
    for protocol in PROTOCOLS.into_iter().chain([Protocol::Auto]) {
        let server = TestServer::start();
        let mut options = NOTIFIED.protocol(protocol);
        if protocol == Protocol::Auto {
            options =
                LockOptions::expiring_after(NEVER).timeout(NEVER).poll_interval(NEVER).protocol(protocol);
        }
        let releases: [fn(Permit); 3] = [|held| drop(held.release()), drop, |held| held.release_later()];
        for release in releases {
            let [one, other] = both(&server, options)?;
            let waiter = wait_for(pool(&process(&server)?, options));
            until_waiting(&server, LINE, 1);
            waiter.rests();
            release(one);
            waiter.join()?.release()?;
            other.release()?;
            until_waiting(&server, LINE, 0);
        }
    }
    Ok(())
}

fn a_release_takes_the_next_process_in_its_trip_and_only_with_the_option() -> Outcome {
    let server = TestServer::start();
    let list = list_of(LINE);
    for notifies in [true, false] {
        let options = expiring().notify_waiters(notifies);
        let locker = process(&server)?;
        probed(&locker, Protocol::Ttl)?;
        let held = pool(&locker, options).acquire()?;
        let key = held.key().to_string();
        server.clear_log();
        held.release()?;
        let trips: Vec<Vec<String>> = server
            .batches()
            .into_iter()
            .map(|trip| {
                trip.into_iter().map(|sent| [vec![sent.name], sent.arguments].concat().join(" ")).collect()
            })
            .collect();
        let take = notifies.then(|| format!("LPOP {list}"));
        assert_eq!(trips, [[format!("DEL {key}")].into_iter().chain(take).collect::<Vec<_>>()]);
    }
    Ok(())
}

fn processes_are_notified_in_their_order() -> Outcome {
    let server = TestServer::start();
    let listening = Listening::start(&server, 4)?;
    let [_kept, mut held] = both(&server, NOTIFIED)?;
    let mut waiters = Vec::new();
    for locker in &listening.lockers {
        waiters.push(wait_for(pool(locker, NOTIFIED)));
        until_waiting(&server, LINE, waiters.len());
    }
    for waiter in waiters {
        waiter.rests();
        server.clear_log();
        drop(held);
        held = waiter.join()?;
        let commands = recorded(&server);
        let sent = names(&commands);
        let count = |name| sent.iter().filter(|sent| **sent == name).count();
        assert_eq!((count("DEL"), count("LPOP"), count("PUBLISH")), (1, 1, 1), "{commands:?}");
        // It asks for either, and for the other then.
        assert!((1..=2).contains(&count("SETNX")), "{commands:?}");
    }
    Ok(())
}

/// Its own release would not come soon.
fn a_process_that_has_a_permit_is_notified_too() -> Outcome {
    let server = TestServer::start();
    let listening = Listening::start(&server, 2)?;
    let [one, other] = [0, 1].map(|at| pool(&listening.lockers[at], NOTIFIED));
    let (_kept, held) = (one.acquire()?, other.acquire()?);
    let waiter = wait_for(one);
    until_waiting(&server, LINE, 1);
    held.release()?;
    drop(waiter.join()?);
    Ok(())
}

fn a_process_that_asks_again_at_once_leaves_the_permit_to_the_one_that_it_has_notified() -> Outcome {
    /// The head start. On a busy machine the other may need longer, and lose its turn; but not earlier.
    const LEFT: Duration = Duration::from_millis(10);
    let server = TestServer::start();
    let listening = Listening::start(&server, 2)?;
    let [own, other] = [0, 1].map(|at| pool(&listening.lockers[at], NOTIFIED));
    let _kept = own.acquire()?;
    for _ in 0..30 {
        let held = own.acquire()?;
        let acquired = Arc::new(AtomicBool::new(false));
        let (there, other) = (Arc::clone(&acquired), other.clone());
        let waiter = thread::spawn(move || other.with(|_| there.store(true, Ordering::SeqCst)));
        until_waiting(&server, LINE, 1);
        let released = Instant::now();
        drop(held);
        let again = own.acquire()?;
        let after = released.elapsed();
        assert!(acquired.load(Ordering::SeqCst) || after >= LEFT, "it had a permit again after {after:?}");
        drop(again);
        waiter.join().unwrap()?;
    }
    Ok(())
}

fn a_notification_that_nobody_wants_any_more_goes_on() -> Outcome {
    let server = TestServer::start();
    let (locker, token) = (process(&server)?, CancelToken::new());
    let [one, _other] = both(&server, NOTIFIED)?;
    let first = wait_for(pool(&locker, NOTIFIED).cancelled_by(&token));
    until_waiting(&server, LINE, 1);
    let channel: Vec<String> = connection(&server).lrange(list_of(LINE), 0, -1)?;
    token.cancel();
    assert!(matches!(first.join(), Err(Error::Cancelled { .. })));
    until_waiting(&server, LINE, 0);
    // As if it had been notified just before it left: it still listens.
    let _: i64 = connection(&server).lpush(list_of(LINE), channel)?;
    let waiter = wait_for(pool(&process(&server)?, NOTIFIED));
    until_waiting(&server, LINE, 2);
    one.release()?;
    drop(waiter.join()?);
    Ok(())
}

fn a_process_that_is_killed_is_passed_over() -> Outcome {
    let server = TestServer::start();
    let [one, _other] = both(&server, NOTIFIED)?;
    let killed = Worker::performing(&["notified_permits", "wait", &server.url()])?;
    until_waiting(&server, LINE, 1);
    let mut last = Worker::performing(&["notified_permits", "wait", &server.url()])?;
    until_waiting(&server, LINE, 2);
    drop(killed);
    until_listening(&server, 1);
    one.release()?;
    assert!(last.ends_well()?);
    Ok(())
}

fn a_writer_is_next_after_the_readers_that_are_in() -> Outcome {
    for protocol in PROTOCOLS {
        let server = TestServer::start();
        let options = NOTIFIED.protocol(protocol);
        let reading = shared(&process(&server)?, options).read()?;
        let writer = shared(&process(&server)?, options);
        let writing = Sleeper::start(move || writer.write());
        until_announced(&server);
        until_waiting(&server, &reading.key().to_string(), 1);
        let others = shared(&process(&server)?, options);
        assert!(others.try_read()?.is_none(), "{protocol:?}: a permit is free, and it came later");
        let queued = others.clone();
        let reader = Sleeper::start(move || queued.read());
        until_waiting(&server, LINE, 1);
        reader.rests();
        reading.release()?;
        let writing = writing.join()?;
        assert!(!connection(&server).exists::<_, bool>(NEXT_WRITER)?);
        reader.rests();
        writing.release()?;
        reader.join()?.release()?;
        drop(others.try_read()?.expect("no writer is next"));
        assert_eq!(keys(&server, "*waiters*"), [""; 0]);
    }
    Ok(())
}

fn a_reader_that_leaves_the_permits_to_a_writer_keeps_none() -> Outcome {
    let server = TestServer::start();
    let reading = shared(&process(&server)?, NOTIFIED).read()?;
    let token = CancelToken::new();
    let writer = shared(&process(&server)?, NOTIFIED).cancelled_by(&token);
    let writing = Sleeper::start(move || writer.write());
    until_announced(&server);
    until_waiting(&server, &reading.key().to_string(), 1);
    // One that polls would not hold back in a window.
    let options = NOTIFIED.hold_at_least(millis(60_000)).timeout(millis(50));
    let others = shared(&process(&server)?, options);
    let held = || -> usize { connection(&server).exists(&["pool:0", "pool:1"]).unwrap() };
    let before = held();
    let error = others.read().expect_err("it came later");
    assert!(error.to_string().contains("; a writer is next"), "{error}");
    assert!(others.try_read()?.is_none());
    assert_eq!(held(), before);
    token.cancel();
    let _ended = writing.join();
    reading.release()?;
    Ok(())
}

fn a_writer_that_gives_up_lets_readers_in() -> Outcome {
    let server = TestServer::start();
    let token = CancelToken::new();
    let reading = shared(&process(&server)?, NOTIFIED).read()?;
    let writer = shared(&process(&server)?, NOTIFIED).cancelled_by(&token);
    let writing = Sleeper::start(move || writer.write());
    until_announced(&server);
    let readers = [process(&server)?, process(&server)?].map(|locker| {
        let shared = shared(&locker, NOTIFIED);
        Sleeper::start(move || shared.read()?.release())
    });
    until_waiting(&server, LINE, 2);
    token.cancel();
    assert!(matches!(writing.join(), Err(Error::Cancelled { .. })));
    for reader in readers {
        reader.join()?;
    }
    reading.release()?;
    Ok(())
}

/// What it had expires, and readers look by themselves.
fn a_writer_that_is_killed_holds_readers_up_for_a_moment() -> Outcome {
    let server = TestServer::start();
    let reading = shared(&process(&server)?, NOTIFIED).read()?;
    let killed = Worker::performing(&["notified_permits", "write", &server.url()])?;
    until_announced(&server);
    drop(killed);
    let left: Vec<Option<String>> = connection(&server).mget(&["pool:0", "pool:1", NEXT_WRITER])?;
    assert!(left.iter().any(Option::is_some), "{left:?}");
    let options = LockOptions::expiring_after(NEVER).timeout(LONG);
    shared(&process(&server)?, options).read()?.release()?;
    reading.release()?;
    Ok(())
}

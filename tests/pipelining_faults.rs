//! Faults in the middle of a batch: each command of a batch has an outcome of its own. A command without a reply is resolved by the
//! rules, as if it had been sent alone.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{
    ConnectError, Error, Lock, LockGuard, LockOptions, Locker, NoConnection, RefusalKind, Release,
};

use crate::pipelining::with_one_connection;
use crate::servers::{Asked, Fault, Proxy};
use crate::support::contention::{
    LostReplies, assert_nothing_sent_by_two, await_batch_of, contends, contention, contention_with_faults,
    pairs,
};
use crate::support::monitor::Monitor;
use crate::support::raw::Wire;
use crate::support::scenario::{BRIEF, Scenario, patient};
use crate::support::{LONG, Outcome, RedisServer, Target, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "pipelining_faults",
        tests![
            a_batch_that_is_cut,
            a_batch_that_is_cut_on_a_connection_of_the_redis_crate,
            an_invalid_reply_in_the_middle_of_a_batch,
            an_invalid_reply_on_a_connection_of_the_redis_crate,
            a_server_that_stops_replying_in_the_middle_of_a_batch,
            a_refusal_of_a_replica_in_the_middle_of_a_batch,
            a_master_that_becomes_a_replica,
            a_server_that_freezes,
            releases_that_wait_longer_than_their_leases,
            a_server_with_too_many_clients,
        ],
    )
}

const THREADS: usize = 12;
/// How many commands a batch with a fault has at least.
const MIN_BATCH: usize = 4;

/// A locker with one connection of the redis crate.
fn on_redis_crate(url: &str) -> Locker {
    let client = redis::Client::open(url).unwrap();
    let builder = r2d2::Pool::builder().max_size(1).test_on_check_out(false);
    Locker::with_pool(builder.build(client).unwrap())
}

/// The locker of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Connections {
    Patient,
    Brief,
    /// Those wait for a connection of the pool for 2 s, and that cannot be changed.
    OfTheRedisCrate,
}

impl Connections {
    fn open(self, url: &str) -> Locker {
        match self {
            Connections::Patient => with_one_connection(url),
            // Long enough for every other command under load.
            Connections::Brief => patient(url).unwrap().pool_size(1).command_timeout(BRIEF).build().unwrap(),
            Connections::OfTheRedisCrate => on_redis_crate(url),
        }
    }
}

/// Applies a fault to the command at this place of a batch. Asserts that this command and all after it have no reply, for this reason,
/// that no command is sent twice, that no lock is acquired twice, and that each outcome is true.
fn assert_fault_resolved(connections: Connections, place: usize, fault: Fault, reason: &str) -> Outcome {
    let scenario = Scenario::set()?;
    let lost_replies = LostReplies::default();
    let locker = connections.open(&scenario.proxy.url()).observed_by(lost_replies.clone());
    let inside = [const { AtomicBool::new(false) }; 2];
    let what = format!("{fault:?} at {place}");
    let blocks_connection = matches!(fault, Fault::HalfOpen);
    scenario.proxy.in_batch(place, MIN_BATCH, fault);
    let errors =
        contention_with_faults(THREADS, &scenario.proxy, |n| -> Box<dyn FnMut() -> Result<(), Error>> {
            match n % 3 {
                0 => Box::new(contends(&locker, &format!("both:{}", n % 2), &inside[n % 2], expiring())),
                _ => {
                    Box::new(pairs(&scenario.target, &locker, &format!("own:{n}"), expiring().timeout(LONG)))
                }
            }
        });
    for (n, error) in &errors {
        let expected = match error {
            // A lock without contention is acquired in the end, whatever the outcome of the first attempt. A release may stay unknown.
            Error::Unknown { command, .. } => n % 3 == 0 || *command == "DEL",
            Error::Io { .. } => n % 3 == 0,
            // Nothing was sent: the only connection was in use all the time, by a command without a reply, or by others on a busy machine.
            Error::NoConnection { cause, .. } => {
                let may_be_busy = connections == Connections::OfTheRedisCrate;
                blocks_connection || may_be_busy && *cause == NoConnection::PoolExhausted
            }
            _ => false,
        };
        assert!(expected, "{what}: {error:?}");
    }
    lost_replies.assert_all_say(reason);
    assert_nothing_sent_by_two(&scenario.proxy);
    let batches = scenario.proxy.batches();
    let batch = batches.iter().rfind(|batch| batch[0].connection == 0).expect("it is the first connection");
    let size = batch[0].position.of;
    assert!(size >= MIN_BATCH, "{what}: the connection was used again: {batches:?}");
    let (replied, unreplied) = batch.split_at(place - 1);
    let lost = lost_replies.keys();
    assert_eq!(lost.len(), size + 1 - place, "{what}: {batch:?}, {lost:?}");
    let has_reply = |asked: &Asked| !lost.contains(&asked.arguments[0]);
    assert!(replied.iter().all(|asked| asked.arguments[0].starts_with("both") || has_reply(asked)), "{what}");
    assert!(!unreplied.iter().any(has_reply), "{what}");
    assert_eq!(batches.last().map(|batch| batch[0].connection), Some(1), "{what}: one new connection");
    Ok(())
}

fn assert_all_resolved(connections: Connections, faults: &[(usize, Fault)], reason: &str) -> Outcome {
    faults
        .iter()
        .try_for_each(|(place, fault)| assert_fault_resolved(connections, *place, fault.clone(), reason))
}

const CUTS: &[(usize, Fault)] = &[
    (1, Fault::CutBefore),
    (1, Fault::CutAfter),
    (1, Fault::CutWithin),
    (3, Fault::CutBefore),
    (3, Fault::CutAfter),
    (3, Fault::CutWithin),
];

fn a_batch_that_is_cut() -> Outcome {
    assert_all_resolved(Connections::Patient, CUTS, "closed the connection")
}

fn a_batch_that_is_cut_on_a_connection_of_the_redis_crate() -> Outcome {
    assert_all_resolved(Connections::OfTheRedisCrate, CUTS, "")
}

/// Replies that none of the commands can have, with and without a form that the Redis protocol has.
const INVALID_REPLIES: &[(usize, Fault)] = &[
    (2, Fault::Say("+OK\r\n")),
    (3, Fault::Say("HTTP/1.1 400 Bad Request\r\n:1\r\n:1\r\n")),
    (1, Fault::Say("*1\r\n:1\r\n")),
];

const NOT_REDIS: &str = "does not answer as a Redis server does";

fn an_invalid_reply_in_the_middle_of_a_batch() -> Outcome {
    assert_all_resolved(Connections::Patient, INVALID_REPLIES, NOT_REDIS)
}

fn an_invalid_reply_on_a_connection_of_the_redis_crate() -> Outcome {
    assert_all_resolved(Connections::OfTheRedisCrate, INVALID_REPLIES, NOT_REDIS)
}

fn a_server_that_stops_replying_in_the_middle_of_a_batch() -> Outcome {
    assert_fault_resolved(Connections::Brief, 2, Fault::HalfOpen, "")
}

fn is_refused_by_a_replica(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::ReadOnly)
}

fn a_refusal_of_a_replica_in_the_middle_of_a_batch() -> Outcome {
    for locker in [with_one_connection, on_redis_crate] {
        let scenario = Scenario::set()?;
        let lost_replies = LostReplies::default();
        let locker = locker(&scenario.proxy.url()).observed_by(lost_replies.clone());
        let refusal = "-READONLY You can't write against a read only replica.\r\n";
        scenario.proxy.in_batch(2, MIN_BATCH, Fault::Say(refusal));
        let errors = contention_with_faults(THREADS, &scenario.proxy, |n| {
            pairs(&scenario.target, &locker, &format!("own:{n}"), expiring().timeout(LONG))
        });
        assert!(errors.len() == 1 && is_refused_by_a_replica(&errors[0].1), "{errors:?}");
        assert!(lost_replies.keys().is_empty());
        let batches = scenario.proxy.batches();
        let last =
            batches.iter().rfind(|batch| batch[0].connection == 0).expect("it is the first connection");
        assert!(last.len() >= MIN_BATCH, "the connection was used again: {batches:?}");
        let name = format!("own:{}", errors[0].0);
        assert_eq!(last[1].arguments[0], name);
    }
    Ok(())
}

fn a_master_that_becomes_a_replica() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let locker = patient(&proxy.url())?.pool_size(1).unreachable_timeout(millis(300)).build()?;
    let work = |n| {
        let lock = Lock::new(&locker, format!("own:{n}"), expiring()).unwrap();
        move || lock.try_lock()?.expect("the lock has one contender").release().map(drop)
    };
    await_batch_of(&proxy, MIN_BATCH);
    let mut errors = contention(
        THREADS,
        "a batch, and then a replica",
        || {
            let ready = proxy.faults_left() == 0;
            if ready {
                server.say(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
            }
            ready
        },
        work,
    );
    // Each error is a refusal of the replica or a failed search for the master, and at least one is a refusal.
    assert!(errors.iter().any(|(_, error)| is_refused_by_a_replica(error)), "{errors:?}");
    errors.retain(|(_, error)| {
        let found_no_master = matches!(
            error,
            Error::NoConnection { cause: NoConnection::Connect(ConnectError::Replica { .. }), .. }
        );
        !found_no_master && !is_refused_by_a_replica(error)
    });
    assert!(errors.is_empty(), "{errors:?}");
    server.say(&["REPLICAOF", "NO", "ONE"])?;
    server.say(&["FLUSHALL"])?;
    await_batch_of(&proxy, MIN_BATCH);
    let errors = contention_with_faults(THREADS, &proxy, work);
    assert!(errors.is_empty(), "{errors:?}");
    Ok(())
}

fn a_server_that_freezes() -> Outcome {
    /// More than any load adds.
    const MARGIN: Duration = Duration::from_secs(30);
    let server = Arc::new(RedisServer::start()?);
    let (target, proxy) = (Target::of(&server), Proxy::before(server.address())?);
    let command = millis(500);
    let builder = Locker::builder(&proxy.url())?.pool_size(1).command_timeout(command);
    let locker = builder.connect_timeout(command).unreachable_timeout(command).build()?;
    await_batch_of(&proxy, MIN_BATCH);
    let brief = LockOptions::expiring_after(millis(1500));
    let errors = contention(
        THREADS,
        "a batch, and then a frozen server",
        || {
            let ready = proxy.faults_left() == 0;
            if ready {
                server.freeze();
            }
            ready
        },
        |n| {
            let timeout = [Duration::ZERO, millis(200), millis(900)][n % 3];
            let lock = Lock::new(&locker, format!("own:{n}"), brief.timeout(timeout)).unwrap();
            move || {
                let began = Instant::now();
                let held = lock.lock();
                assert!(began.elapsed() < timeout + command + MARGIN, "{:?}", began.elapsed());
                let began = Instant::now();
                let released = held.map(LockGuard::release);
                assert!(began.elapsed() < command + MARGIN, "{:?}", began.elapsed());
                released?.map(drop)
            }
        },
    );
    server.thaw();
    let longer = with_one_connection(&proxy.url());
    let is_expected = |error: &Error| {
        matches!(
            error,
            Error::Unknown { .. } | Error::Io { .. } | Error::NoConnection { .. } | Error::Timeout { .. }
        )
    };
    assert!(!errors.is_empty() && errors.iter().all(|(_, error)| is_expected(error)), "{errors:?}");
    // Once the server replies again, it has executed the commands in its buffers.
    server.say(&["PING"])?;
    await_batch_of(&proxy, MIN_BATCH);
    let errors = contention_with_faults(THREADS, &proxy, |n| {
        pairs(&target, &longer, &format!("own:{n}"), expiring().timeout(LONG))
    });
    assert!(errors.is_empty(), "{errors:?}");
    assert_nothing_sent_by_two(&proxy);
    Ok(())
}

fn releases_that_wait_longer_than_their_leases() -> Outcome {
    let scenario = Scenario::set()?;
    let locker = with_one_connection(&scenario.proxy.url());
    let brief = LockOptions::expiring_after(millis(700)).timeout(LONG);
    let names: Vec<String> = (0..THREADS).map(|n| format!("own:{n}")).collect();
    let held: Vec<_> = names
        .iter()
        .map(|name| Lock::new(&locker, name.as_str(), brief)?.lock())
        .collect::<Result<_, _>>()?;
    let reading = scenario.proxy.hold("GET", 1);
    let other = Lock::new(&locker, "other", expiring())?;
    let reader = thread::spawn(move || other.state());
    reading.reached();
    let (sender, outcomes) = mpsc::channel();
    for held in held {
        let sender = sender.clone();
        thread::spawn(move || sender.send(held.release()));
    }
    thread::sleep(millis(800));
    let mut direct = scenario.target.connection();
    for name in &names {
        // The leases have expired, and other holders have taken over.
        let () = direct.set(name, "1895000000.5")?;
    }
    reading.go_on();
    for _ in &names {
        assert_eq!(outcomes.recv_timeout(LONG)??, Release::Expired);
    }
    reader.join().unwrap()?;
    assert!(!scenario.proxy.names().contains(&"DEL".to_owned()));
    for name in &names {
        assert_eq!(direct.get::<_, Option<String>>(name)?.as_deref(), Some("1895000000.5"));
    }
    Ok(())
}

fn a_server_with_too_many_clients() -> Outcome {
    const ROUNDS: usize = 10;
    let server = RedisServer::start()?;
    // The first command of a new connection is refused. It is not the INFO of the server check.
    let builder = patient(&server.url())?.skip_server_check().pool_size(3);
    let locker = builder.build()?;
    assert!(!Lock::new(&locker, "own:0", expiring())?.exists()?);
    let (monitor, mut admin) = (Monitor::on(&server)?, Wire::to(&server.url()));
    assert_eq!(admin.ask("CONFIG SET maxclients 3"), "+OK");
    thread::scope(|scope| {
        for n in 0..THREADS {
            let options = expiring().timeout(LONG);
            let lock = Lock::new(&locker, format!("own:{n}"), options).unwrap();
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    assert_eq!(
                        lock.lock().unwrap().release().unwrap(),
                        Release::Released { certified: false }
                    );
                }
            });
        }
    });
    assert_eq!(admin.ask("CONFIG SET maxclients 100"), "+OK");
    let mut sent = Vec::new();
    let recorded = monitor.recorded(&server)?;
    for words in recorded.iter().filter(|words| words[0] == "SETNX") {
        assert!(!sent.contains(&words[2]), "sent twice: {words:?}");
        sent.push(words[2].clone());
    }
    assert_eq!(sent.len(), THREADS * ROUNDS, "each value was sent once");
    assert_eq!(recorded.iter().filter(|words| words[0] == "DEL").count(), THREADS * ROUNDS);
    Ok(())
}

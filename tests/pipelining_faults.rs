//! Trips that come to harm on their way: each command of a trip has an outcome of its own, and those that have none are resolved by the
//! rules, as if each had gone alone.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, NoConnection, RefusalKind, Release};

use crate::combining::patient;
use crate::servers::{Asked, Fault, Proxy};
use crate::support::contention::{
    Troubles, assert_nothing_sent_by_two, await_company, contends, contention, crowd_in_harm, pairs,
};
use crate::support::monitor::Monitor;
use crate::support::raw::Wire;
use crate::support::scenario::Scene;
use crate::support::{Target, LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "combining_faults",
        tests![
            a_trip_that_is_cut,
            a_trip_on_a_plain_pool_that_is_cut,
            an_answer_that_is_none_in_the_midst_of_a_trip,
            an_answer_that_is_none_on_a_plain_pool,
            a_server_that_stops_answering_in_the_midst_of_a_trip,
            a_replica_s_refusal_in_the_midst_of_a_trip,
            a_master_that_becomes_a_replica,
            a_server_that_freezes,
            releases_that_wait_beyond_their_leases,
            a_server_without_room,
        ],
    )
}

/// How many threads there are, and how many commands a trip has at least that comes to harm.
const CROWD: usize = 12;
const COMPANY: usize = 4;

fn plain(url: &str) -> Locker {
    let client = redis::Client::open(url).unwrap();
    let builder = r2d2::Pool::builder().max_size(1).test_on_check_out(false);
    Locker::with_pool(builder.build(client).unwrap())
}

/// Lets the command at this place of a trip come to harm, and with it all that follow: exactly these have no answer, for this reason. Nothing is sent
/// twice, no lock is granted twice, and what a thread is told of a key of its own is true.
fn harmed(locker: &impl Fn(&str) -> Locker, place: usize, fault: Fault, why: &str) -> Outcome {
    let scenario = Scene::set()?;
    let troubles = Troubles::default();
    let locker = locker(&scenario.proxy.url()).observed_by(troubles.clone());
    let inside = [const { AtomicBool::new(false) }; 2];
    let what = format!("{fault:?} at {place}");
    let stands_still = matches!(fault, Fault::HalfOpen);
    scenario.proxy.in_batch(place, COMPANY, fault);
    let wrong = crowd_in_harm(CROWD, &scenario.proxy, |n| -> Box<dyn FnMut() -> Result<(), Error>> {
        match n % 3 {
            0 => Box::new(contends(&locker, &format!("both:{}", n % 2), &inside[n % 2], expiring())),
            _ => Box::new(pairs(&scenario.target, &locker, &format!("own:{n}"), expiring().timeout(LONG))),
        }
    });
    for (n, error) in &wrong {
        let resolved = match error {
            // A lock that nobody else wants is got in the end, whatever became of the first try; a release may remain in doubt.
            Error::Unknown { command, .. } => n % 3 == 0 || *command == "DEL",
            Error::Io { .. } => n % 3 == 0,
            // Nothing was sent: the one connection was in use all the time.
            Error::NoConnection { .. } => stands_still,
            _ => false,
        };
        assert!(resolved, "{what}: {error:?}");
    }
    troubles.assert_all_say(why);
    assert_nothing_sent_by_two(&scenario.proxy);
    let trips = scenario.proxy.batches();
    let trip = trips.iter().rfind(|trip| trip[0].connection == 0).expect("it is the first");
    let seat = trip[0].position;
    assert!(seat.of >= COMPANY, "{what}: the connection was used again: {trips:?}");
    let (answered, unanswered) = trip.split_at(place - 1);
    let without = troubles.keys();
    assert_eq!(without.len(), seat.of + 1 - place, "{what}: {trip:?}, {without:?}");
    let is_told = |asked: &Asked| !without.contains(&asked.arguments[0]);
    assert!(answered.iter().all(|asked| asked.arguments[0].starts_with("both") || is_told(asked)), "{what}");
    assert!(!unanswered.iter().any(is_told), "{what}");
    assert_eq!(trips.last().map(|trip| trip[0].connection), Some(1), "{what}: one new connection");
    Ok(())
}

fn each_harmed(locker: impl Fn(&str) -> Locker, faults: &[(usize, Fault)], why: &str) -> Outcome {
    faults.iter().try_for_each(|(place, fault)| harmed(&locker, *place, fault.clone(), why))
}

const CUTS: &[(usize, Fault)] = &[
    (1, Fault::CutBefore),
    (1, Fault::CutAfter),
    (1, Fault::CutWithin),
    (3, Fault::CutBefore),
    (3, Fault::CutAfter),
    (3, Fault::CutWithin),
];

fn a_trip_that_is_cut() -> Outcome {
    each_harmed(patient, CUTS, "closed the connection")
}

fn a_trip_on_a_plain_pool_that_is_cut() -> Outcome {
    each_harmed(plain, CUTS, "")
}

/// What is an answer to none of our commands, once in a form that the protocol has and once in one that it has not.
const GARBAGE: &[(usize, Fault)] = &[
    (2, Fault::Say("+OK\r\n")),
    (3, Fault::Say("HTTP/1.1 400 Bad Request\r\n:1\r\n:1\r\n")),
    (1, Fault::Say("*1\r\n:1\r\n")),
];

const NOT_REDIS: &str = "does not answer as a Redis server does";

fn an_answer_that_is_none_in_the_midst_of_a_trip() -> Outcome {
    each_harmed(patient, GARBAGE, NOT_REDIS)
}

fn an_answer_that_is_none_on_a_plain_pool() -> Outcome {
    each_harmed(plain, GARBAGE, NOT_REDIS)
}

fn a_server_that_stops_answering_in_the_midst_of_a_trip() -> Outcome {
    let brief = |url: &str| {
        // Long enough for every other command under load.
        let settings = Locker::builder(url).unwrap().pool_size(1).command_timeout(millis(3000));
        settings.build().unwrap()
    };
    harmed(&brief, 2, Fault::HalfOpen, "")
}

fn is_refused_by_a_replica(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::ReadOnly)
}

fn a_replica_s_refusal_in_the_midst_of_a_trip() -> Outcome {
    for locker in [patient, plain] {
        let scenario = Scene::set()?;
        let troubles = Troubles::default();
        let locker = locker(&scenario.proxy.url()).observed_by(troubles.clone());
        let no = "-READONLY You can't write against a read only replica.\r\n";
        scenario.proxy.in_batch(2, COMPANY, Fault::Say(no));
        let wrong = crowd_in_harm(CROWD, &scenario.proxy, |n| {
            pairs(&scenario.target, &locker, &format!("own:{n}"), expiring().timeout(LONG))
        });
        assert!(wrong.len() == 1 && is_refused_by_a_replica(&wrong[0].1), "{wrong:?}");
        assert!(troubles.keys().is_empty());
        let trips = scenario.proxy.batches();
        let last = trips.iter().rfind(|trip| trip[0].connection == 0).expect("it is the first");
        assert!(last.len() >= COMPANY, "the connection was used again: {trips:?}");
        let name = format!("own:{}", wrong[0].0);
        assert_eq!(last[1].arguments[0], name);
    }
    Ok(())
}

fn a_master_that_becomes_a_replica() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let settings = Locker::builder(&proxy.url())?.pool_size(1).command_timeout(millis(3000));
    let locker = settings.unreachable_timeout(millis(300)).build()?;
    let member = |n| {
        let lock = Lock::new(&locker, format!("own:{n}"), expiring()).unwrap();
        move || lock.try_lock()?.expect("nobody else wants it").release().map(drop)
    };
    await_company(&proxy, COMPANY);
    let mut wrong = contention(
        CROWD,
        "a crowd at a replica",
        || {
            let ready = proxy.faults_left() == 0;
            if ready {
                server.say(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
            }
            ready
        },
        member,
    );
    // What is refused, or finds no master, is told so; and at least one of them was the first.
    assert!(wrong.iter().any(|(_, error)| is_refused_by_a_replica(error)), "{wrong:?}");
    wrong.retain(|(_, error)| {
        let no_master = matches!(error, Error::NoConnection { cause: NoConnection::Replica { .. }, .. });
        !no_master && !is_refused_by_a_replica(error)
    });
    assert!(wrong.is_empty(), "{wrong:?}");
    server.say(&["REPLICAOF", "NO", "ONE"])?;
    server.say(&["FLUSHALL"])?;
    await_company(&proxy, COMPANY);
    let wrong = crowd_in_harm(CROWD, &proxy, member);
    assert!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

fn a_server_that_freezes() -> Outcome {
    /// Much more than load can add, and less than for ever.
    const MARGIN: Duration = Duration::from_secs(30);
    let server = Arc::new(RedisServer::start()?);
    let (target, proxy) = (Target::of(&server), Proxy::before(server.address())?);
    let command = millis(500);
    let settings = Locker::builder(&proxy.url())?.pool_size(1).command_timeout(command);
    let locker = settings.connect_timeout(command).unreachable_timeout(command).build()?;
    await_company(&proxy, COMPANY);
    let brief = LockOptions::expiring_after(millis(1500));
    let wrong = contention(
        CROWD,
        "a frozen crowd",
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
    let patient = patient(&proxy.url());
    let told = |error: &Error| {
        matches!(error, Error::Unknown { .. } | Error::Io { .. } | Error::NoConnection { .. } | Error::Timeout { .. })
    };
    assert!(!wrong.is_empty() && wrong.iter().all(|(_, error)| told(error)), "{wrong:?}");
    // What the server found in its buffers has been carried out once it answers those who came later.
    server.say(&["PING"])?;
    await_company(&proxy, COMPANY);
    let wrong = crowd_in_harm(CROWD, &proxy, |n| {
        pairs(&target, &patient, &format!("own:{n}"), expiring().timeout(LONG))
    });
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_nothing_sent_by_two(&proxy);
    Ok(())
}

fn releases_that_wait_beyond_their_leases() -> Outcome {
    let scenario = Scene::set()?;
    let locker = patient(&scenario.proxy.url());
    let brief = LockOptions::expiring_after(millis(700));
    let names: Vec<String> = (0..CROWD).map(|n| format!("own:{n}")).collect();
    let held: Vec<_> = names
        .iter()
        .map(|name| Lock::new(&locker, name.as_str(), brief)?.lock())
        .collect::<Result<_, _>>()?;
    let door = scenario.proxy.hold("GET", 1);
    let looks = Lock::new(&locker, "other", expiring())?;
    let looking = thread::spawn(move || looks.peek());
    door.reached();
    let (done, released) = mpsc::channel();
    for held in held {
        let done = done.clone();
        thread::spawn(move || done.send(held.release()));
    }
    thread::sleep(millis(800));
    let mut direct = scenario.target.connection();
    for name in &names {
        // The leases have passed, and others have taken over.
        let () = direct.set(name, "1895000000.5")?;
    }
    door.go_on();
    for _ in &names {
        assert_eq!(released.recv_timeout(LONG)??, Release::Expired);
    }
    looking.join().unwrap()?;
    assert!(!scenario.proxy.names().contains(&"DEL".to_owned()));
    for name in &names {
        assert_eq!(direct.get::<_, Option<String>>(name)?.as_deref(), Some("1895000000.5"));
    }
    Ok(())
}

fn a_server_without_room() -> Outcome {
    const ROUNDS: usize = 10;
    let server = RedisServer::start()?;
    // The connection's first command is refused, and not a question what the server is.
    let settings = Locker::builder(&server.url())?.skip_server_check().pool_size(3).command_timeout(LONG);
    let locker = settings.build()?;
    assert!(!Lock::new(&locker, "own:0", expiring())?.exists()?);
    let (monitor, mut admin) = (Monitor::on(&server)?, Wire::to(&server.url()));
    assert_eq!(admin.ask("CONFIG SET maxclients 3"), "+OK");
    thread::scope(|scope| {
        for n in 0..CROWD {
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
    assert_eq!(sent.len(), CROWD * ROUNDS, "each of them once");
    assert_eq!(recorded.iter().filter(|words| words[0] == "DEL").count(), CROWD * ROUNDS);
    Ok(())
}

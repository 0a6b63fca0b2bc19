//! Threads that share trips to the server: each gets what it would get alone, whoever sends it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol, RefusalKind, Release};

use crate::servers::{Asked, Proxy, Played};
use crate::support::contention::{assert_nothing_sent_by_two, await_company, contention, crowd_in_harm, pairs};
use crate::support::scenario::Scene;
use crate::support::staged::staged;
use crate::support::{Target, LONG, Outcome, RedisServer, Variant, expiring, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "combining",
        tests![
            a_lone_thread_sends_what_it_sends_without,
            a_crowd_shares_trips_and_each_gets_its_own_answer,
            a_refusal_is_told_to_whom_it_concerns,
            a_server_over_its_memory_refuses_only_what_adds,
            a_server_that_is_too_old_for_some,
            a_plain_pool_of_the_redis_crate_shares_trips,
            connections_that_cannot_combine_get_one_command_at_a_time,
            without_it_nobody_shares,
            every_protocol_in_every_way_loses_no_update,
        ],
    )
}

/// What a member of a crowd does again and again.
type Deed<'a> = Box<dyn FnMut() -> Result<(), Error> + 'a>;

/// How many threads a crowd has here.
const CROWD: usize = 12;

/// A locker that waits long enough for any load, on a pool of one: any two threads share.
pub(crate) fn patient(url: &str) -> Locker {
    Locker::builder(url).unwrap().pool_size(1).command_timeout(LONG).unreachable_timeout(LONG).build().unwrap()
}

fn assert_one_connection(proxy: &Proxy) {
    assert!(proxy.asked().iter().all(|asked| asked.connection == 0), "it was no reason to give it up");
}

fn a_lone_thread_sends_what_it_sends_without() -> Outcome {
    let scenario = Scene::set()?;
    let [with, without] = [true, false].map(|combines| {
        let trips = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&trips);
        let locker = staged::<true>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
            record.lock().unwrap().push(packed.bytes.to_vec());
            packed.carry(inner, replies)
        });
        // Its value is the same each time.
        let options = LockOptions::held_until_released();
        let lock = Lock::new(&locker.pipelining(combines), "lone", options).unwrap();
        for _ in 0..3 {
            lock.with(|_| Ok::<_, Error>(())).unwrap();
        }
        trips.lock().unwrap().clone()
    });
    assert_eq!(with, without);
    let pair = [
        "*3\r\n$5\r\nSETNX\r\n$4\r\nlone\r\n$1\r\n1\r\n".as_bytes(),
        "*2\r\n$3\r\nDEL\r\n$4\r\nlone\r\n".as_bytes(),
    ];
    assert_eq!(with, pair.repeat(3));
    Ok(())
}

fn a_crowd_shares_trips_and_each_gets_its_own_answer() -> Outcome {
    let scenario = Scene::set()?;
    let locker = patient(&scenario.proxy.url());
    let mut direct = scenario.target.connection();
    for n in 0..CROWD {
        let () = direct.set(format!("taken:{n}"), format!("18950000{n:02}.5"))?;
    }
    let seen = Mutex::new(HashSet::new());
    await_company(&scenario.proxy, 4);
    let wrong = crowd_in_harm(CROWD, &scenario.proxy, |n| -> Deed<'_> {
        let taken = Lock::new(&locker, format!("taken:{n}"), expiring()).unwrap();
        match n % 4 {
            0 => Box::new(pairs(&scenario.target, &locker, &format!("free:{n}"), expiring())),
            1 => Box::new(move || {
                assert!(taken.try_lock()?.is_none());
                Ok(())
            }),
            2 => {
                let content = taken.peek().unwrap();
                assert!(seen.lock().unwrap().insert(content.to_string()), "another's: {content}");
                Box::new(move || {
                    assert_eq!(taken.peek()?, content);
                    Ok(())
                })
            }
            _ => {
                let mut direct = scenario.target.connection();
                let cleared = Lock::new(&locker, format!("cleared:{n}"), expiring()).unwrap();
                Box::new(move || {
                    let () = direct.set(format!("cleared:{n}"), "1").unwrap();
                    assert!(cleared.clear()? && !cleared.clear()?);
                    Ok(())
                })
            }
        }
    });
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_one_connection(&scenario.proxy);
    Ok(())
}

/// A member that is refused each time, for this reason.
fn refused<'a>(locker: &Locker, key: String, kind: RefusalKind) -> Deed<'a> {
    let lock = Lock::new(locker, key, expiring()).unwrap();
    Box::new(move || match lock.try_lock() {
        Err(Error::Refused { refusal, .. }) if refusal.kind() == kind => Ok(()),
        other => panic!("{other:?}"),
    })
}

fn a_refusal_is_told_to_whom_it_concerns() -> Outcome {
    let rules = "user weak on >pw ~list:* ~free:* &* +@all";
    let server = Arc::new(RedisServer::start_with(rules)?);
    let (target, proxy) = (Target::of(&server), Proxy::before(server.address())?);
    let locker = patient(&proxy.url().replace("redis://", "redis://weak:pw@"));
    for n in 0..CROWD {
        let () = target.connection().rpush(format!("list:{n}"), "item")?;
    }
    // What is refused comes before what is not.
    let came = |name: &str, key: &str| {
        let is = |asked: &Asked, key: &str| asked.arguments[0].starts_with(key);
        proxy.batches().iter().any(|trip| {
            let refused = trip.iter().position(|asked| asked.name == name && is(asked, key));
            refused.is_some_and(|refused| trip[refused..].iter().any(|asked| is(asked, "free:")))
        })
    };
    let wrong = contention(
        CROWD,
        "a refusal before others' answers",
        || came("SETNX", "not:") && came("GET", "list:"),
        |n| match n % 3 {
            0 => refused(&locker, format!("not:{n}"), RefusalKind::NotPermitted),
            1 => refused(&locker, format!("list:{n}"), RefusalKind::WrongType),
            _ => Box::new(pairs(&target, &locker, &format!("free:{n}"), expiring())),
        },
    );
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_one_connection(&proxy);
    Ok(())
}

fn a_server_over_its_memory_refuses_only_what_adds() -> Outcome {
    let server = Arc::new(RedisServer::start_with("maxmemory 1")?);
    let proxy = Proxy::before(server.address())?;
    let locker = patient(&proxy.url());
    await_company(&proxy, 4);
    let wrong = crowd_in_harm(CROWD, &proxy, |n| -> Deed<'_> {
        let lock = Lock::new(&locker, format!("absent:{n}"), expiring()).unwrap();
        match n % 2 {
            0 => refused(&locker, format!("full:{n}"), RefusalKind::OverMemory),
            _ => Box::new(move || {
                assert!(!lock.exists()? && !lock.clear()?);
                Ok(())
            }),
        }
    });
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_one_connection(&proxy);
    Ok(())
}

fn a_server_that_is_too_old_for_some() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let (target, proxy) = (Target::of(&server), Proxy::playing(Played::V2_0, server.address())?);
    let locker = patient(&proxy.url());
    await_company(&proxy, 3);
    let wrong = crowd_in_harm(CROWD, &proxy, |n| -> Deed<'_> {
        let protocol = match n % 4 {
            0 => Protocol::Watched,
            1 => Protocol::Ttl,
            _ => return Box::new(pairs(&target, &locker, &format!("free:{n}"), expiring())),
        };
        let lock = Lock::new(&locker, format!("new:{n}"), expiring().protocol(protocol)).unwrap();
        Box::new(move || match lock.try_lock() {
            Err(Error::Unsupported { version: Some(_), protocol: named, .. }) if named == protocol => Ok(()),
            other => panic!("{other:?}"),
        })
    });
    assert!(wrong.is_empty(), "{wrong:?}");
    let asked = proxy.asked();
    let sent = asked.iter().find(|asked| asked.arguments.iter().any(|word| word.starts_with("new:")));
    assert_eq!(sent, None, "nothing is sent to a server that is too old for it");
    assert_one_connection(&proxy);
    Ok(())
}

fn a_plain_pool_of_the_redis_crate_shares_trips() -> Outcome {
    let scenario = Scene::set()?;
    let client = redis::Client::open(scenario.proxy.url())?;
    let locker = Locker::with_pool(r2d2::Pool::builder().max_size(1).test_on_check_out(false).build(client)?);
    await_company(&scenario.proxy, 4);
    let wrong = crowd_in_harm(CROWD, &scenario.proxy, |n| {
        pairs(&scenario.target, &locker, &format!("free:{n}"), expiring().timeout(LONG))
    });
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_nothing_sent_by_two(&scenario.proxy);
    assert_one_connection(&scenario.proxy);
    Ok(())
}

/// How many commands without company are enough to say that there is none.
const ENOUGH: usize = 1000;

fn connections_that_cannot_combine_get_one_command_at_a_time() -> Outcome {
    let scenario = Scene::set()?;
    let trips = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&trips);
    let locker = staged::<false>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
        assert_eq!(packed.commands().len(), 1);
        count.fetch_add(1, Ordering::SeqCst);
        packed.carry(inner, replies)
    });
    let wrong = contention(
        CROWD,
        "many commands",
        || trips.load(Ordering::SeqCst) >= ENOUGH,
        |n| pairs(&scenario.target, &locker, &format!("free:{n}"), expiring().timeout(LONG)),
    );
    assert!(wrong.is_empty(), "{wrong:?}");
    Ok(())
}

fn without_it_nobody_shares() -> Outcome {
    let scenario = Scene::set()?;
    let locker = patient(&scenario.proxy.url()).pipelining(false);
    let wrong = contention(
        CROWD,
        "many commands",
        || scenario.proxy.asked().len() >= ENOUGH,
        |n| pairs(&scenario.target, &locker, &format!("free:{n}"), expiring()),
    );
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(scenario.proxy.asked().iter().all(|asked| asked.position.of == 1));
    Ok(())
}

fn every_protocol_in_every_way_loses_no_update() -> Outcome {
    const ROUNDS: usize = 6;
    let server = Arc::new(RedisServer::start()?);
    for target in Target::of(&server).in_every_way_of_waiting() {
        let locker = Locker::builder(&server.url())?.pool_size(2).command_timeout(LONG).build()?;
        let keys = ["a", "b", "c"].map(|name| target.key(name));
        let inside = keys.each_ref().map(|_| AtomicBool::new(false));
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for n in 0..CROWD {
                let (key, inside, count) = (&keys[n % 3], &inside[n % 3], &count);
                let lock = target.lock_through(&locker, key, expiring().timeout(LONG));
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let held = lock.lock().unwrap();
                        assert!(!inside.swap(true, Ordering::SeqCst), "two have the lock");
                        count.fetch_add(1, Ordering::SeqCst);
                        inside.store(false, Ordering::SeqCst);
                        assert_ne!(held.release().unwrap(), Release::Lost);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), CROWD * ROUNDS);
        assert!(keys.iter().all(|key| key.value().is_none()), "{}", Variant::name(target.variant));
    }
    Ok(())
}

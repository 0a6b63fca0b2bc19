//! Commands of several threads that are pipelined together: each thread gets the reply that it would get alone.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockOptions, Locker, NoConnection, Protocol, RefusalKind, Release};

use crate::servers::{Asked, Emulated, Proxy};
use crate::support::contention::{
    assert_nothing_sent_by_two, await_batch_of, contention, contention_with_faults, pairs,
};
use crate::support::scenario::{Scenario, patient};
use crate::support::staged::staged;
use crate::support::{LONG, Outcome, RedisServer, Target, Variant, expiring, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "pipelining",
        tests![
            a_lone_thread_sends_the_same_with_and_without_pipelining,
            each_thread_gets_the_reply_to_its_own_command,
            a_refusal_goes_to_the_thread_whose_command_was_refused,
            a_server_over_its_memory_refuses_only_commands_that_add,
            a_server_that_is_too_old_for_some_protocols,
            connections_of_the_redis_crate_pipeline,
            connections_that_do_not_pipeline_get_one_command_at_a_time,
            with_pipelining_off_each_batch_has_one_command,
            every_protocol_in_every_variant_loses_no_update,
        ],
    )
}

/// What a thread does in a loop.
type Work<'a> = Box<dyn FnMut() -> Result<(), Error> + 'a>;

/// How many threads send commands at the same time.
const THREADS: usize = 12;

/// A locker with one connection, so that any two threads share it, and with time limits that no load exceeds.
pub(crate) fn with_one_connection(url: &str) -> Locker {
    Locker::builder(url)
        .unwrap()
        .pool_size(1)
        .command_timeout(LONG)
        .unreachable_timeout(LONG)
        .build()
        .unwrap()
}

fn assert_one_connection(proxy: &Proxy) {
    assert!(proxy.asked().iter().all(|asked| asked.connection == 0), "the connection stays in use");
}

fn a_lone_thread_sends_the_same_with_and_without_pipelining() -> Outcome {
    let scenario = Scenario::set()?;
    let [with, without] = [true, false].map(|pipelining| {
        let batches = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&batches);
        let locker = staged::<true>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
            record.lock().unwrap().push(packed.bytes.to_vec());
            packed.carry(inner, replies)
        });
        // Without an expiration the value is the same each time.
        let options = LockOptions::held_until_released();
        let lock = Lock::new(&locker.pipelining(pipelining), "lone", options).unwrap();
        for _ in 0..3 {
            lock.try_with(|_| Ok::<_, Error>(())).unwrap();
        }
        batches.lock().unwrap().clone()
    });
    assert_eq!(with, without);
    let pair = [
        "*3\r\n$5\r\nSETNX\r\n$4\r\nlone\r\n$1\r\n1\r\n".as_bytes(),
        "*2\r\n$3\r\nDEL\r\n$4\r\nlone\r\n".as_bytes(),
    ];
    assert_eq!(with, pair.repeat(3));
    Ok(())
}

fn each_thread_gets_the_reply_to_its_own_command() -> Outcome {
    let scenario = Scenario::set()?;
    let locker = with_one_connection(&scenario.proxy.url());
    let mut direct = scenario.target.connection();
    for n in 0..THREADS {
        let () = direct.set(format!("taken:{n}"), format!("18950000{n:02}.5"))?;
    }
    let states = Mutex::new(HashSet::new());
    await_batch_of(&scenario.proxy, 4);
    let errors = contention_with_faults(THREADS, &scenario.proxy, |n| -> Work<'_> {
        let taken = Lock::new(&locker, format!("taken:{n}"), expiring()).unwrap();
        match n % 4 {
            0 => Box::new(pairs(&scenario.target, &locker, &format!("free:{n}"), expiring())),
            1 => Box::new(move || {
                assert!(taken.try_lock()?.is_none());
                Ok(())
            }),
            2 => {
                let state = taken.state().unwrap();
                assert!(
                    states.lock().unwrap().insert(state.to_string()),
                    "the state of another key: {state}"
                );
                Box::new(move || {
                    assert_eq!(taken.state()?, state);
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
    assert!(errors.is_empty(), "{errors:?}");
    assert_one_connection(&scenario.proxy);
    Ok(())
}

/// Tries to acquire a lock, and is refused each time, for this reason.
fn refused<'a>(locker: &Locker, key: String, kind: RefusalKind) -> Work<'a> {
    let lock = Lock::new(locker, key, expiring()).unwrap();
    Box::new(move || match lock.try_lock() {
        Err(Error::Refused { refusal, .. }) if refusal.kind() == kind => Ok(()),
        other => panic!("{other:?}"),
    })
}

fn a_refusal_goes_to_the_thread_whose_command_was_refused() -> Outcome {
    let rules = "user weak on >pw ~list:* ~free:* &* +@all";
    let server = Arc::new(RedisServer::start_with(rules)?);
    let (target, proxy) = (Target::of(&server), Proxy::before(server.address())?);
    let locker = with_one_connection(&proxy.url().replace("redis://", "redis://weak:pw@"));
    for n in 0..THREADS {
        let () = target.connection().rpush(format!("list:{n}"), "item")?;
    }
    // Whether a command is refused that precedes others in its batch.
    let precedes_others = |name: &str, key: &str| {
        let is = |asked: &Asked, key: &str| asked.arguments[0].starts_with(key);
        proxy.batches().iter().any(|batch| {
            let refused = batch.iter().position(|asked| asked.name == name && is(asked, key));
            refused.is_some_and(|refused| batch[refused..].iter().any(|asked| is(asked, "free:")))
        })
    };
    let errors = contention(
        THREADS,
        "a refusal before other replies",
        || precedes_others("SETNX", "not:") && precedes_others("GET", "list:"),
        |n| match n % 3 {
            0 => refused(&locker, format!("not:{n}"), RefusalKind::NotPermitted),
            1 => refused(&locker, format!("list:{n}"), RefusalKind::WrongType),
            _ => Box::new(pairs(&target, &locker, &format!("free:{n}"), expiring())),
        },
    );
    assert!(errors.is_empty(), "{errors:?}");
    assert_one_connection(&proxy);
    Ok(())
}

fn a_server_over_its_memory_refuses_only_commands_that_add() -> Outcome {
    let server = Arc::new(RedisServer::start_with("maxmemory 1")?);
    let proxy = Proxy::before(server.address())?;
    let locker = with_one_connection(&proxy.url());
    await_batch_of(&proxy, 4);
    let errors = contention_with_faults(THREADS, &proxy, |n| -> Work<'_> {
        let lock = Lock::new(&locker, format!("absent:{n}"), expiring()).unwrap();
        match n % 2 {
            0 => refused(&locker, format!("full:{n}"), RefusalKind::OverMemory),
            _ => Box::new(move || {
                assert!(!lock.exists()? && !lock.clear()?);
                Ok(())
            }),
        }
    });
    assert!(errors.is_empty(), "{errors:?}");
    assert_one_connection(&proxy);
    Ok(())
}

fn a_server_that_is_too_old_for_some_protocols() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let (target, proxy) = (Target::of(&server), Proxy::emulating(Emulated::V2_0, server.address())?);
    let locker = with_one_connection(&proxy.url());
    await_batch_of(&proxy, 3);
    let errors = contention_with_faults(THREADS, &proxy, |n| -> Work<'_> {
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
    assert!(errors.is_empty(), "{errors:?}");
    let asked = proxy.asked();
    let sent = asked.iter().find(|asked| asked.arguments.iter().any(|word| word.starts_with("new:")));
    assert_eq!(sent, None, "no command of an unsupported protocol is sent");
    assert_one_connection(&proxy);
    Ok(())
}

fn connections_of_the_redis_crate_pipeline() -> Outcome {
    let scenario = Scenario::set()?;
    let client = redis::Client::open(scenario.proxy.url())?;
    let locker = Locker::with_pool(r2d2::Pool::builder().max_size(1).test_on_check_out(false).build(client)?);
    await_batch_of(&scenario.proxy, 4);
    let errors = contention_with_faults(THREADS, &scenario.proxy, |n| {
        pairs(&scenario.target, &locker, &format!("free:{n}"), expiring().timeout(LONG))
    });
    assert!(errors.is_empty(), "{errors:?}");
    assert_nothing_sent_by_two(&scenario.proxy);
    assert_one_connection(&scenario.proxy);
    Ok(())
}

/// After so many commands without a batch of two there will be none.
const ENOUGH: usize = 1000;

fn connections_that_do_not_pipeline_get_one_command_at_a_time() -> Outcome {
    let scenario = Scenario::set()?;
    let exchanges = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&exchanges);
    let locker = staged::<false>(&scenario.proxy.url(), 1, move |inner, packed, replies| {
        assert_eq!(packed.commands().len(), 1);
        count.fetch_add(1, Ordering::SeqCst);
        packed.carry(inner, replies)
    });
    let errors = contention(
        THREADS,
        "many commands",
        || exchanges.load(Ordering::SeqCst) >= ENOUGH,
        |n| pairs(&scenario.target, &locker, &format!("free:{n}"), expiring().timeout(LONG)),
    );
    // On a busy machine twelve threads may take longer with one connection than a release waits for it.
    let exhausted =
        |error: &Error| matches!(error, Error::NoConnection { cause: NoConnection::PoolExhausted, .. });
    assert!(errors.iter().all(|(_, error)| exhausted(error)), "{errors:?}");
    Ok(())
}

fn with_pipelining_off_each_batch_has_one_command() -> Outcome {
    let scenario = Scenario::set()?;
    let locker = with_one_connection(&scenario.proxy.url()).pipelining(false);
    let errors = contention(
        THREADS,
        "many commands",
        || scenario.proxy.asked().len() >= ENOUGH,
        |n| pairs(&scenario.target, &locker, &format!("free:{n}"), expiring()),
    );
    assert!(errors.is_empty(), "{errors:?}");
    assert!(scenario.proxy.asked().iter().all(|asked| asked.position.of == 1));
    Ok(())
}

fn every_protocol_in_every_variant_loses_no_update() -> Outcome {
    const ROUNDS: usize = 6;
    let server = Arc::new(RedisServer::start()?);
    for target in Target::of(&server).in_every_mode_of_waiting() {
        let locker = patient(&server.url())?.pool_size(2).build()?;
        let keys = ["a", "b", "c"].map(|name| target.key(name));
        let inside = keys.each_ref().map(|_| AtomicBool::new(false));
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for n in 0..THREADS {
                let (key, inside, count) = (&keys[n % 3], &inside[n % 3], &count);
                let lock = target.lock_through(&locker, key, expiring().timeout(LONG));
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let held = lock.lock().unwrap();
                        assert!(!inside.swap(true, Ordering::SeqCst), "two threads hold the lock");
                        count.fetch_add(1, Ordering::SeqCst);
                        inside.store(false, Ordering::SeqCst);
                        assert_ne!(held.release().unwrap(), Release::Lost);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), THREADS * ROUNDS);
        assert!(keys.iter().all(|key| key.value().is_none()), "{}", Variant::name(target.variant));
    }
    Ok(())
}

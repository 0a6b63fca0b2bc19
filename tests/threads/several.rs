//! Several locks that are held together: the commands that a server executes, processes on overlapping keys that are
//! killed, and Ruby on some of the keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, MultiLock, MultiLockGuard, Protocol};
use setnx_lock_testing::{Proxy, TestServer};

use crate::support::scenario::{FOREIGN, Scenario, opened, patient};
use crate::support::sent::probed;
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Load, Outcome, PAST, Release, TestKey, expiring, release_all, tests, trial};

type Test = fn(Protocol) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let by_protocol: &[(&str, Test)] = tests![
        what_a_holder_sends_goes_in_a_trip_or_two,
        what_a_caller_sends_that_tries_once,
        a_caller_of_many_keys_gets_its_turn_among_callers_of_one,
    ];
    let trials = by_protocol.iter().flat_map(|(name, test)| {
        PROTOCOLS.map(|protocol| {
            let name = format!("several::{}::{name}", format!("{protocol:?}").to_lowercase());
            trial(name, move || test(protocol))
        })
    });
    trials.collect()
}

/// A server, locks on it with an open connection, and their keys.
fn recorded(
    protocol: Protocol,
    options: LockOptions,
    keys: usize,
) -> Result<(Scenario, Vec<TestKey>, MultiLock), Error> {
    let scenario = Scenario::under_load(Load::Any);
    let keys = scenario.target.keys("wire", keys);
    let locker = scenario.open(patient(&scenario.server.url())?.pool_size(1));
    let locks = MultiLock::new(&locker, keys.iter().map(|key| key.key.clone()), options.protocol(protocol))?;
    probed(&locker, Protocol::Ttl)?;
    scenario.server.clear_log();
    Ok((scenario, keys, locks))
}

/// Returns the names of the commands of each trip since the last time.
fn trips(server: &Proxy) -> Vec<String> {
    let trip = |batch: &Vec<_>| {
        let names: Vec<&str> =
            batch.iter().map(|asked: &setnx_lock_testing::Received| asked.name.as_str()).collect();
        names.join(" ")
    };
    let trips = server.batches().iter().map(trip).collect();
    server.clear_log();
    trips
}

const WATCHES: &str = "WATCH GET WATCH GET WATCH GET MULTI";

fn what_a_holder_sends_goes_in_a_trip_or_two(protocol: Protocol) -> Outcome {
    let (scenario, keys, locks) = recorded(protocol, expiring(), 3)?;
    let server = &scenario.server;
    let transactions = protocol != Protocol::Classic;
    let held = locks.lock()?;
    let asked = server.log();
    assert_eq!(trips(server), [each(protocol, 3)]);
    let expected: Vec<[String; 2]> =
        keys.iter().map(|key| [key.key.to_string(), key.value().expect("it is held")]).collect();
    assert!(
        asked.iter().map(|asked| &asked.arguments[..2]).eq(&expected),
        "in the order of the keys: {asked:?}"
    );
    if protocol == Protocol::Ttl {
        let ttl = (LONG.as_millis() + 500).to_string();
        assert!(asked.iter().all(|set| set.arguments[2..] == ["PX", &ttl, "NX"]), "{asked:?}");
    }
    held.extend()?;
    assert_eq!(
        trips(server),
        if transactions { [WATCHES, "SET SET SET EXEC"] } else { ["GET GET GET", "GETSET GETSET GETSET"] }
    );
    held.verify()?;
    assert_eq!(trips(server), ["GET GET GET"]);
    for _ in 0..2 {
        held.fencing_tokens()?;
    }
    assert_eq!(
        trips(server),
        if transactions { vec![WATCHES, "INCR INCR INCR EXEC"] } else { vec!["INCR INCR INCR"] }
    );
    // The clocks alone.
    let _ = (held.ensure_held()?, held.remaining(), held.expires_at(), held.loss_signal().is_lost());
    assert!(trips(server).is_empty());
    held.release()?;
    assert_eq!(
        trips(server),
        if transactions { vec![WATCHES, "DEL DEL DEL EXEC"] } else { vec!["DEL DEL DEL"] }
    );
    // Keys that are left to expire.
    let (scenario, keys, locks) = recorded(protocol, expiring().hold_at_least(LONG / 2), 3)?;
    let server = &scenario.server;
    let held = locks.lock()?;
    trips(server);
    assert!(release_all(held).into_iter().all(|(_, outcome)| matches!(outcome, Ok(Release::LeftToExpire))));
    assert!(keys.iter().all(|key| key.value().is_some()));
    assert_eq!(
        trips(server),
        if transactions { [WATCHES, "SET SET SET EXEC"] } else { ["GET GET GET", "GETSET GETSET GETSET"] }
    );
    Ok(())
}

fn what_a_caller_sends_that_tries_once(protocol: Protocol) -> Outcome {
    let (scenario, keys, locks) = recorded(protocol, expiring(), 3)?;
    let server = &scenario.server;
    let asks = each(protocol, 3);
    let gives_back = |count: usize| match (protocol, count) {
        (_, 0) => vec![],
        (Protocol::Classic, _) => vec![["DEL"].repeat(count).join(" ")],
        (_, 1) => vec!["WATCH GET MULTI".to_owned(), "DEL EXEC".to_owned()],
        _ => vec![format!("{}MULTI", "WATCH GET ".repeat(count)), format!("{}EXEC", "DEL ".repeat(count))],
    };
    for (n, held) in keys.iter().enumerate() {
        held.set(FOREIGN);
        assert!(locks.try_lock()?.is_none());
        assert_eq!(trips(server), [vec![asks.clone(), "GET".to_owned()], gives_back(2)].concat(), "{n}");
        held.delete();
    }
    keys[1].set(PAST);
    drop(locks.try_lock()?.expect("the one has expired"));
    // By the rules of one lock.
    let takeover = match protocol {
        Protocol::Classic => vec!["GETSET"],
        Protocol::Ttl => vec!["WATCH GET PTTL MULTI", "SET EXEC"],
        _ => vec!["WATCH GET MULTI", "SET EXEC"],
    };
    let takeover = takeover.into_iter().map(str::to_owned).collect();
    let expected = [vec![asks, "GET".to_owned()], takeover, gives_back(3)].concat();
    assert_eq!(trips(server), expected);
    Ok(())
}

/// The trip of a caller that asks for so many keys.
fn each(protocol: Protocol, keys: usize) -> String {
    [if protocol == Protocol::Ttl { "SET" } else { "SETNX" }].repeat(keys).join(" ")
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("account:{n:02}")).collect()
}

fn a_caller_of_many_keys_gets_its_turn_among_callers_of_one(protocol: Protocol) -> Outcome {
    const TURNS: usize = 10;
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let keys = names(6);
    let options = expiring().protocol(protocol);
    let locks = MultiLock::new(&locker, keys.iter().map(String::as_str), options)?;
    let ends = AtomicBool::new(false);
    let (turns, singles) = thread::scope(|scope| {
        let singles: Vec<_> = keys
            .iter()
            .map(|key| {
                let (locker, ends) = (&locker, &ends);
                scope.spawn(move || {
                    let lock = Lock::new(locker, key.as_str(), options)?;
                    while !ends.load(Ordering::SeqCst) {
                        lock.with(|_| thread::yield_now())?;
                    }
                    Ok::<_, Error>(())
                })
            })
            .collect();
        let turns = (0..TURNS).try_for_each(|_| locks.with(MultiLockGuard::ensure_held)?);
        ends.store(true, Ordering::SeqCst);
        let singles = singles.into_iter().try_for_each(|thread| thread.join().unwrap());
        (turns, singles)
    });
    turns?;
    singles?;
    Ok(())
}

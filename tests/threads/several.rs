//! Several locks that are held together: the commands that a server executes, processes on overlapping keys that are killed, and Ruby on
//! some of the keys.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::iter;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use setnx_lock::{Error, Lock, LockOptions, MultiLock, MultiLockGuard, Protocol};
use setnx_lock_testing::{Proxy, TestServer};

use crate::support::notified::until;
use crate::support::processes::{TaskOutcome, protocol_named, worker};
use crate::support::ruby::{Attempt, Gem, RubyPeer};
use crate::support::scenario::{FOREIGN, Scenario, opened, patient};
use crate::support::sent::probed;
use crate::support::target::PROTOCOLS;
use crate::support::{
    LONG, Load, Outcome, PAST, Release, Target, TestKey, expiring, millis, release_all, tests, trial,
};

type Test = fn(Protocol) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let by_protocol: &[(&str, Test)] = tests![
        what_a_holder_sends_goes_in_a_trip_or_two,
        what_a_caller_sends_that_tries_once,
        a_caller_waits_only_while_it_holds_the_first_of_its_keys,
        a_caller_of_many_keys_gets_its_turn_among_callers_of_one,
        processes_that_are_killed_leave_keys_that_are_taken_over,
        ruby_and_rust_hold_each_other_off,
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

fn a_caller_waits_only_while_it_holds_the_first_of_its_keys(protocol: Protocol) -> Outcome {
    let options = expiring().timeout(LONG).poll_interval(millis(5));
    let (scenario, keys, locks) = recorded(protocol, options, 4)?;
    let server = &scenario.server;
    keys[1].set(FOREIGN);
    let asks = each(protocol, 4);
    let waiting = thread::spawn(move || locks.lock());
    // It looks a second time.
    until("it waits", || server.log().iter().filter(|asked| asked.name == "GET").count() > 3);
    let is_held: Vec<bool> = keys.iter().map(|key| key.value().is_some()).collect();
    assert_eq!(is_held, [true, true, false, false]);
    keys[1].delete();
    let held = waiting.join().unwrap()?;
    let asked = trips(server);
    assert_eq!(asked[0], asks);
    assert_eq!(asked.last(), Some(&each(protocol, 2)), "the rest goes together again: {asked:?}");
    held.release()?;
    Ok(())
}

/// The trip of a caller that asks for so many keys.
fn each(protocol: Protocol, keys: usize) -> String {
    [if protocol == Protocol::Ttl { "SET" } else { "SETNX" }].repeat(keys).join(" ")
}

/// Numbers that look random, from a seed.
fn numbers(seed: u64) -> impl Iterator<Item = usize> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize
    })
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

/// Long enough for the steps of a holder, and short enough to wait for after a kill.
const LEASE: Duration = Duration::from_secs(2);

/// Holds three of six keys at a time, and prints a line for each. It fails if another process is inside one of them, within its lease.
pub(crate) fn as_worker(url: &str, folder: &Path, rounds: &str, protocol: &str) -> TaskOutcome {
    let keys = names(6);
    let files: Vec<File> = keys
        .iter()
        .map(|key| File::options().create(true).append(true).read(true).open(folder.join(key)))
        .collect::<Result<_, _>>()?;
    let locker = patient(url)?.build()?;
    let options = LockOptions::expiring_after(LEASE).timeout(LONG).poll_interval(millis(5));
    let options = options.protocol(protocol_named(protocol)?);
    let mut numbers = numbers(u64::from(std::process::id()));
    let mut number = || numbers.next().unwrap_or_default();
    for round in 0..rounds.parse::<usize>()? {
        let chosen = [(); 3].map(|()| number() % keys.len());
        let held = MultiLock::new(&locker, chosen.map(|n| keys[n].as_str()), options)?.lock()?;
        let end = held.expires_at().map(SystemTime::from).ok_or("a lease has an end")?;
        let end = end.duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
        let mut inside = chosen.to_vec();
        inside.sort_unstable();
        inside.dedup();
        for n in &inside {
            enter(&files[*n], &folder.join(format!("{}.lease", keys[*n])), end)?;
        }
        println!("{round}");
        thread::sleep(millis(3));
        for n in &inside {
            flock(&files[*n], FlockOperation::Unlock)?;
        }
        held.release()?;
    }
    Ok(())
}

/// Takes the operating system's lock of a file, which a kill releases. It is free, unless the lease of the other holder has passed: on a
/// busy machine that may be inside for longer.
fn enter(file: &File, lease: &Path, end: u128) -> TaskOutcome {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
            let other: u128 = fs::read_to_string(lease)?.parse().unwrap_or_default();
            if now < other {
                return Err(format!("{}: two inside, until {other} and {end}", lease.display()).into());
            }
            flock(file, FlockOperation::LockExclusive)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(fs::write(lease, end.to_string())?)
}

fn processes_that_are_killed_leave_keys_that_are_taken_over(protocol: Protocol) -> Outcome {
    const ROUNDS: &str = "40";
    let server = TestServer::start();
    let folder = tempfile::tempdir()?;
    let name = format!("{protocol:?}").to_lowercase();
    let start = || worker(&["several", &server.url(), &folder.path().display().to_string(), ROUNDS, &name]);
    let mut survivors: Vec<Child> = iter::repeat_with(start).take(2).collect::<Result<_, _>>()?;
    for survivor in &mut survivors {
        // What they print is read, so that they do not wait for it.
        let lines = BufReader::new(survivor.stdout.take().expect("it is piped")).lines();
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    }
    for rounds in [1, 4, 9] {
        let mut killed = start()?;
        let lines = BufReader::new(killed.stdout.take().expect("it is piped")).lines();
        let seen = lines.map_while(Result::ok).take(rounds).count();
        // Mostly it is inside.
        killed.kill()?;
        killed.wait()?;
        assert_eq!(seen, rounds, "it has failed before");
    }
    for mut survivor in survivors {
        assert!(survivor.wait()?.success());
    }
    // What the last of them left is free after its lease.
    let locker = opened(&server.url())?;
    let options = LockOptions::expiring_after(LEASE).timeout(LONG).protocol(protocol);
    let all = MultiLock::new(&locker, names(6), options)?.lock()?;
    all.release()?;
    Ok(())
}

fn ruby_and_rust_hold_each_other_off(protocol: Protocol) -> Outcome {
    const EXPIRATION: Option<Duration> = Some(LONG);
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server).with(protocol);
    for gem in Gem::available()? {
        let mut ruby = RubyPeer::start(gem, &target.url)?;
        let keys = target.keys(&format!("gem-{gem}"), 3);
        let names: Vec<String> = keys.iter().map(|key| key.key.to_string()).collect();
        let locks = target.locks(&keys, expiring().poll_interval(millis(5)));
        for (key, name) in keys.iter().zip(&names) {
            assert_eq!(ruby.acquire(name, EXPIRATION, LONG)?, Attempt::Held);
            let value = key.value();
            assert!(locks.try_lock()?.is_none());
            let held = |key: &&TestKey| key.value().is_some();
            assert_eq!(keys.iter().filter(held).count(), 1, "the others are free");
            assert_eq!(key.value(), value, "it is left alone");
            let waiting = thread::spawn({
                let locks = locks.clone();
                move || locks.lock()
            });
            thread::sleep(millis(30));
            assert!(!waiting.is_finished());
            ruby.release(name)?;
            let held = waiting.join().unwrap()?;
            for (n, name) in names.iter().enumerate() {
                let attempt = ruby.try_as(&format!("try:{n}"), name, EXPIRATION)?;
                assert!(matches!(attempt, Attempt::Timeout(_)), "{gem}: {attempt:?}");
            }
            held.release()?;
        }
        assert!(keys.iter().all(|key| key.value().is_none()));
    }
    Ok(())
}

//! The next holder's SETNX travels with a release: which commands are sent, whose lease it is, and which threads it is for.

mod scenario;

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, Lock, LockGuard, LockOptions, Protocol, Release};

use crate::servers::Emulated;
use crate::support::asleep::Sleeper;
use crate::support::monitor::{Monitor, connected, names};
use crate::support::scenario::{FOREIGN, QUEUED};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, millis, tests, trial};

pub(crate) use scenario::{Scenario, Successor, assert_cancelled, successor, write_as_takeover_loser};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = for_each_protocol(
        "successors",
        tests![
            a_release_asks_for_the_next_thread_in_one_trip,
            each_successor_has_a_full_lease_of_its_own,
            nothing_is_asked_for_after_the_lease,
            a_lock_that_was_cleared_meanwhile_is_reported_lost,
            a_lock_that_was_overwritten_meanwhile,
            a_takeover_loser_has_written_over_the_lock,
            a_thread_in_the_middle_of_a_command_asks_for_itself,
            a_panic_and_a_drop_by_another_thread_ask_for_the_next,
        ],
    );
    trials.extend(crate::support::trials(
        "successors",
        tests![
            a_release_asks_for_threads_of_any_protocol_and_kind_of_lease,
            auto_is_decided_for_the_successor,
            auto_is_decided_for_the_successor_on_redis_2_0,
            a_thread_whose_protocol_the_server_is_too_old_for_finds_out_itself,
        ],
    ));
    trials
}

pub(crate) type TestOfProtocol = fn(Protocol) -> Outcome;

/// Names each test once for each protocol.
pub(crate) fn for_each_protocol(part: &str, tests: &[(&str, TestOfProtocol)]) -> Vec<Trial> {
    let trials = PROTOCOLS.into_iter().flat_map(|protocol| {
        tests.iter().map(move |(name, test)| {
            let (test, protocol_name) = (*test, format!("{protocol:?}").to_lowercase());
            trial(format!("{part}::{protocol_name}::{name}"), move || test(protocol))
        })
    });
    trials.collect()
}

/// The command that acquires a free lock.
pub(crate) fn first(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Ttl { "SET" } else { "SETNX" }
}

/// The command that deletes the key, as the proxy sees it last.
pub(crate) fn deletion(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Classic { "DEL" } else { "EXEC" }
}

fn release_commands(protocol: Protocol) -> &'static [&'static str] {
    if protocol == Protocol::Classic { &["DEL"] } else { &["WATCH", "GET", "MULTI", "DEL", "EXEC"] }
}

fn a_release_asks_for_the_next_thread_in_one_trip(protocol: Protocol) -> Outcome {
    const THREADS: usize = 5;
    let scenario = Scenario::new(protocol)?;
    let lock = connected(scenario.lock(QUEUED))?;
    let monitor = Monitor::on(&scenario.server)?;
    scenario.proxy.forget();
    let mut held = lock.lock()?;
    let mut successors: VecDeque<Successor> = (0..THREADS).map(|_| successor(&lock)).collect();
    // The first of the queue has looked at the key once.
    let looks = scenario.proxy.names().len();
    let mut outcomes = Vec::new();
    while let Some(next) = successors.pop_front() {
        outcomes.push(held.release()?);
        held = next.join()?;
        assert_eq!(held.attempts(), 1);
        // The new head of the queue was unparked. It sleeps on, since it knows when the lease ends.
        successors.iter().take(1).for_each(Sleeper::rests);
    }
    outcomes.push(held.release()?);
    assert_eq!(outcomes, vec![scenario.released(); THREADS + 1]);

    let commands = monitor.recorded(&scenario.server)?;
    let first = [first(protocol)];
    let next = [release_commands(protocol), &first].concat();
    let expected = [&*next.repeat(THREADS), release_commands(protocol)].concat();
    assert_eq!(names(&commands)[looks..], expected);
    assert!(commands.iter().all(|words| words.len() == 1 || words[1] == scenario.key.key.to_string()));
    // The deletion and the next thread's command have come together.
    let asked = scenario.proxy.asked();
    for pair in asked[looks..].windows(2).filter(|pair| pair[1].name == first[0]) {
        assert_eq!(pair[0].name, deletion(protocol));
        assert!(pair[1].position.of > 1, "{pair:?}");
    }
    let events = scenario.events.lines();
    assert_eq!(events.iter().filter(|line| *line == "Acquired").count(), THREADS + 1);
    Ok(())
}

fn each_successor_has_a_full_lease_of_its_own(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let locks = [60, 20, 3600, 90].map(|seconds| {
        let options =
            LockOptions::expiring_after(Duration::from_secs(seconds)).poll_interval(LONG).timeout(LONG);
        scenario.lock(options)
    });
    let mut held = locks[0].lock()?;
    let successors: Vec<(Successor, Duration)> = [20, 3600, 90]
        .into_iter()
        .zip(&locks[1..])
        .map(|(seconds, lock)| (successor(lock), Duration::from_secs(seconds)))
        .collect();
    for (next, expiration) in successors {
        next.rests();
        scenario.proxy.forget();
        let before = SystemTime::now();
        assert_eq!(held.release()?, scenario.released());
        held = next.join()?;
        let after = SystemTime::now();
        scenario.assert_holds(&held);
        let lease_begins = held.expires_at_system_time().unwrap() - expiration;
        assert!(
            before - Duration::from_micros(1) <= lease_begins && lease_begins <= after,
            "the lease of {expiration:?} begins at the release"
        );
        assert!(held.remaining().unwrap() <= expiration);
        let asked = scenario.proxy.asked();
        let written = asked.iter().find(|asked| asked.name == first(protocol)).expect("a value is written");
        let ttl = (expiration + millis(500)).as_millis().to_string();
        let options: &[&str] = if protocol == Protocol::Ttl { &["PX", &ttl, "NX"] } else { &[] };
        assert_eq!(written.arguments[2..], *options, "{asked:?}");
    }
    Ok(())
}

fn nothing_is_asked_for_after_the_lease(protocol: Protocol) -> Outcome {
    let brief = LockOptions::expiring_after(millis(300)).timeout(LONG);
    for overwritten in [false, true] {
        let scenario = Scenario::new(protocol)?;
        let held = scenario.lock(brief).lock()?;
        // Its margin keeps it from taking over meanwhile.
        let cancel_token = CancelToken::new();
        let successor = successor(&scenario.lock(QUEUED.takeover_margin(LONG)).cancelled_by(&cancel_token));
        while held.ensure_held().is_ok() {
            thread::sleep(millis(10));
        }
        if overwritten {
            scenario.key.set(FOREIGN);
        }
        let before = scenario.key.value();
        scenario.proxy.forget();
        let outcome = held.release()?;
        // On a busy machine the server may have removed the key by its time to live.
        let removed = protocol == Protocol::Ttl && before.is_none();
        if protocol == Protocol::Classic || overwritten || removed {
            assert_eq!(outcome, Release::Expired);
            let written = scenario
                .proxy
                .names()
                .into_iter()
                .filter(|name| !["WATCH", "GET", "MULTI", "DISCARD"].contains(&name.as_str()));
            assert_eq!(written.collect::<Vec<_>>(), [""; 0]);
            assert_eq!(scenario.key.value(), before);
            cancel_token.cancel();
            assert_cancelled(successor);
        } else {
            // The key still holds its value, so it is deleted, and asked for.
            assert_eq!(outcome, scenario.released());
            scenario.assert_holds(&successor.join()?);
        }
    }
    Ok(())
}

fn a_lock_that_was_cleared_meanwhile_is_reported_lost(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let successor = successor(&lock);
    scenario.key.delete();
    assert_eq!(held.release()?, Release::Lost);
    let successor = successor.join()?;
    scenario.assert_holds(&successor);
    assert_eq!(successor.release()?, scenario.released());
    Ok(())
}

/// A Classic release deletes what the key holds. The others leave it alone, and ask for nothing.
fn a_lock_that_was_overwritten_meanwhile(protocol: Protocol) -> Outcome {
    for foreign in [FOREIGN, "1", "", "whatever"] {
        let scenario = Scenario::new(protocol)?;
        let cancel_token = CancelToken::new();
        let lock = scenario.lock(QUEUED).cancelled_by(&cancel_token);
        let held = lock.lock()?;
        let successor = successor(&lock);
        scenario.key.set(foreign);
        scenario.proxy.forget();
        let outcome = held.release()?;
        if protocol == Protocol::Classic {
            assert_eq!(outcome, scenario.released());
            scenario.assert_holds(&successor.join()?);
            continue;
        }
        assert_eq!(outcome, Release::Lost, "{foreign:?}");
        // The successor gets a hint, reads the key and waits on. The holder reads it once.
        scenario.wait_for("GET", 2);
        successor.rests();
        cancel_token.cancel();
        assert_cancelled(successor);
        assert_eq!(scenario.key.value().as_deref(), Some(foreign));
    }
    Ok(())
}

fn a_takeover_loser_has_written_over_the_lock(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let successor = successor(&lock);
    write_as_takeover_loser(&scenario.key, &held)?;
    assert_eq!(held.release()?, Release::Released { certified: false });
    scenario.assert_holds(&successor.join()?);
    Ok(())
}

fn a_thread_in_the_middle_of_a_command_asks_for_itself(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let reading = scenario.proxy.hold("GET", 1);
    // Also one that tries once is not queued.
    let trying = Sleeper::start({
        let lock = scenario.lock(QUEUED.poll_interval(millis(10)));
        move || lock.lock()
    });
    reading.reached();
    scenario.proxy.forget();
    if protocol == Protocol::Classic {
        assert_eq!(held.release()?, scenario.released());
        assert_eq!(scenario.proxy.names(), ["DEL"]);
        reading.go_on();
    } else {
        reading.go_on();
        assert_eq!(held.release()?, scenario.released());
    }
    scenario.assert_holds(&trying.join()?);
    Ok(())
}

fn a_panic_and_a_drop_by_another_thread_ask_for_the_next(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let [first, second] = [successor(&lock), successor(&lock)];
    scenario.proxy.forget();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _held = held;
        resume_unwind(Box::new("on purpose"))
    }));
    assert!(panicked.is_err());
    let first = first.join()?;
    second.rests();
    thread::spawn(move || drop(first)).join().unwrap();
    let second = second.join()?;
    scenario.assert_holds(&second);
    let together = scenario.proxy.asked().iter().filter(|asked| asked.name == self::first(protocol)).count();
    assert_eq!(together, 2);
    Ok(())
}

/// A release while another thread is queued.
struct Passed {
    /// The protocol that the releaser held the lock by.
    protocol: Protocol,
    outcome: Release,
    successor: LockGuard,
}

impl Scenario {
    /// Acquires the lock with these options, and releases it while a thread with those of `waiter` is queued.
    fn pass(&self, holder: LockOptions, waiter: LockOptions) -> Result<Passed, Box<dyn StdError>> {
        let lock = |options: LockOptions| Lock::new(&self.locker, &self.key.key, options);
        let held = lock(holder)?.lock()?;
        let protocol = held.protocol();
        let successor = successor(&lock(waiter)?);
        self.proxy.forget();
        Ok(Passed { protocol, outcome: held.release()?, successor: successor.join()? })
    }
}

fn a_release_asks_for_threads_of_any_protocol_and_kind_of_lease() -> Outcome {
    let scenario = Scenario::new(Protocol::Classic)?;
    let unexpiring = LockOptions::held_until_released().poll_interval(LONG).timeout(LONG);
    let kinds = [
        QUEUED,
        QUEUED.protocol(Protocol::Watched),
        QUEUED.protocol(Protocol::Ttl),
        unexpiring,
        unexpiring.protocol(Protocol::Watched),
    ];
    let expires = |options: LockOptions| options.get_expiration().is_some();
    for holder in kinds {
        for waiter in kinds {
            let Passed { outcome, successor, .. } = scenario.pass(holder, waiter)?;
            let names = scenario.proxy.names();
            let by_transaction = expires(holder) && holder.get_protocol() != Protocol::Classic;
            assert_eq!(outcome, Release::Released { certified: by_transaction }, "{holder:?}");
            // A lost reply to a thread without an expiration could not be resolved, if EXEC had been refused.
            let first = if expires(waiter) { first(waiter.get_protocol()) } else { "SETNX" };
            assert_eq!(names.last().map(String::as_str), Some(first), "{holder:?} to {waiter:?}: {names:?}");
            assert_eq!(names.iter().filter(|name| *name == first).count(), 1, "{names:?}");
            assert!(matches!(successor.release()?, Release::Released { .. }));
            assert_eq!(scenario.key.value(), None);
        }
    }
    Ok(())
}

/// Asserts by which protocol a thread with [`Protocol::Auto`] has the lock that a holder has asked for on its behalf.
fn assert_auto_is(scenario: &Scenario, decided: Protocol) -> Outcome {
    for holder in [Protocol::Auto, Protocol::Classic] {
        let Passed { protocol, successor, .. } =
            scenario.pass(QUEUED.protocol(holder), QUEUED.protocol(Protocol::Auto))?;
        assert_eq!(protocol, if holder == Protocol::Auto { decided } else { holder });
        assert_eq!(successor.protocol(), decided);
        scenario.assert_holds(&successor);
        let certified = decided != Protocol::Classic;
        assert_eq!(successor.release()?, Release::Released { certified });
    }
    Ok(())
}

fn auto_is_decided_for_the_successor() -> Outcome {
    assert_auto_is(&Scenario::new(Protocol::Auto)?, Protocol::Watched)
}

fn auto_is_decided_for_the_successor_on_redis_2_0() -> Outcome {
    assert_auto_is(&Scenario::emulating(Emulated::V2_0, Protocol::Auto)?, Protocol::Classic)
}

/// It waits behind a holder, so it has not asked the server yet.
fn a_thread_whose_protocol_the_server_is_too_old_for_finds_out_itself() -> Outcome {
    let scenario = Scenario::emulating(Emulated::V2_4, Protocol::Classic)?;
    let held = scenario.lock(QUEUED).lock()?;
    let next = successor(&Lock::new(&scenario.locker, &scenario.key.key, QUEUED.protocol(Protocol::Ttl))?);
    scenario.proxy.forget();
    assert_eq!(held.release()?, scenario.released());
    let error = next.join().expect_err("SET has no options there");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    assert!(!scenario.proxy.names().contains(&"SET".to_owned()));
    assert_eq!(scenario.key.value(), None);
    Ok(())
}

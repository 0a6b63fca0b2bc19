//! Handoff: a held lock passes from thread to thread of a process, each with a lease of its own, as often in a row as the options say.

mod scenario;

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;
use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Lock, LockGuard, LockOptions, Protocol, Release};

use crate::servers::Emulated;
use crate::support::asleep::Sleeper;
use crate::support::monitor::{Monitor, connected, names};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, millis, tests};

pub(crate) use scenario::{
    FOREIGN, HANDED_OFF, QUEUED, Scenario, Successor, assert_cancelled, successor, write_as_takeover_loser,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = for_each_protocol(
        "handoffs",
        tests![
            a_lock_is_handed_off_as_often_as_its_options_say,
            each_successor_has_a_full_lease_of_its_own,
            an_expired_lease_is_not_handed_off,
            a_lock_that_was_cleared_meanwhile_is_reported_lost,
            a_lock_that_was_overwritten_meanwhile_is_reported_lost,
            a_lock_is_handed_off_although_a_takeover_loser_wrote_over_it,
            without_the_option_there_is_no_handoff,
            a_thread_that_tries_once_receives_no_handoff,
            a_panic_and_a_drop_by_another_thread_hand_the_lock_off,
        ],
    );
    trials.extend(crate::support::trials(
        "handoffs",
        tests![
            a_lock_is_handed_off_within_one_protocol_and_kind_of_lease,
            auto_is_handed_off_to_auto_and_watched,
            auto_on_redis_2_0_is_handed_off_to_auto_and_classic,
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
            Trial::test(format!("{part}::{protocol_name}::{name}"), move || test(protocol))
        })
    });
    trials.collect()
}

fn a_lock_is_handed_off_as_often_as_its_options_say(protocol: Protocol) -> Outcome {
    let (set, hand_off, delete): (_, &[_], &[_]) = match protocol {
        Protocol::Classic => ("SETNX", &["GETSET"], &["DEL"]),
        Protocol::Watched => {
            ("SETNX", &["WATCH", "GET", "MULTI", "SET", "EXEC"], &["WATCH", "GET", "MULTI", "DEL", "EXEC"])
        }
        _ => ("SET", &["WATCH", "GET", "MULTI", "SET", "EXEC"], &["WATCH", "GET", "MULTI", "DEL", "EXEC"]),
    };
    for times in [1, 3] {
        let scenario = Scenario::new(protocol)?;
        let lock = connected(scenario.lock(QUEUED.handoff(times)))?;
        let monitor = Monitor::on(&scenario.server)?;
        // Two rounds: an acquisition, `times` handoffs and a release each.
        let mut held = lock.lock()?;
        let mut successors: VecDeque<Successor> = (0..=2 * times).map(|_| successor(&lock)).collect();
        let (mut attempts, mut outcomes) = (vec![held.attempts()], Vec::new());
        while let Some(next) = successors.pop_front() {
            outcomes.push(held.release()?);
            held = next.join()?;
            attempts.push(held.attempts());
            // The new head of the queue was unparked. It has to sleep again before it can receive a handoff.
            successors.iter().take(1).for_each(Sleeper::rests);
        }
        outcomes.push(held.release()?);

        let count = times as usize;
        let commands = monitor.recorded(&scenario.server)?;
        let round = [&[set], &*hand_off.repeat(count), delete].concat();
        assert_eq!(names(&commands), round.repeat(2));
        assert!(commands.iter().all(|words| words.len() == 1 || words[1] == scenario.key.key.to_string()));
        assert_eq!(outcomes, [vec![HANDED_OFF; count], vec![scenario.released()]].concat().repeat(2));
        assert_eq!(attempts, [vec![1], vec![0; count]].concat().repeat(2), "a successor sends no command");
        // The successor may report its acquisition before the holder reports its release.
        let mut events = scenario.events.lines();
        events.sort();
        let mut expected = vec!["Acquired".to_owned(); 2 * (count + 1)];
        expected.extend(vec![format!("Released {HANDED_OFF:?}"); 2 * count]);
        expected.extend(vec![format!("Released {:?}", scenario.released()); 2]);
        assert_eq!(events, expected);
    }
    Ok(())
}

fn each_successor_has_a_full_lease_of_its_own(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let locks = [60, 20, 3600, 90].map(|seconds| {
        let options = LockOptions::expiring_after(Duration::from_secs(seconds)).handoff(9);
        scenario.lock(options.poll_interval(LONG).timeout(LONG))
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
        assert_eq!(held.release()?, HANDED_OFF);
        let after = SystemTime::now();
        held = next.join()?;
        scenario.assert_holds(&held);
        let lease_begins = held.expires_at_system_time().unwrap() - expiration;
        assert!(
            before - Duration::from_micros(1) <= lease_begins && lease_begins <= after,
            "the lease of {expiration:?} begins at the handoff"
        );
        assert!(held.remaining().unwrap() <= expiration);
        let asked = scenario.proxy.asked();
        let written = asked.iter().find(|asked| asked.arguments.len() > 1).expect("a value is written");
        let ttl = (expiration + Duration::from_secs(1)).as_millis().to_string();
        let options: &[&str] = if protocol == Protocol::Ttl { &["PX", &ttl] } else { &[] };
        assert_eq!(written.arguments[2..], *options, "{asked:?}");
    }
    Ok(())
}

fn an_expired_lease_is_not_handed_off(protocol: Protocol) -> Outcome {
    for overwritten in [false, true] {
        let scenario = Scenario::new(protocol)?;
        let held = scenario.lock(LockOptions::expiring_after(millis(300)).timeout(LONG).handoff(9)).lock()?;
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
        if protocol == Protocol::Classic || overwritten {
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
            // The key still holds its value, so it is deleted, and the successor acquires the lock by itself.
            assert_eq!(outcome, scenario.released());
            let successor = successor.join()?;
            assert!(successor.attempts() > 0);
            scenario.assert_holds(&successor);
        }
    }
    Ok(())
}

fn a_lock_that_was_cleared_meanwhile_is_reported_lost(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let lock = scenario.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let successor = successor(&lock);
    scenario.key.delete();
    assert_eq!(held.release()?, Release::Lost);
    let successor = successor.join()?;
    // In Classic the GETSET of the handoff has acquired the lock anew.
    assert_eq!(successor.attempts() > 0, protocol != Protocol::Classic);
    scenario.assert_holds(&successor);
    assert_eq!(successor.release()?, scenario.released());
    Ok(())
}

fn a_lock_that_was_overwritten_meanwhile_is_reported_lost(protocol: Protocol) -> Outcome {
    for foreign in [FOREIGN, "1", "", "whatever"] {
        let scenario = Scenario::new(protocol)?;
        let cancel_token = CancelToken::new();
        let lock = scenario.lock(QUEUED.handoff(9)).cancelled_by(&cancel_token);
        let held = lock.lock()?;
        let successor = successor(&lock);
        scenario.key.set(foreign);
        scenario.proxy.forget();
        assert_eq!(held.release()?, Release::Lost, "{foreign:?}");
        // The successor gets a hint, reads the key and waits on. With transactions the holder reads it twice.
        let reads = if protocol == Protocol::Classic { 1 } else { 3 };
        scenario.wait_for("GET", reads);
        successor.rests();
        cancel_token.cancel();
        assert_cancelled(successor);
        let overwrote = scenario.events.lines().contains(&"ValueOverwritten".to_owned());
        assert_eq!(overwrote, protocol == Protocol::Classic);
        assert_eq!(scenario.key.value().as_deref() == Some(foreign), protocol != Protocol::Classic);
    }
    Ok(())
}

fn a_lock_is_handed_off_although_a_takeover_loser_wrote_over_it(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let lock = scenario.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let successor = successor(&lock);
    write_as_takeover_loser(&scenario.key, &held)?;
    assert_eq!(held.release()?, Release::HandedOff { certified: false });
    let successor = successor.join()?;
    assert_eq!(successor.attempts(), 0);
    scenario.assert_holds(&successor);
    Ok(())
}

fn without_the_option_there_is_no_handoff(protocol: Protocol) -> Outcome {
    for options in [QUEUED, QUEUED.handoff(9).handoff(0)] {
        let scenario = Scenario::new(protocol)?;
        let held = scenario.lock(options).lock()?;
        // The holder's option counts, not that of the successor.
        let successor = successor(&scenario.lock(QUEUED.handoff(9)));
        assert_eq!(held.release()?, scenario.released());
        let successor = successor.join()?;
        assert_eq!(successor.attempts(), 1);
        scenario.assert_holds(&successor);
    }
    Ok(())
}

fn a_thread_that_tries_once_receives_no_handoff(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let lock = scenario.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let reading = scenario.proxy.hold("GET", 1);
    let trying = Sleeper::start({
        let lock = lock.clone();
        move || lock.try_lock()
    });
    reading.reached();
    assert_eq!(held.release()?, scenario.released());
    reading.go_on();
    let _either = trying.join()?;
    Ok(())
}

fn a_panic_and_a_drop_by_another_thread_hand_the_lock_off(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    let lock = scenario.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let [first, second] = [successor(&lock), successor(&lock)];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _held = held;
        resume_unwind(Box::new("on purpose"))
    }));
    assert!(panicked.is_err());
    let first = first.join()?;
    second.rests();
    thread::spawn(move || drop(first)).join().unwrap();
    let second = second.join()?;
    assert_eq!(second.attempts(), 0);
    scenario.assert_holds(&second);
    let handed_off = format!("Released {HANDED_OFF:?}");
    assert_eq!(scenario.events.lines().iter().filter(|line| **line == handed_off).count(), 2);
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
        let lock = |options: LockOptions| Lock::new(&self.locker, &self.key.key, options.handoff(9));
        let held = lock(holder)?.lock()?;
        let protocol = held.protocol();
        let successor = successor(&lock(waiter)?);
        self.proxy.forget();
        Ok(Passed { protocol, outcome: held.release()?, successor: successor.join()? })
    }
}

fn a_lock_is_handed_off_within_one_protocol_and_kind_of_lease() -> Outcome {
    let scenario = Scenario::new(Protocol::Classic)?;
    let unexpiring = LockOptions::held_until_released().poll_interval(LONG).timeout(LONG);
    let kinds = [
        QUEUED,
        QUEUED.protocol(Protocol::Watched),
        QUEUED.protocol(Protocol::Ttl),
        unexpiring,
        unexpiring.protocol(Protocol::Watched),
    ];
    for (n, holder) in kinds.into_iter().enumerate() {
        for (m, waiter) in kinds.into_iter().enumerate() {
            let Passed { outcome, successor, .. } = scenario.pass(holder, waiter)?;
            assert_eq!(matches!(outcome, Release::HandedOff { .. }), n == m, "{holder:?} to {waiter:?}");
            // A waiter that takes over expired locks reads for itself what an unexpiring holder has written.
            let attempts = u32::from(n != m) + u32::from(n >= 3 && m < 3);
            assert_eq!(successor.attempts(), attempts, "{holder:?} to {waiter:?}");
            if n == m && n >= 3 {
                assert_eq!(outcome, Release::HandedOff { certified: false }, "the value 1 names no holder");
                assert_eq!(scenario.proxy.names(), [""; 0], "there is no lease to renew");
                assert_eq!(scenario.key.value().as_deref(), Some("1"));
            }
            assert!(matches!(successor.release()?, Release::Released { .. }));
            assert_eq!(scenario.key.value(), None);
        }
    }
    Ok(())
}

/// Asserts that a holder with [`Protocol::Auto`] holds by `decided`, and to which protocols it hands off.
fn assert_auto_hands_off(scenario: &Scenario, decided: Protocol, expected: &[(Protocol, bool)]) -> Outcome {
    for (waiting, is_handed_off) in expected {
        let waiter = QUEUED.protocol(*waiting);
        let Passed { protocol, outcome, successor } =
            scenario.pass(QUEUED.protocol(Protocol::Auto), waiter)?;
        assert_eq!(protocol, decided);
        let released = Release::Released { certified: decided != Protocol::Classic };
        assert_eq!(outcome, if *is_handed_off { HANDED_OFF } else { released }, "to {waiting:?}");
        assert_eq!(successor.attempts(), u32::from(!is_handed_off), "to {waiting:?}");
        let held_by = if *is_handed_off || *waiting == Protocol::Auto { decided } else { *waiting };
        assert_eq!(successor.protocol(), held_by);
        scenario.assert_holds(&successor);
        let certified = held_by != Protocol::Classic;
        assert_eq!(successor.release()?, Release::Released { certified }, "by {waiting:?}");
        assert_eq!(scenario.key.value(), None);
    }
    Ok(())
}

fn auto_is_handed_off_to_auto_and_watched() -> Outcome {
    let to = [
        (Protocol::Auto, true),
        (Protocol::Watched, true),
        (Protocol::Classic, false),
        (Protocol::Ttl, false),
    ];
    assert_auto_hands_off(&Scenario::new(Protocol::Auto)?, Protocol::Watched, &to)
}

fn auto_on_redis_2_0_is_handed_off_to_auto_and_classic() -> Outcome {
    let to = [(Protocol::Auto, true), (Protocol::Classic, true)];
    assert_auto_hands_off(&Scenario::emulating(Emulated::V2_0, Protocol::Auto)?, Protocol::Classic, &to)
}

//! Faults during a handoff: successors that give up, lost replies, missing connections, and keys that are written meanwhile.

use std::thread;
use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, Lock, LockGuard, LockOptions, Protocol, Release};

use crate::handoffs::{
    FOREIGN, HANDED_OFF, QUEUED, Scenario, assert_cancelled, successor, write_as_takeover_loser,
};
use crate::servers::{Fault, Hold};
use crate::support::asleep::Sleeper;
use crate::support::scenario::{assert_nothing_sent_twice, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Load, Outcome, assert_says, load, millis, tests};

type Test = fn(Protocol, Load) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, Test)] = tests![
        the_successor_gives_up,
        the_successor_of_a_cleared_lock_gives_up,
        the_successor_of_an_overwritten_lock_gives_up,
        the_successor_reads_the_key_meanwhile,
        the_handoff_completes_after_the_successor_s_lease,
        the_lease_passes_in_a_wait_for_a_connection,
        the_renewal_arrives_after_the_lease,
        the_reply_to_the_renewal_is_lost,
        the_renewal_is_lost,
        the_renewal_is_refused,
        the_key_is_written_meanwhile,
    ];
    let of = |protocol: Protocol| {
        let name = format!("{protocol:?}").to_lowercase();
        tests.iter().map(move |(test, run)| {
            let run = *run;
            (format!("{name}::{test}"), move |load| run(protocol, load))
        })
    };
    load::trials("handoff_faults", &PROTOCOLS.into_iter().flat_map(of).collect::<Vec<_>>())
}

/// The command that writes the successor's value.
fn renewal(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Classic { "GETSET" } else { "EXEC" }
}

fn hold_renewal(scenario: &Scenario) -> Hold {
    scenario.proxy.hold(renewal(scenario.protocol), 1)
}

fn the_successor_gives_up(protocol: Protocol, load: Load) -> Outcome {
    #[derive(Debug, PartialEq)]
    enum Reason {
        TimesOut,
        IsCancelled,
        LockerShutsDown,
    }
    for reason in [Reason::TimesOut, Reason::IsCancelled, Reason::LockerShutsDown] {
        let scenario = Scenario::under_load(protocol, load)?;
        let cancel_token = CancelToken::new();
        let held = scenario.lock(QUEUED.handoff(9)).lock()?;
        let timeout = if reason == Reason::TimesOut { millis(3000) } else { LONG };
        let gives_up = successor(&scenario.lock(QUEUED.timeout(timeout)).cancelled_by(&cancel_token));
        let next = (reason != Reason::LockerShutsDown).then(|| successor(&scenario.lock(QUEUED)));
        scenario.proxy.forget();
        let renewal = hold_renewal(&scenario);
        let releasing = thread::spawn(move || held.release());
        renewal.reached();
        match reason {
            Reason::TimesOut => {}
            Reason::IsCancelled => cancel_token.cancel(),
            Reason::LockerShutsDown => scenario.locker.shut_down(),
        }
        let error = gives_up.join().expect_err("it has given up");
        match reason {
            Reason::TimesOut => assert!(matches!(error, Error::Timeout { .. }), "{error:?}"),
            Reason::IsCancelled => assert!(matches!(error, Error::Cancelled { .. }), "{error:?}"),
            Reason::LockerShutsDown => assert!(matches!(error, Error::ShutDown { .. }), "{error:?}"),
        }
        renewal.go_on();
        assert_eq!(releasing.join().unwrap()?, scenario.released(), "{reason:?}");
        let names = scenario.proxy.names();
        assert_eq!(names.iter().filter(|name| *name == "DEL").count(), 1, "{names:?}");
        let acquired = match next {
            Some(next) => next.join()?,
            None => scenario.lock_of_another_process()?.try_lock()?.ok_or("the lock is free")?,
        };
        assert_eq!(acquired.attempts(), 1, "{reason:?}");
        scenario.assert_holds(&acquired);
        assert_eq!(acquired.release()?, scenario.released());
        assert_eq!(scenario.key.value(), None);
    }
    Ok(())
}

/// Cancels the successor while the renewal is held, and returns the outcome of the release.
fn release_with_cancelled_successor(
    scenario: &Scenario,
    before: impl FnOnce(&LockGuard) -> Outcome,
    meanwhile: impl FnOnce(),
) -> Result<Release, Box<dyn std::error::Error>> {
    let cancel_token = CancelToken::new();
    let held = scenario.lock(QUEUED.handoff(9)).lock()?;
    let successor = successor(&scenario.lock(QUEUED).cancelled_by(&cancel_token));
    before(&held).map_err(|failed| failed.message().unwrap_or_default().to_owned())?;
    let renewal = hold_renewal(scenario);
    let releasing = thread::spawn(move || held.release());
    renewal.reached();
    cancel_token.cancel();
    assert_cancelled(successor);
    meanwhile();
    renewal.go_on();
    Ok(releasing.join().unwrap()?)
}

fn the_successor_of_a_cleared_lock_gives_up(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let outcome = release_with_cancelled_successor(&scenario, |_| Ok(()), || scenario.key.delete())?;
    assert_eq!(outcome, Release::Lost, "another holder may have had the lock");
    assert_eq!(scenario.key.value(), None);
    Ok(())
}

fn the_successor_of_an_overwritten_lock_gives_up(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let overwrite = |held: &_| Ok(write_as_takeover_loser(&scenario.key, held)?);
    let outcome = release_with_cancelled_successor(&scenario, overwrite, || ())?;
    assert_eq!(outcome, Release::Released { certified: false }, "the key held the bytes of another client");
    assert_eq!(scenario.key.value(), None);
    Ok(())
}

fn the_successor_reads_the_key_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let held = scenario.lock(QUEUED.handoff(9)).lock()?;
    let successor = successor(&scenario.lock(QUEUED.poll_interval(millis(3000))));
    let renewal = hold_renewal(&scenario);
    let releasing = thread::spawn(move || held.release());
    renewal.reached();
    let reading = scenario.proxy.hold("GET", 1);
    reading.reached();
    renewal.go_on();
    // A waiter in the middle of a command receives no handoff.
    assert_eq!(releasing.join().unwrap()?, scenario.released());
    reading.go_on();
    let successor = successor.join()?;
    assert!(successor.attempts() > 0);
    scenario.assert_holds(&successor);
    assert_eq!(successor.release()?, scenario.released());
    assert_eq!(scenario.key.value(), None);
    Ok(())
}

fn the_handoff_completes_after_the_successor_s_lease(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let held = scenario.lock(QUEUED.handoff(9)).lock()?;
    let brief = LockOptions::expiring_after(millis(300)).poll_interval(LONG).timeout(LONG);
    let successor = successor(&scenario.lock(brief));
    let renewal = hold_renewal(&scenario);
    let releasing = thread::spawn(move || held.release());
    renewal.reached();
    // The successor's lease began before that.
    thread::sleep(millis(310));
    renewal.go_on();
    assert_eq!(releasing.join().unwrap()?, HANDED_OFF);
    // The successor does not use the lease. It waits until the lease has expired for other clients, too.
    let successor = successor.join()?;
    assert!(successor.attempts() > 0);
    assert!(scenario.events.lines().contains(&"LateGrant".to_owned()));
    Ok(())
}

/// Options of a holder whose lease is shorter than its release takes.
const BRIEF: LockOptions = LockOptions::expiring_after(Duration::from_secs(2)).timeout(LONG).handoff(9);
/// Options of a waiter that does not take over meanwhile.
const TAKES_OVER_LATE: LockOptions = QUEUED.takeover_margin(LONG);

fn the_lease_passes_in_a_wait_for_a_connection(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let builder = patient(&scenario.proxy.url())?.pool_size(1);
    let locker = load.pipelining(builder.build()?);
    let lock = |options: LockOptions| Lock::new(&locker, &scenario.key.key, options.protocol(protocol));
    let cancel_token = CancelToken::new();
    let held = lock(BRIEF)?.lock()?;
    let expires_at = held.expires_at_system_time().ok_or("the lease expires")?;
    let successor = successor(&lock(TAKES_OVER_LATE)?.cancelled_by(&cancel_token));
    // The only connection is in use until the lease has expired and another client holds the lock.
    let reading = scenario.proxy.hold("GET", 1);
    let other = Lock::new(&locker, "another", BRIEF)?;
    let reader = thread::spawn(move || other.state());
    reading.reached();
    let releasing = Sleeper::start(move || held.release());
    releasing.rests();
    while expires_at.elapsed().is_err() {
        thread::sleep(millis(10));
    }
    scenario.key.set(FOREIGN);
    scenario.proxy.forget();
    reading.go_on();
    reader.join().unwrap()?;
    assert_eq!(releasing.join()?, Release::Expired);
    assert_eq!(scenario.key.value().as_deref(), Some(FOREIGN), "{:?}", scenario.proxy.names());
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

/// A refusal for lack of memory.
const OVER_MEMORY: Fault = Fault::Say("-OOM command not allowed when used memory > 'maxmemory'.\r\n");

fn the_renewal_arrives_after_the_lease(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let held = scenario.lock(BRIEF).lock()?;
    let expires_at = held.expires_at_system_time().ok_or("the lease expires")?;
    let successor = successor(&scenario.lock(TAKES_OVER_LATE).cancelled_by(&cancel_token));
    // The renewal is delayed until the lease has expired and another client holds the lock. Then it is refused.
    let renewal = renewal(protocol);
    scenario.proxy.next(renewal, OVER_MEMORY);
    scenario.proxy.slow_down(move |asked| {
        let left = expires_at.duration_since(SystemTime::now()).unwrap_or_default();
        if asked.name == renewal { left + millis(50) } else { millis(0) }
    });
    let releasing = thread::spawn(move || held.release());
    while expires_at.elapsed().is_err() {
        thread::sleep(millis(1));
    }
    scenario.key.set(FOREIGN);
    assert_eq!(releasing.join().unwrap()?, Release::Expired);
    assert_eq!(scenario.key.value().as_deref(), Some(FOREIGN), "{:?}", scenario.proxy.names());
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

fn the_reply_to_the_renewal_is_lost(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let lock = scenario.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let successor = successor(&lock);
    scenario.proxy.forget();
    scenario.proxy.next(renewal(protocol), Fault::CutAfter);
    let outcome = held.release()?;
    let successor = successor.join()?;
    assert_nothing_sent_twice(&scenario.proxy);
    let (commands, expected) = match protocol {
        // The value that GETSET returned is unknown.
        Protocol::Classic => ("GETSET GET", Release::HandedOff { certified: false }),
        _ => ("WATCH GET MULTI SET EXEC GET", HANDED_OFF),
    };
    assert_eq!((scenario.proxy.names().join(" ").as_str(), outcome), (commands, expected));
    assert_eq!(successor.attempts(), 0);
    scenario.assert_holds(&successor);
    Ok(())
}

fn the_renewal_is_lost(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let lock = scenario.lock(QUEUED.handoff(9)).cancelled_by(&cancel_token);
    let held = lock.lock()?;
    let successor = successor(&lock);
    let before = scenario.key.value();
    scenario.proxy.next(renewal(protocol), Fault::CutBefore);
    let error = held.release().expect_err("the renewal may still arrive");
    let expected = renewal(protocol);
    assert!(matches!(error, Error::Unknown { command, .. } if command == expected), "{error:?}");
    assert_says(&error, &scenario.key, &["it frees itself when its lease has passed"]);
    assert_nothing_sent_twice(&scenario.proxy);
    assert_eq!(scenario.key.value(), before);
    // The successor has read the key, and waits until the lease has expired.
    successor.rests();
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

fn the_renewal_is_refused(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let lock = scenario.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let successor = successor(&lock);
    scenario.proxy.forget();
    scenario.proxy.next(renewal(protocol), OVER_MEMORY);
    assert_eq!(held.release()?, scenario.released());
    let names = scenario.proxy.names().join(" ");
    let expected = match protocol {
        Protocol::Classic => "GETSET DEL",
        _ => "WATCH GET MULTI SET EXEC DISCARD WATCH GET MULTI DEL EXEC",
    };
    assert!(names.starts_with(expected), "{names}");
    let successor = successor.join()?;
    assert_eq!(successor.attempts(), 1);
    scenario.assert_holds(&successor);
    Ok(())
}

fn the_key_is_written_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let lock = scenario.lock(QUEUED.handoff(9)).cancelled_by(&cancel_token);
    let held = lock.lock()?;
    let successor = successor(&lock);
    let renewal = hold_renewal(&scenario);
    let releasing = thread::spawn(move || held.release());
    renewal.reached();
    scenario.key.set(FOREIGN);
    renewal.go_on();
    assert_eq!(releasing.join().unwrap()?, Release::Lost);
    let left_alone = scenario.key.value().as_deref() == Some(FOREIGN);
    assert_eq!(left_alone, protocol != Protocol::Classic);
    successor.rests();
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

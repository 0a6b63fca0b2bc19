//! What comes to harm as a lock passes from thread to thread: heirs that give up, answers that get lost, connections that are missing,
//! keys that are written meanwhile.

use std::thread;
use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, Lock, LockGuard, LockOptions, Locker, Protocol, Release};

use crate::handoffs::{FOREIGN, HANDED_OFF, QUEUED, Stage, assert_cancelled, successor, write_as_a_loser};
use crate::servers::{Fault, Hold};
use crate::support::asleep::Sleeper;
use crate::support::load;
use crate::support::scenario::assert_nothing_sent_twice;
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Load, Outcome, assert_says, millis};

type Test = fn(Protocol, Load) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, Test)] = &[
        ("the_heir_gives_up", the_heir_gives_up),
        ("the_heir_of_a_cleared_lock_gives_up", the_heir_of_a_cleared_lock_gives_up),
        ("the_heir_of_a_lock_in_doubt_gives_up", the_heir_of_a_lock_in_doubt_gives_up),
        ("the_heir_looks_for_itself_meanwhile", the_heir_looks_for_itself),
        ("the_heir_gets_it_later_than_its_lease", later_than_the_heir_s_lease),
        ("the_lease_passes_in_a_wait_for_a_connection", no_connection_within_the_lease),
        ("the_renewal_comes_later_than_the_lease", later_than_the_lease),
        ("the_answer_to_the_renewal_is_lost", the_answer_is_lost),
        ("the_renewal_is_lost", the_renewal_is_lost),
        ("the_renewal_is_refused", the_renewal_is_refused),
        ("the_key_is_written_meanwhile", the_key_is_written_meanwhile),
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

/// The command that writes the heir's value.
fn renewal(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Classic { "GETSET" } else { "EXEC" }
}

fn hold_renewal(stage: &Stage) -> Hold {
    stage.proxy.hold(renewal(stage.protocol), 1)
}

fn the_heir_gives_up(protocol: Protocol, load: Load) -> Outcome {
    #[derive(Debug, PartialEq)]
    enum Ending {
        TimesOut,
        IsCancelled,
        LockerShutsDown,
    }
    for ending in [Ending::TimesOut, Ending::IsCancelled, Ending::LockerShutsDown] {
        let stage = Stage::under_load(protocol, load)?;
        let cancel_token = CancelToken::new();
        let held = stage.lock(QUEUED.handoff(9)).lock()?;
        let timeout = if ending == Ending::TimesOut { millis(3000) } else { LONG };
        let giving_up = successor(&stage.lock(QUEUED.timeout(timeout)).cancelled_by(&cancel_token));
        let next = (ending != Ending::LockerShutsDown).then(|| successor(&stage.lock(QUEUED)));
        stage.proxy.forget();
        let renewing = hold_renewal(&stage);
        let releasing = thread::spawn(move || held.release());
        renewing.reached();
        match ending {
            Ending::TimesOut => {}
            Ending::IsCancelled => cancel_token.cancel(),
            Ending::LockerShutsDown => stage.locker.shut_down(),
        }
        let error = giving_up.join().expect_err("it has given up");
        match ending {
            Ending::TimesOut => assert!(matches!(error, Error::Timeout { .. }), "{error:?}"),
            Ending::IsCancelled => assert!(matches!(error, Error::Cancelled { .. }), "{error:?}"),
            Ending::LockerShutsDown => assert!(matches!(error, Error::ShutDown { .. }), "{error:?}"),
        }
        renewing.go_on();
        assert_eq!(releasing.join().unwrap()?, stage.released(), "{ending:?}");
        let names = stage.proxy.names();
        assert_eq!(names.iter().filter(|name| *name == "DEL").count(), 1, "{names:?}");
        let got = match next {
            Some(next) => next.join()?,
            None => stage.elsewhere()?.try_lock()?.ok_or("it is free")?,
        };
        assert_eq!(got.attempts(), 1, "{ending:?}");
        stage.assert_has_it(&got);
        assert_eq!(got.release()?, stage.released());
        assert_eq!(stage.key.value(), None);
    }
    Ok(())
}

/// Cancels the heir while the renewal is held, and returns what the releaser is told.
fn release_to_one_who_leaves(
    stage: &Stage,
    before: impl FnOnce(&LockGuard) -> Outcome,
    meanwhile: impl FnOnce(),
) -> Result<Release, Box<dyn std::error::Error>> {
    let cancel_token = CancelToken::new();
    let held = stage.lock(QUEUED.handoff(9)).lock()?;
    let successor = successor(&stage.lock(QUEUED).cancelled_by(&cancel_token));
    before(&held).map_err(|failed| failed.message().unwrap_or_default().to_owned())?;
    let renewing = hold_renewal(stage);
    let releasing = thread::spawn(move || held.release());
    renewing.reached();
    cancel_token.cancel();
    assert_cancelled(successor);
    meanwhile();
    renewing.go_on();
    Ok(releasing.join().unwrap()?)
}

fn the_heir_of_a_cleared_lock_gives_up(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let outcome = release_to_one_who_leaves(&stage, |_| Ok(()), || stage.key.delete())?;
    assert_eq!(outcome, Release::Lost, "others may have had it");
    assert_eq!(stage.key.value(), None);
    Ok(())
}

fn the_heir_of_a_lock_in_doubt_gives_up(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let as_a_loser = |held: &_| Ok(write_as_a_loser(&stage.key, held)?);
    let outcome = release_to_one_who_leaves(&stage, as_a_loser, || ())?;
    assert_eq!(outcome, Release::Released { certified: false }, "the key held another's bytes");
    assert_eq!(stage.key.value(), None);
    Ok(())
}

fn the_heir_looks_for_itself(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let held = stage.lock(QUEUED.handoff(9)).lock()?;
    let successor = successor(&stage.lock(QUEUED.poll_interval(millis(3000))));
    let renewing = hold_renewal(&stage);
    let releasing = thread::spawn(move || held.release());
    renewing.reached();
    let looking = stage.proxy.hold("GET", 1);
    looking.reached();
    renewing.go_on();
    // What comes of the look nobody knows, so it is given nothing.
    assert_eq!(releasing.join().unwrap()?, stage.released());
    looking.go_on();
    let successor = successor.join()?;
    assert!(successor.attempts() > 0);
    stage.assert_has_it(&successor);
    assert_eq!(successor.release()?, stage.released());
    assert_eq!(stage.key.value(), None);
    Ok(())
}

fn later_than_the_heir_s_lease(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let held = stage.lock(QUEUED.handoff(9)).lock()?;
    let brief = LockOptions::expiring_after(millis(300)).poll_interval(LONG).timeout(LONG);
    let successor = successor(&stage.lock(brief));
    let renewing = hold_renewal(&stage);
    let releasing = thread::spawn(move || held.release());
    renewing.reached();
    // Its lease began before that.
    thread::sleep(millis(310));
    renewing.go_on();
    assert_eq!(releasing.join().unwrap()?, HANDED_OFF);
    // It is not used, and waited for until it has passed for others as well.
    let successor = successor.join()?;
    assert!(successor.attempts() > 0);
    assert!(stage.events.lines().contains(&"LateGrant".to_owned()));
    Ok(())
}

/// A holder whose lease does not last as long as its release takes, and one in line who does not take over meanwhile.
const BRIEF: LockOptions = LockOptions::expiring_after(Duration::from_secs(2)).handoff(9);
const PATIENT: LockOptions = QUEUED.takeover_margin(LONG);

fn no_connection_within_the_lease(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let settings = Locker::builder(&stage.proxy.url())?.pool_size(1).command_timeout(LONG);
    let locker = load.pipelining(settings.build()?);
    let lock = |options: LockOptions| Lock::new(&locker, &stage.key.key, options.protocol(protocol));
    let cancel_token = CancelToken::new();
    let held = lock(BRIEF)?.lock()?;
    let ends = held.expires_at_system_time().ok_or("it expires")?;
    let successor = successor(&lock(PATIENT)?.cancelled_by(&cancel_token));
    // The one connection is in use until the lease has passed, and another has the lock.
    let looking = stage.proxy.hold("GET", 1);
    let other = Lock::new(&locker, "another", BRIEF)?;
    let peeking = thread::spawn(move || other.state());
    looking.reached();
    let releasing = Sleeper::start(move || held.release());
    releasing.rests();
    while ends.elapsed().is_err() {
        thread::sleep(millis(10));
    }
    stage.key.set(FOREIGN);
    stage.proxy.forget();
    looking.go_on();
    peeking.join().unwrap()?;
    assert_eq!(releasing.join()?, Release::Expired);
    assert_eq!(stage.key.value().as_deref(), Some(FOREIGN), "{:?}", stage.proxy.names());
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

fn later_than_the_lease(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let held = stage.lock(BRIEF).lock()?;
    let ends = held.expires_at_system_time().ok_or("it expires")?;
    let successor = successor(&stage.lock(PATIENT).cancelled_by(&cancel_token));
    // It is on its way until the lease has passed and another has the lock. It is refused then, say for want of memory.
    let refused = Fault::Say("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    stage.proxy.next(renewal(protocol), refused);
    let waiting_for = renewal(protocol);
    stage.proxy.slow_down(move |asked| {
        let left = ends.duration_since(SystemTime::now()).unwrap_or_default();
        if asked.name == waiting_for { left + millis(50) } else { millis(0) }
    });
    let releasing = thread::spawn(move || held.release());
    while ends.elapsed().is_err() {
        thread::sleep(millis(1));
    }
    stage.key.set(FOREIGN);
    assert_eq!(releasing.join().unwrap()?, Release::Expired);
    assert_eq!(stage.key.value().as_deref(), Some(FOREIGN), "{:?}", stage.proxy.names());
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

fn the_answer_is_lost(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let lock = stage.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let successor = successor(&lock);
    stage.proxy.forget();
    stage.proxy.next(renewal(protocol), Fault::CutAfter);
    let outcome = held.release()?;
    let successor = successor.join()?;
    assert_nothing_sent_twice(&stage.proxy);
    let (commands, reported) = match protocol {
        // Whose value it was nobody knows.
        Protocol::Classic => ("GETSET GET", Release::HandedOff { certified: false }),
        _ => ("WATCH GET MULTI SET EXEC GET", HANDED_OFF),
    };
    assert_eq!((stage.proxy.names().join(" ").as_str(), outcome), (commands, reported));
    assert_eq!(successor.attempts(), 0);
    stage.assert_has_it(&successor);
    Ok(())
}

fn the_renewal_is_lost(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let lock = stage.lock(QUEUED.handoff(9)).cancelled_by(&cancel_token);
    let held = lock.lock()?;
    let successor = successor(&lock);
    let before = stage.key.value();
    stage.proxy.next(renewal(protocol), Fault::CutBefore);
    let error = held.release().expect_err("it may still come");
    let expected = renewal(protocol);
    assert!(matches!(error, Error::Unknown { command, .. } if command == expected), "{error:?}");
    assert_says(&error, &stage.key, &["it frees itself when its lease has passed"]);
    assert_nothing_sent_twice(&stage.proxy);
    assert_eq!(stage.key.value(), before);
    // It has looked, and waits for that.
    successor.rests();
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

fn the_renewal_is_refused(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let lock = stage.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let successor = successor(&lock);
    stage.proxy.forget();
    let refused = Fault::Say("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    stage.proxy.next(renewal(protocol), refused);
    assert_eq!(held.release()?, stage.released());
    let names = stage.proxy.names().join(" ");
    let expected = match protocol {
        Protocol::Classic => "GETSET DEL",
        _ => "WATCH GET MULTI SET EXEC DISCARD WATCH GET MULTI DEL EXEC",
    };
    assert!(names.starts_with(expected), "{names}");
    let successor = successor.join()?;
    assert_eq!(successor.attempts(), 1);
    stage.assert_has_it(&successor);
    Ok(())
}

fn the_key_is_written_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    let stage = Stage::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let lock = stage.lock(QUEUED.handoff(9)).cancelled_by(&cancel_token);
    let held = lock.lock()?;
    let successor = successor(&lock);
    let renewing = hold_renewal(&stage);
    let releasing = thread::spawn(move || held.release());
    renewing.reached();
    stage.key.set(FOREIGN);
    renewing.go_on();
    assert_eq!(releasing.join().unwrap()?, Release::Lost);
    let left_alone = stage.key.value().as_deref() == Some(FOREIGN);
    assert_eq!(left_alone, protocol != Protocol::Classic);
    successor.rests();
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

//! The events that an observer receives.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use setnx_lock::{Error, Event, Lock, LockOptions, LossReason, MultiLock, Observer, ProblemKind, Protocol};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::asleep::Sleeper;
use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, QUEUED, Scenario, patient};
use crate::support::{AnyServer, LONG, Outcome, expiring, millis, releases, trials_of};

trials_of! {
    "events";
    what_is_found_at_a_key,
    lost_replies_and_failed_releases,
    a_release_that_fails_after_the_lease_is_a_loss_as_well,
    a_grant_after_the_lease,
    a_release_after_the_lease_is_reported_without_a_takeover,
    what_a_holder_does_with_its_lock,
    a_loss_is_reported_once,
    a_loss_is_reported_when_the_next_threads_have_their_locks,
}

/// Records the name of each event, and the outcome of a release.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog(Arc<Mutex<Vec<String>>>);

impl Observer for EventLog {
    fn event(&self, event: &Event<'_>) {
        releases::record(event);
        let shown = format!("{event:?}");
        let name = shown.split([' ', '{']).next().unwrap_or_default();
        let line = match event {
            Event::AcquireFinished { outcome: Ok(()), .. } => "Acquired".to_owned(),
            Event::AcquireFinished { outcome: Err(_), .. } => "AcquireFailed".to_owned(),
            Event::Released { certified, left_to_expire, outlived_lease, .. } => {
                let flags = [
                    (certified, ", certified"),
                    (left_to_expire, ", left to expire"),
                    (outlived_lease, ", outlived its lease"),
                ];
                flags.iter().filter(|(is, _)| **is).fold(name.to_owned(), |line, (_, words)| line + words)
            }
            Event::Lost { reason, .. } => format!("{name} {reason:?}"),
            Event::Problem { kind: ProblemKind::ReplyLost, details, .. } => {
                let command = details.split(' ').nth(3).unwrap_or_default().trim_end_matches(':');
                format!("ReplyLost {command}")
            }
            Event::Problem { kind, .. } => format!("{kind:?}"),
            _ => name.to_owned(),
        };
        self.0.lock().unwrap().push(line);
    }
}

impl EventLog {
    /// Returns the lines since the last call.
    pub(crate) fn lines(&self) -> Vec<String> {
        mem::take(&mut self.0.lock().unwrap())
    }
}

/// Returns a lock on the server, and the record of its events.
fn observed(scenario: &Scenario, options: LockOptions) -> Result<(Lock, EventLog), setnx_lock::Error> {
    let events = EventLog::default();
    let locker = patient(&scenario.server.url())?.observer(events.clone()).build()?;
    Ok((Lock::new(&locker, "observed", options)?, events))
}

fn what_is_found_at_a_key() -> Outcome {
    let released = "Released";
    for (found, expected) in [
        (None, &["Acquired", released][..]),
        (Some("1532000016.5000000000000001"), &["TakenOver", "Acquired", released][..]),
        (Some(FOREIGN), &["AcquireFailed"][..]),
        // Reported once, however often the key is read.
        (Some("1"), &["NeverExpires", "AcquireFailed"][..]),
    ] {
        let scenario = Scenario::set();
        let (lock, events) = observed(&scenario, expiring().timeout(millis(100)).poll_interval(millis(10)))?;
        if let Some(value) = found {
            let () = redis::cmd("SET").arg("observed").arg(value).query(&mut scenario.target.connection())?;
        }
        drop(lock.lock());
        assert_eq!(events.lines(), expected);
    }
    Ok(())
}

fn lost_replies_and_failed_releases() -> Outcome {
    let scenario = Scenario::set();
    let (lock, events) = observed(&scenario, expiring())?;
    scenario.server.next("SETNX", Fault::CutAfter);
    let held = lock.lock()?;
    assert_eq!(events.lines(), ["ReplyLost SETNX", "Acquired"]);
    scenario.server.next("DEL", Fault::CutBefore);
    drop(held);
    assert_eq!(events.lines(), ["ReplyLost DEL", "ReleaseFailed"]);
    lock.clear()?;
    let held = lock.lock()?;
    scenario.server.next("DEL", Fault::CutBefore);
    assert!(held.release().is_err());
    assert_eq!(events.lines(), ["Acquired", "ReplyLost DEL", "ReleaseFailed"]);
    // A release that could not be sent is no loss.
    lock.clear()?;
    scenario.server.next("DEL", Fault::CutBefore);
    assert_eq!(lock.with(|_| 7)?, 7);
    assert_eq!(events.lines(), ["Acquired", "ReplyLost DEL", "ReleaseFailed"]);
    Ok(())
}

/// Nothing proves then that no other client had the lock.
fn a_release_that_fails_after_the_lease_is_a_loss_as_well() -> Outcome {
    let scenario = Scenario::set();
    let brief = LockOptions::expiring_after(millis(1000)).timeout(LONG).protocol(Protocol::Watched);
    let (lock, events) = observed(&scenario, brief)?;
    let outcome = lock.with(|_| {
        std::thread::sleep(millis(1010));
        scenario.server.next("WATCH", Fault::Say("-NOPERM this user has no permissions\r\n"));
    });
    let error = outcome.expect_err("it is not proven");
    assert!(matches!(error, Error::Lost { reason: LossReason::Expired, .. }), "{error:?}");
    assert_eq!(events.lines(), ["Acquired", "ReleaseFailed", "Lost Expired"]);
    Ok(())
}

fn a_grant_after_the_lease() -> Outcome {
    let scenario = Scenario::set();
    let (lock, events) = observed(&scenario, LockOptions::expiring_after(millis(200)).timeout(LONG))?;
    scenario.server.next("SETNX", Fault::DelayReply(millis(300)));
    assert!(lock.try_lock()?.is_none());
    assert_eq!(events.lines(), ["LateGrant", "AcquireFailed"]);
    Ok(())
}

fn a_release_after_the_lease_is_reported_without_a_takeover() -> Outcome {
    let scenario = Scenario::set();
    let brief = LockOptions::expiring_after(millis(200)).timeout(LONG);
    for (protocol, released) in
        [(Protocol::Classic, "Lost Expired"), (Protocol::Watched, "Released, certified, outlived its lease")]
    {
        let (lock, events) = observed(&scenario, brief.protocol(protocol))?;
        let held = lock.lock()?;
        std::thread::sleep(millis(210));
        drop(held);
        assert_eq!(events.lines().last().map(String::as_str), Some(released));
        lock.clear()?;
    }
    Ok(())
}

fn what_a_holder_does_with_its_lock() -> Outcome {
    let scenario = Scenario::set();
    let (lock, events) = observed(&scenario, expiring().reentrant())?;
    let held = lock.lock()?;
    held.extend()?;
    scenario.server.next("GET", Fault::Say("-LOADING Redis is loading\r\n"));
    assert!(held.extend().is_err());
    held.verify()?;
    held.fencing_token()?;
    held.leave_to_expire()?;
    assert_eq!(events.lines(), ["Acquired", "Extended", "ExtendFailed", "Released, left to expire"]);
    lock.clear()?;
    // A call that joins another one asks for nothing.
    lock.with(|_| lock.with(|_| ()))??;
    assert_eq!(events.lines(), ["Acquired", "Released"]);
    let (lock, events) = observed(&scenario, expiring().hold_at_least(LONG / 2))?;
    drop(lock.lock()?);
    assert_eq!(events.lines(), ["Acquired", "Released, left to expire"]);
    Ok(())
}

fn a_loss_is_reported_once() -> Outcome {
    let scenario = Scenario::set();
    let (lock, events) = observed(&scenario, expiring())?;
    let held = lock.lock()?;
    lock.clear()?;
    assert!(held.verify().is_err());
    assert!(held.extend().is_err() && held.ensure_held().is_err() && held.loss_signal().is_lost());
    drop(held);
    assert_eq!(events.lines(), ["Acquired", "Lost Gone"]);
    // Even if the release finds it out.
    let held = lock.lock()?;
    lock.clear()?;
    let signal = held.loss_signal();
    drop(held);
    assert!(signal.is_lost());
    assert_eq!(events.lines(), ["Acquired", "Lost Gone"]);
    // A lease that passes is noticed by whichever looks first.
    let (lock, events) = observed(&scenario, LockOptions::expiring_after(millis(30)).timeout(LONG))?;
    let held = lock.lock()?;
    assert!(held.loss_signal().wait_timeout(LONG) && held.ensure_held().is_err());
    drop(held);
    // The thread that noticed it reports it after the signal.
    let mut lines = events.lines();
    until("the loss is reported", || {
        lines.extend(events.lines());
        lines.iter().any(|line| line == "Lost Expired")
    });
    assert_eq!(lines.iter().filter(|line| line.starts_with("Lost")).count(), 1, "{lines:?}");
    Ok(())
}

/// An observer of a loss may take any time. A thread that waits for another of the keys has the lock before.
fn a_loss_is_reported_when_the_next_threads_have_their_locks() -> Outcome {
    let server = TestServer::start();
    let (next, got) = mpsc::channel();
    let (got, was_first) = (Mutex::new(got), Arc::new(AtomicBool::new(false)));
    let was_first_too = Arc::clone(&was_first);
    let observer = move |event: &Event<'_>| {
        if let Event::Lost { .. } = event {
            was_first_too.store(got.lock().unwrap().recv_timeout(LONG).is_ok(), Ordering::Relaxed);
        }
    };
    let locker = patient(&server.url())?.observer(observer).build()?;
    let held = MultiLock::new(&locker, ["a", "b"], QUEUED)?.lock()?;
    let lock = Lock::new(&locker, "a", QUEUED)?;
    let waiter = Sleeper::start(move || {
        let held = lock.lock()?;
        next.send(()).expect("the observer waits");
        held.release()
    });
    waiter.rests();
    server.say(&["DEL", "b"])?;
    assert!(held.release().expect_err("one is lost").is_lost());
    assert!(was_first.load(Ordering::Relaxed), "the next thread had to wait for the observer");
    waiter.join()?;
    Ok(())
}

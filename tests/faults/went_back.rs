//! A server that has lost its last writes, as after a failover: the key holds a value that the holder has replaced
//! since. The lock is still its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use setnx_lock::{
    CancelToken, Event, Lock, LockGuard, LockOptions, Locker, MultiLock, ProblemKind, Protocol,
};
use setnx_lock_testing::TestServer;
use testkit::failover::{Failover, MASTER};

use super::numbers::{ADVISED, DOWN_AFTER, Disturbance, fail_over, quick};
use crate::support::notified::until;
use crate::support::scenario::patient;
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer as _, LONG, Outcome, chain, expiring, millis, tests, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let over_failovers = [trial("failover::a_leader_leads_on_over_a_planned_one", leads_on)];
    let here = crate::support::trials(
        "went_back",
        tests![
            an_earlier_value_is_replaced_by_each_call_of_its_holder,
            a_kept_lock_is_written_again_at_once,
            several_keys_go_back_at_once,
            a_leader_goes_on,
            an_earlier_value_after_the_lease_is_an_end_of_the_lease,
        ],
    );
    here.into_iter().chain(over_failovers).collect()
}

/// A server, a locker, and how often that has reported that the server went back.
fn observed() -> Result<(TestServer, Locker, Arc<AtomicUsize>), setnx_lock::Error> {
    let (server, count) = (TestServer::start(), Arc::new(AtomicUsize::new(0)));
    let counts = Arc::clone(&count);
    let locker = patient(&server.url())?.observer(move |event: &Event<'_>| {
        if let Event::Problem { kind: ProblemKind::ServerWentBack, .. } = event {
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok((server, locker.build()?, count))
}

/// Has a key hold this again, as the server had it.
fn go_back(server: &TestServer, key: &str, value: &str) {
    server.say(&["SET", key, value]).expect("it is written");
}

/// Acquires a lock and extends it. Returns the value before.
fn extended(server: &TestServer, lock: &Lock) -> Result<(LockGuard, String), setnx_lock::Error> {
    let held = lock.lock()?;
    let before = server.get("k").expect("it is held");
    held.extend()?;
    assert_ne!(server.get("k").as_ref(), Some(&before));
    Ok((held, before))
}

fn an_earlier_value_is_replaced_by_each_call_of_its_holder() -> Outcome {
    for protocol in PROTOCOLS.into_iter().chain([Protocol::Auto]) {
        let (server, locker, count) = observed()?;
        let lock = Lock::new(&locker, "k", expiring().protocol(protocol))?;
        let (held, before) = extended(&server, &lock)?;
        let is_written_again = || server.get("k").as_ref() != Some(&before);
        go_back(&server, "k", &before);
        held.verify()?;
        assert!(is_written_again(), "{protocol:?}");
        go_back(&server, "k", &before);
        held.extend()?;
        assert!(is_written_again(), "{protocol:?}");
        go_back(&server, "k", &before);
        let held = lock.resume(&held.into_token()?);
        // A token is made without a look. Who resumes it knows its value alone.
        assert!(held.is_err_and(|error| error.is_lost()), "{protocol:?}");
        assert_eq!(count.load(Ordering::Relaxed), 2, "{protocol:?}");
        server.delete("k");

        let (held, before) = extended(&server, &lock)?;
        go_back(&server, "k", &before);
        held.release()?;
        assert_eq!(server.get("k"), None, "{protocol:?}");
        if protocol == Protocol::Classic {
            // There any time in the future may be a loser's at first.
            continue;
        }
        // Another client's value is none of this holder's.
        let (held, before) = extended(&server, &lock)?;
        let (time, nonce) = before.split_at(before.len() - 10);
        let other = if nonce.starts_with('1') { "2" } else { "1" };
        go_back(&server, "k", &format!("{time}{other}{}", &nonce[1..]));
        assert!(held.verify().is_err_and(|error| error.is_lost()), "{protocol:?}");
    }
    Ok(())
}

fn a_kept_lock_is_written_again_at_once() -> Outcome {
    for protocol in PROTOCOLS {
        let (server, locker, count) = observed()?;
        let options = LockOptions::expiring_after(millis(1500)).protocol(protocol).auto_extend(10 * LONG);
        let held = Lock::new(&locker, "k", options)?.lock()?;
        for _ in 0..3 {
            let before = server.get("k").expect("it is held");
            until("it is extended", || server.get("k").as_ref() != Some(&before));
            let (extended, counted) = (server.get("k"), count.load(Ordering::Relaxed));
            go_back(&server, "k", &before);
            until("it is written again", || {
                ![Some(&before), extended.as_ref()].contains(&server.get("k").as_ref())
            });
            until("it is reported", || count.load(Ordering::Relaxed) > counted);
        }
        held.ensure_held()?;
        held.release()?;
    }
    Ok(())
}

fn several_keys_go_back_at_once() -> Outcome {
    const KEYS: usize = 100;
    for protocol in PROTOCOLS {
        let (server, locker, count) = observed()?;
        let keys: Vec<String> = (0..KEYS).map(|n| format!("k{n}")).collect();
        let several = MultiLock::new(&locker, &keys, expiring().protocol(protocol))?;
        let held = several.lock()?;
        let before: Vec<String> = keys.iter().filter_map(|key| server.get(key)).collect();
        held.extend()?;
        // Of some the last extension was not lost.
        let lost = || keys.iter().zip(&before).step_by(3);
        lost().for_each(|(key, value)| go_back(&server, key, value));
        held.verify()?;
        assert_eq!(count.load(Ordering::Relaxed), lost().count(), "{protocol:?}");
        assert!(lost().all(|(key, value)| server.get(key).as_ref() != Some(value)), "{protocol:?}");
        lost().for_each(|(key, value)| go_back(&server, key, value));
        held.extend()?;
        held.release()?;
        assert!(keys.iter().all(|key| server.get(key).is_none()), "{protocol:?}");
    }
    Ok(())
}

fn a_leader_goes_on() -> Outcome {
    let (server, locker, count) = observed()?;
    let options = LockOptions::expiring_after(millis(1500)).protocol(Protocol::Auto);
    let (lock, stop, led) = (Lock::new(&locker, "k", options)?, CancelToken::new(), AtomicUsize::new(0));
    thread::scope(|scope| -> Outcome {
        let leading = scope.spawn(|| {
            lock.lead(&stop, |held| {
                led.fetch_add(1, Ordering::Relaxed);
                while !stop.is_cancelled() && held.ensure_held().is_ok() {
                    thread::sleep(millis(5));
                }
            })
        });
        for n in 1..=4 {
            until("it leads", || server.get("k").is_some());
            let before = server.get("k").expect("it leads");
            until("it is extended", || server.get("k").as_ref() != Some(&before));
            go_back(&server, "k", &before);
            until("it is reported", || count.load(Ordering::Relaxed) >= n);
        }
        stop.cancel();
        leading.join().unwrap()?;
        assert_eq!(led.load(Ordering::Relaxed), 1, "it has led all the time");
        Ok(())
    })
}

fn an_earlier_value_after_the_lease_is_an_end_of_the_lease() -> Outcome {
    for protocol in PROTOCOLS {
        let (server, locker, _) = observed()?;
        let options = LockOptions::expiring_after(millis(300)).protocol(protocol).timeout(LONG);
        let lock = Lock::new(&locker, "k", options)?;
        let (held, before) = extended(&server, &lock)?;
        let ends = Instant::now() + Duration::from_millis(300);
        while Instant::now() < ends {
            thread::sleep(millis(10));
        }
        go_back(&server, "k", &before);
        let error = held.verify().expect_err("its lease has ended");
        assert!(
            error.is_lost() && !chain(&error).contains("another client's value"),
            "{protocol:?}: {}",
            chain(&error)
        );
        let _ = held.release();
        assert_eq!(
            server.get("k").is_none(),
            protocol != Protocol::Classic,
            "{protocol:?}: it is no other client's"
        );
    }
    Ok(())
}

/// Three programs of which one leads, with a lease that outlasts the time in which a new master has no replica.
fn leads_on() -> Outcome {
    const LEASE: Duration = Duration::from_secs(15);
    let mut failover = Failover::start_with(DOWN_AFTER, ADVISED, "")?;
    let (stop, terms, count) = (CancelToken::new(), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let addresses = failover.addresses();
    let open = || {
        let counts = Arc::clone(&count);
        quick(Locker::sentinel_builder(&addresses, MASTER)?)
            .observer(move |event: &Event<'_>| {
                if let Event::Problem { kind: ProblemKind::ServerWentBack, .. } = event {
                    counts.fetch_add(1, Ordering::Relaxed);
                }
            })
            .build()
    };
    let lockers = [open()?, open()?, open()?];
    thread::scope(|scope| -> Outcome {
        let (stop, terms) = (&stop, &terms);
        let lead = |locker| {
            scope.spawn(move || {
                let options = LockOptions::expiring_after(LEASE).protocol(Protocol::Auto);
                Lock::new(locker, "leader", options)?.lead(stop, |held| {
                    terms.fetch_add(1, Ordering::Relaxed);
                    while !stop.is_cancelled() && held.ensure_held().is_ok() {
                        // Often enough that an extension is among the lost writes.
                        let _ = held.extend();
                        thread::sleep(millis(20));
                    }
                })
            })
        };
        let leading = lockers.each_ref().map(lead);
        let ends = Ends(stop);
        until("one leads", || terms.load(Ordering::Relaxed) > 0);
        thread::sleep(millis(500));
        fail_over(&mut failover, Disturbance::Planned)?;
        thread::sleep(LEASE);
        drop(ends);
        leading.into_iter().try_for_each(|one| one.join().unwrap())?;
        Ok(())
    })?;
    let (terms, went_back) = (terms.into_inner(), count.load(Ordering::Relaxed));
    println!("{terms} terms, {went_back} times the key held an earlier value");
    assert_eq!(terms, 1, "the leader leads on");
    Ok(())
}

/// Ends the leaders, also if the trial fails.
struct Ends<'a>(&'a CancelToken);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

//! A holder hands the lock over to the next thread of the process, in one command: that thread has the lock at once,
//! with a lease of its own.

mod scenario;

use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;
use setnx_lock::{Lock, LockOptions, Protocol};
use setnx_lock_testing::ServerVersion;

use crate::support::scenario::QUEUED;
use crate::support::target::PROTOCOLS;
use crate::support::{HANDED_OVER, LONG, Outcome, Release, millis, release, tests, trial};

pub(crate) use scenario::{Scenario, assert_cancelled, successor};

type Test = fn(Protocol) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, Test)] = tests![each_thread_has_the_lock_at_once_with_a_full_lease_of_its_own,];
    let of = |protocol: Protocol| {
        let name = format!("{protocol:?}").to_lowercase();
        tests.iter().map(move |(test, run)| {
            let run = *run;
            trial(format!("successors::{name}::{test}"), move || run(protocol))
        })
    };
    let mut trials: Vec<Trial> = PROTOCOLS.into_iter().flat_map(of).collect();
    trials.extend(crate::support::trials(
        "successors",
        tests![a_thread_of_any_protocol_and_kind_of_lease_is_next,],
    ));
    trials
}

fn each_thread_has_the_lock_at_once_with_a_full_lease_of_its_own(protocol: Protocol) -> Outcome {
    let scenario = Scenario::new(protocol)?;
    // None of them polls.
    let lock = |seconds| {
        let options = LockOptions::expiring_after(Duration::from_secs(seconds));
        scenario.lock(options.poll_interval(LONG).timeout(LONG))
    };
    let mut held = lock(60).lock()?;
    let successors = [20, 3600, 90].map(|seconds| (successor(&lock(seconds)), Duration::from_secs(seconds)));
    for (next, expiration) in successors {
        next.rests();
        scenario.server.clear_log();
        let before = SystemTime::now();
        assert_eq!(release(held)?, HANDED_OVER);
        held = next.join()?;
        let after = SystemTime::now();
        scenario.assert_holds(&held);
        let lease_begins = held.expires_at().map(SystemTime::from).unwrap() - expiration;
        assert!(
            before - Duration::from_micros(1) <= lease_begins && lease_begins <= after,
            "the lease of {expiration:?} begins at the release"
        );
        assert!(held.remaining().unwrap() <= expiration);
        let asked = scenario.server.log();
        let names: Vec<&str> = asked.iter().map(|asked| asked.name.as_str()).collect();
        let (commands, change) = match protocol {
            Protocol::Classic => (&["GETSET"][..], 0),
            _ => (&["WATCH", "GET", "MULTI", "SET", "EXEC"][..], 3),
        };
        assert_eq!(names, commands);
        let ttl = (expiration + millis(500)).as_millis().to_string();
        let options: &[&str] = if protocol == Protocol::Ttl { &["PX", &ttl] } else { &[] };
        assert_eq!(asked[change].arguments[2..], *options, "{asked:?}");
    }
    assert_eq!(release(held)?, scenario.released());
    assert_eq!(scenario.key.value(), None);
    Ok(())
}

fn a_thread_of_any_protocol_and_kind_of_lease_is_next() -> Outcome {
    let unexpiring = LockOptions::without_expiration().poll_interval(LONG).timeout(LONG);
    // The protocol that is asked for, where the lock expires.
    let queued = |protocol| (Some(protocol), QUEUED.protocol(protocol).notify_waiters(false));
    let kinds = [
        queued(Protocol::Classic),
        queued(Protocol::Watched),
        queued(Protocol::Ttl),
        queued(Protocol::Auto),
        (None, unexpiring),
        (None, unexpiring.protocol(Protocol::Watched)),
    ];
    let current = (Scenario::new(Protocol::Auto)?, Protocol::Ttl, &kinds[..]);
    // Its server has no WATCH.
    let on_old = [queued(Protocol::Classic), queued(Protocol::Auto)];
    let old = (Scenario::emulating(ServerVersion::V2_0, Protocol::Auto)?, Protocol::Classic, &on_old[..]);
    for (scenario, auto, kinds) in [current, old] {
        let lock = |options| Lock::new(&scenario.locker, &scenario.key.key, options);
        let pairs = kinds.iter().flat_map(|holder| kinds.iter().map(move |waiter| (*holder, *waiter)));
        for ((is_expiring, holder), (given, waiter)) in pairs {
            let held = lock(holder)?.lock()?;
            let protocol = held.protocol();
            let next = successor(&lock(waiter)?);
            scenario.server.clear_log();
            let outcome = release(held)?;
            let next = next.join()?;
            let handed_over = is_expiring.is_some() && is_expiring == given;
            let certified = handed_over || is_expiring.is_some() && protocol != Protocol::Classic;
            assert_eq!(outcome, Release::Released { certified }, "{holder:?}");
            if let Some(given) = given {
                assert_eq!(next.protocol(), if given == Protocol::Auto { auto } else { given });
                scenario.assert_holds(&next);
            }
            let names = scenario.server.names();
            let is_written = |name: &&String| ["SETNX", "SET", "GETSET"].contains(&name.as_str());
            assert_eq!(names.iter().filter(is_written).count(), 1, "{holder:?} to {waiter:?}: {names:?}");
            assert_eq!(
                names.contains(&"DEL".to_owned()),
                !handed_over,
                "{holder:?} to {waiter:?}: {names:?}"
            );
            next.release()?;
            assert_eq!(scenario.key.value(), None);
        }
    }
    Ok(())
}

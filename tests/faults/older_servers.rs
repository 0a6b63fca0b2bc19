//! A server that comes back older, as after a restart, or whose
//! address leads to an older replica: Auto goes on by what that has.

use std::iter;

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, MultiLock, Protocol, RefusalKind, Semaphore};
use setnx_lock_testing::{ServerVersion, TestServer};
use testkit::failover::MASTER;

use crate::support::notified::until;
use crate::support::scenario::patient;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, server_of, trials_of};

trials_of! {
    "older_servers";
    a_call_for_a_lock_goes_on,
    what_was_acquired_before_is_released,
    what_was_acquired_before_is_extended,
    what_is_kept_stays_held,
    a_token_leads_to_another_process,
    explicit_protocols_are_refused,
    an_older_replica_is_the_master,
}

/// The version before, and after.
const STEPS: [(ServerVersion, &str, Protocol); 5] = [
    (ServerVersion::V7, "2.4", Protocol::Watched),
    (ServerVersion::V8_4, "2.4", Protocol::Watched),
    (ServerVersion::V7, "1.2", Protocol::Classic),
    (ServerVersion::V2_4, "1.2", Protocol::Classic),
    (ServerVersion::Valkey9, "2.0", Protocol::Classic),
];

fn auto() -> LockOptions {
    expiring().protocol(Protocol::Auto)
}

/// A restart may take a reply with it, and a lease end meanwhile.
fn unless_in_doubt(outcome: Result<(), Error>) -> Result<(), Error> {
    outcome.or_else(|error| match error {
        Error::InDoubt { .. } | Error::Unavailable { .. } | Error::Lost { .. } => Ok(()),
        Error::Several { cause, others, .. } => {
            iter::once(*cause).chain(others).try_for_each(|error| unless_in_doubt(Err(error)))
        }
        error => Err(error),
    })
}

/// Restarts the server as another version. The first to find out that its connection is closed may lose a reply.
fn restart_as(server: &TestServer, after: &str, locker: &Locker) {
    server.restart_as(after);
    let lock = Lock::new(locker, "found out", auto()).expect("that is a key");
    until("it answers", || lock.state().is_ok());
}

/// Runs a test on each step.
fn on_each(test: impl Fn(&TestServer, &Locker, &str, Protocol) -> Outcome) -> Outcome {
    for (before, after, protocol) in STEPS {
        let server = server_of(before);
        test(&server, &patient(&server.url())?.build()?, after, protocol)?;
    }
    Ok(())
}

fn a_call_for_a_lock_goes_on() -> Outcome {
    on_each(|server, locker, after, protocol| {
        let (keys, before) = (["a", "b", "c"], server.version());
        let (one, all) = (Lock::new(locker, "one", auto())?, MultiLock::new(locker, keys, auto())?);
        let permits = Semaphore::new(locker, "permits", 3, auto())?;
        let expired = Lock::new(locker, "expired", auto())?;
        one.lock()?.release()?;
        server.run(&["SET", "expired", "1532000016.5"]);
        server.restart_as(after);
        // It was decided on by the version before.
        for lock in [&one, &expired] {
            let held = lock.try_lock()?.expect("it is free");
            // Watched and Classic acquire a free lock by the same command.
            if before > ServerVersion::V2_4 {
                assert_eq!(held.protocol(), protocol, "{after}");
            }
            held.release()?;
        }
        server.restart_as("7");
        one.lock()?.release()?;
        server.restart_as(after);
        all.lock()?.release()?;
        server.restart_as("7");
        one.lock()?.release()?;
        server.restart_as(after);
        permits.acquire()?.release()?;
        Ok(())
    })
}

fn what_was_acquired_before_is_released() -> Outcome {
    on_each(|server, locker, after, _| {
        let (one, all) =
            (Lock::new(locker, "one", auto())?, MultiLock::new(locker, ["a", "b", "c"], auto())?);
        let permits = Semaphore::new(locker, "permits", 3, auto())?;
        let (one, all, permit) = (one.lock()?, all.lock()?, permits.acquire()?);
        server.restart_as(after);
        unless_in_doubt(one.release())?;
        unless_in_doubt(all.release())?;
        unless_in_doubt(permit.release())?;
        for key in ["one", "a", "b", "c", "permits:0", "permits:1", "permits:2"] {
            until(&format!("{key} is released"), || server.get(key).is_none());
        }
        Ok(())
    })
}

fn what_was_acquired_before_is_extended() -> Outcome {
    on_each(|server, locker, after, _| {
        let (one, all) =
            (Lock::new(locker, "one", auto())?, MultiLock::new(locker, ["a", "b", "c"], auto())?);
        let (one, all) = (one.lock()?, all.lock()?);
        let token = one.fencing_token()?;
        let values = || ["one", "a", "b", "c"].map(|key| server.get(key).expect("it is held"));
        let before = values();
        restart_as(server, after, locker);
        one.extend()?;
        all.extend()?;
        assert!(values().iter().zip(&before).all(|(after, before)| after != before));
        one.ensure_held()?;
        all.ensure_held()?;
        assert_eq!(one.fencing_token()?, token);
        one.extend()?;
        one.release()?;
        all.release()?;
        let next = Lock::new(locker, "one", auto())?.lock()?;
        assert!(next.fencing_token()? > token);
        Ok(())
    })
}

fn what_is_kept_stays_held() -> Outcome {
    const KEYS: usize = 40;
    on_each(|server, locker, after, _| {
        let options = LockOptions::expiring_after(millis(3000)).auto_extend(10 * LONG);
        // Those of explicit protocols are extended together with them.
        let protocols =
            if after == "2.4" { [Protocol::Auto, Protocol::Watched] } else { [Protocol::Auto; 2] };
        let keys: Vec<String> = (0..KEYS).map(|n| format!("k{n}")).collect();
        let acquire =
            |(n, key): (usize, &String)| Lock::new(locker, key, options.protocol(protocols[n % 2]))?.lock();
        let guards: Result<Vec<_>, Error> = keys.iter().enumerate().map(acquire).collect();
        let guards = guards?;
        server.restart_as(after);
        let ends: Vec<_> = guards.iter().map(LockGuard::expires_at).collect();
        for (guard, end) in guards.iter().zip(&ends) {
            until("it is extended", || guard.expires_at() > *end);
        }
        for guard in guards {
            guard.ensure_held()?;
            guard.release()?;
        }
        assert!(keys.iter().all(|key| server.get(key).is_none()));
        Ok(())
    })
}

fn a_token_leads_to_another_process() -> Outcome {
    on_each(|server, locker, after, _| {
        let lock = Lock::new(locker, "k", auto())?;
        let token = lock.lock()?.into_token()?;
        restart_as(server, after, locker);
        let held = lock.resume(&token)?;
        assert!(lock.resume(&token).is_err(), "it works once");
        held.ensure_held()?;
        held.release()?;
        Ok(())
    })
}

fn explicit_protocols_are_refused() -> Outcome {
    for (protocol, after) in [(Protocol::Ttl, "2.4"), (Protocol::Ttl, "1.2"), (Protocol::Watched, "1.2")] {
        let server = TestServer::start();
        let lock = Lock::new(&patient(&server.url())?.build()?, "k", expiring().protocol(protocol))?;
        let held = lock.lock()?;
        let value = server.get("k");
        server.restart_as(after);
        for error in [held.extend().expect_err("too old"), held.release().expect_err("too old")] {
            assert!(is_too_old(&error) && error.to_string().contains("use the protocol Auto"), "{error}");
        }
        assert_eq!(server.get("k"), value);
        assert!(lock.try_lock().is_err_and(|error| is_too_old(&error)));
    }
    Ok(())
}

fn is_too_old(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::TooOld)
}

fn an_older_replica_is_the_master() -> Outcome {
    for (before, after, protocol) in STEPS {
        let master = server_of(before);
        let port = |server: &TestServer| server.address().port();
        let sentinel =
            RedisServer::start_sentinel(&format!("sentinel monitor {MASTER} 127.0.0.1 {} 1", port(&master)))?;
        let locker = Locker::sentinel_builder([sentinel.url()], MASTER)?.retry_for(LONG).build()?;
        let lock = Lock::new(&locker, "k", auto())?;
        let (held, other) = (lock.lock()?, Lock::new(&locker, "other", auto())?.lock()?);
        let replica = TestServer::builder().version(after).start();
        for key in ["k", "other"] {
            replica.run(&["SET", key, &master.get(key).expect("it is held")]);
        }
        assert_eq!(sentinel.say(&["SENTINEL", "REMOVE", MASTER])?, "+OK");
        let monitor = ["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &port(&replica).to_string(), "1"];
        assert_eq!(sentinel.say(&monitor)?, "+OK");
        // Before 2.6 a replica takes writes.
        if before == ServerVersion::V2_4 {
            master.stop();
        } else {
            master.become_replica();
        }
        held.extend()?;
        held.release()?;
        other.release()?;
        assert_eq!((replica.get("k"), replica.get("other")), (None, None));
        assert_eq!(lock.lock()?.protocol(), protocol);
    }
    Ok(())
}

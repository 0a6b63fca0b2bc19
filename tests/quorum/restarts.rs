//! Servers of a quorum that restart without their locks while a holder
//! relies on them, and the time for which they are left alone then.

use std::time::Duration;

use setnx_lock::{Error, Lock, Locker, Quorum, RefusalKind};
use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use super::{KEY, OPTIONS, Servers};
use crate::support::scenario::{client_pool, patient};
use crate::support::{AnyServer as _, LONG, Outcome, chain, server_of, trials_of};

trials_of! {
    "quorum";
    one_server_that_restarts_empty_lets_nobody_in,
    a_majority_that_restarts_empty_lets_another_in,
    a_restart_within_the_majority_lets_another_in,
    a_server_is_left_alone_after_its_restart,
    a_server_that_has_settled_is_used,
    a_server_that_does_not_say_how_long_it_runs_is_refused,
    a_server_that_is_busy_is_asked_again,
    settling_needs_the_check_of_the_server,
}

fn one_server_that_restarts_empty_lets_nobody_in() -> Outcome {
    for (count, restarted) in [(3, 1), (5, 2)] {
        let servers = Servers::start(count);
        let held = servers.held(&servers.lock(OPTIONS)?)?;
        servers.0[..restarted].iter().for_each(TestServer::restart_empty);
        assert_eq!(servers.holding(), count - restarted);
        assert!(servers.lock(OPTIONS)?.try_lock()?.is_none());
        servers.until_holding(count - restarted);
        held.verify()?;
        held.release()?;
    }
    Ok(())
}

fn a_majority_that_restarts_empty_lets_another_in() -> Outcome {
    let servers = Servers::start(3);
    let held = servers.held(&servers.lock(OPTIONS)?)?;
    servers.0[..2].iter().for_each(TestServer::restart_empty);
    let other = servers.lock(OPTIONS)?.try_lock()?.expect("two servers know nothing of the holder");
    let error = held.verify().expect_err("two of three are lost");
    assert!(error.is_lost(), "{error:?}");
    other.release()?;
    Ok(())
}

/// One server less is enough: the third has not granted the lock. This is why servers are to settle.
fn a_restart_within_the_majority_lets_another_in() -> Outcome {
    let servers = Servers::start(3);
    servers.0[2].stop();
    let held = servers.lock(OPTIONS)?.lock()?;
    assert_eq!([0, 1].map(|server| servers.value(server).is_some()), [true, true]);
    servers.0[2].restart_empty();
    servers.0[1].restart_empty();
    let other = servers.lock(OPTIONS)?.try_lock()?.expect("two servers know nothing of the holder");
    held.ensure_held()?;
    assert!(held.verify().expect_err("one of three is left").is_lost());
    other.release()?;
    Ok(())
}

/// Returns the lock of a program that leaves a server alone for so long.
fn settling(servers: &Servers, time: Duration) -> Result<Quorum, Error> {
    Quorum::new(servers.lockers_by(|builder| builder.settle_after_restart(time))?, KEY, OPTIONS)
}

fn a_server_is_left_alone_after_its_restart() -> Outcome {
    // Far longer than the servers have run.
    const SETTLES: Duration = Duration::from_secs(100_000);
    let servers = Servers::start(3);
    servers.0[2].stop();
    let held = servers.lock(OPTIONS)?.lock()?;
    servers.0[2].restart_empty();
    servers.0[1].restart_empty();
    let error = settling(&servers, SETTLES)?.try_lock().expect_err("no server has settled");
    assert!(error.is_transient() && !error.is_contention(), "{error:?}");
    let text = chain(&error);
    assert!(text.contains("since its restart, in which it may have lost locks"), "{text}");
    let Error::NoMajority { answers, .. } = error else { panic!("{text}") };
    let answers: Vec<_> = answers.into_iter().filter_map(|(_, answer)| answer).collect();
    assert!(answers.len() >= 2, "two are enough: {answers:?}");
    for answer in answers {
        let Error::Refused { refusal, .. } = &answer else { panic!("{answer:?}") };
        assert_eq!(refusal.kind(), RefusalKind::Settling);
    }
    held.ensure_held()?;
    Ok(())
}

fn a_server_that_has_settled_is_used() -> Outcome {
    let servers = Servers::start(3);
    // It waits, since they have just started.
    settling(&servers, Duration::from_secs(1))?.lock()?.release()?;
    // A lock on one server waits as well.
    for emulated in [ServerVersion::V1_2, ServerVersion::V2_4] {
        let server = server_of(emulated);
        let locker = patient(&server.url())?.settle_after_restart(Duration::from_secs(1)).build()?;
        Lock::new(&locker, KEY, OPTIONS)?.lock()?.release()?;
    }
    Ok(())
}

fn a_server_that_does_not_say_how_long_it_runs_is_refused() -> Outcome {
    let server = TestServer::start();
    server.say(&["ACL", "SETUSER", "limited", "on", "nopass", "~*", "+@all", "-info"])?;
    let url = format!("redis://limited:x@{}/", server.address());
    let settling = |url: &str| -> Result<Lock, Error> {
        let locker = patient(url)?.settle_after_restart(Duration::from_millis(1)).build()?;
        Lock::new(&locker, KEY, OPTIONS)
    };
    let error = settling(&url)?.try_lock().expect_err("it does not say");
    assert!(chain(&error).contains("does not report how long it has run"), "{error}");
    assert!(!error.is_transient());
    // A server that hangs up on INFO says nothing either.
    server.next("INFO", Fault::CutBefore);
    let error = settling(&server.url())?.try_lock().expect_err("it does not say");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_eq!(server.names(), ["AUTH"], "of the first user");
    Ok(())
}

/// Its refusal of INFO says nothing of the user's rights.
fn a_server_that_is_busy_is_asked_again() -> Outcome {
    let server = TestServer::start();
    for (refusal, kind) in [
        ("-BUSY Redis is busy running a script.\r\n", RefusalKind::Busy),
        ("-NOAUTH Authentication required.\r\n", RefusalKind::NoPassword),
    ] {
        server.clear_log();
        server.next("INFO", Fault::Say(refusal));
        let locker = patient(&server.url())?.settle_after_restart(Duration::from_millis(1)).build()?;
        let error = Lock::new(&locker, KEY, OPTIONS)?.try_lock().expect_err("INFO is refused");
        let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
        assert_eq!(refusal.kind(), kind);
        assert_eq!(error.is_transient(), kind == RefusalKind::Busy);
    }
    Ok(())
}

fn settling_needs_the_check_of_the_server() -> Outcome {
    let builder = Locker::builder("redis://127.0.0.1:1/")?.skip_server_check();
    for builder in [builder, Locker::with_pool(client_pool("redis://127.0.0.1:1/"))] {
        let error = builder.settle_after_restart(LONG).build().expect_err("it is refused");
        assert!(chain(&error).contains("`settle_after_restart` needs the check of the server"), "{error}");
    }
    Ok(())
}

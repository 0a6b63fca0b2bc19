//! Locks that go to other processes: what is sent, and a server that settles.

use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Error, Lock, Locker, Protocol, RefusalKind};
use setnx_lock_testing::ServerVersion;

use crate::support::scenario::{patient, until_connected};
use crate::support::sent::{connected, names, probed, recorded};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, expiring, millis, server_of, trials_of};

trials_of! {
    "handing_over";
    what_is_sent_for_a_token,
    a_token_waits_for_a_server_that_settles,
    a_value_that_was_overwritten_by_another_user_of_the_token_is_written_again,
}

/// A token costs nothing, and one round trip more than a release is made to resume.
fn what_is_sent_for_a_token() -> Outcome {
    let sent = |version: ServerVersion, protocol: Protocol| -> Result<Vec<Vec<String>>, Error> {
        let server = server_of(version);
        let locker = patient(&server.url())?.build()?;
        probed(&locker, protocol)?;
        let lock = connected(Lock::new(&locker, "k", expiring().protocol(protocol))?)?;
        let held = lock.lock()?;
        server.clear_log();
        let token = held.into_token()?;
        assert!(recorded(&server).is_empty());
        let held = lock.resume(&token)?;
        let resumed = recorded(&server);
        held.release()?;
        Ok(resumed)
    };
    let classic = sent(ServerVersion::V1_2, Protocol::Classic)?;
    assert_eq!(names(&classic), ["GET", "GETSET"]);
    for protocol in [Protocol::Watched, Protocol::Ttl] {
        let compared = sent(ServerVersion::V7, protocol)?;
        assert_eq!(names(&compared), ["WATCH", "GET", "MULTI", "SET", "EXEC"], "{protocol:?}");
        let at_once = sent(ServerVersion::V8_4, protocol)?;
        assert_eq!(names(&at_once), ["SET"], "{protocol:?}: {at_once:?}");
    }
    Ok(())
}

/// The server may have forgotten that the token was used.
fn a_token_waits_for_a_server_that_settles() -> Outcome {
    for protocol in PROTOCOLS {
        let server = server_of(ServerVersion::V7);
        let settling =
            patient(&server.url())?.settle_after_restart(LONG).retry_for(Duration::ZERO).build()?;
        let lock = |locker: &Locker| Lock::new(locker, "k", expiring().protocol(protocol));
        server.advance(2 * LONG);
        let token = lock(&settling)?.lock()?.into_token()?;
        server.restart();
        let resumed = until_connected(|| lock(&settling)?.resume(&token));
        let Err(Error::Refused { refusal, .. }) = &resumed else { panic!("{protocol:?}: {resumed:?}") };
        assert_eq!(refusal.kind(), RefusalKind::Settling);
        // Nothing was changed.
        lock(&patient(&server.url())?.build()?)?.resume(&token)?.release()?;
    }
    Ok(())
}

fn a_value_that_was_overwritten_by_another_user_of_the_token_is_written_again() -> Outcome {
    let server = server_of(ServerVersion::V7);
    let locker = patient(&server.url())?.build()?;
    let lock = Lock::new(&locker, "k", expiring())?;
    // Where the machine stalls, it is too late.
    for _ in 0..5 {
        let held = lock.resume(&lock.lock()?.into_token()?)?;
        let own = server.get("k").expect("it is held");
        let losers = format!("{}0", &own[..own.len() - 1]);
        server.run(&["SET", "k", &losers]);
        let end = Instant::now() + millis(1500);
        while server.get("k").is_none_or(|value| value == losers) && Instant::now() < end {
            thread::sleep(millis(5));
        }
        let is_repaired = server.get("k").is_some_and(|value| value != losers) && held.verify().is_ok();
        drop(held);
        if is_repaired {
            return Ok(());
        }
        server.delete("k");
    }
    Err("it was never written again".into())
}

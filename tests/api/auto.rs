//! `Protocol::Auto` where the version says more than the server permits.

use std::sync::Arc;
use std::time::SystemTime;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Lock, LockGuard, MultiLock, Protocol};

use crate::support::monitor::{Monitor, names};
use crate::support::scenario::{opened, patient};
use crate::support::{Outcome, RedisServer, Release, Target, expiring, release, shown_later, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "auto",
        tests![
            a_user_without_the_right_to_watch_gets_classic,
            a_user_without_the_right_to_set_gets_watched,
            a_user_with_all_rights_gets_ttl,
            an_extension_without_the_right_to_watch_has_no_time_to_live,
            the_first_command_of_a_locker_knows_the_version,
            keys_that_are_asked_for_together_get_ttl,
        ],
    )
}

const KEY: &str = "locks:auto";
const CLASSIC: Release = Release::Released { certified: false };
const CERTIFIED: Release = Release::Released { certified: true };

/// Acquires a free lock and an expired one as this user, and releases them.
fn acquires_and_releases(rights: &str, expected: Release) -> Outcome {
    let server = RedisServer::start_with(&format!("user tester on >pw {rights}"))?;
    let mut direct = redis::Client::open(server.url())?.get_connection()?;
    let locker = opened(&server.url().replace("redis://", "redis://tester:pw@"))?;
    let lock = Lock::new(&locker, KEY, expiring().protocol(Protocol::Auto))?;
    let held = lock.lock()?;
    assert_eq!(release(held)?, expected, "{rights}");
    let () = direct.set(KEY, "1532000016.5")?;
    let held = lock.lock()?;
    assert_eq!(release(held)?, expected, "after a takeover, {rights}");
    assert!(!direct.exists::<_, bool>(KEY)?);
    Ok(())
}

fn a_user_without_the_right_to_watch_gets_classic() -> Outcome {
    acquires_and_releases("~locks:* +info +setnx +get +getset +del", CLASSIC)
}

fn a_user_without_the_right_to_set_gets_watched() -> Outcome {
    let server = RedisServer::start_with("user tester on >pw ~* &* +@all -set")?;
    let locker = opened(&server.url().replace("redis://", "redis://tester:pw@"))?;
    let held = Lock::new(&locker, KEY, expiring().protocol(Protocol::Auto))?.lock()?;
    assert_eq!(held.protocol(), Protocol::Watched);
    assert_eq!(release(held)?, CERTIFIED);
    Ok(())
}

fn a_user_with_all_rights_gets_ttl() -> Outcome {
    acquires_and_releases("~* &* +@all", CERTIFIED)
}

fn an_extension_without_the_right_to_watch_has_no_time_to_live() -> Outcome {
    let server = Arc::new(RedisServer::start_with("user tester on >pw ~* &* +@all -watch")?);
    let key = Target::of(&server).key("auto");
    let locker = opened(&server.url().replace("redis://", "redis://tester:pw@"))?;
    let held = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Auto))?.lock()?;
    assert!(key.time_to_live() > 0);
    held.extend()?;
    assert_eq!(key.time_to_live(), -1);
    let lease = held.expires_at().map(SystemTime::from);
    assert_eq!(key.until(), lease.map(|lease| lease + shown_later(Protocol::Classic)));
    assert_eq!(release(held)?, CLASSIC);
    assert_eq!(key.value(), None);
    Ok(())
}

/// A program that locks once has no other.
fn the_first_command_of_a_locker_knows_the_version() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let key = Target::of(&server).key("auto");
    for builder in [patient(&server.url())?, patient(&server.url())?.skip_server_check()] {
        let monitor = Monitor::on(&server)?;
        let held = Lock::new(&builder.build()?, &key.key, expiring().protocol(Protocol::Auto))?.lock()?;
        let sent = monitor.recorded(&server)?;
        let checked = names(&sent).contains(&"INFO");
        assert!(names(&sent).contains(if checked { &"SET" } else { &"SETNX" }), "{sent:?}");
        assert_eq!(held.protocol(), if checked { Protocol::Ttl } else { Protocol::Classic });
        held.release()?;
    }
    Ok(())
}

fn keys_that_are_asked_for_together_get_ttl() -> Outcome {
    let server = RedisServer::start()?;
    let mut direct = redis::Client::open(server.url())?.get_connection()?;
    // One has expired, so that the answer to the common trip is followed by rules of its own; in each place.
    for expired in 0..2 {
        let locker = opened(&server.url())?;
        let keys = ["locks:a", "locks:b"];
        let () = direct.set(keys[expired], "1532000016.5")?;
        let held = MultiLock::new(&locker, keys, expiring().protocol(Protocol::Auto))?.lock()?;
        let protocols: Vec<Protocol> = held.guards().iter().map(LockGuard::protocol).collect();
        assert_eq!(protocols, [Protocol::Ttl; 2], "{expired}");
        held.release()?;
    }
    Ok(())
}

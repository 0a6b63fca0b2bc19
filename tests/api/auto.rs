//! `Protocol::Auto` where the version says more than the server permits.

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Lock, LockGuard, MultiLock, Protocol};

use crate::support::scenario::opened;
use crate::support::{Outcome, RedisServer, Release, expiring, release, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "auto",
        tests![
            a_user_without_the_right_to_watch_gets_classic,
            a_user_with_all_rights_gets_watched,
            keys_that_are_asked_for_together_get_watched,
        ],
    )
}

const KEY: &str = "locks:auto";
const CLASSIC: Release = Release::Released { certified: false };
const WATCHED: Release = Release::Released { certified: true };

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

fn a_user_with_all_rights_gets_watched() -> Outcome {
    acquires_and_releases("~* &* +@all", WATCHED)
}

fn keys_that_are_asked_for_together_get_watched() -> Outcome {
    let server = RedisServer::start()?;
    let mut direct = redis::Client::open(server.url())?.get_connection()?;
    // One has expired, so that the answer to the common trip is followed by rules of its own; in each place.
    for expired in 0..2 {
        let locker = opened(&server.url())?;
        let keys = ["locks:a", "locks:b"];
        let () = direct.set(keys[expired], "1532000016.5")?;
        let held = MultiLock::new(&locker, keys, expiring().protocol(Protocol::Auto))?.lock()?;
        let protocols: Vec<Protocol> = held.guards().iter().map(LockGuard::protocol).collect();
        assert_eq!(protocols, [Protocol::Watched; 2], "{expired}");
        held.release()?;
    }
    Ok(())
}

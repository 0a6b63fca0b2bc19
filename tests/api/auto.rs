//! `Protocol::Auto` where the version says more than the server permits.

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Lock, Protocol};

use crate::support::scenario::opened;
use crate::support::{Outcome, RedisServer, Release, expiring, release, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "auto",
        tests![a_user_without_the_right_to_watch_gets_classic, a_user_with_all_rights_gets_watched],
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

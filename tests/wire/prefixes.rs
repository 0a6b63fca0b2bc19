//! Lockers with a key prefix: all that they write, read or listen to begins with it.

use std::sync::{Arc, Mutex};
use std::thread;

use setnx_lock::{
    Error, Event, Key, Lock, LockOptions, LockState, Locker, MultiLock, ProblemKind, Protocol, Quorum,
    RwLock, Semaphore,
};
use setnx_lock_testing::{ServerVersion, TestServer};

use crate::support::notified::{NOTIFIED, Waiter};
use crate::support::scenario::patient;
use crate::support::sent::recorded;
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, server_of, trials_of};

trials_of! {
    "prefixes";
    a_user_with_rights_to_the_prefix_alone_does_everything,
    all_that_is_sent_begins_with_it,
    what_is_shown_is_the_whole_key,
    a_quorum_has_one_prefix,
}

const PREFIX: &str = "app1:";

/// Does all that a locker can, twice over.
fn use_all(lockers: &[Locker; 2], protocol: Protocol) -> Outcome {
    let [locker, other] = lockers;
    let options = NOTIFIED.protocol(protocol);
    let lock = Lock::new(locker, "k", options)?;
    let held = lock.lock()?;
    held.extend()?;
    held.verify()?;
    held.fencing_token()?;
    let waiter = Waiter::of(&Lock::new(other, "k", options)?);
    thread::sleep(millis(50));
    let held = lock.resume(&held.into_token()?)?;
    held.release()?;
    waiter.came()?.release()?;
    other.release_token(&lock.lock()?.into_token()?)?;
    assert_eq!(lock.state()?, LockState::Absent);
    let plain = expiring().protocol(protocol);
    MultiLock::new(locker, ["b", "a"], plain)?.lock()?.release()?;
    Semaphore::new(locker, "permits", 3, plain)?.acquire()?.release()?;
    let readers = RwLock::new(locker, "readers", 2, plain)?;
    readers.read()?.release()?;
    readers.write()?.release()?;
    Ok(())
}

/// What went wrong with notifications.
type Problems = Arc<Mutex<Vec<String>>>;

fn lockers(url: &str) -> Result<([Locker; 2], Problems), Error> {
    let problems = Problems::default();
    let build = || {
        let problems = Arc::clone(&problems);
        let note = move |event: &Event<'_>| {
            if let Event::Problem { kind: ProblemKind::NotificationsUnavailable, details, .. } = event {
                problems.lock().unwrap().push((*details).to_owned());
            }
        };
        patient(url)?.key_prefix(PREFIX).observer(note).build()
    };
    Ok(([build()?, build()?], problems))
}

fn a_user_with_rights_to_the_prefix_alone_does_everything() -> Outcome {
    let server = RedisServer::start()?;
    server.say(&["ACL", "SETUSER", "app", "on", ">pw", "~app1:*", "resetchannels", "&app1:*", "+@all"])?;
    let url = format!("redis://app:pw@{}/", server.address());
    for protocol in PROTOCOLS.into_iter().chain([Protocol::Auto]) {
        let (lockers, problems) = lockers(&url)?;
        use_all(&lockers, protocol)?;
        assert_eq!(*problems.lock().unwrap(), [""; 0], "{protocol:?}");
    }
    let refused = Lock::new(&patient(&url)?.build()?, "k", expiring())?.lock();
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    Ok(())
}

fn all_that_is_sent_begins_with_it() -> Outcome {
    for version in ServerVersion::ALL {
        let server = server_of(version);
        let protocol = if version < ServerVersion::V2_2 { Protocol::Classic } else { Protocol::Auto };
        let (lockers, _) = lockers(&server.url())?;
        let [locker, _] = &lockers;
        if version < ServerVersion::V2_0 {
            Lock::new(locker, "k", expiring())?.lock()?.release()?;
            MultiLock::new(locker, ["b", "a"], expiring())?.lock()?.release()?;
        } else {
            use_all(&lockers, protocol)?;
        }
        for command in recorded(&server) {
            let (name, words) = command.split_first().expect("it has a name");
            let named = match name.as_str() {
                "INFO" | "MULTI" | "EXEC" | "DISCARD" | "UNWATCH" | "PING" | "SELECT" | "CLIENT" => &[][..],
                // Of the probe, without a key.
                "DEL" if words.is_empty() => &[],
                "MGET" | "PUBLISH" => words,
                _ => &words[..1],
            };
            assert!(named.iter().all(|word| word.starts_with(PREFIX)), "{version:?}: {command:?}");
        }
    }
    Ok(())
}

fn what_is_shown_is_the_whole_key() -> Outcome {
    let server = TestServer::start();
    let locker = patient(&server.url())?.key_prefix(PREFIX).build()?;
    let lock = Lock::new(&locker, "k", expiring().timeout(millis(1)))?;
    assert_eq!(lock.key(), &Key::from("app1:k"));
    server.hold("app1:k", LONG);
    let error = lock.lock().expect_err("another has it");
    assert!(error.key() == Some(lock.key()) && error.to_string().contains("app1:k"), "{error}");
    // Without a prefix it is the same lock.
    let whole = Lock::new(&patient(&server.url())?.build()?, "app1:k", expiring())?;
    assert!(whole.try_lock()?.is_none());
    server.delete("app1:k");
    let token = lock.lock()?.into_token()?;
    assert_eq!(token.key(), "app1:k");
    let held = whole.resume(&token)?;
    assert_eq!(held.key(), "app1:k");
    drop(held);
    let held = lock.lock()?;
    assert_eq!(locker.held()[0].key, "app1:k");
    drop(held);
    let several = MultiLock::new(&locker, ["b", "a"], expiring())?.lock()?;
    assert_eq!(
        locker.held().iter().map(|held| held.key.to_string()).collect::<Vec<_>>(),
        ["app1:a", "app1:b"]
    );
    drop(several);
    assert_eq!(Semaphore::new(&locker, "s", 1, expiring())?.keys(), [Key::from("app1:s:0")]);
    let error = Lock::new(&locker, "", expiring()).expect_err("an empty key is none, also behind a prefix");
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    // Any bytes.
    let odd = patient(&server.url())?.key_prefix(&b"\xff"[..]).build()?;
    Lock::new(&odd, "k", LockOptions::without_expiration())?
        .with(|held| assert_eq!(held.key().as_bytes(), b"\xffk"))?;
    Ok(())
}

fn a_quorum_has_one_prefix() -> Outcome {
    let servers = [(); 3].map(|()| TestServer::start());
    let locker = |at: usize, prefix: &str| patient(&servers[at].url())?.key_prefix(prefix).build();
    let lockers = [locker(0, PREFIX)?, locker(1, PREFIX)?, locker(2, PREFIX)?];
    let quorum = Quorum::new(&lockers, "k", expiring())?;
    let held = quorum.lock()?;
    assert!(servers.iter().filter(|server| server.get("app1:k").is_some()).count() >= 2);
    drop(held);
    let others = [locker(0, PREFIX)?, locker(1, "app2:")?, locker(2, PREFIX)?];
    let error = Quorum::new(&others, "k", expiring()).expect_err("they differ");
    assert!(error.to_string().contains("different key prefixes"), "{error}");
    Ok(())
}

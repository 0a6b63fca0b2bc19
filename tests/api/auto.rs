//! `Protocol::Auto` where the version says more than the server permits.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::SystemTime;

use redis::Commands as _;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, MultiLock, Protocol, RwLock, Semaphore};
use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use crate::support::asleep::Sleeper;
use crate::support::notified::{NEVER, Reasons, Waiter, elsewhere, list_of, until_waiting};
use crate::support::scenario::{client_pool, opened, patient};
use crate::support::sent::{connected, names, recorded};
use crate::support::{
    AnyServer, LONG, Outcome, Release, Target, chain, expiring, millis, release, server_of, trials_of,
};

trials_of! {
    "auto";
    a_user_without_the_right_to_watch_gets_classic,
    a_user_without_the_right_to_set_is_refused,
    a_user_without_the_right_to_ask_for_a_time_to_live_takes_over_as_watched,
    a_user_with_all_rights_gets_ttl,
    what_is_refused_of_the_key_says_nothing_of_the_commands,
    what_is_refused_of_the_key_hides_no_missing_right,
    what_is_refused_for_now_is_tried_again,
    a_lock_without_an_expiration_is_watched,
    a_probe_without_a_reply_is_repeated,
    a_server_that_is_full_has_transactions,
    a_right_that_is_taken_away_later_is_missed,
    a_command_that_is_missing_later_is_named,
    the_first_command_of_a_locker_knows_the_version,
    a_lease_does_not_begin_before_the_locker_has_connected,
    keys_that_are_asked_for_together_get_ttl,
    a_waiter_of_another_process_is_woken,
    wake_ups_are_turned_off,
    a_release_without_wake_ups_wakes_the_threads_of_its_process,
    permits_wake_other_processes_too,
    where_none_can_be_sent_or_received_nothing_is_tried,
}

const KEY: &str = "locks:auto";
const CLASSIC: Release = Release::Released { certified: false };
const CERTIFIED: Release = Release::Released { certified: true };

/// Acquires a free lock and an expired one as this user, and releases them.
fn acquires_and_releases(rights: &str, expected: Release) -> Outcome {
    let server = TestServer::builder().config(&format!("user tester on >pw {rights}")).start();
    let mut direct = redis::Client::open(server.url())?.get_connection()?;
    let locker = opened(&server.url().replace("redis://", "redis://tester:pw@"))?;
    let lock = Lock::new(&locker, KEY, expiring().protocol(Protocol::Auto))?;
    let held = lock.lock()?;
    assert_eq!(release(held)?, expected, "{rights}");
    let () = direct.set(KEY, "1532000016.5000000000000001")?;
    let held = lock.lock()?;
    assert_eq!(release(held)?, expected, "after a takeover, {rights}");
    assert!(!direct.exists::<_, bool>(KEY)?);
    Ok(())
}

fn a_user_without_the_right_to_watch_gets_classic() -> Outcome {
    acquires_and_releases("~locks:* +info +setnx +get +getset +del", CLASSIC)
}

/// That cannot be tried without a write.
fn a_user_without_the_right_to_set_is_refused() -> Outcome {
    let server = TestServer::builder().config("user tester on >pw ~* &* +@all -set").start();
    let locker = opened(&server.url().replace("redis://", "redis://tester:pw@"))?;
    let refused = Lock::new(&locker, KEY, expiring().protocol(Protocol::Auto))?.lock();
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    Ok(())
}

fn a_user_without_the_right_to_ask_for_a_time_to_live_takes_over_as_watched() -> Outcome {
    acquires_and_releases("~* +info +set +setnx +get +del +watch +multi +exec +discard", CERTIFIED)
}

fn a_user_with_all_rights_gets_ttl() -> Outcome {
    acquires_and_releases("~* &* +@all", CERTIFIED)
}

/// Nothing else says that a key is not the user's, or that it is the turn of another node: that is said of the lock.
fn what_is_refused_of_the_key_says_nothing_of_the_commands() -> Outcome {
    let server = TestServer::builder().config("user tester on >pw ~locks:* &* +@all").start();
    let locker = opened(&server.url().replace("redis://", "redis://tester:pw@"))?;
    let lock = |key| Lock::new(&locker, key, expiring().protocol(Protocol::Auto));
    assert!(matches!(lock("other:auto")?.lock(), Err(Error::Refused { .. })));
    let held = lock(KEY)?.lock()?;
    assert_eq!(held.protocol(), Protocol::Ttl);
    assert_eq!(release(held)?, CERTIFIED);
    Ok(())
}

/// The reply to WATCH is about the key, and that to MULTI about the user's rights.
fn what_is_refused_of_the_key_hides_no_missing_right() -> Outcome {
    let server = TestServer::builder().config("user tester on >pw ~locks:* &* +@all -multi").start();
    let locker = opened(&server.url().replace("redis://", "redis://tester:pw@"))?;
    let lock = |key, protocol| Lock::new(&locker, key, expiring().protocol(protocol));
    for (key, protocol) in [("other", Protocol::Watched), (KEY, Protocol::Watched), (KEY, Protocol::Ttl)] {
        let refused = lock(key, protocol)?.lock();
        assert!(matches!(refused, Err(Error::Refused { .. })), "{key}, {protocol:?}: {refused:?}");
    }
    let held = lock(KEY, Protocol::Auto)?.lock()?;
    assert_eq!(held.protocol(), Protocol::Classic);
    assert_eq!(release(held)?, CLASSIC);
    Ok(())
}

/// The server would free a lock with a time to live.
fn a_lock_without_an_expiration_is_watched() -> Outcome {
    let server = TestServer::start();
    let options = LockOptions::without_expiration().protocol(Protocol::Auto);
    let held = Lock::new(&opened(&server.url())?, KEY, options)?.lock()?;
    assert_eq!(held.protocol(), Protocol::Watched);
    assert_eq!(server.run(&["TTL", KEY]), "-1");
    Ok(held.release()?)
}

/// A server that refuses for now is waited for, and tried then.
fn what_is_refused_for_now_is_tried_again() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    server.next("WATCH", Fault::Say("-LOADING Redis is loading the dataset in memory\r\n"));
    let held = Lock::new(&locker, KEY, expiring().protocol(Protocol::Auto))?.lock()?;
    assert_eq!(held.protocol(), Protocol::Ttl);
    held.release()?;
    assert_eq!(server.names().iter().filter(|name| *name == "PTTL").count(), 2, "{:?}", server.names());
    Ok(())
}

/// A call that waits for ever looks again after the time of a command.
fn a_probe_without_a_reply_is_repeated() -> Outcome {
    let server = TestServer::start();
    let locker = patient(&server.url())?.command_timeout(millis(300)).build()?;
    server.next("PTTL", Fault::LoseReply);
    let lock = Lock::new(&locker, KEY, expiring().wait_forever().protocol(Protocol::Ttl))?;
    let (acquired, ended) = mpsc::channel();
    thread::spawn(move || acquired.send(lock.lock().map(LockGuard::release)));
    ended.recv_timeout(LONG)???;
    assert_eq!(server.names().iter().filter(|name| *name == "PTTL").count(), 2, "{:?}", server.names());
    Ok(())
}

/// Up to 2.4 it refuses EXEC, and the transaction stays open.
fn a_server_that_is_full_has_transactions() -> Outcome {
    let server = server_of(ServerVersion::V2_4);
    server.next("EXEC", Fault::Say("-ERR command not allowed when used memory > 'maxmemory'\r\n"));
    let held = Lock::new(&opened(&server.url())?, KEY, expiring().protocol(Protocol::Auto))?.lock()?;
    assert_eq!(server.names().join(" "), "WATCH GET MULTI EXEC DISCARD DEL SETNX");
    assert_eq!((held.protocol(), release(held)?), (Protocol::Watched, CERTIFIED));
    Ok(())
}

/// It is refused from then on, and granted again by a user with the right.
fn a_right_that_is_taken_away_later_is_missed() -> Outcome {
    let server = Arc::new(TestServer::builder().config("user tester on >pw ~* &* +@all").start());
    let key = Target::of(&server).key("auto");
    let locker = opened(&server.url().replace("redis://", "redis://tester:pw@"))?;
    let held = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Auto))?.lock()?;
    server.say(&["ACL", "SETUSER", "tester", "-watch"])?;
    assert!(matches!(held.extend(), Err(Error::Refused { .. })));
    assert!(matches!(held.release(), Err(Error::Refused { .. })));
    assert!(key.value().is_some(), "until it expires");
    key.delete();
    Ok(())
}

/// Auto has used what the server had: another protocol is no advice.
fn a_command_that_is_missing_later_is_named() -> Outcome {
    for (protocol, advises) in [(Protocol::Auto, false), (Protocol::Watched, true)] {
        let server = TestServer::start();
        let held = Lock::new(&opened(&server.url())?, KEY, expiring().protocol(protocol))?.lock()?;
        server.next("EXEC", Fault::Say("-ERR unknown command 'EXEC'\r\n"));
        let text = chain(&held.release().expect_err("EXEC is unknown"));
        assert!(text.contains("ERR unknown command 'EXEC'"), "{text}");
        assert_eq!(text.contains("use the protocol Auto"), advises, "{protocol:?}: {text}");
    }
    Ok(())
}

/// A program that locks once has no other.
fn the_first_command_of_a_locker_knows_the_version() -> Outcome {
    let server = Arc::new(TestServer::start());
    let key = Target::of(&server).key("auto");
    for builder in [patient(&server.url())?, patient(&server.url())?.skip_server_check()] {
        server.clear_log();
        let held = Lock::new(&builder.build()?, &key.key, expiring().protocol(Protocol::Auto))?.lock()?;
        let sent = recorded(&server);
        let checked = names(&sent).contains(&"INFO");
        assert!(names(&sent).contains(if checked { &"SET" } else { &"SETNX" }), "{sent:?}");
        assert_eq!(held.protocol(), if checked { Protocol::Ttl } else { Protocol::Classic });
        held.release()?;
    }
    Ok(())
}

fn a_lease_does_not_begin_before_the_locker_has_connected() -> Outcome {
    let server = TestServer::start();
    let late = millis(400);
    server.next("INFO", Fault::DelayReply(late));
    let lock = Lock::new(&opened(&server.url())?, KEY, expiring().protocol(Protocol::Auto))?;
    let connected = SystemTime::now() + late;
    let held = lock.lock()?;
    assert!(SystemTime::from(held.expires_at().expect("it expires")) >= connected + LONG);
    assert_eq!(server.faults_left(), 0);
    Ok(())
}

fn keys_that_are_asked_for_together_get_ttl() -> Outcome {
    let server = TestServer::start();
    let mut direct = redis::Client::open(server.url())?.get_connection()?;
    // One has expired, so that the answer to the common trip is followed by rules of its own; in each place.
    for expired in 0..2 {
        let locker = opened(&server.url())?;
        let keys = ["locks:a", "locks:b"];
        let () = direct.set(keys[expired], "1532000016.5000000000000001")?;
        let held = MultiLock::new(&locker, keys, expiring().protocol(Protocol::Auto))?.lock()?;
        let protocols: Vec<Protocol> = held.guards().iter().map(LockGuard::protocol).collect();
        assert_eq!(protocols, [Protocol::Ttl; 2], "{expired}");
        held.release()?;
    }
    Ok(())
}

/// Each looks at the key once in its life, unless it is woken. The waiter's locker has sent nothing before.
fn a_waiter_of_another_process_is_woken() -> Outcome {
    const AUTO: LockOptions =
        LockOptions::expiring_after(NEVER).timeout(NEVER).poll_interval(NEVER).protocol(Protocol::Auto);
    let server = TestServer::start();
    for options in [AUTO, AUTO.notify_waiters(true)] {
        let held = elsewhere(&server, KEY, options)?.lock()?;
        let waiter = Waiter::of(&elsewhere(&server, KEY, options)?);
        until_waiting(&server, KEY, 1);
        assert!(waiter.still_waits());
        held.release()?;
        waiter.came()?.release()?;
    }
    Ok(())
}

fn a_release_without_wake_ups_wakes_the_threads_of_its_process() -> Outcome {
    const AUTO: LockOptions =
        LockOptions::expiring_after(NEVER).timeout(NEVER).poll_interval(NEVER).protocol(Protocol::Auto);
    let server = TestServer::start();
    let locker = patient(&server.url())?.build()?;
    let classic = AUTO.protocol(Protocol::Classic);
    for options in [AUTO.notify_waiters(false), classic, classic.notify_waiters(true)] {
        let held = Lock::new(&locker, KEY, options)?.lock()?;
        let lock = Lock::new(&locker, KEY, AUTO)?;
        let waiter = Sleeper::start(move || lock.lock()?.release());
        waiter.rests();
        held.release()?;
        waiter.join()?;
    }
    Ok(())
}

fn permits_wake_other_processes_too() -> Outcome {
    let server = TestServer::start();
    for (options, wakes) in [(expiring(), true), (expiring().notify_waiters(false), false)] {
        let locker = patient(&server.url())?.build()?;
        let permits = Semaphore::new(&locker, KEY, 3, options.protocol(Protocol::Auto))?;
        let read_write = RwLock::new(&locker, KEY, 3, options.protocol(Protocol::Auto))?;
        permits.acquire()?.release()?;
        read_write.read()?.release()?;
        server.clear_log();
        permits.acquire()?.release()?;
        read_write.read()?.release()?;
        let sent = recorded(&server);
        let lists: Vec<_> = sent.iter().filter(|command| command[0] == "LPOP").map(|one| &one[1]).collect();
        let line = list_of(&format!("{KEY}:setnx-lock:permits:3"));
        let reader = sent.iter().rfind(|command| command[0] == "DEL").map_or("", |sent| &sent[1]);
        // A writer waits for the very lock of the reader.
        let expected = if wakes { vec![line.clone(), list_of(reader), line] } else { Vec::new() };
        assert_eq!(lists, expected.iter().collect::<Vec<_>>(), "{sent:?}");
    }
    Ok(())
}

fn wake_ups_are_turned_off() -> Outcome {
    let server = TestServer::start();
    for (options, sent) in [(expiring(), true), (expiring().notify_waiters(false), false)] {
        let lock = connected(elsewhere(&server, KEY, options.protocol(Protocol::Auto))?)?;
        server.clear_log();
        lock.lock()?.release()?;
        assert_eq!(names(&recorded(&server)).contains(&"LPOP"), sent);
    }
    Ok(())
}

/// On a server without channels, on one of unknown version, and by a locker that cannot listen.
fn where_none_can_be_sent_or_received_nothing_is_tried() -> Outcome {
    let server = TestServer::start();
    let old = server_of(ServerVersion::V1_2);
    let reasons = Reasons::default();
    let lockers = [
        patient(&old.url())?.observer(reasons.clone()).build()?,
        patient(&server.url())?.observer(reasons.clone()).skip_server_check().build()?,
        Locker::with_pool(client_pool(&server.url())).observer(reasons.clone()).build()?,
    ];
    for locker in lockers {
        let lock = Lock::new(&locker, KEY, expiring().protocol(Protocol::Auto))?;
        server.clear_log();
        for waiting in [&lock, &elsewhere(&server, KEY, expiring())?] {
            let held = lock.lock()?;
            let waiter = Waiter::of(waiting);
            held.release()?;
            waiter.came()?.release()?;
        }
        let sent = recorded(&server);
        let tried = ["LPOP", "RPUSH", "PUBLISH", "SUBSCRIBE"].map(|name| names(&sent).contains(&name));
        assert_eq!(tried, [false; 4], "{sent:?}");
    }
    assert_eq!(reasons.reported(), [""; 0]);
    Ok(())
}

//! The check of the server on each new connection: its role and its version, by INFO.

use std::thread;
use std::time::Duration;

use setnx_lock::{Error, Lock, MultiLock, Protocol, RefusalKind};
use setnx_lock_testing::{Fault, Proxy, ServerVersion, TestServer};

use crate::support::scenario::{Scenario, impatient, opened, patient};
use crate::support::{
    AnyServer, LONG, Outcome, RedisServer, Release, expiring, millis, release, server_of, trials_of,
};

trials_of! {
    "server_check";
    a_proxy_that_disconnects_on_info_is_used_without_it,
    a_proxy_without_transactions_is_probed_before_a_lock_is_acquired,
    nothing_is_acquired_that_could_not_be_released,
    a_replica_is_refused_before_anything_is_sent,
    connections_to_a_master_that_becomes_a_replica_are_closed,
    a_server_that_loads_its_data_is_waited_for,
    a_sentinel_is_refused_with_advice,
    a_failed_connection_names_its_address,
    a_server_that_is_replaced_by_a_newer_one_is_used_as_such,
    a_server_that_is_replaced_by_an_older_one_gets_no_transaction,
    versions_from_1_1_94_on_are_accepted,
}

fn a_proxy_that_disconnects_on_info_is_used_without_it() -> Outcome {
    let scenario = Scenario::set();
    let key = scenario.target.key("proxy");
    for _ in 0..8 {
        scenario.server.next("INFO", Fault::CutBefore);
    }
    let lock = scenario.lock(&key, expiring());
    assert!(lock.try_lock()?.is_some());
    assert_eq!(scenario.server.names(), ["GET", "SETNX", "DEL"]);
    // The next connection sends INFO again.
    let info = || scenario.server.whole_log().iter().filter(|asked| asked.name == "INFO").count();
    assert_eq!(info(), 4);
    scenario.server.next("SETNX", Fault::CutBefore);
    assert!(lock.try_lock()?.is_some());
    assert_eq!(info(), 8);
    Ok(())
}

fn is_too_old(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::TooOld)
}

fn is_replica(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::ReadOnly)
}

fn a_proxy_without_transactions_is_probed_before_a_lock_is_acquired() -> Outcome {
    for protocol in [Protocol::Watched, Protocol::Ttl] {
        let scenario = Scenario::set();
        scenario.server.forward_little(true);
        let key = scenario.target.key("twemproxy");
        let locker = scenario.locker();
        let lock = Lock::new(&locker, &key.key, expiring().protocol(protocol))?;
        for looks in [4, 0] {
            let error = lock.lock().expect_err("it could not be released");
            assert!(is_too_old(&error), "{protocol:?}: {error:?}");
            let text = crate::support::chain(&error);
            assert!(
                text.contains("closed on WATCH, as a proxy does (it is tried again after a minute)")
                    && text.contains("use the protocol Auto"),
                "{text}"
            );
            let names = scenario.server.names();
            assert_eq!(names.iter().filter(|name| *name == "WATCH").count(), looks, "it is remembered");
            assert!(names.iter().all(|name| ["GET", "WATCH"].contains(&name.as_str())), "{names:?}");
            scenario.server.clear_log();
        }
        assert_eq!(key.value(), None);
        // These send the gem's commands alone.
        for protocol in [Protocol::Auto, Protocol::Classic] {
            let lock = Lock::new(&locker, &key.key, expiring().protocol(protocol))?;
            assert_eq!(release(lock.lock()?)?, Release::Released { certified: false });
            let mut names = scenario.server.names();
            // A new connection may be tried first.
            names.retain(|name| name != "GET");
            assert_eq!(names, ["SETNX", "DEL"], "{protocol:?}");
            scenario.server.clear_log();
        }
    }
    Ok(())
}

/// What a server has renamed is found out before the first lock: `Auto`
/// goes without it, or the call fails. Without GET or DEL all do.
fn nothing_is_acquired_that_could_not_be_released() -> Outcome {
    for lacking in ["WATCH", "MULTI", "EXEC", "DISCARD", "GET", "DEL", "PTTL"] {
        let server = RedisServer::start_with(&format!("rename-command {lacking} \"\""))?;
        for protocol in [Protocol::Auto, Protocol::Watched, Protocol::Ttl] {
            let locker = opened(&server.url())?;
            let options = expiring().protocol(protocol);
            let one = Lock::new(&locker, "one", options)?;
            let several = MultiLock::new(&locker, ["one", "two"], options)?;
            let works = match lacking {
                "GET" | "DEL" => false,
                "PTTL" => protocol != Protocol::Ttl,
                _ => protocol == Protocol::Auto,
            };
            if works {
                one.lock()?.release()?;
                several.lock()?.release()?;
            } else {
                for error in [one.lock().expect_err(lacking), several.lock().expect_err(lacking)] {
                    assert!(matches!(error, Error::Refused { .. }), "{lacking}, {protocol:?}: {error:?}");
                    let text = crate::support::chain(&error);
                    let advised = text.contains("use the protocol Auto");
                    assert_eq!(advised, !["GET", "DEL"].contains(&lacking), "{protocol:?}: {text}");
                }
            }
            assert_eq!(server.say(&["EXISTS", "one"])?, ":0", "{lacking}, {protocol:?}");
            assert_eq!(server.say(&["EXISTS", "two"])?, ":0", "{lacking}, {protocol:?}");
        }
    }
    Ok(())
}

fn a_replica_is_refused_before_anything_is_sent() -> Outcome {
    // Up to 2.4 a replica takes writes, and only INFO reports its role.
    let proxy = server_of(ServerVersion::V2_4);
    proxy.run(&["REPLICAOF", "127.0.0.1", "6380"]);
    let locker = opened(&proxy.url())?;
    let error =
        Lock::new(&locker, "report", expiring())?.try_lock().expect_err("a lock there protects nothing");
    assert!(is_replica(&error), "{error:?}");
    let text = crate::support::chain(&error);
    assert!(
        text.contains(" is a replica of 127.0.0.1:6380") && text.contains("lock on its master"),
        "{text}"
    );
    assert_eq!(proxy.names(), [""; 0], "only INFO was sent");

    let unchecked = patient(&proxy.url())?.skip_server_check().build()?;
    assert!(
        Lock::new(&unchecked, "report", expiring())?.try_lock()?.is_some(),
        "without the check a lock on a replica is granted"
    );
    Ok(())
}

fn connections_to_a_master_that_becomes_a_replica_are_closed() -> Outcome {
    let (server, other) = (RedisServer::start()?, RedisServer::start()?);
    let proxy = Proxy::before(server.address())?;
    // A result of an earlier check would be available before the new one.
    proxy.delay_by(|asked| if asked.name == "INFO" { millis(100) } else { Duration::ZERO });
    let locker = patient(&proxy.url())?.pool_size(2).build()?;
    let lock = Lock::new(&locker, "failover", expiring().timeout(Duration::ZERO))?;
    // Opens both connections, so that one is left when the other is closed.
    thread::scope(|scope| {
        let readers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| (0..50).try_for_each(|_| lock.state().map(drop)))).collect();
        readers.into_iter().try_for_each(|reader| reader.join().unwrap())
    })?;
    server.say(&["REPLICAOF", "127.0.0.1", &other.port().to_string()])?;
    let error = lock.lock().expect_err("it takes no writes");
    assert!(
        matches!(&error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::ReadOnly),
        "{error:?}"
    );
    // All open connections are closed, and the next one is checked.
    let error = lock.lock().expect_err("it is a replica");
    assert!(is_replica(&error), "{error:?}");
    server.say(&["REPLICAOF", "NO", "ONE"])?;
    // A check that was under way may still report the replica. An earlier result would fail all three.
    assert!((0..3).any(|_| matches!(lock.try_lock(), Ok(Some(_)))), "the next check finds a master");
    Ok(())
}

fn a_server_that_loads_its_data_is_waited_for() -> Outcome {
    const KEYS: usize = 150;
    // Loading takes 10 ms for each key, and other commands come in between.
    let mut server =
        RedisServer::start_with("key-load-delay 10000\nloading-process-events-interval-bytes 1024")?;
    let mut connection = redis::Client::open(server.url())?.get_connection()?;
    for n in 0..KEYS {
        let () = redis::cmd("SET").arg(n).arg("a value of some length".repeat(10)).query(&mut connection)?;
    }
    let () = redis::cmd("SAVE").query(&mut connection)?;
    server.restart()?;
    let locker = opened(&server.url())?;
    let lock = Lock::new(&locker, "report", expiring())?;
    let error = lock.try_lock().expect_err("it is loading");
    let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
    assert_eq!(refusal.kind(), RefusalKind::Loading);
    assert!(error.is_transient() && error.to_string().contains("still loading"), "{error}");
    lock.lock()?.release()?;
    let keys: usize =
        redis::cmd("DBSIZE").query(&mut redis::Client::open(server.url())?.get_connection()?)?;
    assert_eq!(keys, KEYS);
    Ok(())
}

const SENTINEL: Fault = Fault::Say("$43\r\nredis_version:7.0.15\r\nredis_mode:sentinel\r\n\r\n");

fn a_sentinel_is_refused_with_advice() -> Outcome {
    let scenario = Scenario::set();
    let locker = patient(&scenario.server.url())?.build()?;
    scenario.server.next("INFO", SENTINEL);
    let error = Lock::new(&locker, "report", expiring())?.try_lock().expect_err("it has no keys");
    let text = crate::support::chain(&error);
    assert!(
        text.contains("lock on the master") && text.contains(" is a Sentinel, which has no keys"),
        "{text}"
    );
    assert!(!error.is_transient(), "{text}");
    assert_eq!(scenario.server.names(), [""; 0], "only INFO was sent");
    Ok(())
}

fn a_failed_connection_names_its_address() -> Outcome {
    let server = TestServer::builder().config("requirepass secret").start();
    let address = server.url().replace("redis://", "").replace('/', "");
    let failure = |user: &str, command_timeout| -> Result<String, Box<dyn std::error::Error>> {
        let url = server.url().replace("redis://", &format!("redis://{user}@"));
        let locker = patient(&url)?.command_timeout(command_timeout).build()?;
        let lock = Lock::new(&locker, "address", expiring().timeout(millis(200)))?;
        Ok(crate::support::chain(&lock.lock().expect_err("no connection")))
    };
    let wrong = failure(":wrong", LONG)?;
    assert!(wrong.contains(&format!("{address}: the server refused: WRONGPASS")), "{wrong}");
    assert!(!wrong.contains(":wrong"), "{wrong}");
    server.next("AUTH", Fault::Hang);
    let unanswered = failure(":secret", millis(200))?;
    assert!(unanswered.contains(&format!("{address} has not answered the attempt")), "{unanswered}");
    assert!(!unanswered.contains("secret"), "{unanswered}");
    Ok(())
}

fn a_server_that_is_replaced_by_a_newer_one_is_used_as_such() -> Outcome {
    let server = server_of(ServerVersion::V2_0);
    let lock = Lock::new(&impatient(&server.url(), 2), "upgrade", expiring().protocol(Protocol::Watched))?;
    let error = lock.lock().expect_err("too old");
    assert!(is_too_old(&error) && error.to_string().contains("the server is Redis 2.0"), "{error:?}");
    server.restart_as("2.2");
    assert_eq!(release(lock.lock()?)?, Release::Released { certified: true });
    Ok(())
}

fn a_server_that_is_replaced_by_an_older_one_gets_no_transaction() -> Outcome {
    let server = server_of(ServerVersion::V2_2);
    let lock = Lock::new(&impatient(&server.url(), 2), "downgrade", expiring().protocol(Protocol::Watched))?;
    let held = lock.lock()?;
    server.restart_as("2.0");
    // The first to find out may lose its reply.
    let _ = lock.state();
    let error = held.release().expect_err("too old");
    assert!(is_too_old(&error) && error.to_string().contains("the server is Redis 2.0"), "{error:?}");
    Ok(())
}

fn versions_from_1_1_94_on_are_accepted() -> Outcome {
    const INFO_1_1_93: Fault = Fault::Say("$35\r\nredis_version:1.1.93\r\nrole:master\r\n\r\n");
    const INFO_1_1_94: Fault = Fault::Say("$35\r\nredis_version:1.1.94\r\nrole:master\r\n\r\n");
    for (info, accepted) in [(INFO_1_1_93, false), (INFO_1_1_94, true)] {
        let server = server_of(ServerVersion::V1_2);
        server.next("INFO", info);
        match Lock::new(&impatient(&server.url(), 1), "oldest", expiring())?.try_lock() {
            Ok(held) => assert!(accepted && held.is_some(), "{held:?}"),
            Err(Error::Refused { .. }) => assert!(!accepted),
            Err(error) => panic!("{error:?}"),
        }
    }
    Ok(())
}

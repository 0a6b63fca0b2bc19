//! Refusals, by servers of every version and by the library itself: the error names the key, what happened and what to
//! do, and the key is unchanged.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use redis::Commands as _;
use setnx_lock::{Error, Lock, LockOptions, Locker, RefusalKind};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::scenario::{Scenario, impatient, opened, patient};
use crate::support::{
    AnyServer, LONG, Outcome, RedisServer, Release, Target, assert_says, expiring, millis, release, trials_of,
};

trials_of! {
    "refusals";
    a_key_of_another_type,
    a_password_that_is_missing_or_wrong,
    a_server_over_its_memory,
    a_server_with_too_many_clients,
    a_replica_that_takes_no_writes,
    the_words_of_the_server_are_in_the_error,
    what_makes_no_sense,
}

fn refused(error: &Error) -> RefusalKind {
    let Error::Refused { refusal, .. } = error else { panic!("{error:?}") };
    refusal.kind()
}

fn a_key_of_another_type() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let key = target.key("list");
    let _: i32 = target.connection().rpush(key.key.as_bytes(), &["a", "b"])?;
    let lock = target.lock(&key, expiring());
    let error = lock.lock().expect_err("it is a list");
    assert_eq!(refused(&error), RefusalKind::WrongType);
    assert_says(&error, &key, &["WRONGTYPE", "choose another key"]);
    assert_eq!(refused(&lock.state().unwrap_err()), RefusalKind::WrongType);
    // Without an expiration SETNX is the only command, and to it the list is a held lock.
    assert!(target.lock(&key, LockOptions::without_expiration()).try_lock()?.is_none());
    let left: Vec<String> = target.connection().lrange(key.key.as_bytes(), 0, -1)?;
    assert_eq!(left, ["a", "b"]);
    Ok(())
}

fn a_password_that_is_missing_or_wrong() -> Outcome {
    let server = TestServer::builder().config("requirepass secret").start();
    let address = server.address();
    let lock = |url: String| Lock::new(&impatient(&url, 1), "report", expiring());
    let error = lock(format!("redis://{address}/"))?.lock().unwrap_err();
    assert_eq!(refused(&error), RefusalKind::NoPassword);
    assert!(
        error.to_string().contains("lock report: ") && error.to_string().contains("redis://:password@host"),
        "{error}"
    );
    for url in [format!("redis://:wrong@{address}/"), format!("redis://stranger:secret@{address}/")] {
        let error = lock(url)?.lock().unwrap_err();
        assert_eq!(refused(&error), RefusalKind::WrongPassword, "{error}");
        assert!(error.to_string().contains("check the login"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    drop(lock(format!("redis://:secret@{address}/"))?.lock()?);
    // A password for a server that has none.
    let open = TestServer::start();
    let error = lock(format!("redis://:secret@{}/", open.address()))?.lock().unwrap_err();
    assert_eq!(refused(&error), RefusalKind::WrongPassword, "{error}");
    Ok(())
}

fn a_server_over_its_memory() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let key = target.key("memory");
    let lock = target.lock(&key, expiring());
    let held = lock.lock()?;
    server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
    assert_eq!(refused(&target.lock(&key, expiring()).try_lock().unwrap_err()), RefusalKind::OverMemory);
    assert_eq!(release(held)?, Release::Released { certified: false }, "the server executes DEL");
    let error = lock.try_lock().unwrap_err();
    assert_says(&error, &key, &["OOM", "free memory or raise the limit"]);
    server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
    drop(lock.lock()?);
    Ok(())
}

fn a_server_with_too_many_clients() -> Outcome {
    let server = TestServer::builder().config("maxclients 2").start();
    let client = redis::Client::open(server.url())?;
    let connect = || -> redis::RedisResult<redis::Connection> {
        let mut connection = client.get_connection()?;
        redis::cmd("PING").query::<String>(&mut connection).map(|_| connection)
    };
    let end = Instant::now() + LONG;
    let mut taken = Vec::new();
    while taken.len() < 2 {
        assert!(Instant::now() < end, "{:?}", connect().err());
        // At first the server may still count connections that have been closed.
        taken.extend(connect());
    }
    let lock = Lock::new(&impatient(&server.url(), 1), "report", expiring().timeout(millis(100)))?;
    let error = lock.lock().expect_err("the server takes no more clients");
    // The server refuses and closes the connection; the client may see the one or the other first.
    match &error {
        Error::Refused { refusal, .. } => assert_eq!(refusal.kind(), RefusalKind::TooManyClients),
        Error::InDoubt { .. } | Error::Unavailable { .. } => {}
        other => panic!("{other:?}"),
    }
    drop(taken);
    drop(Lock::new(&opened(&server.url())?, "report", expiring())?.lock()?);
    Ok(())
}

fn a_replica_that_takes_no_writes() -> Outcome {
    let master = RedisServer::start()?;
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", master.port()))?;
    // Before it has the master's data it may be loading.
    let error = loop {
        let unchecked = patient(&replica.url())?.skip_server_check().build()?;
        let error = Lock::new(&unchecked, "report", expiring())?.try_lock().unwrap_err();
        if refused(&error) != RefusalKind::Loading {
            break error;
        }
        thread::sleep(millis(50));
    };
    assert_eq!(refused(&error), RefusalKind::ReadOnly);
    assert!(error.to_string().contains("lock on its master"), "{error}");
    Ok(())
}

fn the_words_of_the_server_are_in_the_error() -> Outcome {
    let scenario = Scenario::set();
    let key = scenario.target.key("words");
    let lock = scenario.lock(&key, expiring());
    for (words, kind) in [
        ("-ERR command not allowed when used memory > 'maxmemory'\r\n", RefusalKind::OverMemory),
        ("-MISCONF Redis is configured to save RDB snapshots\r\n", RefusalKind::CannotSave),
    ] {
        scenario.server.next("SETNX", Fault::Say(words));
        let error = lock.try_lock().unwrap_err();
        assert_eq!(refused(&error), kind, "{error}");
        assert_says(&error, &key, &[words.trim_start_matches('-').trim_end()]);
        assert_eq!(key.value(), None);
    }
    let held = lock.lock()?;
    scenario.server.next("DEL", Fault::Say("-NOPERM this user may not run the 'del' command\r\n"));
    assert_eq!(refused(&held.release().unwrap_err()), RefusalKind::NotPermitted);
    assert!(key.value().is_some());
    Ok(())
}

fn what_makes_no_sense() -> Outcome {
    let zero = Duration::ZERO;
    let builder = Locker::builder("redis://127.0.0.1:1/")?;
    let locker = builder.clone().build()?;
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    for (key, options, words) in [
        ("", expiring(), "lock \"\": a lock's key must not be empty; give it the name of what it protects"),
        ("k", LockOptions::expiring_after(zero), "lock k: the expiration is zero"),
        ("k", LockOptions::expiring_after(century), "over ten years"),
        ("k", expiring().poll_interval(zero), "poll interval"),
    ] {
        let error = Lock::new(&locker, key, options).expect_err("refused at once");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(Lock::new(&locker, "k", expiring().timeout(Duration::MAX)).is_ok());

    for (builder, words) in [
        (builder.clone().pool_size(0), "at least one"),
        (builder.clone().holder_name(""), "1 to 64 bytes"),
        (builder.clone().holder_name("x".repeat(65)), "1 to 64 bytes"),
        (builder.clone().holder_name("two\nlines"), "printable characters"),
        (builder.clone().pool_size(u32::MAX), "65,535 connections"),
        (builder.clone().connect_timeout(zero), "timeout of zero"),
        (builder.command_timeout(zero), "timeout of zero"),
    ] {
        let error = builder.build().expect_err("refused at once");
        let text = error.to_string();
        assert!(text.starts_with("cannot build a locker: ") && text.contains(words), "{text}");
        assert_eq!(error.key(), None);
    }

    for address in ["", "localhost", "http://localhost/", "redis://localhost/first", "redis://"] {
        let error = Locker::open(address).expect_err(address);
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains("redis://[:password@]host[:port]"), "{error}");
        assert_eq!(error.key(), None);
    }
    Ok(())
}

//! Locks on a server or a network that fails: the call ends in time, with the right result or the right error. No value
//! is sent twice, and the key is unchanged unless this client holds it.

use std::io::Read as _;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, Locker, LockerBuilder, Protocol};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::load::{self, Load};
use crate::support::scenario::{
    Scenario, assert_nothing_sent_twice, brief, client_pool, until_answered, until_connected,
};
use crate::support::{
    LONG, Outcome, Release, Target, TestKey, assert_says, attempts, chain, expiring, millis, release, tests,
};

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, load::Test)] = tests![
        a_server_that_accepts_and_never_replies,
        errors_blame_the_server_that_hangs,
        a_port_that_speaks_tls,
        a_connection_that_is_given_up_sends_nothing_more,
        a_connection_reset_before_the_request_was_read,
        the_reply_to_setnx_is_lost,
        the_reply_to_del_is_lost,
        the_reply_to_state_or_clear_is_lost,
        a_late_reply_on_a_plain_pool_reaches_no_other_command,
        garbage_on_the_wire,
        garbage_on_a_plain_pool,
    ];
    load::trials("faults", tests)
}

/// How long a reply is waited for that does not come in time.
const QUICK: Duration = Duration::from_millis(500);

/// Returns a builder of a locker that gives up so soon.
fn quick(url: &str, pool_size: u32) -> LockerBuilder {
    brief(url, pool_size).command_timeout(QUICK).retry_for(QUICK)
}

fn a_server_that_accepts_and_never_replies(_: Load) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    // The first command is INFO, or AUTH, so nothing is uncertain.
    for user in ["", ":secret@"] {
        let locker = quick(&format!("redis://{user}{address}/"), 2).build()?;
        let error = Lock::new(&locker, "report", expiring().timeout(millis(100)))?.lock().unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(user.is_empty() || !error.to_string().contains("make the pool larger"), "{error}");
    }
    // Without the server check the first command is SETNX.
    let builder = quick(&format!("redis://{address}/"), 10).skip_server_check();
    let locker = builder.build()?;
    for options in [expiring().timeout(Duration::ZERO), expiring().wait_forever()] {
        let error = Lock::new(&locker, "report", options)?.lock().expect_err("no reply comes");
        assert!(matches!(error, Error::InDoubt { command: "SETNX", .. }), "{error:?}");
        let text = crate::support::chain(&error);
        assert!(text.contains("gave no reply within"), "{text}");
        assert!(text.contains("if the lock was acquired, a background thread releases it"), "{text}");
    }
    let error = Lock::new(&locker, "report", LockOptions::without_expiration())?.lock().unwrap_err();
    assert!(error.to_string().contains("look at the key, and clear it"), "{error}");
    Ok(())
}

/// Not the pool, nor another thread: at most a few connections are used, whatever its size.
fn errors_blame_the_server_that_hangs(_: Load) -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let server = Arc::new(TestServer::start());
        let target = Target::of(&server);
        let locker = quick(&server.url(), 10).build()?;
        let keys = target.keys("hangs", 64);
        let lock = |key: &TestKey| Lock::new(&locker, &key.key, expiring().protocol(protocol)).unwrap();
        let held = keys.iter().map(|key| lock(key).lock()).collect::<Result<Vec<_>, _>>()?;
        server.hang();
        let texts: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> = held
                .into_iter()
                .map(|held| scope.spawn(|| chain(&held.release().expect_err("it hangs"))))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        server.resume();
        for text in texts {
            assert!(!text.contains("pool") && !text.contains("thread"), "{text}");
            assert!(
                ["gave no reply", "no reply from 127.0.0.1", "has not answered"]
                    .iter()
                    .any(|words| text.contains(words)),
                "{text}"
            );
        }
    }
    Ok(())
}

/// It closes each connection at the first bytes that begin no handshake. Nothing was carried out.
fn a_port_that_speaks_tls(_: Load) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("redis://{}/", listener.local_addr()?);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| stream.read(&mut [0; 5]));
        }
    });
    let error = Lock::new(&quick(&url, 2).build()?, "tls", expiring())?.lock().expect_err("it is no Redis");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(chain(&error).contains("use rediss://"), "{}", chain(&error));
    Ok(())
}

/// An abandoned connection is reset, so that data still in its send buffer is never sent.
fn a_connection_that_is_given_up_sends_nothing_more(_: Load) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let locker = quick(&format!("redis://{}/", listener.local_addr()?), 1).build()?;
    let lock = Lock::new(&locker, "report", expiring())?;
    let giving_up = thread::spawn(move || lock.try_lock().map(drop));
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(LONG))?;
    assert!(giving_up.join().unwrap().is_err());
    let mut read = [0; 1024];
    let end = loop {
        match stream.read(&mut read) {
            Ok(1..) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            end => break end,
        }
    };
    assert_eq!(end.map_err(|error| error.kind()), Err(std::io::ErrorKind::ConnectionReset));
    Ok(())
}

fn a_connection_reset_before_the_request_was_read(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load);
    let key = scenario.target.key("reset");
    scenario.server.next("SETNX", Fault::CutBefore);
    let held = scenario.lock(&key, expiring()).lock()?;
    assert_eq!(scenario.server.names(), ["SETNX", "GET", "SETNX"]);
    assert_eq!(attempts(), 1);
    assert_nothing_sent_twice(&scenario.server);
    assert_eq!(release(held)?, Release::Released { certified: false });

    // What was lost may yet come, so a later command that fails is not the whole truth.
    scenario.server.next("SETNX", Fault::CutBefore);
    scenario.server.next("SETNX", Fault::Say("-OOM command not allowed when used memory > 'maxmemory'.\r\n"));
    let error = scenario.lock(&key, expiring()).try_lock().expect_err("over its memory");
    assert!(matches!(error, Error::InDoubt { .. }), "{error:?}");
    Ok(())
}

fn the_reply_to_setnx_is_lost(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load);
    let key = scenario.target.key("lost");
    scenario.server.next("SETNX", Fault::CutAfter);
    let held = scenario.lock(&key, expiring()).lock()?;
    assert_eq!(scenario.server.names(), ["SETNX", "GET"], "found by reading, and not sent again");
    assert_eq!(key.value().as_ref(), scenario.server.log()[0].arguments.get(1));
    assert_eq!(release(held)?, Release::Released { certified: false });
    assert_eq!(key.value(), None);
    // Without an expiration the value names no holder.
    scenario.server.clear_log();
    scenario.server.next("SETNX", Fault::CutAfter);
    let error = scenario.lock(&key, LockOptions::without_expiration()).lock().expect_err("it may be held");
    assert!(matches!(error, Error::InDoubt { command: "SETNX", .. }), "{error:?}");
    assert_says(&error, &key, &["reply to SETNX was lost", "its value names no holder"]);
    assert_eq!(scenario.server.names(), ["SETNX"]);
    assert_eq!(key.value().as_deref(), Some("1"));
    Ok(())
}

fn the_reply_to_del_is_lost(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load);
    let key = scenario.target.key("lost");
    let lock = scenario.lock(&key, expiring());
    let held = lock.lock()?;
    scenario.server.next("DEL", Fault::CutAfter);
    assert_eq!(release(held)?, Release::Released { certified: false }, "found by reading");
    assert_eq!(scenario.server.names(), ["SETNX", "DEL", "GET"]);

    let held = lock.lock()?;
    scenario.server.next("DEL", Fault::CutBefore);
    let error = held.release().expect_err("it may still be executed");
    assert!(matches!(error, Error::InDoubt { command: "DEL", .. }), "{error:?}");
    assert_says(&error, &key, &["if it was not released, it frees itself when its lease has passed"]);
    key.delete();

    let lock = scenario.lock(&key, LockOptions::without_expiration());
    let held = lock.lock()?;
    scenario.server.next("DEL", Fault::CutAfter);
    assert_says(&held.release().unwrap_err(), &key, &["clear it if it is still there"]);
    Ok(())
}

fn the_reply_to_state_or_clear_is_lost(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load);
    let key = scenario.target.key("lost");
    let lock = scenario.lock(&key, expiring());
    key.set("1");
    scenario.server.next("GET", Fault::CutAfter);
    let error = lock.state().expect_err("no reply");
    assert!(
        matches!(&error, Error::Unavailable { problem, .. } if problem.starts_with("GET failed")),
        "{error:?}"
    );
    scenario.server.next("DEL", Fault::CutAfter);
    let error = lock.clear().expect_err("no reply");
    assert!(matches!(error, Error::InDoubt { command: "DEL", .. }), "{error:?}");
    assert_says(&error, &key, &["look at the key again"]);
    Ok(())
}

/// A locker on a pool of one connection of the redis crate.
fn quick_on_a_pool(scenario: &Scenario) -> Result<Locker, Error> {
    Locker::with_pool(client_pool(&scenario.server.url())).command_timeout(QUICK).build()
}

fn a_late_reply_on_a_plain_pool_reaches_no_other_command(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load);
    let locker = scenario.join(quick_on_a_pool(&scenario)?);
    late_reply(&scenario, &locker)
}

/// The grant of one lock arrives after its caller has given up. The
/// next command, for a lock that another client holds, must not get it.
fn late_reply(scenario: &Scenario, locker: &Locker) -> Outcome {
    let (late, taken) = (scenario.target.key("late"), scenario.target.key("taken"));
    taken.set("1895000000.5000000000000001");
    let late_lock = Lock::new(locker, &late.key, LockOptions::without_expiration())?;
    let taken_lock = Lock::new(locker, &taken.key, expiring())?;
    for round in 1..=2 {
        scenario.server.next("SETNX", Fault::DelayReply(2 * QUICK));
        let late_outcome = late_lock.lock();
        assert!(matches!(late_outcome, Err(Error::InDoubt { .. })), "round {round}: {late_outcome:?}");
        thread::sleep(QUICK + millis(200)); // by now the reply is in the old connection's buffer
        let taken = until_answered(|| taken_lock.try_lock())?;
        assert!(taken.is_none(), "round {round}: the late reply was taken for this lock's");
        late.delete();
    }
    Ok(())
}

fn garbage_on_the_wire(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load);
    garbage(&scenario, &scenario.locker())
}

fn garbage_on_a_plain_pool(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load);
    let locker = scenario.join(quick_on_a_pool(&scenario)?);
    garbage(&scenario, &locker)
}

fn garbage(scenario: &Scenario, locker: &Locker) -> Outcome {
    let key = scenario.target.key("garbage");
    key.set("1895000000.5000000000000001");
    let lock = Lock::new(locker, &key.key, LockOptions::without_expiration().timeout(Duration::ZERO))?;
    // The second line would be taken for a grant if the connection were read again.
    scenario.server.next("SETNX", Fault::Say("HTTP/1.1 400 Bad Request\r\n:1\r\n:1\r\n"));
    let error = until_connected(|| lock.lock()).expect_err("no reply to SETNX");
    assert!(matches!(error, Error::InDoubt { .. }), "{error:?}");
    assert!(until_connected(|| lock.try_lock())?.is_none(), "bytes left on the wire were taken for a grant");
    // Replies of another type.
    for reply in ["+OK\r\n", "$1\r\n1\r\n", "*0\r\n", "$-1\r\n"] {
        scenario.server.next("SETNX", Fault::Say(reply));
        let outcome = until_connected(|| lock.lock());
        assert!(matches!(outcome, Err(Error::InDoubt { .. })), "{reply:?} was taken for a reply to SETNX");
    }
    scenario.server.next("GET", Fault::Say("HTTP/1.1 400 Bad Request\r\n$-1\r\n"));
    let error = until_connected(|| lock.state()).expect_err("no reply to GET");
    assert!(
        matches!(&error, Error::Unavailable { problem, .. } if problem.starts_with("GET failed")),
        "{error:?}"
    );
    assert_says(&error, &key, &["GET failed", "check the server and the network"]);
    assert!(!error.to_string().contains('\n'), "{error}");
    assert_eq!(key.value().as_deref(), Some("1895000000.5000000000000001"));
    Ok(())
}

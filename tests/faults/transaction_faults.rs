//! Faults in the transactions of Watched and Ttl: refusals, replies
//! that are lost or late, and connections that must not be used again.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol, RefusalKind};
use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use crate::support::load::{self, Load};
use crate::support::load_threads::Tolerance;
use crate::support::notified::until;
use crate::support::releases::{self, CERTIFIED, UNCERTIFIED};
use crate::support::scenario::{FOREIGN, Scenario, client_pool, patient, until_connected};
use crate::support::{
    AnyServer, LONG, Outcome, PAST, Target, TestKey, assert_says, expiring, millis, release, tests,
};

/// The protocols with transactions.
const BOTH: [Protocol; 2] = [Protocol::Watched, Protocol::Ttl];

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, load::Test)] = tests![
        a_connection_in_an_unknown_state_is_not_used_again,
        a_push_message_is_not_taken_for_a_reply,
        a_full_server_deletes_the_key_of_a_release_alone,
        a_full_server_that_compares_certifies_a_release,
        near_the_end_of_its_lease_a_release_that_a_full_server_refuses_is_carried_out_later,
        a_user_without_multi_changes_no_key_without_a_transaction,
        multi_that_is_taken_away_leaves_no_change_unguarded,
    ];
    load::trials("transaction_faults", tests)
}

fn a_connection_in_an_unknown_state_is_not_used_again(load: Load) -> Outcome {
    let plain = |url: &str| -> Result<Locker, Box<dyn std::error::Error>> {
        Ok(Locker::with_pool(client_pool(url)).build()?)
    };
    let own =
        |url: &str| -> Result<Locker, Box<dyn std::error::Error>> { Ok(patient(url)?.pool_size(1).build()?) };
    // The command with the wrong reply, and the size of its batch.
    let wrong = [
        ("DISCARD", "-ERR not today\r\n", 1),
        ("EXEC", ":1\r\n", 1),
        ("WATCH", ":1\r\n", 3),
        ("MULTI", "-ERR not today\r\n", 1),
    ];
    for pooled in [plain as fn(&str) -> _, own] {
        for (command, reply, batch) in wrong {
            let scenario = Scenario::under_load(load);
            let key = scenario.target.key("order");
            let locker = scenario.join(pooled(&scenario.server.url())?);
            let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
            let held = lock.lock()?;
            if command == "DISCARD" {
                key.set(FOREIGN);
            }
            scenario.server.clear_log();
            scenario.server.next(command, Fault::Say(reply));
            // Other tests are about the lock; this one is about the connection of the next command.
            let _released = held.release();
            let _state = until_connected(|| lock.state())?;
            let asked = scenario.server.log();
            let spoiled = asked.iter().position(|asked| asked.name == command).expect("it was sent");
            let next = spoiled + batch;
            assert_ne!(asked[spoiled].connection, asked[next].connection, "{command}: {asked:?}");
        }
    }
    Ok(())
}

fn a_push_message_is_not_taken_for_a_reply(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load);
    let key = scenario.target.key("push");
    // The connections of a user's pool may be in RESP3.
    let pool = client_pool(&format!("{}?protocol=resp3", scenario.server.url()));
    let locker = scenario.join(Locker::with_pool(pool).observer(releases::record).build()?);
    let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
    assert_eq!(release(lock.lock()?)?, CERTIFIED, "in RESP3 as well");
    let held = lock.lock()?;
    // The real server gets no WATCH, which does not matter here.
    scenario.server.next("WATCH", Fault::Say(">2\r\n$4\r\nnews\r\n$4\r\nitem\r\n+OK\r\n"));
    assert_eq!(release(held)?, CERTIFIED);
    assert_eq!(
        scenario.server.names().iter().filter(|name| *name == "WATCH").count(),
        3,
        "one before the first lock, and one for each release"
    );
    Ok(())
}

/// Asserts that a release was refused, and that the error says what becomes of the key.
#[track_caller]
fn assert_left(error: &Error, key: &TestKey) {
    assert!(matches!(error, Error::Refused { advice: Some(_), .. }), "{error:?}");
    assert_says(error, key, &["free memory", "the release is tried again until the lease ends"]);
}

/// The server executes DEL and GETDEL alone, where it refuses their transaction.
fn a_full_server_deletes_the_key_of_a_release_alone(load: Load) -> Outcome {
    for (emulated, alone) in [
        (ServerVersion::V2_2, "GET GETDEL DEL"),
        (ServerVersion::V2_4, "GET GETDEL DEL"),
        (ServerVersion::V7, "GET GETDEL"),
    ] {
        for protocol in BOTH
            .into_iter()
            .filter(|protocol| emulated > ServerVersion::V2_6 || *protocol == Protocol::Watched)
        {
            let scenario = Scenario::of(emulated, load);
            let (key, server) = (scenario.target.key("full"), &scenario.server);
            let options = LockOptions::expiring_after(2 * LONG).protocol(protocol);
            let lock = scenario.lock(&key, options);
            let held = lock.lock()?;
            server.clear_log();
            server.fill_up();
            match release(held) {
                // The machine stalled between its look and what was to follow soon: it is tried again.
                Err(Error::Refused { .. }) => until("it is released", || key.value().is_none()),
                released => assert_eq!(released?, UNCERTIFIED, "{emulated:?}"),
            }
            assert_eq!(key.value(), None);
            let sent = server.names().join(" ");
            assert!(sent.ends_with(alone) || load == Load::Contended, "{emulated:?}: {sent}");
            server.free_memory();
            // Cleared, and acquired by another client.
            for (before, nth) in [("EXEC", 1), ("GET", 2)] {
                let held = lock.lock()?;
                server.fill_up();
                let at = server.pause(before, nth);
                let releasing = thread::spawn(move || held.release());
                at.reached();
                key.set(FOREIGN);
                at.go_on();
                let error = releasing.join().unwrap().expect_err("it was lost");
                assert!(matches!(error, Error::Lost { .. }), "{error:?}");
                assert_eq!(key.value().as_deref(), Some(FOREIGN));
                server.free_memory();
                key.delete();
            }
        }
    }
    Ok(())
}

fn a_full_server_that_compares_certifies_a_release(load: Load) -> Outcome {
    for emulated in [ServerVersion::V8_4, ServerVersion::Valkey9] {
        for protocol in BOTH {
            let scenario = Scenario::of(emulated, load);
            let (key, server) = (scenario.target.key("compared"), &scenario.server);
            let held = scenario.lock(&key, expiring().protocol(protocol)).lock()?;
            server.clear_log();
            server.fill_up();
            assert_eq!(release(held)?, CERTIFIED, "{emulated:?}");
            assert!(!server.names().iter().any(|name| name == "GETDEL"), "{:?}", server.names());
        }
    }
    Ok(())
}

/// A command alone could come after the lease, and delete the key of another client. Up to 2.4 the server refuses EXEC
/// itself, 2.6 executes it, and a current one refuses to queue.
fn near_the_end_of_its_lease_a_release_that_a_full_server_refuses_is_carried_out_later(
    load: Load,
) -> Outcome {
    for emulated in [ServerVersion::V2_2, ServerVersion::V2_4, ServerVersion::V2_6, ServerVersion::V7] {
        let scenario = Scenario::of(emulated, load);
        let (key, server) = (scenario.target.key("memory"), &scenario.server);
        let locker = scenario.open(patient(&server.url())?.pool_size(1));
        let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
        for _ in 0..2 {
            let held = lock.lock()?;
            server.clear_log();
            server.fill_up();
            let value = key.value();
            let released = release(held);
            let commands = || server.names().join(" ");
            if emulated == ServerVersion::V2_6 {
                assert_eq!(released?, CERTIFIED);
                assert_eq!(commands(), "WATCH GET MULTI DEL EXEC");
                assert_eq!(key.value(), None);
            } else {
                assert_left(&released.expect_err("over its memory"), &key);
                // Where EXEC itself is refused, the transaction is open still. Another thread's command in the same
                // trip is queued by the server then, and the connection is closed: that ends the transaction as well.
                let is_open = emulated < ServerVersion::V7;
                let all =
                    if is_open { "WATCH GET MULTI DEL EXEC DISCARD" } else { "WATCH GET MULTI DEL EXEC" };
                let end = Instant::now() + LONG;
                while load == Load::Any && !commands().starts_with(all) {
                    assert!(Instant::now() < end, "{emulated:?}: {}", commands());
                    thread::sleep(millis(1));
                }
                assert_eq!(key.value(), value);
            }
            let error = lock.try_lock().expect_err("over its memory");
            assert!(
                matches!(&error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::OverMemory),
                "{emulated:?}: {error:?}"
            );
            server.free_memory();
            until("it is released after all", || key.value().is_none());
        }
        let connections: Vec<usize> = server.log().iter().map(|asked| asked.connection).collect();
        let same = connections.iter().all(|connection| *connection == 0);
        assert!(same || load == Load::Contended, "{connections:?}");
    }
    Ok(())
}

fn a_user_without_multi_changes_no_key_without_a_transaction(load: Load) -> Outcome {
    let server = TestServer::builder().config("user weak on >pw ~* &* +@all -multi").start();
    let target = Target::of(&Arc::new(server));
    let key = target.key("weak");
    let url = target.url.replace("redis://", "redis://weak:pw@");
    let (locker, _threads) = load.open(patient(&url)?, Tolerance::Strict)?;
    let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
    for _ in 0..2 {
        key.set(PAST);
        let error = lock.lock().expect_err("MULTI is not permitted");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_says(&error, &key, &["NOPERM", "with Watched or Ttl also SET, WATCH, MULTI"]);
        assert_eq!(key.value().as_deref(), Some(PAST));
        key.delete();
        let error = lock.lock().expect_err("a free lock neither, since it could not be released");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_eq!(key.value(), None);
        let auto = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Auto))?;
        assert_eq!(release(auto.lock()?)?, UNCERTIFIED, "by the clocks");
        assert_eq!(key.value(), None);
    }
    Ok(())
}

fn multi_that_is_taken_away_leaves_no_change_unguarded(load: Load) -> Outcome {
    for protocol in BOTH {
        let server = Arc::new(TestServer::builder().config("user weak on >pw ~* &* +@all").start());
        let target = Target::of(&server);
        let key = target.key("taken-away");
        let url = target.url.replace("redis://", "redis://weak:pw@");
        let (locker, _threads) = load.open(patient(&url)?, Tolerance::Strict)?;
        let lock = |expiration| {
            Lock::new(&locker, &key.key, LockOptions::expiring_after(expiration).protocol(protocol))
        };
        let short = millis(200);
        assert_eq!(release(lock(LONG)?.lock()?)?, CERTIFIED, "the server has accepted MULTI");
        let (held, began) = (lock(short)?.lock()?, Instant::now());
        server.say(&["ACL", "SETUSER", "weak", "-multi"])?;

        key.set(FOREIGN); // the key was cleared, and another client has acquired the lock
        thread::sleep(short.saturating_sub(began.elapsed()));
        assert!(held.release().is_err());
        assert_eq!(key.value().as_deref(), Some(FOREIGN));

        key.set(PAST);
        let error = lock(LONG)?.lock().expect_err("MULTI is not permitted");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_eq!(key.value().as_deref(), Some(PAST), "a transaction alone may change it");
    }
    Ok(())
}

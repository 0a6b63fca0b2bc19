//! What comes to harm in a transaction of Watched and Ttl: refusals, answers that get lost or come late, and connections that are
//! not to be used again.

use std::sync::Arc;
use std::thread;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, Locker, Manager, Protocol, RefusalKind, Release};

use crate::servers::{Fault, Played};
use crate::support::load::{self, Load};
use crate::support::load_threads::Tolerance;
use crate::support::scenario::{Scenario, assert_nothing_sent_twice};
use crate::support::{Outcome, RedisServer, Target, assert_says, expiring, millis, tests};
use crate::transactions::{BOTH, CERTIFIED, PAST, UNCERTIFIED};

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, load::Test)] = tests![
        a_connection_that_cannot_be_brought_in_order_is_not_used_again,
        a_server_without_room_for_a_client_is_waited_for,
        what_a_server_pushes_in_between_is_no_answer,
        the_trips_of_a_release_share_one_time_out,
        a_transaction_that_is_refused_is_discarded,
        a_server_over_its_memory_refuses_transactions_and_not_releases,
        a_user_without_multi_changes_nothing_unguarded,
        a_server_that_is_too_old_is_named,
        the_answer_to_exec_is_lost_in_a_takeover,
        the_answer_to_exec_is_lost_in_a_release,
        a_look_that_gets_no_answer_is_done_once_more,
        a_server_that_stops_in_a_transaction_takes_one_time_out,
    ];
    load::trials("transaction_faults", tests)
}

fn scene_and_key(
    load: Load,
    protocol: Protocol,
) -> Result<(Scenario, crate::support::TestKey, Lock), Box<dyn std::error::Error>> {
    let scenario = Scenario::under_load(load)?;
    let key = scenario.target.key("transaction");
    let lock = scenario.lock(&key, expiring().protocol(protocol));
    Ok((scenario, key, lock))
}

fn a_connection_that_cannot_be_brought_in_order_is_not_used_again(load: Load) -> Outcome {
    let plain = |url: &str| -> Result<Locker, Box<dyn std::error::Error>> {
        let client = redis::Client::open(url)?;
        Ok(Locker::with_pool(r2d2::Pool::builder().max_size(1).test_on_check_out(false).build(client)?))
    };
    let own = |url: &str| -> Result<Locker, Box<dyn std::error::Error>> {
        Ok(Locker::builder(url)?.pool_size(1).build()?)
    };
    for pooled in [plain, own] {
        // The command that is answered wrongly, and how many are sent with it, itself included.
        for (command, said, trip) in [
            ("UNWATCH", "-ERR not today\r\n", 1),
            ("EXEC", ":1\r\n", 1),
            ("WATCH", ":1\r\n", 2),
            ("GET", "-WRONGTYPE it watches a list\r\n", 1),
        ] {
            let scenario = Scenario::under_load(load)?;
            let key = scenario.target.key("order");
            let locker = scenario.join(pooled(&scenario.proxy.url())?);
            let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
            let held = lock.lock()?;
            if command == "UNWATCH" {
                key.set("1895000000.5");
            }
            scenario.proxy.next(command, Fault::Say(said));
            // What becomes of the lock is tested elsewhere; here it is which connection comes next.
            let _released = held.release();
            let _peeked = lock.state()?;
            let asked = scenario.proxy.asked();
            let spoiled = asked.iter().position(|asked| asked.name == command).expect("it was sent");
            let next = spoiled + trip;
            assert_ne!(asked[spoiled].connection, asked[next].connection, "{command}: {asked:?}");
        }
    }
    Ok(())
}

fn a_server_without_room_for_a_client_is_waited_for(load: Load) -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let server = RedisServer::start()?;
        let manager = Manager::new(redis::Client::open(server.url())?);
        let builder = r2d2::Pool::builder().max_size(2).min_idle(Some(0)).test_on_check_out(false);
        let pool = builder.build_unchecked(manager.clone());
        let locker = load.pipelining(Locker::with_managed_pool(pool.clone(), &manager));
        let held = Lock::new(&locker, "room", expiring().protocol(protocol))?.lock()?;
        // The one connection that there is room for is in use for a while.
        let busy = pool.get()?;
        server.say(&["CONFIG", "SET", "maxclients", "1"])?;
        let releasing = thread::spawn(move || held.release());
        thread::sleep(millis(300));
        drop(busy);
        let certified = protocol != Protocol::Classic;
        assert_eq!(releasing.join().unwrap()?, Release::Released { certified });
    }
    Ok(())
}

fn what_a_server_pushes_in_between_is_no_answer(load: Load) -> Outcome {
    let scenario = Scenario::under_load(load)?;
    let key = scenario.target.key("push");
    let locker = scenario.open(Locker::builder(&format!("{}?protocol=resp3", scenario.proxy.url()))?);
    let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
    assert_eq!(lock.lock()?.release()?, CERTIFIED, "in the newer form of the protocol as well");
    let held = lock.lock()?;
    // The real server gets no WATCH then, which is of no matter here.
    scenario.proxy.next("WATCH", Fault::Say(">2\r\n$4\r\nnews\r\n$4\r\nitem\r\n+OK\r\n"));
    assert_eq!(held.release()?, CERTIFIED);
    assert_eq!(
        scenario.proxy.names().iter().filter(|name| *name == "WATCH").count(),
        2,
        "one for each release"
    );
    Ok(())
}

fn the_trips_of_a_release_share_one_time_out(load: Load) -> Outcome {
    // Together longer than the 2 s that a command may take, and each well within them: two trips, and two answers of one.
    for late in [["WATCH", "MULTI"], ["MULTI", "EXEC"]] {
        // What was sent is carried out later on, and would take the harm that is meant for the next.
        let scenario = Scenario::under_load(load)?;
        let key = scenario.target.key("share");
        let locker = scenario.open(Locker::builder(&scenario.proxy.url())?);
        let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
        assert_eq!(lock.lock()?.release()?, CERTIFIED);
        let held = lock.lock()?;
        for command in late {
            scenario.proxy.next(command, Fault::AnswerLate(millis(1500)));
        }
        let error = held.release().expect_err("no answer in time");
        assert!(matches!(error, Error::Unknown { command: "EXEC", .. }), "{late:?}: {error:?}");
    }
    Ok(())
}

fn a_transaction_that_is_refused_is_discarded(load: Load) -> Outcome {
    let over = Fault::Say("-ERR command not allowed when used memory > 'maxmemory'\r\n");
    for protocol in BOTH {
        let (scenario, key, lock) = scene_and_key(load, protocol)?;
        let held = lock.lock()?;
        scenario.proxy.next("EXEC", over.clone());
        assert_eq!(held.release()?, UNCERTIFIED, "by a plain DEL");
        assert_eq!(scenario.proxy.names()[1..].join(" "), "WATCH GET MULTI DEL EXEC DISCARD DEL");
        assert_eq!(key.value(), None);
        let connections = scenario.proxy.asked().iter().map(|asked| asked.connection).max();
        assert_eq!(connections, Some(0), "the connection is in order again");

        key.set(PAST);
        scenario.proxy.next("EXEC", over.clone());
        let error = lock.lock().expect_err("over its memory");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_eq!(key.value().as_deref(), Some(PAST));
        drop(lock.lock()?);
    }
    Ok(())
}

/// The same on a real server whose memory is full. Up to 2.4 EXEC itself is refused; current ones queue nothing.
fn a_server_over_its_memory_refuses_transactions_and_not_releases(load: Load) -> Outcome {
    for played in [Some(Played::V2_2), Some(Played::V2_4), None] {
        let server = Arc::new(RedisServer::start_with("maxmemory 100mb")?);
        let scenario = Scenario::of(&server, played, load)?;
        let (key, proxy) = (scenario.target.key("memory"), &scenario.proxy);
        let locker = scenario.open(Locker::builder(&proxy.url())?.pool_size(1));
        let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
        for _ in 0..2 {
            let held = lock.lock()?;
            proxy.forget();
            server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
            assert_eq!(held.release()?, UNCERTIFIED, "{played:?}");
            assert_eq!(proxy.names().join(" "), "WATCH GET MULTI DEL EXEC DISCARD DEL");
            assert_eq!(key.value(), None);
            let error = lock.lock().expect_err("over its memory");
            assert!(
                matches!(&error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::OverMemory),
                "{played:?}: {error:?}"
            );
            server.say(&["CONFIG", "SET", "maxmemory", "100mb"])?;
        }
        let connections: Vec<usize> = proxy.asked().iter().map(|asked| asked.connection).collect();
        let in_order = connections.iter().all(|connection| *connection == 0);
        assert!(in_order || played.is_none(), "{connections:?}");
    }
    Ok(())
}

fn a_user_without_multi_changes_nothing_unguarded(load: Load) -> Outcome {
    let server = RedisServer::start_with("user weak on >pw ~* &* +@all -multi")?;
    let target = Target::of(&Arc::new(server));
    let key = target.key("weak");
    let url = target.url.replace("redis://", "redis://weak:pw@");
    let (locker, _crowd) = load.open(Locker::builder(&url)?, Tolerance::Strict)?;
    let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
    for _ in 0..2 {
        key.set(PAST);
        let error = lock.lock().expect_err("MULTI is not permitted");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_says(&error, &key, &["NOPERM", "with Watched or Ttl also SET, WATCH, UNWATCH, MULTI"]);
        // A SET that follows a refused MULTI would have been carried out, whatever the key held by then.
        assert_eq!(key.value().as_deref(), Some(PAST));
        key.delete();
        assert_eq!(lock.lock()?.release()?, UNCERTIFIED, "by the clocks");
        assert_eq!(key.value(), None);
    }
    Ok(())
}

fn a_server_that_is_too_old_is_named(load: Load) -> Outcome {
    let (scenario, key, lock) = scene_and_key(load, Protocol::Ttl)?;
    scenario.proxy.next("SET", Fault::Say("-ERR wrong number of arguments for 'set' command\r\n"));
    let error = lock.lock().expect_err("no options of SET");
    assert!(matches!(error, Error::Unsupported { protocol: Protocol::Ttl, .. }), "{error:?}");
    assert_says(&error, &key, &["lacks the commands of the protocol Ttl", "2.6.12", "use Protocol::Auto"]);

    let (scenario, key, lock) = scene_and_key(load, Protocol::Watched)?;
    scenario.proxy.next("WATCH", Fault::Say("-ERR unknown command\r\n"));
    key.set(PAST);
    let error = lock.lock().expect_err("no WATCH");
    assert!(matches!(error, Error::Unsupported { protocol: Protocol::Watched, .. }), "{error:?}");
    assert_says(&error, &key, &["needs Redis 2.2", "use Protocol::Auto or Protocol::Classic"]);
    assert_eq!(key.value().as_deref(), Some(PAST));
    Ok(())
}

fn the_answer_to_exec_is_lost_in_a_takeover(load: Load) -> Outcome {
    for protocol in BOTH {
        for fault in [Fault::CutAfter, Fault::CutBefore] {
            let (scenario, key, lock) = scene_and_key(load, protocol)?;
            key.set(PAST);
            scenario.proxy.next("EXEC", fault.clone());
            let held = lock.lock()?;
            let names = scenario.proxy.names()[1..].join(" ");
            match fault {
                // Our bytes are there: proof enough.
                Fault::CutAfter => assert_eq!(names, "GET WATCH GET MULTI SET EXEC GET"),
                // They are not: made anew, with another value.
                _ => assert_eq!(names, "GET WATCH GET MULTI SET EXEC GET WATCH GET MULTI SET EXEC"),
            }
            assert_nothing_sent_twice(&scenario.proxy);
            assert_eq!(held.release()?, CERTIFIED);
        }
    }
    Ok(())
}

fn the_answer_to_exec_is_lost_in_a_release(load: Load) -> Outcome {
    for protocol in BOTH {
        let (scenario, key, lock) = scene_and_key(load, protocol)?;
        let held = lock.lock()?;
        scenario.proxy.next("EXEC", Fault::CutAfter);
        assert_eq!(held.release()?, UNCERTIFIED, "found out by reading");
        assert_eq!(scenario.proxy.names()[1..].join(" "), "WATCH GET MULTI DEL EXEC GET");
        assert_eq!(key.value(), None);

        let held = lock.lock()?;
        scenario.proxy.next("EXEC", Fault::CutBefore);
        let error = held.release().expect_err("it may still come");
        assert!(matches!(error, Error::Unknown { command: "EXEC", .. }), "{error:?}");
        assert_says(&error, &key, &["it frees itself when its lease has passed"]);
        assert_eq!(scenario.proxy.names().iter().filter(|name| *name == "EXEC").count(), 2);
    }
    Ok(())
}

fn a_look_that_gets_no_answer_is_done_once_more(load: Load) -> Outcome {
    for protocol in BOTH {
        let (scenario, key, lock) = scene_and_key(load, protocol)?;
        let held = lock.lock()?;
        scenario.proxy.next("WATCH", Fault::CutAfter);
        assert_eq!(held.release()?, CERTIFIED);

        let held = lock.lock()?;
        scenario.proxy.next("WATCH", Fault::CutBefore);
        scenario.proxy.next("GET", Fault::CutAfter);
        let error = held.release().expect_err("twice");
        assert!(matches!(error, Error::Io { .. }), "nothing is in doubt: {error:?}");
        assert!(key.value().is_some(), "nothing was deleted");
    }
    Ok(())
}

fn a_server_that_stops_in_a_transaction_takes_one_time_out(load: Load) -> Outcome {
    // The three answers to a transaction are waited for together, not one time-out of 2 s for each. The first comes after two of
    // them, and only then is the server asked for the rest. The order of events is asserted, since load can stretch any time.
    let scenario = Scenario::under_load(load)?;
    let key = scenario.target.key("stops");
    let options = expiring().protocol(Protocol::Watched);
    let lock = Lock::new(&scenario.open(Locker::builder(&scenario.proxy.url())?), &key.key, options)?;
    assert_eq!(lock.lock()?.release()?, CERTIFIED, "from now on a transaction goes in one trip");
    let held = lock.lock()?;
    scenario.proxy.next("MULTI", Fault::AnswerLate(millis(4000)));
    let error = held.release().expect_err("no answer");
    assert!(matches!(error, Error::Unknown { command: "EXEC", .. }), "{error:?}");
    let names = scenario.proxy.names();
    assert_eq!(
        names.iter().filter(|name| *name == "EXEC").count(),
        1,
        "the time-out came before the first answer did: {names:?}"
    );
    assert!(key.value().is_some());
    Ok(())
}

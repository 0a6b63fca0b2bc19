//! The commands that a server receives.

use std::sync::Arc;
use std::time::Duration;
use std::{mem, thread};

use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
use setnx_lock_proto::values::SideKey;
use setnx_lock_testing::TestServer;

use crate::support::scenario::{client_pool, opened, patient};
use crate::support::sent::{connected, names, recorded};
use crate::support::{LONG, Outcome, Target, expiring, millis, trials_of};

trials_of! {
    "wire";
    auto_is_classic_where_the_version_is_unknown,
    an_uncontended_pair_is_setnx_and_del_and_connecting_sends_one_info,
    contention_and_takeover_send_the_gem_s_commands_with_the_gem_s_arguments,
    classic_sends_four_commands_only,
    watched_and_ttl_send_their_transactions,
    a_holder_sends_what_it_does_with_its_lock,
    watched_and_ttl_do_it_by_transactions,
    a_release_before_its_time_is_an_extension,
}

fn an_uncontended_pair_is_setnx_and_del_and_connecting_sends_one_info() -> Outcome {
    let server = TestServer::start();
    server.clear_log();
    let locker = opened(&server.url())?;
    for options in [expiring(), LockOptions::without_expiration()] {
        let lock = Lock::new(&locker, "pair", options)?;
        for _ in 0..10 {
            lock.with(|_| ())?;
        }
    }
    let commands = recorded(&server);
    assert_eq!(commands[0], ["INFO"], "once, on the one connection that was opened");
    let commands = &commands[1..];
    assert_eq!(names(commands), ["SETNX", "DEL"].repeat(20));
    for pair in commands.chunks(2) {
        assert_eq!(
            (pair[0].len(), pair[0][1].as_str(), &pair[1][1..]),
            (3, "pair", &["pair".to_owned()][..])
        );
    }
    assert!(commands[0][2].parse::<f64>()? > 1.7e9);
    assert_eq!(commands[20][2], "1");

    server.clear_log();
    let silent = patient(&server.url())?.skip_server_check().build()?;
    Lock::new(&silent, "pair", expiring())?.with(|_| ())?;
    assert_eq!(names(&recorded(&server)), ["SETNX", "DEL"]);
    Ok(())
}

fn contention_and_takeover_send_the_gem_s_commands_with_the_gem_s_arguments() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let key = target.key("contend");
    let name = key.key.to_string();
    let lock = connected(target.lock(&key, expiring().timeout(millis(50))))?;
    key.set("1895000000.5000000000000001");
    server.clear_log();
    assert!(matches!(lock.lock(), Err(Error::Contended { .. })));
    let commands = recorded(&server);
    // One attempt and one look; after that a waiter sends GET only.
    assert_eq!(names(&commands)[..2], ["SETNX", "GET"]);
    assert!(
        names(&commands)[2..].iter().all(|name| *name == "GET"),
        "one command for each poll: {commands:?}"
    );
    assert!(!commands.is_empty() && commands.iter().all(|words| words[1] == name));

    key.set("1532000016.5000000000000001");
    server.clear_log();
    lock.lock()?.release()?;
    let commands = recorded(&server);
    assert_eq!(names(&commands), ["SETNX", "GET", "GETSET", "DEL"]);
    assert_eq!(commands[2].len(), 3);
    assert_ne!(commands[0][2], "1532000016.5000000000000001");

    // Without an expiration a waiter sends SETNX only.
    key.set("1532000016.5000000000000001");
    let lock = connected(target.lock(&key, LockOptions::without_expiration().timeout(millis(50))))?;
    server.clear_log();
    assert!(lock.lock().is_err());
    let commands = recorded(&server);
    assert!(!commands.is_empty() && names(&commands).iter().all(|name| *name == "SETNX"), "{commands:?}");
    Ok(())
}

fn classic_sends_four_commands_only() -> Outcome {
    let server = Arc::new(TestServer::start());
    server.clear_log();
    let locker = patient(&server.url())?.skip_server_check().build()?;
    let brief = LockOptions::expiring_after(millis(100)).timeout(LONG).poll_interval(millis(20));
    let lock = Lock::new(&locker, "all", brief)?;
    mem::forget(lock.lock()?); // a crashed holder
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..6).map(|_| scope.spawn(|| lock.with(|_| ()))).collect();
        waiters.into_iter().try_for_each(|waiter| waiter.join().unwrap())
    })?;
    let held = Lock::new(&locker, "all", expiring())?.lock()?;
    assert!(lock.try_lock()?.is_none() && lock.try_lock_for(millis(30))?.is_none());
    let _ = (lock.state()?, held.remaining(), lock.clear()?);
    assert!(held.release().is_err_and(|error| error.is_lost()));
    let held = lock.lock()?;
    thread::sleep(Duration::from_millis(120));
    drop(held);
    let mut sent = names(&recorded(&server)).into_iter().map(str::to_owned).collect::<Vec<_>>();
    sent.sort();
    sent.dedup();
    assert_eq!(sent, ["DEL", "GET", "GETSET", "SETNX"]);
    Ok(())
}

fn a_holder_sends_what_it_does_with_its_lock() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let key = target.key("powers");
    let (name, fence) = (key.key.to_string(), String::from_utf8(SideKey::Fence.of(key.key.as_bytes()))?);
    let lock = connected(target.lock(&key, expiring()))?;
    server.clear_log();
    let held = lock.lock()?;
    held.extend()?;
    held.verify()?;
    held.fencing_token()?;
    held.fencing_token()?;
    // The clocks alone.
    let _ = (held.loss_signal().is_lost(), held.ensure_held()?, held.remaining());
    held.leave_to_expire()?;
    let commands = recorded(&server);
    assert_eq!(names(&commands), ["SETNX", "GET", "GETSET", "GET", "INCR"]);
    assert_eq!(commands[4], ["INCR", &fence]);
    assert!(commands[..4].iter().all(|words| words[1] == name));

    // A counter that is to be forgotten, in the same trip.
    key.delete();
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let target = target.with(protocol);
        let held = target.lock(&key, expiring().forget_tokens_after(2 * LONG)).lock()?;
        server.clear_log();
        held.fencing_token()?;
        let seconds = (2 * LONG).as_secs().to_string();
        let batches = server.batches();
        let last: Vec<_> =
            batches.last().expect("it was sent").iter().map(|sent| sent.name.as_str()).collect();
        let expected: &[&str] =
            if protocol == Protocol::Classic { &["INCR", "EXPIRE"] } else { &["INCR", "EXPIRE", "EXEC"] };
        assert_eq!(last, expected, "{batches:?}");
        let expires = || {
            let expires = recorded(&server).into_iter().filter(|words| words[0] == "EXPIRE");
            assert_eq!(expires.collect::<Vec<_>>(), [["EXPIRE", &fence, &seconds]]);
        };
        expires();
        // Its holder has a number: it is kept with the lease, once the key was seen.
        server.clear_log();
        held.extend()?;
        expires();
        let commands: &[&str] = match protocol {
            Protocol::Classic => &["GET", "EXPIRE", "GETSET"],
            _ => &["WATCH", "GET", "MULTI", "SET", "EXPIRE", "EXEC"],
        };
        assert_eq!(names(&recorded(&server)), commands);
        held.release()?;
    }

    server.clear_log();
    assert_eq!(lock.holder()?, None);
    let commands = recorded(&server);
    let reads = ["GET", "PTTL"].map(|command| vec![command.to_owned(), name.clone()]);
    assert_eq!(commands, reads);

    // With a name: it stands in each value.
    key.set("1532000016.5000000000000001");
    let lock = connected(Lock::new(&target.locker_named("a:1")?, &key.key, expiring())?)?;
    server.clear_log();
    let held = lock.lock()?;
    held.extend()?;
    let commands = recorded(&server);
    assert_eq!(names(&commands), ["SETNX", "GET", "GETSET", "GET", "GETSET"]);
    let behind = |at: usize| commands[at][2].split_once(':').expect("a name").1.to_owned();
    let since = behind(0);
    assert!(since.len() == 14 && since.ends_with(":a:1"), "{since}");
    assert_eq!([behind(2), behind(4)], [since.clone(), since], "{commands:?}");
    drop(held);
    Ok(())
}

fn watched_and_ttl_do_it_by_transactions() -> Outcome {
    let server = Arc::new(TestServer::start());
    let ttl = (LONG.as_millis() + 500).to_string();
    for protocol in [Protocol::Watched, Protocol::Ttl] {
        let target = Target::of(&server).with(protocol);
        let key = target.key("powers");
        let lock = connected(target.lock(&key, expiring()))?;
        let held = lock.lock()?;
        server.clear_log();
        held.extend()?;
        held.fencing_token()?;
        let commands = recorded(&server);
        let transaction = |change| ["WATCH", "GET", "MULTI", change, "EXEC"];
        assert_eq!(names(&commands), [transaction("SET"), transaction("INCR")].concat());
        let arguments: Vec<&str> = commands[3][3..].iter().map(String::as_str).collect();
        assert_eq!(arguments, if protocol == Protocol::Ttl { vec!["PX", &ttl] } else { Vec::new() });
        drop(held);
    }
    Ok(())
}

fn a_release_before_its_time_is_an_extension() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let key = target.key("at-least");
    let locker = target.locker();
    let lock = connected(target.lock_through(&locker, &key, expiring().hold_at_least(LONG / 2)))?;
    server.clear_log();
    lock.lock()?.release()?;
    assert_eq!(names(&recorded(&server)), ["SETNX", "GET", "GETSET"]);
    key.delete();
    // Until the lease ends: it ends then by itself.
    let lock = target.lock_through(&locker, &key, expiring().hold_at_least(LONG));
    server.clear_log();
    lock.lock()?.release()?;
    assert_eq!(names(&recorded(&server)), ["SETNX"]);
    Ok(())
}

fn watched_and_ttl_send_their_transactions() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    // Half a second more than the expiration, in milliseconds.
    let ttl = (LONG.as_millis() + 500).to_string();
    for (protocol, first) in [(Protocol::Watched, "SETNX"), (Protocol::Ttl, "SET")] {
        let target = target.with(protocol);
        let key = target.key("transactions");
        let lock = target.lock(&key, expiring().timeout(Duration::ZERO));
        lock.with(|_| ())?;
        server.clear_log();
        lock.lock()?.release()?;
        let commands = recorded(&server);
        assert_eq!(names(&commands), [first, "WATCH", "GET", "MULTI", "DEL", "EXEC"]);
        let arguments: Vec<&str> = commands[0][3..].iter().map(String::as_str).collect();
        assert_eq!(arguments, if protocol == Protocol::Ttl { vec!["PX", &ttl, "NX"] } else { Vec::new() });

        key.set("1895000000.5000000000000001");
        server.clear_log();
        assert!(lock.lock().is_err());
        assert_eq!(names(&recorded(&server)), [first, "GET"], "a waiter watches nothing");

        key.set("1532000016.5000000000000001");
        server.clear_log();
        mem::forget(lock.lock()?);
        let commands = recorded(&server);
        let ending: &[&str] =
            if protocol == Protocol::Ttl { &["WATCH", "GET", "PTTL"] } else { &["WATCH", "GET"] };
        assert_eq!(names(&commands), [&[first, "GET"], ending, &["MULTI", "SET", "EXEC"]].concat());
        let arguments: Vec<&str> = commands[commands.len() - 2][3..].iter().map(String::as_str).collect();
        assert_eq!(arguments, if protocol == Protocol::Ttl { vec!["PX", &ttl] } else { Vec::new() });
    }
    Ok(())
}

fn auto_is_classic_where_the_version_is_unknown() -> Outcome {
    let server = TestServer::start();
    let unchecked = patient(&server.url())?.skip_server_check().build()?;
    let pooled = Locker::with_pool(client_pool(&server.url())).build()?;
    for locker in [unchecked, pooled] {
        let held = Lock::new(&locker, "k", expiring().protocol(Protocol::Auto))?.lock()?;
        assert_eq!(held.protocol(), Protocol::Classic);
    }
    Ok(())
}

//! `watch`: what happens to a lock, as it happens.

use std::time::Duration;

use setnx_lock::{Lock, LockOptions};

use super::program::{Running, ran};
use super::schema::{WATCH_LINE, read};
use super::values::{ending_in, send, set, set_named};
use crate::servers::Proxy;
use crate::support::notified::elsewhere;
use crate::support::scenario::{closed_port, opened};
use crate::support::{LONG, Outcome, PAST, RedisServer, Test, expiring, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_lock_that_is_acquired_and_released,
    a_lock_that_is_passed_on_extended_and_taken_over,
    a_lock_of_the_library_that_is_extended,
    a_name_that_comes_after_its_value_is_waited_for,
    a_lock_that_expires,
    a_server_that_goes_away_and_comes_back,
    a_server_that_refuses_ends_it,
    a_closed_output_ends_it,
    wrong_arguments,
];

const WATCH: [&str; 4] = ["watch", "k", "--interval=5ms", "--json"];

/// Asserts that the next event is this one.
#[track_caller]
pub(super) fn next(running: &Running, event: &str) -> serde_json::Value {
    let line = read(WATCH_LINE, &running.line());
    assert_eq!(line["event"], event, "{line}");
    line
}

fn a_lock_that_is_acquired_and_released() -> Outcome {
    let server = RedisServer::start()?;
    let lock = Lock::new(&opened(&server.url())?, "k", expiring())?;
    let running = Running::start(&server.url(), &["watch", "k", "--interval", "5ms"])?;
    let note = running.note();
    assert_eq!(note, "setnx-lock: reads k every 5ms; what happens in between is seen as one change");
    let first = running.line();
    assert!(first.starts_with("20") && first.ends_with("Z at first: free"), "{first}");
    for _ in 0..2 {
        let held = lock.lock()?;
        let acquired = running.line();
        assert!(
            acquired.contains("Z acquired: held for ") && acquired.contains(" more, until "),
            "{acquired}"
        );
        held.release()?;
        let released = running.line();
        assert!(released.ends_with("Z released: free"), "{released}");
    }

    let running = Running::start(&server.url(), &WATCH)?;
    assert_eq!(next(&running, "first")["description"], "free");
    let held = lock.lock()?;
    assert!(next(&running, "acquired")["until"].is_string());
    held.release()?;
    assert!(next(&running, "released")["until"].is_null());
    Ok(())
}

fn a_lock_that_is_passed_on_extended_and_taken_over() -> Outcome {
    let server = RedisServer::start()?;
    let text = Running::start(&server.url(), &["watch", "k", "--interval", "5ms"])?;
    let running = Running::start(&server.url(), &WATCH)?;
    let value = |seconds| ending_in(LONG + Duration::from_secs(seconds));
    next(&running, "first");
    text.line();
    let expect = |event, words: &str, holder: Option<&str>| {
        assert_eq!(next(&running, event)["holder"].as_str(), holder);
        let line = text.line();
        assert!(line.contains(&format!("Z {words}: ")), "{line}");
        if let Some(holder) = holder {
            assert!(line.ends_with(&format!(", by {holder}")), "{line}");
        }
    };
    set_named(&server, "k", &value(1), "web");
    expect("acquired", "acquired", Some("web"));
    set_named(&server, "k", &value(2), "web");
    expect("extended", "extended", Some("web"));
    set_named(&server, "k", &value(3), "db");
    expect("changed", "passed on or extended", Some("db"));
    set(&server, "k", value(4));
    expect("changed", "passed on or extended", None);
    set(&server, "k", PAST);
    expect("changed", "passed on or extended", None);
    let held = elsewhere(&server, "k", expiring())?.lock()?;
    expect("taken_over", "taken over", None);
    held.release()?;
    expect("released", "released", None);
    set(&server, "k", "1");
    expect("acquired", "acquired", None);
    Ok(())
}

fn a_lock_of_the_library_that_is_extended() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", expiring().holder_name("web"))?.lock()?;
    let running = Running::start(&server.url(), &WATCH)?;
    assert_eq!(next(&running, "first")["holder"], "web");
    // Its name comes a moment after the value, and between the two it is not known to be the same holder.
    loop {
        held.extend()?;
        let line = read(WATCH_LINE, &running.line());
        if line["event"] == "extended" {
            assert_eq!(line["holder"], "web");
            break;
        }
        assert_eq!(line["event"], "changed", "{line}");
    }
    Ok(())
}

/// Before 2.2, and in Classic, an extension writes the two in two trips.
fn a_name_that_comes_after_its_value_is_waited_for() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let [first, second] = [1, 2].map(|n| ending_in(LONG + Duration::from_secs(n)));
    set_named(&server, "k", &first, "web");
    let running = Running::start(&proxy.url(), &WATCH)?;
    next(&running, "first");
    let before_the_value = proxy.hold("GETRANGE", 1);
    before_the_value.reached();
    let before_the_name = proxy.hold("GETRANGE", 1);
    set(&server, "k", &second);
    drop(before_the_value);
    before_the_name.reached();
    set_named(&server, "k", &second, "web");
    drop(before_the_name);
    assert_eq!(next(&running, "extended")["holder"], "web");
    Ok(())
}

fn a_lock_that_expires() -> Outcome {
    let server = RedisServer::start()?;
    let running = Running::start(&server.url(), &WATCH)?;
    next(&running, "first");
    // On a busy machine a lock may have expired when it is seen at first: then it is longer the next time.
    let mut lease = Duration::from_millis(500);
    let until = loop {
        set(&server, "k", ending_in(lease));
        let acquired = next(&running, "acquired");
        if acquired["description"].as_str().unwrap().starts_with("held for ") {
            break acquired["until"].clone();
        }
        send(&server, "DEL k");
        next(&running, "released");
        lease *= 2;
    };
    let expired = next(&running, "expired");
    assert_eq!(expired["until"], until);
    assert!(expired["time"].as_str() >= until.as_str(), "{expired}");
    assert!(expired["description"].as_str().unwrap().starts_with("expired "), "{expired}");
    send(&server, "DEL k");
    next(&running, "released");
    Ok(())
}

fn a_server_that_goes_away_and_comes_back() -> Outcome {
    let mut server = RedisServer::start()?;
    set(&server, "k", "1");
    let running = Running::start(&server.url(), &WATCH)?;
    assert_eq!(
        next(&running, "first")["description"].as_str().unwrap().split(';').next(),
        Some("held without an expiration")
    );
    running.note();
    server.stop();
    let warning = running.note();
    assert!(warning.starts_with("setnx-lock: warning: tries again: "), "{warning}");
    server.restart()?;
    assert_eq!(running.note(), "setnx-lock: the server answers again", "it is said once");
    // It has forgotten the key.
    next(&running, "released");
    set(&server, "k", "1");
    next(&running, "acquired");
    Ok(())
}

fn a_server_that_refuses_ends_it() -> Outcome {
    let server = RedisServer::start()?;
    let running = Running::start(&server.url(), &WATCH)?;
    next(&running, "first");
    running.note();
    send(&server, "ACL SETUSER default -type");
    let ended = running.ends().exits(77).says(&["permit the command and the keys to this user"]);
    assert!(ended.err.starts_with("setnx-lock: error: lock k: the server refused: NOPERM"), "{ended}");
    Ok(())
}

fn a_closed_output_ends_it() -> Outcome {
    let server = RedisServer::start()?;
    let lock = Lock::new(&opened(&server.url())?, "k", LockOptions::held_until_released())?;
    for arguments in [&WATCH[..], &WATCH[..3]] {
        let mut running = Running::start(&server.url(), arguments)?;
        running.line();
        running.note();
        running.close_output();
        // The first line that is not read tells it: the reader leaves with a line, and the program with the next.
        while !running.has_ended() {
            let held = lock.lock()?;
            std::thread::sleep(Duration::from_millis(20));
            held.release()?;
        }
        assert_eq!(running.ends().exits(0).err, "");
    }
    Ok(())
}

fn wrong_arguments() -> Outcome {
    let server = RedisServer::start()?;
    ran(&server.url(), ["watch"]).exits(64).says(&["KEY"]);
    ran(&server.url(), ["watch", "k", "--interval", "0"]).exits(64).says(&["a millisecond at least"]);
    ran(&server.url(), ["watch", "--key-hex", "6g"]).exits(64).says_only(&["not hexadecimal"]);
    let nowhere = format!("redis://127.0.0.1:{}/", closed_port()?);
    ran(&nowhere, ["watch", "k"]).exits(69).says_only(&["Connection refused"]);
    Ok(())
}

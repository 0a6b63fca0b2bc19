//! `watch`: what happens to a lock, as it happens.

use std::time::Duration;

use setnx_lock::{Lock, LockOptions};
use setnx_lock_testing::{ServerVersion, TestServer};

use super::program::Running;
use super::schema::{WATCH_LINE, read};
use super::values::{ending_in, send, set, set_named};
use crate::support::scenario::opened;
use crate::support::{LONG, Outcome, PAST, Test, expiring, server_of, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    events_are_shown_in_words,
    a_server_that_goes_away_and_comes_back,
    a_server_that_refuses_ends_it,
    a_closed_output_ends_it,
    all_locks_under_a_pattern_are_watched,
];

const WATCH: [&str; 4] = ["watch", "k", "--interval=5ms", "--json"];

/// Asserts that the next event is this one.
#[track_caller]
fn next(running: &Running, event: &str) -> serde_json::Value {
    let line = read(WATCH_LINE, &running.line());
    assert_eq!(line["event"], event, "{line}");
    line
}

/// `schema` has the events in JSON.
fn events_are_shown_in_words() -> Outcome {
    let server = TestServer::start();
    let lock = Lock::new(&opened(&server.url())?, "k", expiring())?;
    let running = Running::start(&server.url(), &["watch", "k", "--interval", "5ms"])?;
    let note = running.note();
    assert_eq!(note, "setnx-lock: reading k every 5ms; changes between two reads appear as one");
    let expect = |begin: &str, holder: &str| {
        let line = running.line();
        let (what, by) = line.split_once(", by ").unwrap_or((&line, ""));
        let is_held_by = by.starts_with(holder) && by.is_empty() == holder.is_empty();
        let is_it = what.starts_with("20") && what.contains(&format!("Z {begin}")) && is_held_by;
        assert!(is_it, "{line}");
    };
    let value = |seconds| ending_in(LONG + Duration::from_secs(seconds));
    expect("at first: free", "");
    let held = lock.lock()?;
    expect("acquired: held for ", "");
    held.release()?;
    expect("released: free", "");
    set_named(&server, "k", &value(1), "web");
    expect("acquired: held for ", "web for ");
    set_named(&server, "k", &value(2), "web");
    expect("extended: held for ", "web for ");
    set_named(&server, "k", &value(3), "db");
    expect("passed on or extended: held for ", "db for ");
    set(&server, "k", value(4));
    expect("passed on or extended: held for ", "");
    set(&server, "k", PAST);
    expect("passed on or extended: expired ", "");
    let held = lock.lock()?;
    expect("taken over: held for ", "");
    held.release()?;
    expect("released: free", "");
    Ok(())
}

fn a_server_that_goes_away_and_comes_back() -> Outcome {
    let server = TestServer::start();
    set(&server, "k", "1");
    let running = Running::start(&server.url(), &WATCH)?;
    assert_eq!(
        next(&running, "first")["description"].as_str().unwrap().split(';').next(),
        Some("held without an expiration")
    );
    running.note();
    server.stop();
    let warning = running.note();
    assert!(warning.starts_with("setnx-lock: warning: retrying: "), "{warning}");
    server.restart_empty();
    assert_eq!(running.note(), "setnx-lock: the server replies again", "it is said once");
    // It has forgotten the key.
    next(&running, "released");
    set(&server, "k", "1");
    next(&running, "acquired");
    Ok(())
}

fn a_server_that_refuses_ends_it() -> Outcome {
    let server = TestServer::start();
    let running = Running::start(&server.url(), &WATCH)?;
    next(&running, "first");
    running.note();
    send(&server, "ACL SETUSER default -type");
    let ended = running.ends().exits(77).says(&["allow the command and the keys with ACL SETUSER"]);
    assert!(ended.err.starts_with("setnx-lock: error: lock k: the server refused: NOPERM"), "{ended}");
    Ok(())
}

fn a_closed_output_ends_it() -> Outcome {
    let server = TestServer::start();
    let lock = Lock::new(&opened(&server.url())?, "k", LockOptions::without_expiration())?;
    let mut running = Running::start(&server.url(), &WATCH)?;
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
    Ok(())
}

fn all_locks_under_a_pattern_are_watched() -> Outcome {
    let server = TestServer::start();
    set(&server, "team:1", ending_in(LONG));
    set(&server, "other:1", ending_in(LONG));
    let watch = ["watch", "--matching", "team:*", "--interval=5ms", "--json"];
    let running = Running::start(&server.url(), &watch)?;
    let next = |event: &str, key: &str| assert_eq!(next(&running, event)["key"], key);
    next("first", "team:1");
    set_named(&server, "team:2", &ending_in(LONG), "web");
    next("acquired", "team:2");
    send(&server, "DEL team:1");
    next("released", "team:1");
    set_named(&server, "team:2", &ending_in(2 * LONG), "web");
    next("extended", "team:2");
    set(&server, "team:1", ending_in(LONG));
    next("acquired", "team:1");
    server.stop();
    server.restart_empty();
    next("released", "team:1");
    next("released", "team:2");
    drop(running);
    set(&server, "a:1", ending_in(LONG));
    let running = Running::start(&server.url(), &["watch", "--matching=*", "--prefix=a:"])?;
    assert!(running.line().contains("Z a:1 at first: held for "));
    // Without SCAN there is no way.
    let old = server_of(ServerVersion::V2_6);
    super::program::ran(&old.url(), ["watch", "--matching", "*"]).exits(64).says(&["SCAN"]);
    for wrong in [&["watch"][..], &["watch", "k", "--matching", "*"]] {
        super::program::ran(&server.url(), wrong).exits(64);
    }
    Ok(())
}

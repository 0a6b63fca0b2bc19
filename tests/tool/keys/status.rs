//! `status`: what keys hold.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use serde_json::Value;
use setnx_lock::chrono::{DateTime, SecondsFormat};
use setnx_lock::{Lock, LockOptions, Protocol};
use setnx_lock_testing::{ServerVersion, TestServer};

use super::program::ran;
use super::schema::{reports, reports_by_key};
use super::values::{ending_in, get, send, set, set_named};
use crate::support::notified::{NOTIFIED, Waiter, connection, elsewhere, keys, until, until_waiting};
use crate::support::scenario::patient;
use crate::support::{AnyServer, LONG, Outcome, PAST, RedisServer, Test, expiring, millis, server_of, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_held_lock_shows_its_lease_and_the_name_of_its_holder,
    a_name_with_special_characters_is_escaped_once,
    each_state_is_told,
    a_time_to_live_is_told,
    a_key_that_holds_no_lock_is_named_as_that,
    a_long_value_is_neither_printed_nor_read_in_whole,
    several_keys_are_shown_in_the_order_of_the_arguments,
    quiet_prints_nothing_and_exits_with_75_if_a_key_is_held,
    keys_of_any_bytes_are_shown_with_escapes,
    a_fencing_token_and_waiters_are_counted,
    each_old_version_shows_the_same,
    a_replica_is_shown_as_well,
];

/// The report on a key.
#[track_caller]
fn report(server: &impl AnyServer, key: &str) -> Value {
    let mut reports = reports(&ran(&server.url(), ["status", key, "--json"]).exits(0).out);
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports.remove(0)
}

fn a_held_lock_shows_its_lease_and_the_name_of_its_holder() -> Outcome {
    let server = TestServer::start();
    let locker = patient(&server.url())?.holder_name("web:7").build()?;
    let held = Lock::new(&locker, "k", expiring().protocol(Protocol::Classic))?.lock()?;
    let shown = ran(&server.url(), ["status", "k"]).exits(0);
    let lines: Vec<_> = shown.out.lines().collect();
    assert_eq!(lines.len(), 2, "{shown}");
    assert!(lines[0].starts_with("k: held for ") && lines[0].contains(" more, until 20"), "{shown}");
    assert!(lines[1].starts_with("  holder: web:7 for ") && lines[1].ends_with('s'), "{shown}");
    let found = report(&server, "k");
    assert_eq!((&found["state"], &found["holder"]), (&"held".into(), &"web:7".into()));
    let since = Lock::new(&locker, "k", expiring())?.holder()?.map(|holder| holder.since());
    assert_eq!(found["held_since"], since.unwrap().to_rfc3339_opts(SecondsFormat::Millis, true));
    assert!(found["ttl_seconds"].is_null(), "{found}");
    let (left, most) = (found["seconds_left"].as_f64().unwrap(), LONG.as_secs_f64() + 1.0);
    assert!(left > 0.0 && left <= most, "{found}");
    let value = get(&server, "k").expect("it is held");
    let (seconds, fraction) = value.split_once('.').expect("a fraction");
    let millis = seconds.parse::<i64>()? * 1000 + fraction[..3].parse::<i64>()?;
    let until = DateTime::from_timestamp_millis(millis).expect("within the calendar");
    assert_eq!(found["until"], until.to_rfc3339_opts(SecondsFormat::Millis, true));
    drop(held);
    ran(&server.url(), ["status", "k"]).exits(0).prints("k: free\n");

    // Earlier versions write the name to a side key. There it counts for the value that it was written with.
    for (written_with, holder) in [(PAST, Value::Null), (value.as_str(), "web:7".into())] {
        set(&server, "k", value.split_once(':').unwrap().0);
        let value = written_with.split_once(':').map_or(written_with, |(value, _)| value);
        set(&server, "k:setnx-lock:holder", format!("{value} web:7"));
        let found = report(&server, "k");
        assert_eq!((&found["state"], &found["holder"]), (&"held".into(), &holder));
        assert!(found["held_since"].is_null(), "{found}");
    }
    ran(&server.url(), ["status", "k"]).exits(0).shows(&["\n  holder: web:7\n"]);
    Ok(())
}

/// By JSON there, and for people in the text. With control characters it is no name.
fn a_name_with_special_characters_is_escaped_once() -> Outcome {
    let server = TestServer::start();
    set_named(&server, "k", &ending_in(LONG), "web \"7\"\\");
    assert_eq!(report(&server, "k")["holder"], "web \"7\"\\");
    ran(&server.url(), ["status", "k"]).exits(0).shows(&[r#"  holder: web "7"\ for "#]);
    set_named(&server, "k", &ending_in(LONG), "web\n7");
    assert!(report(&server, "k")["holder"].is_null());
    let value = ending_in(LONG);
    set(&server, "k", &value);
    set(&server, "k:setnx-lock:holder", format!("{value} web\n7"));
    ran(&server.url(), ["status", "k"]).exits(0).shows(&[r"  holder: web\n7"]);
    Ok(())
}

fn each_state_is_told() -> Outcome {
    let server = TestServer::start();
    ran(&server.url(), ["status", "free"]).exits(0).prints("free: free\n");
    let words = r#"{"description":"free","fence":null,"held_since":null,"holder":null,"key":"free","seconds_left":null,"state":"free","ttl_seconds":null,"until":null,"waiters":0}"#;
    assert_eq!(report(&server, "free").to_string(), words);

    set(&server, "expired", PAST);
    let shown = ran(&server.url(), ["status", "expired"]).exits(0);
    assert!(shown.out.starts_with("expired: expired ") && shown.out.contains("years"), "{shown}");
    let words = " ago, at 2018-07-19T11:33:36.500Z: the next client to try gets it\n";
    assert!(shown.out.ends_with(words), "{shown}");
    let found = report(&server, "expired");
    assert_eq!((&found["state"], &found["until"]), (&"expired".into(), &"2018-07-19T11:33:36.500Z".into()));
    assert!(found["seconds_left"].as_f64().unwrap() < -100e6, "{found}");

    let _held = elsewhere(&server, "endless", LockOptions::without_expiration())?.lock()?;
    set(&server, "gem", "");
    set(&server, "far", "1531999999000");
    for (key, state, words) in [
        ("endless", "no_expiration", "held without an expiration; if its holder has crashed, clear it"),
        (
            "gem",
            "gem_ttl",
            "held by redis-objects 1.4.2 or later with no time to live; if its holder has crashed, clear it",
        ),
        ("far", "no_lock", "not a lock: it holds \"1531999999000\", which looks like a time in milliseconds"),
    ] {
        ran(&server.url(), ["status", key]).exits(0).prints(&format!("{key}: {words}\n"));
        let found = report(&server, key);
        assert!(found["state"] == state && found["until"].is_null(), "{found}");
        assert!(found["seconds_left"].is_null(), "{found}");
    }
    // The clock of its holder is behind: the server keeps it.
    send(&server, "SET behind 1532000016.4923038374650192 PX 600000");
    ran(&server.url(), ["status", "behind"]).exits(0).shows(&["behind: held for "]);
    ran(&server.url(), ["status", "-q", "behind"]).exits(75);
    let found = report(&server, "behind");
    assert!(found["state"] == "held" && found["seconds_left"].as_f64().unwrap() > 0.0, "{found}");
    ran(&server.url(), ["list"]).exits(0).shows(&["held"]);
    let lock = elsewhere(&server, "behind", expiring().protocol(Protocol::Ttl).timeout(millis(300)))?;
    let error = lock.lock().expect_err("the server keeps it").to_string();
    assert!(error.contains("last seen: held until"), "{error}");
    assert!(lock.state()?.is_held());
    Ok(())
}

fn a_time_to_live_is_told() -> Outcome {
    let server = TestServer::start();
    let _held = elsewhere(&server, "k", expiring().protocol(Protocol::Ttl))?.lock()?;
    let shown = ran(&server.url(), ["status", "k"]).exits(0).shows(&["k: held for ", "\n  time to live: "]);
    assert!(shown.out.ends_with(", then the server deletes it\n"), "{shown}");
    let found = report(&server, "k");
    let left = found["ttl_seconds"].as_f64().unwrap();
    assert!(left > 0.0 && left <= LONG.as_secs_f64() + 1.0, "{found}");

    for (key, value, holder) in
        [("endless", "1", "without an expiration"), ("gem", "", "by redis-objects 1.4.2 or later")]
    {
        set(&server, key, value);
        send(&server, &format!("EXPIRE {key} 1010"));
        let shown = ran(&server.url(), ["status", key]).exits(0);
        let words = format!("{key}: held {holder}, freed by the server in 16m ");
        assert!(shown.out.starts_with(&words), "{shown}");
        assert_eq!(shown.out.lines().count(), 1, "the time to live is said once: {shown}");
    }
    let found = report(&server, "gem");
    assert_eq!(found["seconds_left"], found["ttl_seconds"]);
    assert!(found["ttl_seconds"].as_f64().unwrap() > 0.0, "{found}");
    Ok(())
}

fn a_key_that_holds_no_lock_is_named_as_that() -> Outcome {
    let server = RedisServer::start()?;
    for (command, kind) in [
        ("RPUSH list a", "list"),
        ("SADD set a", "set"),
        ("HSET hash a b", "hash"),
        ("ZADD zset 1 a", "zset"),
        ("XADD stream * a b", "stream"),
    ] {
        send(&server, command);
        let words = format!("{kind}: not a lock: it holds a {kind}\n");
        ran(&server.url(), ["status", kind]).exits(0).prints(&words);
    }
    let found = report(&server, "list");
    assert!(found["state"] == "no_lock" && found["seconds_left"].is_null(), "{found}");
    set(&server, "text", "oops\n\u{1b}[31m");
    let shown = ran(&server.url(), ["status", "text"]).exits(0).shows(&["text: not a lock: ", "oops\\n"]);
    assert!(!shown.out.contains('\u{1b}') && shown.out.lines().count() == 1, "escaped: {shown}");
    Ok(())
}

fn a_long_value_is_neither_printed_nor_read_in_whole() -> Outcome {
    const LENGTH: usize = 1 << 20;
    let server = RedisServer::start()?;
    for (key, filled_with) in [("text", "x"), ("time", "1795157376."), ("zeros", "\0")] {
        set(&server, key, filled_with.repeat(LENGTH / filled_with.len()));
        let shown = ran(&server.url(), ["status", key]).exits(0);
        assert!(shown.out.len() < 500 && shown.out.lines().count() == 1, "{shown}");
    }
    let stats: String = redis::cmd("INFO").arg("stats").query(&mut connection(&server))?;
    let sent = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:")).unwrap();
    assert!(sent.trim().parse::<usize>()? < LENGTH / 2, "{sent} bytes were sent");
    Ok(())
}

fn several_keys_are_shown_in_the_order_of_the_arguments() -> Outcome {
    let server = TestServer::start();
    set(&server, "b", "1");
    send(&server, "RPUSH c a");
    let words = "d: free\nb: held without an expiration; if its holder has crashed, clear it\na: free\nc: not a lock: it holds a list\nd: free\n";
    ran(&server.url(), ["status", "d", "b", "a", "c", "d"]).exits(0).prints(words);
    // More than go in one trip.
    let many: Vec<_> = (0..1200).map(|n| format!("k{n}")).collect();
    set(&server, "k1100", "1");
    let shown = ran(&server.url(), ["status".to_owned()].into_iter().chain(many.clone())).exits(0);
    let keys: Vec<_> = shown.out.lines().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(keys, many);
    assert_eq!(shown.out.lines().position(|line| line.contains("held")), Some(1100));
    Ok(())
}

fn quiet_prints_nothing_and_exits_with_75_if_a_key_is_held() -> Outcome {
    let server = TestServer::start();
    set(&server, "expired", PAST);
    set(&server, "held", ending_in(LONG));
    set(&server, "endless", "1");
    set(&server, "gem", "");
    set(&server, "text", "oops");
    send(&server, "RPUSH list a");
    for (keys, code) in [
        (&["free", "expired"][..], 0),
        (&["held"], 75),
        (&["endless"], 75),
        (&["gem"], 75),
        (&["text"], 75),
        (&["list"], 75),
        (&["free", "expired", "held"], 75),
        (&["held", "free"], 75),
    ] {
        ran(&server.url(), ["status", "-q"].iter().chain(keys)).exits(code).prints("");
    }
    ran(&server.url(), ["status", "--quiet", "held"]).exits(75).prints("");
    ran(&server.url(), ["status", "--quiet", "--json", "k"]).exits(64).says(&["cannot be used with"]);
    Ok(())
}

fn keys_of_any_bytes_are_shown_with_escapes() -> Outcome {
    let server = TestServer::start();
    for (key, shown, hex) in [
        (&b"with space"[..], "with space", None),
        ("schl\u{fc}ssel".as_bytes(), "schl\u{fc}ssel", None),
        (b"two\nlines\t", "two\\nlines\\t", Some("74776f0a6c696e657309")),
        (b"\xff\xfe", "\\xff\\xfe", Some("fffe")),
        (b"\x1b[31m", "\\u{1b}[31m", Some("1b5b33316d")),
    ] {
        set(&server, key, "1");
        let key = OsString::from_vec(key.to_vec());
        let line = format!("{shown}: held without an expiration; if its holder has crashed, clear it\n");
        ran(&server.url(), [OsString::from("status"), key.clone()]).exits(0).prints(&line);
        let json = ran(&server.url(), ["status".into(), "--json".into(), key]).exits(0);
        let report = &reports(&json.out)[0];
        assert_eq!((&report["state"], &report["key"]), (&"no_expiration".into(), &shown.into()));
        assert_eq!(report.get("key_hex").map(|hex| hex.as_str().unwrap()), hex);
    }
    Ok(())
}

fn a_fencing_token_and_waiters_are_counted() -> Outcome {
    let server = TestServer::start();
    let locker = patient(&server.url())?.holder_name("web").build()?;
    let held = Lock::new(&locker, "k", NOTIFIED.protocol(Protocol::Classic))?.lock()?;
    let token = held.fencing_token()?;
    let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    ran(&server.url(), ["status", "k"]).exits(0).shows(&[
        "\n  holder: web for ",
        "s\n  waiters listed for notifications: 1\n  last fencing token: 1\n",
    ]);
    let found = report(&server, "k");
    assert_eq!((&found["waiters"], &found["fence"]), (&1.into(), &token.into()));
    // The keys beside it are not listed. A name with a fraction reads as a time.
    assert_eq!(keys(&server, "k:*").len(), 2);
    let listed = reports_by_key(&ran(&server.url(), ["list", "--json"]).exits(0).out);
    assert_eq!((listed.len(), &listed["k"]["holder"]), (1, &"web".into()));
    drop(held);
    drop(waiter.came()?);
    ran(&server.url(), ["status", "k"]).exits(0).shows(&["k: free\n  last fencing token: "]);
    Ok(())
}

fn each_old_version_shows_the_same() -> Outcome {
    let keys = ["free", "held", "expired", "endless", "gem", "text", "list"];
    let states = ["free", "held", "expired", "no_expiration", "gem_ttl", "no_lock", "no_lock"];
    for version in ServerVersion::OLD {
        let server = server_of(version);
        for (key, value) in [("held", &*ending_in(LONG)), ("expired", PAST), ("endless", "1"), ("gem", "")] {
            set(&server, key, value);
        }
        set(&server, "text", "oops");
        send(&server, "RPUSH list a");
        send(&server, "EXPIRE gem 1000");
        set(&server, "held:setnx-lock:fence:{held}", "7");
        send(&server, "RPUSH held:setnx-lock:waiters:{held} a b");
        let shown = ran(&server.url(), ["status", "--json"].iter().chain(&keys)).exits(0);
        assert_eq!(shown.err, "");
        let reports = reports_by_key(&shown.out);
        for (key, state) in keys.into_iter().zip(states) {
            assert_eq!(reports[key]["state"], state, "{} on {version:?}", reports[key]);
        }
        let left = reports["gem"]["ttl_seconds"].as_f64().unwrap();
        assert!(left > 500.0 && left <= 1000.0, "{left} s on {version:?}");
        assert!(reports["held"]["ttl_seconds"].is_null() && reports["free"]["ttl_seconds"].is_null());
        assert_eq!((&reports["held"]["fence"], &reports["held"]["waiters"]), (&7.into(), &2.into()));
    }
    Ok(())
}

fn a_replica_is_shown_as_well() -> Outcome {
    let server = RedisServer::start()?;
    set(&server, "k", PAST);
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
    until("the replica has the key", || replica.say(&["EXISTS", "k"]).is_ok_and(|reply| reply == ":1"));
    ran(&replica.url(), ["status", "k"]).exits(0).shows(&["k: expired "]);
    Ok(())
}

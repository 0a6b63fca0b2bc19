//! `list`: the locks on a server.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use setnx_lock_testing::{ServerVersion, TestServer};

use super::program::{Running, ran};
use super::schema::{KEY_REPORT, read, reports, reports_by_key};
use super::values::{ending_in, send, set, set_named};
use crate::support::notified::{connection, until};
use crate::support::{AnyServer, LONG, Outcome, PAST, Test, server_of, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    locks_are_sorted_by_the_time_left,
    what_is_no_lock_is_left_out,
    many_keys_are_found_by_scan,
    what_may_not_be_read_is_an_error,
    watch_prints_the_list_again_and_again,
    before_2_8_keys_is_used_only_if_allowed,
    old_locks_are_those_that_are_known_to_be,
    metrics_are_grouped_by_prefix,
];

fn locks_are_sorted_by_the_time_left() -> Outcome {
    let server = TestServer::start();
    for (key, seconds) in [("c", 3000), ("a", 9000), ("b", 6000), ("d", 1500)] {
        set(&server, key, ending_in(Duration::from_secs(seconds)));
    }
    set(&server, "expired", PAST);
    set(&server, "z_lock", "1");
    set(&server, "gem_lock", "");
    set(&server, "freed_lock", "");
    send(&server, "EXPIRE freed_lock 4500");
    set_named(&server, "named", &ending_in(Duration::from_secs(12_000)), "web 7");
    let shown = ran(&server.url(), ["list"]).exits(0);
    assert_eq!(shown.err, "");
    let lines: Vec<Vec<_>> = shown.out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["KEY", "LEFT", "STATE", "HOLDER"]);
    let keys: Vec<_> = lines[1..].iter().map(|words| words[0]).collect();
    // Those that are not freed by themselves are the last, by name.
    let sorted = ["expired", "d", "c", "freed_lock", "b", "a", "named", "gem_lock", "z_lock"];
    assert_eq!(keys, sorted, "{shown}");
    let line = |key| shown.out.lines().find(|line| line.starts_with(key)).unwrap();
    assert!(line("expired ").contains(" -") && line("expired ").ends_with("expired"), "{shown}");
    assert!(line("d ").contains("24m ") && line("d ").ends_with("held"), "{shown}");
    assert!(
        line("freed_lock ").ends_with("gem with TTL") && line("freed_lock ").contains("1h 14m"),
        "{shown}"
    );
    assert!(line("gem_lock ").contains(" - ") && line("z_lock ").ends_with("no expiration"), "{shown}");
    assert!(line("named ").contains(" held ") && line("named ").contains("  web 7 for "), "{shown}");

    let json = ran(&server.url(), ["list", "--json"]).exits(0);
    let reports = reports(&json.out);
    let keys: Vec<_> = reports.iter().map(|report| report["key"].as_str().unwrap()).collect();
    assert_eq!(keys, sorted);
    assert_eq!((&reports[0]["state"], &reports[6]["holder"]), (&"expired".into(), &"web 7".into()));
    assert_eq!(json.err, "");
    Ok(())
}

/// Keys that are locks, and keys that are none.
pub(super) fn set_all_kinds(server: &impl AnyServer) {
    for (key, value) in [
        ("locks:held", &*ending_in(LONG)),
        ("locks:of the gem", "1895000000.25"),
        ("locks:expired", PAST),
        ("locks:with a host", "1895000000.2500000123456789:1895000000:host 7"),
        ("none:milliseconds", "1895000000000"),
        ("none:token", "1895000000.25:host:7"),
        ("locks:1_lock", "1"),
        ("locks:2_lock", ""),
        ("none:counter", "1"),
        ("none:number", "12.5"),
        ("none:timestamp", "1795157376"),
        ("none:empty", ""),
        ("none:text", "some text"),
        ("none:text_lock", "some text"),
        ("none:date", "2026-11-20T06:51:40.500Z"),
    ] {
        set(server, key, value);
    }
    send(server, "RPUSH none:list 1795157376.25");
    send(server, "HSET none:hash_lock 1 1");
}

const LOCKS: [&str; 6] =
    ["locks:1_lock", "locks:2_lock", "locks:expired", "locks:held", "locks:of the gem", "locks:with a host"];

fn what_is_no_lock_is_left_out() -> Outcome {
    let server = TestServer::start();
    ran(&server.url(), ["list"]).exits(0).prints("no locks\n");
    ran(&server.url(), ["list", "--json"]).exits(0).prints("");
    set_all_kinds(&server);
    set(&server, b"\xff:1", ending_in(LONG));
    let listed = |pattern| reports_by_key(&ran(&server.url(), ["list", "--json", pattern]).exits(0).out);
    for (pattern, keys) in [
        ("[ln]o*", &LOCKS[..]),
        ("locks:?_lock", &LOCKS[..2]),
        ("*:[1]", &["\\xff:1"]),
        ("locks:held", &["locks:held"]),
        ("nothing*", &[]),
    ] {
        assert_eq!(listed(pattern).keys().collect::<Vec<_>>(), keys, "{pattern}");
    }
    Ok(())
}

fn many_keys_are_found_by_scan() -> Outcome {
    const KEYS: usize = 6000;
    let server = TestServer::start();
    let mut commands = redis::pipe();
    for n in 0..KEYS {
        // Every fourth is a lock.
        let value = if n % 4 == 0 { format!("{}.25", 1_895_000_000 + n) } else { n.to_string() };
        commands.cmd("SET").arg(format!("key:{n}")).arg(value).ignore();
    }
    let () = commands.query(&mut connection(&server))?;
    let found = reports(&ran(&server.url(), ["list", "--json", "key:*"]).exits(0).out);
    let names: Vec<_> = found.iter().map(|report| report["key"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, (0..KEYS).step_by(4).map(|n| format!("key:{n}")).collect::<Vec<_>>());
    let asked = server.names();
    assert!(!asked.contains(&"KEYS".to_owned()));
    assert!(asked.iter().filter(|name| *name == "SCAN").count() >= 4, "a part of the keys at a time");
    Ok(())
}

fn what_may_not_be_read_is_an_error() -> Outcome {
    let server = TestServer::start();
    set(&server, "a_lock", "1");
    set(&server, "k", ending_in(LONG));
    for (user, rights) in
        [("no_getrange", "~* +@all -getrange"), ("no_scan", "~* +@all -scan"), ("some_keys", "~a* +@all")]
    {
        send(&server, &format!("ACL SETUSER {user} on >word {rights}"));
        let url = format!("redis://{user}:word@{}/", server.address());
        ran(&url, ["list"]).exits(77).says_only(&["the server refused", "NOPERM", "ACL SETUSER"]);
    }
    // Among keys that it may read it finds those.
    let url = format!("redis://some_keys:word@{}/", server.address());
    ran(&url, ["list", "a*"]).exits(0).shows(&["a_lock"]);
    Ok(())
}

fn watch_prints_the_list_again_and_again() -> Outcome {
    let server = TestServer::start();
    set(&server, "k_lock", "1");
    let running = Running::start(&server.url(), &["list", "--watch=20ms"])?;
    for _ in 0..2 {
        assert!(running.line().starts_with("KEY"));
        assert!(running.line().starts_with("k_lock"));
    }
    send(&server, "DEL k_lock");
    until("the list is empty", || running.line() == "no locks");
    running.signal(Signal::INT)?;
    let ended = running.ends();
    assert_eq!(ended.err, "");
    assert!(!ended.out.contains('\u{1b}'), "clears no terminal: {ended}");

    set(&server, "k_lock", "1");
    let mut running = Running::start(&server.url(), &["list", "--watch=20ms", "--json"])?;
    for _ in 0..2 {
        assert_eq!(read(KEY_REPORT, &running.line())["key"], "k_lock");
    }
    // It ends when nobody reads any more.
    running.close_output();
    assert_eq!(running.ends().exits(0).err, "");
    Ok(())
}

fn before_2_8_keys_is_used_only_if_allowed() -> Outcome {
    for version in ServerVersion::OLD {
        let server = server_of(version);
        set_all_kinds(&server);
        ran(&server.url(), ["list"]).exits(64).says_only(&["the server has no SCAN", "--keys uses KEYS"]);
        assert!(!server.names().iter().any(|name| name == "KEYS"), "{:?}", server.names());
        let listed = ran(&server.url(), ["list", "--keys", "--json"]).exits(0);
        // 1.2 answers with all keys in one text, with blanks between them.
        let is_told = |key: &&str| version > ServerVersion::V1_2 || !key.contains(' ');
        let told: Vec<&str> = LOCKS.into_iter().filter(is_told).collect();
        assert_eq!(reports_by_key(&listed.out).keys().collect::<Vec<_>>(), told, "{version:?}");
        let warned = listed.err.starts_with("setnx-lock: warning: KEYS blocks the server");
        assert!(warned && listed.err.lines().count() == 1, "{listed}");
        assert_eq!(ran(&server.url(), ["list", "--keys", "none*"]).exits(0).out, "no locks\n");
        let some = ran(&server.url(), ["list", "--keys", "*_lock"]).exits(0);
        assert_eq!(some.out.lines().count(), 3, "{some}");
    }
    let server = TestServer::start();
    set_all_kinds(&server);
    // A newer server has SCAN, and KEYS is not used.
    let listed = ran(&server.url(), ["list", "--keys", "--json"]).exits(0);
    assert_eq!(reports_by_key(&listed.out).keys().collect::<Vec<_>>(), LOCKS);
    assert_eq!(listed.err, "");
    assert!(server.names().contains(&"SCAN".to_owned()) && !server.names().contains(&"KEYS".to_owned()));
    Ok(())
}

/// Writes a lock whose holder has had it since then.
fn set_held_since(server: &TestServer, key: &str, seconds: u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let value = format!("{}.5000000000000001:{}:web", now + 3600, now - seconds);
    set(server, key, value);
}

fn old_locks_are_those_that_are_known_to_be() -> Outcome {
    let server = TestServer::start();
    set_held_since(&server, "old", 900);
    set_held_since(&server, "young", 60);
    set(&server, "unnamed", ending_in(LONG));
    set(&server, "expired", PAST);
    set(&server, "endless_lock", "1");
    let listed = ran(&server.url(), ["list", "--json", "--older-than", "10m"]).exits(0);
    listed.says(&["not listed: 2 locks of which nothing shows how long they have been held"]);
    let listed = ran(&server.url(), ["list", "--json", "--older-than", "10m"]).out;
    let keys: Vec<_> = reports(&listed).iter().map(|report| report["key"].clone()).collect();
    assert_eq!(keys, ["expired", "old"]);
    let none = ran(&server.url(), ["list", "--older-than", "1h", "o*"]).exits(0);
    none.prints("no locks\n");
    ran(&server.url(), ["list", "--older-than", "soon"]).exits(64);
    Ok(())
}

fn metrics_are_grouped_by_prefix() -> Outcome {
    let server = TestServer::start();
    set_held_since(&server, "team:7:draft_lock", 900);
    set_held_since(&server, "team:8:draft_lock", 60);
    set(&server, "team:9:draft_lock", PAST);
    set(&server, "night\"ly", ending_in(LONG));
    set(&server, "job:1_lock", "1");
    send(&server, "RPUSH team:7:draft_lock:setnx-lock:waiters:{team:7:draft_lock} a b c");
    let metrics = ran(&server.url(), ["list", "--prometheus"]).exits(0);
    assert_eq!(metrics.err, "");
    let samples: BTreeMap<_, f64> = metrics
        .out
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').expect("a sample"))
        .map(|(name, value)| (name, value.parse().expect("a number")))
        .collect();
    for (name, value) in [
        ("setnx_lock_locks{prefix=\"team\",state=\"held\"}", 2.0),
        ("setnx_lock_locks{prefix=\"team\",state=\"expired\"}", 1.0),
        ("setnx_lock_locks{prefix=\"team\",state=\"no_expiration\"}", 0.0),
        ("setnx_lock_locks{prefix=\"job\",state=\"no_expiration\"}", 1.0),
        ("setnx_lock_locks{prefix=\"night\\\"ly\",state=\"held\"}", 1.0),
        ("setnx_lock_waiters{prefix=\"team\"}", 3.0),
    ] {
        assert_eq!(samples.get(name), Some(&value), "{name}: {metrics}");
    }
    let held = samples["setnx_lock_held_seconds{prefix=\"team\"}"];
    assert!((900.0..900.0 + LONG.as_secs_f64()).contains(&held), "{metrics}");
    assert_eq!(metrics.out.lines().filter(|line| line.starts_with("# TYPE ")).count(), 3, "{metrics}");
    // All that an alert asks for is there.
    for line in include_str!("../../../contrib/alerts.yml").lines().filter(|line| line.contains("expr:")) {
        let name = line
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .find(|word| word.starts_with("setnx_lock_"));
        assert!(name.is_none_or(|name| name == "setnx_lock" || metrics.out.contains(name)), "{line}");
    }
    let prefixed = ran(&server.url(), ["list", "--prometheus", "--prefix", "team:"]).exits(0);
    prefixed.shows(&["{prefix=\"team:7\",state=\"held\"} 1\n"]);
    ran(&server.url(), ["list", "--prometheus", "--json"]).exits(64);
    Ok(())
}

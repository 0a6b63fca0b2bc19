//! `clear KEY` removes a key that holds what was shown, `clear --expired PATTERN` the locks that have expired.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use setnx_lock::Version;
use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use super::program::{Running, ran};
use super::values::{ending_in, get, send, set, set_named};
use crate::support::notified::{keys, until};
use crate::support::tool::tool;
use crate::support::{AnyServer, LONG, Outcome, PAST, RedisServer, Test, server_of, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    without_a_terminal_and_consent_nothing_is_removed,
    a_terminal_is_asked,
    with_yes_the_key_is_removed,
    a_key_that_holds_no_lock_is_left_alone,
    a_long_value_is_no_locks,
    a_value_that_is_written_meanwhile_is_left_alone,
    a_lost_reply_says_to_look_again,
    a_server_that_refuses_keeps_the_key,
    only_expired_locks_are_removed,
    a_lock_that_is_taken_over_meanwhile_is_left_alone,
];

fn without_a_terminal_and_consent_nothing_is_removed() -> Outcome {
    let server = TestServer::start();
    set(&server, "k", PAST);
    let refused = ran(&server.url(), ["clear", "k"]).exits(64).says(&["confirmation needed", "--yes"]);
    assert!(refused.out.starts_with("k: expired "), "{refused}");
    ran(&server.url(), ["clear", "--expired", "*"]).exits(64).says(&["confirmation needed", "--yes"]);
    assert_eq!(get(&server, "k").as_deref(), Some(PAST));
    ran(&server.url(), ["clear"]).exits(64).says(&["KEY"]);
    ran(&server.url(), ["clear", "k", "--expired", "*", "--yes"]).exits(64).says(&["cannot be used with"]);
    assert_eq!(get(&server, "k").as_deref(), Some(PAST));
    Ok(())
}

fn a_terminal_is_asked() -> Outcome {
    let server = TestServer::start();
    for (answer, code) in [("y", 0), ("Yes", 0), ("n", 1), ("", 1)] {
        set(&server, "k", "1");
        let mut terminal = File::from(openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?);
        grantpt(&terminal)?;
        unlockpt(&terminal)?;
        let name = ptsname(&terminal, Vec::new())?;
        let name = OsStr::from_bytes(name.as_bytes());
        let mut command = tool(&server.url());
        command.args(["clear", "k"]).stdin(OpenOptions::new().read(true).write(true).open(name)?);
        // It is read when the program asks.
        writeln!(terminal, "{answer}")?;
        let ran = Running::of(command)?.ends().exits(code).says(&["Remove k? [y/N] "]);
        assert_eq!(get(&server, "k").is_none(), code == 0, "{ran}");
        if code == 0 {
            ran.shows(&["k: held without", "\nremoved\n"]);
        } else {
            ran.says(&["nothing was removed"]);
        }
    }
    Ok(())
}

fn with_yes_the_key_is_removed() -> Outcome {
    for (version, server) in of_each_version() {
        for value in [&*ending_in(LONG), PAST, "1", ""] {
            set(&server, "k", value);
            set(&server, "k2", value);
            let cleared = ran(&server.url(), ["clear", "-y", "k"]).exits(0).shows(&["k: "]);
            assert!(cleared.out.ends_with("\nremoved\n") && cleared.err.is_empty(), "{version}: {cleared}");
            assert_eq!((get(&server, "k"), get(&server, "k2").as_deref()), (None, Some(value)));
        }
    }
    let server = TestServer::start();
    // A missing key needs no consent.
    ran(&server.url(), ["clear", "k"]).exits(0).prints("k: free\n");
    // What it holds is shown before.
    set_named(&server, "k", &ending_in(LONG), "web 7");
    let cleared = ran(&server.url(), ["clear", "--yes", "k"]).exits(0);
    let lines: Vec<_> = cleared.out.lines().collect();
    assert!(
        lines[0].starts_with("k: held for ")
            && lines[1].starts_with("  holder: web 7 for ")
            && lines[2..] == ["removed"],
        "{cleared}"
    );
    // Even if nobody reads what it says.
    set(&server, "k", "1");
    let mut running = Running::start(&server.url(), &["clear", "--yes", "k"])?;
    running.close_output();
    running.ends().exits(0);
    assert_eq!(get(&server, "k"), None);
    Ok(())
}

fn a_key_that_holds_no_lock_is_left_alone() -> Outcome {
    let server = TestServer::start();
    send(&server, "RPUSH list a");
    send(&server, "HSET hash a b");
    set(&server, "text", "some text");
    set(&server, "note", "1532000016 items were sold.");
    for (key, shown) in [
        ("list", "list: not a lock: it holds a list\n"),
        ("hash", "hash: not a lock: it holds a hash\n"),
        ("text", "text: not a lock: it holds \"some text\"\n"),
        // The gem reads it as a time, and would take the lock over.
        (
            "note",
            "note: not a lock: it holds \"1532000016 items were sold.\", which looks like a number with text behind it\n",
        ),
    ] {
        for arguments in [&["clear", key][..], &["clear", "--yes", key]] {
            let refused = ran(&server.url(), arguments).exits(65);
            let refused =
                refused.says(&[&format!("lock {key}: not removed, because it does not hold a lock")]);
            assert!(refused.out.starts_with(shown), "{refused}");
            assert_eq!(server.say(&["EXISTS", key])?, ":1");
        }
    }
    Ok(())
}

/// A server of each version.
fn of_each_version() -> impl Iterator<Item = (Version, TestServer)> {
    let versions = ServerVersion::OLD.into_iter().chain([ServerVersion::V7]);
    versions.map(|version| (version.number().parse().expect("a version"), server_of(version)))
}

/// From 2.2 on until the transaction, before until the last look.
/// It is read in part, on servers that can return one.
fn a_long_value_is_no_locks() -> Outcome {
    let values = [1024, 1025, 1_000_000].map(|length| "x".repeat(length));
    let times = [1024, 1025, 5000].map(|length| format!("{PAST:0<length$}"));
    for version in ServerVersion::ALL {
        let server = server_of(version);
        for value in values.iter().chain(&times) {
            set(&server, "k", value);
            ran(&server.url(), ["clear", "k", "--yes"]).exits(65).says(&["it does not hold a lock"]);
            assert_eq!(get(&server, "k").map(|value| value.len()), Some(value.len()));
        }
        set(&server, "k", PAST);
        ran(&server.url(), ["clear", "k", "--yes"]).exits(0).shows(&["removed"]);
    }
    Ok(())
}

fn a_value_that_is_written_meanwhile_is_left_alone() -> Outcome {
    let other = ending_in(LONG);
    for (version, server) in of_each_version() {
        set(&server, "other", PAST);
        ran(&server.url(), ["clear", "--yes", "other"]).exits(0);
        let looks = server.names().iter().filter(|name| *name == "GET").count();
        let (command, nth) = if has_transactions(version) { ("EXEC", 1) } else { ("GET", looks) };
        let same = has_transactions(version).then_some(Some(PAST));
        for changed in [Some(other.as_str()), Some("1"), None].into_iter().chain(same) {
            set(&server, "k", PAST);
            let hold = server.pause(command, nth);
            let running = Running::start(&server.url(), &["clear", "--yes", "k"])?;
            hold.reached();
            match changed {
                Some(value) => set(&server, "k", value),
                None => send(&server, "DEL k"),
            }
            hold.go_on();
            let ended = running.ends();
            let ended = match changed {
                Some(_) => {
                    ended.exits(75).says(&["lock k: not removed, because it has changed", "look again"])
                }
                None => ended.exits(0).shows(&["released meanwhile"]),
            };
            assert!(ended.out.starts_with("k: expired ") && !ended.out.contains("removed"), "{ended}");
            assert_eq!(get(&server, "k").as_deref(), changed, "{version}");
        }
    }
    Ok(())
}

fn has_transactions(version: Version) -> bool {
    version >= Version::new(2, 2, 0)
}

fn a_lost_reply_says_to_look_again() -> Outcome {
    for (version, server) in of_each_version() {
        let removes = if has_transactions(version) { "EXEC" } else { "DEL" };
        for (fault, left) in [(Fault::CutAfter, None), (Fault::CutBefore, Some("1"))] {
            set(&server, "k", "1");
            server.next(removes, fault);
            let lost = ran(&server.url(), ["clear", "--yes", "k"]).exits(74);
            let lost = lost.says(&["it is not known whether it was removed", "look again"]);
            assert!(!lost.out.contains("removed"), "{lost}");
            assert_eq!(get(&server, "k").as_deref(), left, "{version}");
        }
        assert_eq!(server.faults_left(), 0);
    }
    Ok(())
}

fn a_server_that_refuses_keeps_the_key() -> Outcome {
    let server = RedisServer::start()?;
    set(&server, "k", "1");
    for refused in ["watch", "multi", "exec", "del"] {
        send(&server, &format!("ACL SETUSER {refused} on >pw ~* +@all -{refused}"));
        let url = format!("redis://{refused}:pw@{}/", server.address());
        ran(&url, ["clear", "--yes", "k"]).exits(77).says(&["the server refused"]);
        assert_eq!(get(&server, "k").as_deref(), Some("1"), "without {refused}");
    }
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
    until("the replica has the key", || replica.say(&["EXISTS", "k"]).is_ok_and(|reply| reply == ":1"));
    let refused = ran(&replica.url(), ["clear", "--yes", "k"]).exits(77).says(&["the server is a replica"]);
    assert!(!refused.out.contains("removed"), "{refused}");
    assert_eq!(get(&server, "k").as_deref(), Some("1"));
    Ok(())
}

fn only_expired_locks_are_removed() -> Outcome {
    let held = ending_in(LONG);
    for (version, server) in of_each_version() {
        send(&server, "FLUSHALL");
        let kept = [
            ("p:held", &*held),
            ("p:endless_lock", "1"),
            ("p:gem_lock", ""),
            ("p:timestamp", "1532000016"),
            ("p:token", "1532000017.25:host:7"),
            ("p:text", "some text"),
            ("p:text_lock", "2018.5"),
            ("q:expired", PAST),
        ];
        for (key, value) in kept
            .into_iter()
            .chain([("p:expired", PAST), ("p:2", "1532000017.2500000123456789:1532000000:host 7")])
        {
            set(&server, key, value);
        }
        send(&server, "RPUSH p:list a");
        // A version before 2.8 has no SCAN.
        if version < Version::new(7, 0, 0) {
            ran(&server.url(), ["clear", "--expired", "*", "--yes"]).exits(64).says_only(&["--keys"]);
        }
        let swept = ran(&server.url(), ["clear", "--expired", "p:*", "--yes", "--keys"]).exits(0);
        let lines: Vec<_> = swept.out.lines().collect();
        assert_eq!(lines.len(), 4, "{version}: {swept}");
        let begins = ["p:expired: expired ", "p:2: expired ", "  holder: host 7"];
        assert!(lines.iter().zip(begins).all(|(line, begin)| line.starts_with(begin)), "{swept}");
        assert_eq!(lines[3], "removed 2 of 2");
        for (key, value) in kept {
            assert_eq!(get(&server, key).as_deref(), Some(value), "{key} on {version}");
        }
        assert_eq!(server.say(&["LLEN", "p:list"])?, ":1");
        assert_eq!((get(&server, "p:expired"), get(&server, "p:2")), (None, None), "{version}");
        assert_eq!(keys(&server, "*").len(), kept.len() + 1, "nothing is left behind on {version}");
        let again = ran(&server.url(), ["clear", "--expired", "p:*", "--keys"]).exits(0);
        assert_eq!(again.out, "no expired locks\n", "needs no consent");
    }
    Ok(())
}

fn a_lock_that_is_taken_over_meanwhile_is_left_alone() -> Outcome {
    let other = ending_in(LONG);
    for (version, server) in of_each_version() {
        set(&server, "k", PAST);
        let asks = if version >= Version::new(2, 6, 12) { "SET" } else { "SETNX" };
        let hold = server.pause(asks, 1);
        let running = Running::start(&server.url(), &["clear", "--expired", "*", "--yes", "--keys"])?;
        hold.reached();
        set(&server, "k", &other);
        hold.go_on();
        running.ends().exits(0).shows(&["k: expired ", "\nremoved 0 of 1\n"]);
        assert_eq!(get(&server, "k").as_deref(), Some(&*other), "{version}");
    }
    Ok(())
}

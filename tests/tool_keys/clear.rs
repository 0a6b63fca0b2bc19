//! `clear KEY`: removes a key that holds what was shown.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use setnx_lock::Version;

use super::program::{Running, ran};
use super::values::{ending_in, get, send, set, set_named};
use crate::servers::{Emulated, Fault, Proxy};
use crate::support::notified::until;
use crate::support::tool::tool;
use crate::support::{LONG, Outcome, PAST, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    without_a_terminal_and_consent_nothing_is_removed,
    a_terminal_is_asked,
    with_yes_the_key_is_removed,
    what_a_key_holds_is_shown_first,
    without_a_transaction_nothing_is_removed,
    a_closed_output_keeps_nothing_from_being_removed,
    a_missing_key_needs_no_consent,
    a_key_that_holds_no_lock_is_left_alone,
    a_value_that_is_written_in_between_is_left_alone,
    a_value_that_is_written_last_is_left_alone,
    a_lost_reply_says_to_look_again,
    a_replica_refuses,
];

fn without_a_terminal_and_consent_nothing_is_removed() -> Outcome {
    let server = RedisServer::start()?;
    set(&server, "k", PAST);
    let refused = ran(&server.url(), ["clear", "k"]).exits(64).says(&["without consent", "--yes"]);
    assert!(refused.out.starts_with("k: expired "), "{refused}");
    ran(&server.url(), ["clear", "--expired", "*"]).exits(64).says(&["without consent", "--yes"]);
    assert_eq!(get(&server, "k").as_deref(), Some(PAST));
    ran(&server.url(), ["clear"]).exits(64).says(&["KEY"]);
    ran(&server.url(), ["clear", "k", "--expired", "*", "--yes"]).exits(64).says(&["cannot be used with"]);
    assert_eq!(get(&server, "k").as_deref(), Some(PAST));
    Ok(())
}

fn a_terminal_is_asked() -> Outcome {
    let server = RedisServer::start()?;
    for (answer, code) in [("y", 0), ("Yes", 0), ("n", 1), ("", 1), ("yesterday", 1)] {
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
    let server = RedisServer::start()?;
    let proxies: Vec<_> =
        Emulated::ALL.into_iter().map(|version| Proxy::emulating(version, server.address())).collect();
    let mut urls = vec![server.url()];
    for proxy in &proxies {
        urls.push(proxy.as_ref().expect("it listens").url());
    }
    for url in &urls {
        for value in [&*ending_in(LONG), PAST, "1", ""] {
            for yes in ["-y", "--yes"] {
                set(&server, "k", value);
                set(&server, "k2", value);
                let cleared = ran(url, ["clear", yes, "k"]).exits(0).shows(&["k: "]);
                assert!(cleared.out.ends_with("\nremoved\n") && cleared.err.is_empty(), "{cleared}");
                assert_eq!((get(&server, "k"), get(&server, "k2").as_deref()), (None, Some(value)));
            }
        }
    }
    set(&server, b"a\0b", "1");
    ran(&server.url(), ["clear", "--yes", "--key-hex", "610062"]).exits(0).shows(&["a\\u{0}b: ", "removed"]);
    assert_eq!(server.say(&["EXISTS", "a\0b"])?, ":0");
    Ok(())
}

fn what_a_key_holds_is_shown_first() -> Outcome {
    let server = RedisServer::start()?;
    set_named(&server, "k", &ending_in(LONG), "web 7");
    let cleared = ran(&server.url(), ["clear", "--yes", "k"]).exits(0);
    let lines: Vec<_> = cleared.out.lines().collect();
    assert!(
        lines[0].starts_with("k: held for ") && lines[1..] == ["  holder: web 7", "removed"],
        "{cleared}"
    );
    Ok(())
}

fn without_a_transaction_nothing_is_removed() -> Outcome {
    let server = RedisServer::start()?;
    for refused in ["watch", "multi", "exec", "del"] {
        send(&server, &format!("ACL SETUSER {refused} on >pw ~* +@all -{refused}"));
        set(&server, "k", PAST);
        let url = format!("redis://{refused}:pw@{}/", server.address());
        ran(&url, ["clear", "--yes", "k"]).exits(77).says(&["the server refused"]);
        assert_eq!(get(&server, "k").as_deref(), Some(PAST), "without {refused}");
    }
    Ok(())
}

fn a_closed_output_keeps_nothing_from_being_removed() -> Outcome {
    let server = RedisServer::start()?;
    set(&server, "k", "1");
    let mut running = Running::start(&server.url(), &["clear", "--yes", "k"])?;
    running.close_output();
    running.ends().exits(0);
    assert_eq!(get(&server, "k"), None);
    Ok(())
}

fn a_missing_key_needs_no_consent() -> Outcome {
    let server = RedisServer::start()?;
    ran(&server.url(), ["clear", "k"]).exits(0).prints("k: free\n");
    ran(&server.url(), ["clear", "--yes", "k"]).exits(0).prints("k: free\n");
    Ok(())
}

fn a_key_that_holds_no_lock_is_left_alone() -> Outcome {
    let server = RedisServer::start()?;
    send(&server, "RPUSH list a");
    send(&server, "HSET hash a b");
    set(&server, "text", "some text");
    set(&server, "note", "1532000016 items were sold.");
    for (key, shown) in [
        ("list", "list: no lock: it holds a list\n"),
        ("hash", "hash: no lock: it holds a hash\n"),
        ("text", "text: no lock: it holds \"some text\"\n"),
        // The gem reads it as a time, and would take the lock over.
        ("note", "note: expired "),
    ] {
        for arguments in [&["clear", key][..], &["clear", "--yes", key]] {
            let refused = ran(&server.url(), arguments).exits(65);
            let refused = refused.says(&[&format!("lock {key}: it holds no lock and was not removed")]);
            assert!(refused.out.starts_with(shown), "{refused}");
            assert_eq!(server.say(&["EXISTS", key])?, ":1");
        }
    }
    Ok(())
}

/// The proxies of all versions, and one that emulates none.
pub(super) fn proxies(server: &RedisServer) -> std::io::Result<Vec<(Version, Proxy)>> {
    let mut proxies = vec![(Version::new(7, 0, 0), Proxy::before(server.address())?)];
    for version in Emulated::ALL {
        let number = version.number().parse().expect("a version");
        proxies.push((number, Proxy::emulating(version, server.address())?));
    }
    Ok(proxies)
}

/// Clears the key `k`, and after `change` is written once the nth command of this name has come.
fn cleared_while_written(
    server: &RedisServer,
    proxy: &Proxy,
    (command, n): (&'static str, usize),
    changed: Option<&str>,
) -> Outcome {
    set(server, "k", PAST);
    let hold = proxy.hold(command, n);
    let running = Running::start(&proxy.url(), &["clear", "--yes", "k"])?;
    hold.reached();
    match changed {
        Some(value) => set(server, "k", value),
        None => send(server, "DEL k"),
    }
    hold.go_on();
    let ended = running.ends();
    let ended = match changed {
        Some(_) => ended.exits(75).says(&["lock k: it holds something else by now", "look again"]),
        None => ended.exits(0).shows(&["released meanwhile"]),
    };
    assert!(ended.out.starts_with("k: expired ") && !ended.out.contains("removed"), "{ended}");
    assert_eq!(get(server, "k").as_deref(), changed, "{command} {n}");
    Ok(())
}

/// The command before which a key is read for the last time, as the nth of its name.
fn last_look(server: &RedisServer, proxy: &Proxy) -> usize {
    proxy.forget();
    set(server, "other", PAST);
    ran(&proxy.url(), ["clear", "--yes", "other"]).exits(0);
    let looks = proxy.names().iter().filter(|name| *name == "GET").count();
    assert!(looks > 1, "{:?}", proxy.names());
    looks
}

fn a_value_that_is_written_in_between_is_left_alone() -> Outcome {
    let server = RedisServer::start()?;
    let other = ending_in(LONG);
    for (_, proxy) in proxies(&server)? {
        let last = last_look(&server, &proxy);
        for changed in [Some(other.as_str()), Some("1"), None] {
            cleared_while_written(&server, &proxy, ("GET", last), changed)?;
        }
    }
    Ok(())
}

/// From 2.2 on, where WATCH protects the key up to the end.
fn a_value_that_is_written_last_is_left_alone() -> Outcome {
    let server = RedisServer::start()?;
    let other = ending_in(LONG);
    for (version, proxy) in proxies(&server)? {
        if version >= Version::new(2, 2, 0) {
            for command in ["MULTI", "DEL", "EXEC"] {
                cleared_while_written(&server, &proxy, (command, 1), Some(&other))?;
                cleared_while_written(&server, &proxy, (command, 1), None)?;
                // Another holder's, whose value is the same.
                cleared_while_written(&server, &proxy, (command, 1), Some(PAST))?;
            }
        }
    }
    Ok(())
}

fn a_lost_reply_says_to_look_again() -> Outcome {
    let server = RedisServer::start()?;
    for (version, proxy) in proxies(&server)? {
        let removes = if version >= Version::new(2, 2, 0) { "EXEC" } else { "DEL" };
        for (fault, left) in
            [(Fault::CutAfter, None), (Fault::CutBefore, Some("1")), (Fault::CutWithin, None)]
        {
            set(&server, "k", "1");
            proxy.next(removes, fault);
            let lost = ran(&proxy.url(), ["clear", "--yes", "k"]).exits(74);
            let lost = lost.says(&["it may or may not have been removed", "look again"]);
            assert!(!lost.out.contains("removed"), "{lost}");
            assert_eq!(get(&server, "k").as_deref(), left, "{version}");
        }
        // Before that command nothing can have been removed.
        set(&server, "k", "1");
        proxy.next("GET", Fault::CutBefore);
        ran(&proxy.url(), ["clear", "--yes", "k"]).exits(69).says_only(&["no answer from the server"]);
        assert_eq!(get(&server, "k").as_deref(), Some("1"));
        assert_eq!(proxy.faults_left(), 0);
    }
    Ok(())
}

fn a_replica_refuses() -> Outcome {
    let server = RedisServer::start()?;
    set(&server, "k", "1");
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
    until("the replica has the key", || replica.say(&["EXISTS", "k"]).is_ok_and(|reply| reply == ":1"));
    let refused = ran(&replica.url(), ["clear", "--yes", "k"]).exits(77).says(&["the server is a replica"]);
    assert!(!refused.out.contains("removed"), "{refused}");
    assert_eq!(get(&server, "k").as_deref(), Some("1"));
    Ok(())
}

//! `clear --expired PATTERN`: removes the locks that have expired, and no other key.

use super::clear::proxies;
use super::program::{Running, ran};
use super::values::{ending_in, get, send, set};
use crate::servers::Fault;
use crate::support::notified::{connection, keys};
use crate::support::{LONG, Outcome, PAST, RedisServer, Test, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    only_expired_locks_are_removed,
    a_lock_that_is_taken_over_meanwhile_is_left_alone,
    many_expired_locks_are_removed,
    before_2_8_it_needs_keys,
    a_lost_reply_is_found_out_about,
];

fn only_expired_locks_are_removed() -> Outcome {
    let server = RedisServer::start()?;
    let held = ending_in(LONG);
    for (version, proxy) in proxies(&server)? {
        send(&server, "FLUSHALL");
        let kept = [
            ("p:held", &*held),
            ("p:endless_lock", "1"),
            ("p:gem_lock", ""),
            ("p:timestamp", "1532000016"),
            ("p:text", "some text"),
            ("p:text_lock", "2018.5"),
            ("q:expired", PAST),
        ];
        for (key, value) in kept.into_iter().chain([("p:expired", PAST), ("p:2", "1532000017.25:host:7")]) {
            set(&server, key, value);
        }
        send(&server, "RPUSH p:list a");
        let swept = ran(&proxy.url(), ["clear", "--expired", "p:*", "--yes", "--keys"]).exits(0);
        let lines: Vec<_> = swept.out.lines().collect();
        assert_eq!(lines.len(), 3, "{version}: {swept}");
        assert!(
            lines[0].starts_with("p:expired: expired ") && lines[1].starts_with("p:2: expired "),
            "{swept}"
        );
        assert_eq!(lines[2], "removed 2 of 2");
        for (key, value) in kept {
            assert_eq!(get(&server, key).as_deref(), Some(value), "{key} on {version}");
        }
        assert_eq!(server.say(&["LLEN", "p:list"])?, ":1");
        assert_eq!((get(&server, "p:expired"), get(&server, "p:2")), (None, None), "{version}");
        assert_eq!(keys(&server, "*").len(), kept.len() + 1, "nothing is left behind on {version}");
        let again = ran(&proxy.url(), ["clear", "--expired", "p:*", "--keys"]).exits(0);
        assert_eq!(again.out, "no expired locks\n", "needs no consent");
    }
    Ok(())
}

fn a_lock_that_is_taken_over_meanwhile_is_left_alone() -> Outcome {
    let server = RedisServer::start()?;
    let other = ending_in(LONG);
    for (version, proxy) in proxies(&server)? {
        set(&server, "k", PAST);
        let hold = proxy.hold("SETNX", 1);
        let running = Running::start(&proxy.url(), &["clear", "--expired", "*", "--yes", "--keys"])?;
        hold.reached();
        set(&server, "k", &other);
        hold.go_on();
        running.ends().exits(0).shows(&["k: expired ", "\nremoved 0 of 1\n"]);
        assert_eq!(get(&server, "k").as_deref(), Some(&*other), "{version}");
    }
    Ok(())
}

fn many_expired_locks_are_removed() -> Outcome {
    const LOCKS: usize = 300;
    let server = RedisServer::start()?;
    let mut commands = redis::pipe();
    for n in 0..LOCKS {
        commands.cmd("SET").arg(format!("key:{n}")).arg(format!("{}.5", 1_532_000_000 + n)).ignore();
    }
    let () = commands.query(&mut connection(&server))?;
    set(&server, "held", ending_in(LONG));
    let swept = ran(&server.url(), ["clear", "--expired", "*", "--yes"]).exits(0);
    assert_eq!(swept.out.lines().count(), 22, "the first are shown: {swept}");
    swept.shows(&["key:0: expired ", "key:19: expired ", "\nand 280 more\nremoved 300 of 300\n"]);
    assert_eq!(keys(&server, "*"), ["held"]);
    Ok(())
}

fn before_2_8_it_needs_keys() -> Outcome {
    let server = RedisServer::start()?;
    set(&server, "k", PAST);
    for (_, proxy) in &proxies(&server)?[1..] {
        ran(&proxy.url(), ["clear", "--expired", "*", "--yes"]).exits(64).says_only(&["--keys"]);
        assert_eq!(get(&server, "k").as_deref(), Some(PAST));
    }
    Ok(())
}

fn a_lost_reply_is_found_out_about() -> Outcome {
    let server = RedisServer::start()?;
    for (version, proxy) in proxies(&server)? {
        for fault in [Fault::CutBefore, Fault::CutAfter] {
            set(&server, "k", PAST);
            proxy.next("SETNX", fault);
            let swept = ran(&proxy.url(), ["clear", "--expired", "*", "--yes", "--keys"]).exits(0);
            swept.shows(&["\nremoved 1 of 1\n"]);
            assert_eq!((get(&server, "k"), proxy.faults_left()), (None, 0), "{version}");
        }
    }
    Ok(())
}

//! Servers of every old version, and Ruby programs that lock the same key.

use setnx_lock_testing::{ServerVersion, TestServer};

use super::running::{Running, finished, run};
use crate::support::notified::until;
use crate::support::ruby::{Attempt, CLASSIC, Gem, RubyPeer, TTL};
use crate::support::{AnyServer, LONG, Outcome, RedisServer, millis, server_of, trials_of};

trials_of! {
    "tool_run::others";
    old_servers,
    what_a_free_lock_sends,
    what_cannot_be_released_is_not_acquired,
    a_gem_without_and_with_time_to_live,
}

const HOLD: [&str; 5] = ["k", "--", "sh", "-c", "echo started; read go; exit 3"];

fn old_servers() -> Outcome {
    for version in ServerVersion::OLD {
        let server = server_of(version);
        // The first has neither names nor notifications: the lock works all the same.
        let options = if version == ServerVersion::V1_2 { &["--name=me", "--notify"][..] } else { &[] };
        let mut holds = Running::started(run(&server.url()).args(options).args(HOLD))?;
        finished(run(&server.url()).args(["-n", "k", "--", "echo", "ran"]))?.with_code(75).prints("");
        server.clear_log();
        let waits = Running::start(run(&server.url()).args(["--wait-forever", "k", "--", "echo", "ran"]))?;
        let asks = |name: &String| ["SET", "SETNX"].contains(&name.as_str());
        until("it asks for the lock", || server.names().iter().any(asks));
        holds.say("go")?;
        let ended = holds.ends()?.with_code(3);
        assert!(ended.errors.is_empty() || version == ServerVersion::V1_2, "{}", ended.errors);
        waits.ends()?.with_code(0).prints("ran\n").says_nothing();
        assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "released");
    }
    Ok(())
}

/// With Classic nothing is probed.
fn what_a_free_lock_sends() -> Outcome {
    let server = TestServer::start();
    for (protocol, asks) in [("auto", "WATCH GET MULTI EXEC DISCARD DEL PTTL SET"), ("classic", "SETNX")] {
        server.clear_log();
        let ended = finished(run(&server.url()).args(["--protocol", protocol, "k", "--", "true"]))?;
        ended.with_code(0).says_nothing();
        let names = server.names().join(" ");
        assert!(names.starts_with(asks), "{protocol}: {names}");
    }
    Ok(())
}

/// On a server that has renamed a command.
fn what_cannot_be_released_is_not_acquired() -> Outcome {
    for lacking in ["WATCH", "MULTI", "EXEC", "GET", "DEL"] {
        let server = RedisServer::start_with(&format!("rename-command {lacking} \"\""))?;
        for keys in [&["k"][..], &["k", "l"], &["--permits", "2", "k"]] {
            let ended = finished(run(&server.url()).args(keys).args(["--", "echo", "ran"]))?;
            if ["GET", "DEL"].contains(&lacking) {
                let unknown = format!("ERR unknown command '{lacking}'");
                ended.with_code(77).prints("").says(&[&unknown, "allow it there"]);
            } else {
                ended.with_code(0).prints("ran\n").says_nothing();
            }
            assert_eq!(server.say(&["DBSIZE"])?, ":0", "{lacking}, {keys:?}");
        }
    }
    Ok(())
}

fn a_gem_without_and_with_time_to_live() -> Outcome {
    beside_ruby(CLASSIC, "auto")?;
    beside_ruby(TTL, "auto")
}

fn beside_ruby(gem: Gem, protocol: &str) -> Outcome {
    if !Gem::available()?.contains(&gem) {
        // A real gem has its own version only.
        return Ok(());
    }
    let server = TestServer::start();
    let mut ruby = RubyPeer::start(gem, &server.url())?;
    let tool = |options: &[&str], command: &[&str]| {
        let mut tool = run(&server.url());
        tool.args(["--protocol", protocol]).args(options).args(command);
        tool
    };
    let echo = ["k", "--", "echo", "ran"];

    assert_eq!(ruby.acquire("k", Some(LONG), LONG)?, Attempt::Held);
    finished(&mut tool(&["-n"], &echo))?.with_code(75).prints("").says(&["error: lock k: not acquired"]);
    server.clear_log();
    let waits = Running::start(&mut tool(&["--wait-forever"], &echo))?;
    until("it asks for the lock", || server.names().iter().any(|name| name == "SET"));
    ruby.release("k")?;
    waits.ends()?.with_code(0).prints("ran\n");

    let mut holds = Running::started(&mut tool(&["-e", "10m"], &HOLD))?;
    let attempt = ruby.acquire("k", Some(LONG), millis(250))?;
    assert!(matches!(attempt, Attempt::Timeout(_)), "{attempt:?}");
    ruby.begin_to_acquire("k", Some(LONG), LONG)?;
    holds.say("go")?;
    holds.ends()?.with_code(3).says_nothing();
    assert_eq!(ruby.outcome("k")?, Attempt::Held);
    finished(&mut tool(&["-n"], &echo))?.with_code(75).prints("");
    ruby.release("k")?;
    finished(&mut tool(&["-n"], &echo))?.with_code(0).prints("ran\n").says_nothing();
    Ok(())
}

//! The exit codes: those of the command, and those of what keeps it from running. That of a loss is in `loss`.

use std::process::Command;

use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use super::running::{finished, run};
use crate::support::scenario::{FOREIGN, closed_port};
use crate::support::tool::program;
use crate::support::{AnyServer, Outcome, server_of, trials_of};

trials_of! {
    "tool_run::codes";
    the_exit_code_is_that_of_the_command,
    a_key_that_never_expires_is_no_contention,
    a_lock_that_another_has,
    a_server_that_is_down,
    a_reply_that_is_lost,
    arguments_that_make_no_sense,
    a_command_that_cannot_be_run,
    a_server_that_is_too_old_and_a_user_who_may_not,
    a_server_that_is_not_ready_is_as_one_that_is_not_reached,
}

fn the_exit_code_is_that_of_the_command() -> Outcome {
    let server = TestServer::start();
    // The last signal has no name.
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -KILL $$", 137),
        ("kill -TERM $$", 143),
        ("kill -USR1 $$", 138),
        ("kill -64 $$", 192),
    ] {
        let ended = finished(run(&server.url()).args(["k", "--", "bash", "-c", script]))?;
        ended.with_code(code).prints("").says_nothing();
        assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "released");
    }
    // Even if the tool's parent ignores the end of its children.
    let mut command = Command::new("env");
    command.arg("--ignore-signal=CHLD").arg(program()).args(["run", "k", "--", "sh", "-c", "exit 3"]);
    finished(command.env("REDIS_URL", server.url()))?.with_code(3).says_nothing();
    Ok(())
}

fn a_lock_that_another_has() -> Outcome {
    let server = TestServer::start();
    server.say(&["SET", "k", FOREIGN])?;
    for (options, code) in [
        (&["--no-wait"][..], 75),
        (&["-n"], 75),
        (&["--timeout", "0.2"], 75),
        (&["-w", "150ms"], 75),
        (&["-n", "--protocol", "ttl"], 75),
        (&["-n", "-E", "contended=3"], 3),
        (&["-n", "--exit-code", "lost=99,contended=4"], 4),
        (&["-n", "-E", "lost=99", "-E", "unreachable=5"], 75),
    ] {
        let ended = finished(run(&server.url()).args(options).args(["k", "--", "echo", "ran"]))?;
        let words = ["lock k: not acquired", "held for ", "until 2030-01-18T20:53:20.500Z"];
        ended.with_code(code).prints("").says_one_line(&words);
    }
    // A code alone is that of contention. With 0 it is no error.
    for options in [&["-n", "-E", "0"][..], &["-n", "-E0"], &["-n", "-q", "-E", "contended=0"]] {
        let ended = finished(run(&server.url()).args(options).args(["k", "--", "echo", "ran"]))?;
        ended.with_code(0).prints("").says_nothing();
    }
    let ended = finished(run(&server.url()).args(["-n", "-v", "-E", "0", "k", "--", "echo", "ran"]))?;
    ended.with_code(0).prints("").says(&["lock k: not acquired"]);
    assert_eq!(server.say(&["STRLEN", "k"])?, format!(":{}", FOREIGN.len()), "untouched");
    // A gem's, which the server frees: nothing is to be cleared.
    server.say(&["SET", "gem", "", "PX", "100000"])?;
    let ended = finished(run(&server.url()).args(["-n", "gem", "--", "true"]))?.with_code(75);
    ended.says(&["lock gem: not acquired", "freed by the server in "]);
    Ok(())
}

/// Nothing frees it: a job that is skipped because of it would be skipped for ever.
fn a_key_that_never_expires_is_no_contention() -> Outcome {
    let server = TestServer::start();
    server.say(&["SET", "text", "hello"])?;
    server.say(&["SET", "unexpiring", "1"])?;
    server.say(&["SET", "empty", ""])?;
    server.say(&["RPUSH", "list", "a"])?;
    for (key, words) in [
        ("text", "not a lock: it holds \"hello\""),
        ("unexpiring", "held without an expiration"),
        ("empty", "no time to live"),
        ("list", "WRONGTYPE"),
    ] {
        for (options, code) in [
            (&["-w", "150ms"][..], 65),
            (&["-n", "-E", "0"], 65),
            (&["-n", "-E", "stuck=9,contended=8,refused=7"], 9),
        ] {
            let ended = finished(run(&server.url()).args(options).args([key, "--", "echo", "ran"]))?;
            ended.with_code(code).prints("").says(&["error: ", &format!("lock {key}: "), words]);
        }
    }
    // What the server deletes is contention.
    for key in ["text", "unexpiring", "empty"] {
        server.say(&["EXPIRE", key, "1000"])?;
        finished(run(&server.url()).args(["-n", key, "--", "true"]))?.with_code(75);
    }
    assert_eq!(server.say(&["LLEN", "list"])?, ":1", "untouched");
    Ok(())
}

fn a_server_that_is_down() -> Outcome {
    let url = format!("redis://:secret@127.0.0.1:{}/", closed_port()?);
    for (options, code) in [
        (&["--no-wait"][..], 69),
        (&["--timeout", "0.2"], 69),
        (&["-n", "-E", "unreachable=5"], 5),
        (&["-n", "-E", "0"], 69),
        // It ends all the same.
        (&["--wait-forever"], 69),
    ] {
        let ended = finished(run(&url).args(options).args(["k", "--", "echo", "ran"]))?;
        let ended = ended.with_code(code).prints("");
        let ended = ended.says_one_line(&["lock k: no connection to 127.0.0.1:", "Connection refused"]);
        assert!(!ended.errors.contains("secret"), "{}", ended.errors);
    }
    let ended = finished(run(&url).args(["-n", "-E", "unreachable=0", "k", "--", "echo", "ran"]))?;
    ended.with_code(0).prints("").says_nothing();
    Ok(())
}

/// It is not known if the lock was acquired. It was, and is released before the tool ends.
fn a_reply_that_is_lost() -> Outcome {
    let server = TestServer::start();
    server.next("SET", Fault::LoseReply);
    let ended = finished(run(&server.url()).args(["-n", "-E", "0", "k", "--", "echo", "ran"]))?;
    let words =
        ["error: lock k: ", "gave no reply", "if the lock was acquired, a background thread releases it"];
    ended.with_code(74).prints("").says(&words);
    assert_eq!(server.faults_left(), 0);
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "nobody wants it");
    finished(run(&server.url()).args(["-n", "k", "--", "true"]))?.with_code(0);
    Ok(())
}

fn arguments_that_make_no_sense() -> Outcome {
    let server = TestServer::start();
    let cases: &[(&[&str], &str)] = &[
        (&["k"], "CMD"),
        (&["--", "true"], "KEY"),
        (&["--bogus", "k", "--", "true"], "'--bogus'"),
        (&["--permits", "2", "k", "l", "--", "true"], "need a single key"),
        (&["--permits", "0", "k", "--", "true"], "give at least 1"),
        (&["--permits", "2", "--notify", "k", "--", "true"], "--notify has no effect"),
        (&["--shared", "k", "--", "true"], "--readers"),
        (&["--readers", "2", "k", "--", "true"], "--shared or --exclusive"),
        (&["--shared", "--exclusive", "--readers", "2", "k", "--", "true"], "cannot be used with"),
        (&["--max-runtime", "0", "k", "--", "true"], "at least one millisecond"),
        (&["", "--", "true"], "the key is empty"),
        (&["-e", "soon", "k", "--", "true"], "write 30s"),
        (&["--name", "web1", "k", "--", "true"], "equal sign is needed"),
        (&["-e", "0s", "k", "--", "true"], "at least one millisecond"),
        (&["-w", "-1", "k", "--", "true"], "-1"),
        (&["--kill-after", "1e19", "k", "--", "true"], "longer than ten years"),
        (&["-n", "-w", "1s", "k", "--", "true"], "cannot be used with"),
        (&["-v", "-q", "k", "--", "true"], "cannot be used with"),
        (
            &["-e", "1s", "--hold-at-least", "5s", "k", "--", "true"],
            "--hold-at-least is longer than --expiration",
        ),
        (
            &["-e", "10s", "--auto-extend", "5s", "k", "--", "true"],
            "--auto-extend is shorter than --expiration",
        ),
        (&["--protocol", "redlock", "k", "--", "true"], "classic, watched, ttl"),
        (&["--on-loss", "shout", "k", "--", "true"], "term, kill, warn"),
        (&["-E", "late=1", "k", "--", "true"], "unknown condition \"late\""),
        (&["-E", "contended=256", "k", "--", "true"], "0 to 255"),
        (&["--password-file", "/missing/file", "k", "--", "true"], "/missing/file"),
        (&["--url", "", "k", "--", "true"], "invalid Redis URL"),
    ];
    for (arguments, words) in cases {
        // None of the exit codes that can be given is that of usage.
        let others = "-E=contended=1,unreachable=2,refused=3,unknown=4,lost=5,stuck=6,max-runtime=7";
        let ended = finished(run(&server.url()).arg(others).args(*arguments))?;
        ended.with_code(64).prints("").says(&["error: ", words]);
    }
    assert_eq!(server.say(&["DBSIZE"])?, ":0");
    Ok(())
}

fn a_command_that_cannot_be_run() -> Outcome {
    let server = TestServer::start();
    let script = tempfile::NamedTempFile::new()?;
    std::fs::write(script.path(), "#!/bin/sh\necho ran\n")?;
    let not_executable = script.path().display().to_string();
    for (command, code) in [
        ("no-such-program", 127),
        ("/no/such/program", 127),
        ("", 127),
        ("/", 126),
        (not_executable.as_str(), 126),
    ] {
        let ended = finished(run(&server.url()).args(["k", "--", command]))?.with_code(code).prints("");
        ended.says_one_line(&[&format!("cannot run {command}: ")]);
        assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "released");
    }
    let by_shell = ["--shell", "k", "--", "no-such-program"];
    finished(run(&server.url()).args(by_shell))?.with_code(127).prints("");
    // A program that is missing takes no lock.
    let options = ["--hold-at-least", "30s", "--keep", "k", "--", "no-such-program"];
    finished(run(&server.url()).args(options))?.with_code(127).says_one_line(&["cannot run"]);
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    // Without PATH the system knows where to look.
    let mut command = Command::new("env");
    command.args(["-u", "PATH"]).arg(program()).args(["run", "k", "--", "sh", "-c", "exit 4"]);
    finished(command.env("REDIS_URL", server.url()))?.with_code(4).says_nothing();
    Ok(())
}

/// The arguments after the options.
const COMMAND: [&str; 4] = ["k", "--", "echo", "ran"];

fn a_server_that_is_too_old_and_a_user_who_may_not() -> Outcome {
    for (protocol, emulated, needed) in [
        ("ttl", ServerVersion::V2_4, "needs Redis 2.6.12"),
        ("watched", ServerVersion::V2_0, "needs Redis 2.2.0"),
    ] {
        let server = server_of(emulated);
        let ended = finished(run(&server.url()).args(["--protocol", protocol]).args(COMMAND))?;
        ended.with_code(77).prints("").says_one_line(&["lock k: ", "too old", needed]);
    }
    let server = TestServer::builder().config("user default on nopass ~* &* +@all -setnx -set").start();
    for options in [&["-n"][..], &["--protocol", "ttl"]] {
        let ended = finished(run(&server.url()).args(options).args(COMMAND))?;
        ended.with_code(77).prints("").says_one_line(&["lock k: ", "NOPERM"]);
    }
    finished(run(&server.url()).args(["-E", "refused=9"]).args(COMMAND))?.with_code(9).prints("");
    Ok(())
}

fn a_server_that_is_not_ready_is_as_one_that_is_not_reached() -> Outcome {
    let server = TestServer::start();
    for (reply, words) in [
        ("-LOADING Redis is loading the dataset in memory\r\n", "loading its data"),
        ("-BUSY Redis is busy running a script.\r\n", "a script that takes long"),
    ] {
        server.next("SET", Fault::Say(reply));
        let ended = finished(run(&server.url()).arg("-n").args(COMMAND))?.with_code(69).prints("");
        ended.says_one_line(&["lock k: ", words]);
        assert_eq!(server.faults_left(), 0);
    }
    Ok(())
}

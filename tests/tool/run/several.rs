//! Several keys, permits, readers and writers; the longest time that a command may run; and a prefix.

use std::time::Instant;

use rustix::process::Signal;
use setnx_lock_testing::{Fault, TestServer};

use super::running::{Ended, Running, finished, run, shell};
use crate::support::scenario::FOREIGN;
use crate::support::tool::tool;
use crate::support::{AnyServer, LONG, Outcome, RedisServer, trials_of};

trials_of! {
    "tool_run::several";
    several_keys_are_held_together,
    the_loss_of_one_of_several_ends_the_command,
    a_semaphore_has_so_many_permits,
    readers_and_writers,
    a_command_that_runs_too_long_is_ended_while_the_lock_is_held,
    a_command_that_runs_too_long_is_killed,
    all_keys_begin_with_a_prefix,
    timeouts_are_those_given,
}

/// Holds what the options say, until a line is read.
fn holds(server: &TestServer, options: &[&str]) -> std::io::Result<Running> {
    Running::started(run(&server.url()).args(options).arg("--").args(shell("echo started; read go")))
}

fn once(server: &TestServer, options: &[&str], script: &str) -> std::io::Result<Ended> {
    finished(run(&server.url()).args(options).arg("--").args(shell(script)))
}

fn several_keys_are_held_together() -> Outcome {
    let server = TestServer::start();
    let show = "echo \"$SETNX_LOCK_KEY\"; echo \"$SETNX_LOCK_FENCING_TOKEN\"; echo ${SETNX_LOCK_SLOT-none}";
    once(&server, &["--fence", "b", "a", "b"], show)?
        .with_code(0)
        .prints("a\nb\n1\n1\nnone\n")
        .says_nothing();
    let mut holds = holds(&server, &["--name=me", "a", "b"])?;
    // In one trip.
    assert!(
        server
            .batches()
            .iter()
            .any(|batch| batch.iter().filter(|command| command.name == "SET").count() == 2)
    );
    for key in ["a", "b"] {
        once(&server, &["-n", key], "echo ran")?
            .with_code(75)
            .prints("")
            .says(&[&format!("lock {key}: "), "me"]);
    }
    let ended = once(&server, &["-n", "0", "b", "c"], "echo ran")?.with_code(75).prints("");
    ended.says_one_line(&["lock b: not acquired", ": held for ", "by me"]);
    assert_eq!([server.get("0"), server.get("c")], [None, None], "all or none");
    holds.say("go")?;
    holds.ends()?.with_code(0).says_nothing();
    assert_eq!(server.say(&["EXISTS", "a", "b"])?, ":0");
    once(&server, &["--keep", "a", "b"], "true")?.with_code(0);
    assert_eq!(server.say(&["EXISTS", "a", "b"])?, ":2");
    // Their replies are lost: they may be held.
    server.next("SET", Fault::LoseReply);
    let options = ["-n", "--command-timeout", "300ms", "x", "y"];
    once(&server, &options, "echo ran")?.with_code(74).prints("").says(&["error: "]);
    Ok(())
}

fn the_loss_of_one_of_several_ends_the_command() -> Outcome {
    let server = TestServer::start();
    for (lost, options) in [("b", &["-e", "3s", "a", "b"][..]), ("s:0", &["-e", "3s", "--permits", "1", "s"])]
    {
        let holds = holds(&server, options)?;
        server.delete(lost);
        holds.ends()?.with_code(70).says(&[&format!("lock {lost}: lost while the command ran")]);
        assert_eq!(server.get("a"), None);
    }
    Ok(())
}

fn a_semaphore_has_so_many_permits() -> Outcome {
    let server = TestServer::start();
    let two = ["-n", "--permits", "2", "--name=me", "s"];
    let show = "echo $SETNX_LOCK_KEY $SETNX_LOCK_SLOT";
    let mut first = holds(&server, &two)?;
    let taken = i32::from(server.get("s:0").is_none());
    let other = 1 - taken;
    once(&server, &two, show)?.with_code(0).prints(&format!("s:{other} {other}\n")).says_nothing();
    let status = |arguments: &[&str]| finished(tool(&server.url()).arg("status").args(arguments));
    let ended = status(&["--permits", "2", "s"])?.with_code(0);
    let shown = String::from_utf8(ended.output)?;
    assert!(shown.starts_with(&format!("s: 1 of 2 permits held\ns:{taken}: held for ")), "{shown}");
    assert!(!shown.contains(&format!("s:{other}")), "{shown}");
    status(&["--quiet", "--permits", "2", "s"])?.with_code(0).prints("");
    let mut second = holds(&server, &two)?;
    status(&["--quiet", "--permits", "2", "s"])?.with_code(75).prints("");
    status(&["--permits", "0", "s"])?.with_code(64);
    let ended = once(&server, &two, show)?.with_code(75).prints("");
    ended.says_one_line(&[
        "lock s: not acquired",
        ": all 2 permits are held, s:",
        " is held for ",
        ", by me",
    ]);
    // A third fits in where more are allowed.
    once(&server, &["-n", "--permits", "3", "s"], show)?.with_code(0).prints("s:2 2\n");
    // What never frees itself takes a permit away; if it is all that is left, nothing does.
    for running in [&mut first, &mut second] {
        running.say("go")?;
    }
    first.ends()?.with_code(0);
    second.ends()?.with_code(0);
    for key in ["s:0", "s:1"] {
        server.say(&["SET", key, "1"])?;
    }
    once(&server, &two, show)?.with_code(65).says_one_line(&["lock s: ", "without an expiration"]);
    Ok(())
}

fn readers_and_writers() -> Outcome {
    let server = TestServer::start();
    let shared = ["-n", "--shared", "--readers", "2", "c"];
    let exclusive = ["-n", "--exclusive", "--readers", "2", "c"];
    let mut first = holds(&server, &shared)?;
    let mut second = holds(&server, &shared)?;
    once(&server, &shared, "echo ran")?.with_code(75).prints("").says_one_line(&["all 2 permits are held"]);
    once(&server, &exclusive, "echo ran")?.with_code(75).prints("").says_one_line(&["lock c:0: "]);
    for running in [&mut first, &mut second] {
        running.say("go")?;
    }
    first.ends()?.with_code(0);
    second.ends()?.with_code(0);
    let mut writer = holds(&server, &exclusive)?;
    once(&server, &shared, "echo ran")?.with_code(75).prints("");
    once(&server, &exclusive, "echo ran")?.with_code(75).prints("");
    writer.say("go")?;
    writer.ends()?.with_code(0).says_nothing();
    let show = "echo $SETNX_LOCK_KEY $SETNX_LOCK_SLOT";
    once(&server, &exclusive, show)?.with_code(0).prints("c:0 c:1\n");
    let other = ["-n", "--shared", "--readers", "3", "c"];
    once(&server, &other, "echo ran")?.with_code(64).prints("").says(&["c", "readers"]);
    Ok(())
}

fn a_command_that_runs_too_long_is_ended_while_the_lock_is_held() -> Outcome {
    let server = TestServer::start();
    // When it is told to end it still has the lock, and may take longer than its lease.
    let script = "trap 'sleep 4; echo ended; exit 5' TERM; echo started; while :; do sleep 0.1; done";
    let command = ["-e", "3s", "--max-runtime", "2s", "--kill-after", "100s", "k", "--"];
    let running = Running::started(run(&server.url()).args(command).args(shell(script)))?;
    let mut looked = 0;
    running.prints_while("ended", || {
        looked += 1;
        server.get("k").is_some()
    });
    assert!(looked > 3, "{looked}");
    let ended = running.ends()?.with_code(124);
    let words = "lock k: ended after --max-runtime 2s: the command exited with 5";
    ended.says(&[words]);
    assert_eq!(server.get("k"), None);
    // One that ends before is as any.
    once(&server, &["--max-runtime", "100s", "k"], "exit 3")?.with_code(3).says_nothing();
    once(&server, &["--max-runtime", "100ms", "-E", "max-runtime=0", "k"], "sleep 100")?
        .with_code(0)
        .says_nothing();
    Ok(())
}

fn a_command_that_runs_too_long_is_killed() -> Outcome {
    let server = TestServer::start();
    let began = Instant::now();
    // What it has left behind ends with it, even if it ignores SIGTERM.
    let script = "trap '' TERM; sleep 1000 & echo started; while :; do sleep 0.1; done";
    for on_loss in ["term", "kill", "warn"] {
        let options = ["--on-loss", on_loss, "--max-runtime", "2s", "--kill-after", "300ms", "k", "--"];
        let running = Running::started(run(&server.url()).args(options).args(shell(script)))?;
        let ended = running.ends()?.with_code(124);
        ended.says_one_line(&["the command was ended by SIGKILL"]);
        assert_eq!(server.get("k"), None);
    }
    assert!(began.elapsed() < LONG);
    // A signal still reaches it first.
    let options = ["--max-runtime", "100s", "k", "--"];
    let running = Running::started(run(&server.url()).args(options).args(shell("echo started; read go")))?;
    running.send(Signal::TERM)?;
    running.ends()?.with_code(143).says_nothing();
    Ok(())
}

fn all_keys_begin_with_a_prefix() -> Outcome {
    // A `*` in a pattern of rights is any text, so that this prefix is one of those that are allowed.
    let server = RedisServer::start_with("user default on nopass ~app*1:* &app*1:* +@all")?;
    let url = server.url();
    let show = "echo $SETNX_LOCK_KEY";
    for options in [&["k"][..], &["--permits", "1", "s"], &["a", "b"], &["--fence", "--notify", "k"]] {
        let mut command = run(&url);
        command.env("SETNX_LOCK_PREFIX", "app*1:").args(options).arg("--").args(shell(show));
        let ended = finished(&mut command)?.with_code(0);
        assert!(ended.output.starts_with(b"app*1:") && ended.errors.is_empty(), "{ended:?}");
        finished(run(&url).args(options).args(["--", "true"]))?.with_code(77).says(&["NOPERM"]);
    }
    let server = TestServer::start();
    let url = server.url();
    server.say(&["SET", "app*1:k", FOREIGN])?;
    server.say(&["SET", "app*1:old", "1000000000.5"])?;
    server.say(&["SET", "app21:k", FOREIGN])?;
    let prefixed = |words: &[&str]| finished(tool(&url).args(words).arg("--prefix=app*1:"));
    assert!(prefixed(&["status", "k"])?.with_code(0).output.starts_with(b"app*1:k: held for "));
    let listed = String::from_utf8(prefixed(&["list"])?.with_code(0).output)?;
    assert!(listed.contains("app*1:k") && !listed.contains("app21:k"), "{listed}");
    let ended = once(&server, &["--json", "-n", "--prefix", "app*1:", "k"], "true")?.with_code(75);
    ended.says(&["\"key\":\"app*1:k\"", "lock app*1:k: not acquired"]);
    prefixed(&["clear", "--yes", "--expired", "*"])?.with_code(0);
    prefixed(&["clear", "--yes", "k"])?.with_code(0);
    assert_eq!(server.say(&["KEYS", "*"])?, server.say(&["KEYS", "app21:k"])?);
    prefixed(&["doctor"])?;
    let keys = server
        .log()
        .into_iter()
        .filter(|command| command.name == "SETNX")
        .map(|command| command.arguments[0].clone());
    let keys: Vec<_> = keys.filter(|key| key.contains("probe")).collect();
    assert!(!keys.is_empty() && keys.iter().all(|key| key.starts_with("app*1:")), "{keys:?}");
    Ok(())
}

fn timeouts_are_those_given() -> Outcome {
    let server = TestServer::start();
    server.every("SET", Fault::DelayReply(LONG));
    let began = Instant::now();
    let mut command = run(&server.url());
    command.env("SETNX_LOCK_COMMAND_TIMEOUT", "300ms").args(["-n", "k", "--", "true"]);
    finished(&mut command)?.with_code(74);
    server.clear_faults();
    server.every("TYPE", Fault::DelayReply(LONG));
    let mut command = tool(&server.url());
    command.args(["status", "--command-timeout", "0.3", "k"]);
    finished(&mut command)?.with_code(69).says(&["no reply from the server"]);
    assert!(began.elapsed() < LONG);
    let mut command = tool(&server.url());
    command.args(["status", "k"]).env("SETNX_LOCK_CONNECT_TIMEOUT", "0");
    finished(&mut command)?.with_code(64).says(&["--connect-timeout", "at least one millisecond"]);
    Ok(())
}

//! Locks that go from process to process: `acquire`, `extend`, `release` and `run --resume`.

use std::fs;
use std::process::Command;

use libtest_mimic::Failed;
use rustix::process::Signal;
use setnx_lock_testing::{Fault, TestServer};

use super::running::{Ended, Running, finished, run, shell};
use crate::support::notified::until;
use crate::support::tool::{program, tool};
use crate::support::{AnyServer, LONG, Outcome, millis, trials_of};
use crate::tool::keys::schema::{RUN_EVENT, read};

trials_of! {
    "tool_run::tokens";
    a_lock_goes_from_process_to_process,
    a_token_works_once,
    a_token_is_read_from_a_descriptor,
    what_a_token_cannot_do,
    a_lock_whose_token_nobody_has_is_released,
    a_signal_ends_the_wait,
    whatever_is_lost,
}

/// Runs a command of the tool with this token.
fn with_token(server: &TestServer, token: &str, arguments: &[&str]) -> std::io::Result<Ended> {
    finished(tool(&server.url()).args(arguments).env("SETNX_LOCK_TOKEN", token))
}

/// Runs a command that prints a token.
fn token(server: &TestServer, before: &str, arguments: &[&str]) -> Result<String, Failed> {
    let ended = with_token(server, before, arguments)?.with_code(0).says_nothing();
    Ok(String::from_utf8(ended.output)?.trim_end().to_owned())
}

fn a_lock_goes_from_process_to_process() -> Outcome {
    let server = TestServer::start();
    let options = ["acquire", "-e", "30s", "--fence", "--name=deploy", "--prefix=app:", "k"];
    let first = token(&server, "", &options)?;
    finished(run(&server.url()).args(["-n", "app:k", "--", "true"]))?.with_code(75).says(&["by deploy"]);
    let before = server.get("app:k");
    let second = token(&server, &first, &["extend", "-e", "1m"])?;
    assert!(second != first && server.get("app:k") > before, "{before:?}");
    let show = "echo $SETNX_LOCK_KEY $SETNX_LOCK_FENCING_TOKEN ${SETNX_LOCK_TOKEN-unset}; read go";
    let words = shell(&show.replace("; read", "; echo started; read"));
    let mut command = run(&server.url());
    command.args(["--resume", "--fence", "--"]).args(words).env("SETNX_LOCK_TOKEN", &second);
    let mut running = Running::start(&mut command)?;
    running.prints("app:k 1 unset");
    running.prints("started");
    // It is extended, to the length of the token's.
    let left = |text: Option<String>| text.and_then(|text| text.split('.').next()?.parse::<u64>().ok());
    let now = server.now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    assert!(left(server.get("app:k")) > Some(now + 50), "{:?}", server.get("app:k"));
    finished(run(&server.url()).args(["-n", "app:k", "--", "true"]))?.with_code(75).says(&["by deploy"]);
    running.say("go")?;
    running.ends()?.with_code(0).says_nothing();
    assert_eq!(server.get("app:k"), None);
    Ok(())
}

fn a_token_works_once() -> Outcome {
    let server = TestServer::start();
    let first = token(&server, "", &["acquire", "k"])?;
    let second = token(&server, &first, &["extend"])?;
    for arguments in [&["extend"][..], &["release"], &["run", "--resume", "--", "echo", "ran"]] {
        let ended = with_token(&server, &first, arguments)?.with_code(70).prints("");
        ended.says_one_line(&["lock k: its token cannot be used"]);
    }
    with_token(&server, &second, &["release"])?.with_code(0).prints("").says_nothing();
    assert_eq!(server.get("k"), None);
    with_token(&server, &second, &["release"])?.with_code(70).says(&["there is nothing to release"]);
    Ok(())
}

fn a_token_is_read_from_a_descriptor() -> Outcome {
    let server = TestServer::start();
    let mut script = Command::new("bash");
    let text = "set -e
        token=$(\"$0\" acquire k)
        token=$(\"$0\" extend --token-file /dev/stdin <<<\"$token\")
        \"$0\" run --resume --token-file /dev/fd/3 -- sh -c 'echo ran; cat' 3<<<\"$token\" <<<input
        token=$(\"$0\" acquire k)
        \"$0\" release --token-file <(echo \"$token\")";
    script.args(["-c", text]).arg(program()).env("REDIS_URL", server.url());
    finished(&mut script)?.with_code(0).prints("ran\ninput\n").says_nothing();
    assert_eq!(server.get("k"), None);
    Ok(())
}

fn what_a_token_cannot_do() -> Outcome {
    let server = TestServer::start();
    let good = token(&server, "", &["acquire", "k"])?;
    let resumed = |options: &[&'static str]| [&["run", "--resume"][..], options, &["--", "true"]].concat();
    for (token, arguments, words) in [
        ("", vec!["extend"], "no token: set SETNX_LOCK_TOKEN"),
        ("hello", vec!["release"], "this is no lock token"),
        (&good[..good.len() - 2], vec!["extend"], "damaged or cut off"),
        (good.as_str(), vec!["extend", "--token-file", "/missing"], "cannot read the token from /missing"),
        (good.as_str(), resumed(&["k"]), "cannot be used with"),
        (good.as_str(), resumed(&["--lead"]), "cannot be used with"),
        (good.as_str(), resumed(&["--permits", "2"]), "cannot be used with"),
        (good.as_str(), vec!["run", "--token-file", "f", "k", "--", "true"], "needs --resume"),
        ("", vec!["acquire"], "KEY"),
        ("", vec!["acquire", "k", "l"], "'l'"),
    ] {
        let ended = with_token(&server, token, &arguments)?.with_code(64).prints("").says(&[words]);
        assert!(token.is_empty() || !ended.errors.contains(token), "it is secret: {}", ended.errors);
    }
    with_token(&server, "", &["acquire", "-n", "k"])?
        .with_code(75)
        .says(&["lock k: not acquired", ": held for "]);
    with_token(&server, "", &["acquire", "-n", "-E", "0", "k"])?.with_code(0).prints("").says_nothing();
    with_token(&server, &good, &["release"])?.with_code(0);
    let ended = with_token(&server, "", &["acquire", "--json", "j"])?.with_code(0);
    let names: Vec<_> = ended.errors.lines().map(|line| read(RUN_EVENT, line)["event"].clone()).collect();
    assert_eq!(names, ["acquired", "handed_over"]);
    Ok(())
}

fn a_lock_whose_token_nobody_has_is_released() -> Outcome {
    let server = TestServer::start();
    let mut script = Command::new("sh");
    script.args(["-c", "exec \"$0\" acquire k >/dev/full"]).arg(program()).env("REDIS_URL", server.url());
    finished(&mut script)?.with_code(71).says_one_line(&["lock k: released", "token cannot be written"]);
    assert_eq!(server.get("k"), None);
    Ok(())
}

fn a_signal_ends_the_wait() -> Outcome {
    let server = TestServer::start();
    server.hold("k", LONG);
    let running = Running::start(tool(&server.url()).args(["acquire", "--wait-forever", "k"]))?;
    until("it waits", || server.names().iter().filter(|name| *name == "GET").count() > 1);
    std::thread::sleep(millis(100));
    running.send(Signal::TERM)?;
    running.ends()?.with_code(143).prints("").says_nothing();
    Ok(())
}

fn whatever_is_lost() -> Outcome {
    let server = TestServer::start();
    // Nothing was changed: it may be tried again.
    let first = token(&server, "", &["acquire", "--protocol", "classic", "k"])?;
    server.stop();
    for arguments in [&["extend"][..], &["release"], &["run", "--resume", "--", "true"]] {
        with_token(&server, &first, arguments)?.with_code(69).prints("").says(&["no connection"]);
    }
    server.start_again();
    server.next("GETSET", Fault::LoseReply);
    let classic = ["extend", "--protocol", "classic", "--command-timeout", "300ms"];
    with_token(&server, &first, &classic)?.with_code(74).prints("").says(&["lock k: "]);
    server.clear_faults();
    // A lock that was cleared is not gone on with.
    server.delete("k");
    let first = token(&server, "", &["acquire", "k"])?;
    server.delete("k");
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), first)?;
    let name = file.path().display().to_string();
    let ended = with_token(&server, "", &["run", "--resume", "--token-file", &name, "--", "echo", "ran"])?;
    ended.with_code(70).prints("").says(&["do not begin the work"]);
    Ok(())
}

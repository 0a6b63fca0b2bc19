//! Options that scripts ask for: JSON, silence, keys that begin with a hyphen; and a command that cannot be signalled.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;
use setnx_lock_testing::TestServer;

use super::running::{Running, finished, run, shell};
use crate::support::scenario::FOREIGN;
use crate::support::tool::program;
use crate::support::{AnyServer, Outcome, trials_of};
use crate::tool::keys::schema::{RUN_EVENT, read};

trials_of! {
    "tool_run::wishes";
    each_event_is_a_line_of_json,
    contention_is_no_error,
    a_key_that_begins_with_a_hyphen,
    a_command_that_cannot_be_ended_is_named_again,
}

/// The names of the events, in their order.
fn events(errors: &str) -> Vec<String> {
    let name = |line: &str| read(RUN_EVENT, line)["event"].as_str().unwrap().to_owned();
    errors.lines().map(name).collect()
}

fn each_event_is_a_line_of_json() -> Outcome {
    let server = TestServer::start();
    let json = |arguments: &[&str]| finished(run(&server.url()).arg("--json").args(arguments));
    let ended = json(&["k\"\n", "--", "sh", "-c", "exit 4"])?.with_code(4);
    assert_eq!(events(&ended.errors), ["acquired", "started", "ended", "released"], "{}", ended.errors);
    let last: Value = serde_json::from_str(ended.errors.lines().nth(2).unwrap())?;
    assert_eq!(
        (&last["exit_code"], &last["key"], &last["key_hex"]),
        (&4.into(), &"k\"\\n".into(), &"6b220a".into())
    );
    server.say(&["SET", "held", FOREIGN])?;
    let ended = json(&["-n", "held", "--", "true"])?.with_code(75);
    assert_eq!(events(&ended.errors), ["error"]);
    assert_eq!(read(RUN_EVENT, ended.errors.trim_end())["condition"], "contended");
    server.say(&["SET", "stuck", "x"])?;
    let ended = json(&["-w", "0.3s", "stuck", "--", "true"])?.with_code(65);
    assert_eq!(events(&ended.errors), ["warning", "error"], "{}", ended.errors);
    let command =
        [&["--json", "-e", "3s", "lost", "--"][..], &["sh", "-c", "echo started; read go"]].concat();
    let running = Running::started(run(&server.url()).args(command))?;
    running.error_with("\"event\":\"extended\"");
    server.say(&["DEL", "lost"])?;
    let ended = running.ends()?.with_code(70);
    let names = events(&ended.errors);
    assert!(names.contains(&"lost".into()) && names.last() == Some(&"error".into()), "{names:?}");
    let both = run(&server.url()).args(["--json", "-q", "k", "--", "true"]).output()?;
    assert_eq!(both.status.code(), Some(64));
    Ok(())
}

fn contention_is_no_error() -> Outcome {
    let server = TestServer::start();
    server.say(&["SET", "k", FOREIGN])?;
    for wait in [&["-n"][..], &["-w", "0.2s"]] {
        let ended = finished(run(&server.url()).args(wait).args(["-q", "k", "--", "true"]))?;
        ended.with_code(75).says_nothing();
    }
    let ended = finished(run("redis://127.0.0.1:1/").args(["-q", "-n", "k", "--", "true"]))?;
    ended.with_code(69).says_one_line(&["no connection"]);
    Ok(())
}

fn a_key_that_begins_with_a_hyphen() -> Outcome {
    let server = TestServer::start();
    let script = format!("redis-cli -p {} EXISTS --hyphen", server.port());
    let ended = finished(run(&server.url()).args(["--lock=--hyphen", "--"]).args(shell(&script)))?;
    ended.with_code(0).prints("1\n").says_nothing();
    finished(run(&server.url()).args(["--", "true"]))?.with_code(64);
    Ok(())
}

/// Copies a program by another process: children that other tests fork here would keep the file open for writing.
pub(super) fn copy(from: &Path, to: &Path) -> Outcome {
    assert!(std::process::Command::new("cp").args([from, to]).status()?.success());
    Ok(())
}

/// As the commands of sudo are: it has another user than the tool. Only root can set that up.
fn a_command_that_cannot_be_ended_is_named_again() -> Outcome {
    let setpriv = Path::new("/usr/bin/setpriv");
    if !rustix::process::geteuid().is_root() || !setpriv.exists() {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let raised = folder.path().join("raised");
    copy(setpriv, &raised)?;
    fs::set_permissions(&raised, fs::Permissions::from_mode(0o4755))?;
    let tool = folder.path().join("setnx-lock");
    copy(program(), &tool)?;
    let server = TestServer::start();
    let mut command = std::process::Command::new(setpriv);
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&tool);
    command.env("REDIS_URL", server.url()).args(["run", "-e", "3s", "--kill-after", "300ms", "k", "--"]);
    command.arg(&raised).args([
        "--reuid",
        "0",
        "--regid",
        "0",
        "--clear-groups",
        "sh",
        "-c",
        "echo started; read go",
    ]);
    let mut running = Running::started(&mut command)?;
    server.say(&["DEL", "k"])?;
    running.error_with("cannot send SIGTERM to the command");
    running.error_with("cannot send SIGKILL to the command");
    running.error_with("the command goes on without the lock");
    running.say("go")?;
    running.ends()?.with_code(70);
    Ok(())
}

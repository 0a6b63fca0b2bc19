//! Servers that answer and grant no locks for now: a replica in a failover, and a full one. `--wait-forever` waits through both.

use std::fs;
use std::process::Command;

use libtest_mimic::Trial;

use super::running::{Running, finished, run};
use crate::support::notified::until;
use crate::support::tool::{program, tool};
use crate::support::{Outcome, RedisServer, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::failover",
        tests![a_wait_goes_on_while_the_server_is_full, the_leader_of_the_recipe_leads_again],
    )
}

/// The arguments after the options.
const COMMAND: [&str; 4] = ["k", "--", "echo", "ran"];

/// The other server becomes the master, and this one its replica, with the same keys.
fn demote(server: &RedisServer, other: &RedisServer) -> Outcome {
    other.say(&["SET", "from", "other"])?;
    server.say(&["REPLICAOF", "127.0.0.1", &other.address().port().to_string()])?;
    until("it has the other's keys", || server.say(&["EXISTS", "from"]).is_ok_and(|reply| reply == ":1"));
    Ok(())
}

fn a_wait_goes_on_while_the_server_is_full() -> Outcome {
    let server = RedisServer::start_with("maxmemory 1")?;
    finished(run(&server.url()).arg("-n").args(COMMAND))?.with_code(69).prints("").says_one_line(&["OOM"]);
    let waits = Running::start(run(&server.url()).arg("--wait-forever").args(COMMAND))?;
    waits.error_with("warning: retrying: lock k: the server refused: OOM");
    server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
    waits.ends()?.with_code(0).prints("ran\n");
    Ok(())
}

const PAGE: &str = include_str!("../../../docs/cli.md");

/// The server is demoted while one process leads and another waits, and promoted back.
fn the_leader_of_the_recipe_leads_again() -> Outcome {
    let (server, other) = (RedisServer::start()?, RedisServer::start()?);
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("leader");
    // A leader notices the loss of its lock within a few seconds.
    let section = PAGE.split_once("### A leader that is restarted").expect("the page has it").1;
    let block = section.split("```").nth(1).expect("a block").split_once('\n').expect("its lines").1;
    let text = block.replace("-e 15s", "-e 2s");
    assert!(text.contains("./worker") && text.contains("-e 2s"));
    let worker = "sh -c 'echo leads; read order'";
    fs::write(&script, text.replace("./worker", worker))?;
    let path = format!("{}:{}", program().parent().expect("a folder").display(), std::env::var("PATH")?);
    let start = || {
        let mut command = Command::new("env");
        let tool = tool(&server.url());
        command.args(["--default-signal", "sh"]).arg(&script).env("PATH", &path);
        command.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Running::start(&mut command)
    };
    let mut first = start()?;
    first.prints("leads");
    let mut second = start()?;
    demote(&server, &other)?;
    for process in [&first, &second] {
        process.error_with("retrying");
    }
    // A single try and a limited wait give up.
    for options in [&["--no-wait"][..], &["--timeout", "1s"]] {
        let ended = finished(run(&server.url()).args(options).args(COMMAND))?;
        ended.with_code(69).prints("").says_one_line(&["lock k: ", "replica"]);
    }
    server.say(&["REPLICAOF", "NO", "ONE"])?;
    // One leads, ends well, and ends its loop. Then the other does.
    for process in [&mut first, &mut second] {
        process.say("end")?;
    }
    for process in [first, second] {
        process.ends()?.with_code(0).prints("leads\n");
    }
    Ok(())
}

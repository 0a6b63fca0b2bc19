//! Servers that answer and grant no locks for now: a replica in a failover, and a full one. `--wait-forever` waits through both.

use std::process::Command;
use std::time::Duration;
use std::{fs, thread};

use libtest_mimic::{Failed, Trial};
use setnx_lock_testing::TestServer;
use testkit::failover::Failover;

use super::running::{Running, finished, run};
use crate::support::notified::until;
use crate::support::tool::{program, tool};
use crate::support::{AnyServer, Outcome, RedisServer, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::failover",
        tests![
            a_wait_goes_on_while_the_server_is_full,
            the_leader_of_the_recipe_leads_again,
            the_leaders_of_all_recipes_lead_again_once_the_new_master_has_a_replica
        ],
    )
}

/// The arguments after the options.
const COMMAND: [&str; 4] = ["k", "--", "echo", "ran"];

/// The other server becomes the master, and this one its replica, with the same keys.
fn demote(server: &impl AnyServer, other: &impl AnyServer) -> Outcome {
    other.say(&["SET", "from", "other"])?;
    server.say(&["REPLICAOF", "127.0.0.1", &other.address().port().to_string()])?;
    until("it has the other's keys", || server.say(&["EXISTS", "from"]).is_ok_and(|reply| reply == ":1"));
    Ok(())
}

fn a_wait_goes_on_while_the_server_is_full() -> Outcome {
    let server = TestServer::builder().config("maxmemory 1").start();
    finished(run(&server.url()).arg("-n").args(COMMAND))?.with_code(69).prints("").says_one_line(&["OOM"]);
    let waits = Running::start(run(&server.url()).arg("--wait-forever").args(COMMAND))?;
    waits.error_with("warning: lock k: waiting: the server refused: OOM");
    server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
    waits.ends()?.with_code(0).prints("ran\n");
    Ok(())
}

const PAGE: &str = include_str!("../../../docs/cli.md");
const UNIT: &str = include_str!("../../../contrib/systemd/setnx-lock-leader.service");
const DEPLOYMENT: &str = include_str!("../../../contrib/kubernetes/leader.yaml");
/// How long a server gives no sign of life until it is down.
const DOWN_AFTER: Duration = Duration::from_secs(4);

/// Returns the script of the page.
fn page() -> &'static str {
    let section = PAGE.split_once("### A leader that is restarted").expect("the page has it").1;
    section.split("```").nth(1).expect("a block").split_once('\n').expect("its lines").1
}

/// Returns the unit's command, started again by a shell as systemd does.
fn unit() -> String {
    let value = |name: &str| UNIT.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    let command = value("ExecStart=").replace(" --password-file ${CREDENTIALS_DIRECTORY}/redis", "");
    let ends = value("RestartPreventExitStatus=").replace(' ', " | ");
    format!("while :; do {command}; case $? in {ends}) exit 1 ;; esac; sleep 1; done")
}

/// Returns the command of the Deployment, started again by a shell as Kubernetes does.
fn deployment() -> String {
    let words = DEPLOYMENT.lines().find_map(|line| line.trim().strip_prefix("command: [")?.strip_suffix(']'));
    format!("while :; do {}; sleep 1; done", words.expect("a command").replace(", ", " "))
}

/// A master that takes writes only with a replica fails over, and its replicas are away for some time: nobody has to come.
fn the_leaders_of_all_recipes_lead_again_once_the_new_master_has_a_replica() -> Outcome {
    // More than twice as long as the tool retries.
    const AWAY: Duration = Duration::from_secs(12);
    let mut failover = Failover::start_with(DOWN_AFTER, "min-replicas-to-write 1", "")?;
    let recipes = [page().to_owned(), unit(), deployment()];
    let folder = tempfile::tempdir()?;
    let bin = program().parent().expect("a folder").display().to_string();
    let start = |(n, text): (usize, &String)| {
        let text = text.replace("-e 15s", "-e 3s").replace("-e, 15s", "-e 3s");
        let text = text
            .replace("leader:worker", &format!("leader:{n}"))
            .replace("/usr/local/bin/setnx-lock", "setnx-lock");
        let worker = "sh -c 'echo leads; exec sleep 1000'";
        let text = text.replace("/usr/local/bin/worker", worker).replace("./worker", worker);
        let text = text.replace("-- worker", &format!("-- {worker}"));
        let script = folder.path().join(format!("recipe{n}"));
        fs::write(&script, text)?;
        let mut command = Command::new("env");
        command.args(["--default-signal", "sh"]).arg(&script);
        command.envs(tool(&failover.url()).get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("PATH", format!("{bin}:{}", std::env::var("PATH")?));
        Ok(Running::start(&mut command)?)
    };
    let leaders = recipes.iter().enumerate().map(start).collect::<Result<Vec<_>, Failed>>()?;
    for leader in &leaders {
        leader.prints("leads");
    }
    let master = failover.master();
    let (next, away) = ((master + 1) % 3, (master + 2) % 3);
    failover.servers[away].freeze();
    // Until it is known to be down, and is not promoted.
    thread::sleep(2 * DOWN_AFTER);
    failover.servers[master].stop();
    assert_eq!(failover.until_other_than(master), next);
    for leader in &leaders {
        leader.error_with("NOREPLICAS");
    }
    thread::sleep(AWAY);
    failover.servers[away].thaw();
    for leader in &leaders {
        leader.prints("leads");
    }
    Ok(())
}

/// The server is demoted while one process leads and another waits, and promoted back.
fn the_leader_of_the_recipe_leads_again() -> Outcome {
    let (server, other) = (RedisServer::start()?, RedisServer::start()?);
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("leader");
    // A leader notices the loss of its lock within a few seconds.
    let text = page().replace("-e 15s", "-e 2s");
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
        process.error_with("is a replica");
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

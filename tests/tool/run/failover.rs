//! Servers that answer and grant no locks for now: a replica in a
//! failover, and a full one. `--wait-forever` waits through both.

use std::process::Command;
use std::thread;
use std::time::Duration;

use libtest_mimic::Failed;
use rustix::process::Signal;
use setnx_lock_testing::TestServer;
use testkit::failover::Failover;

use super::running::{Running, finished, run};
use crate::support::notified::until;
use crate::support::tool::{program, tool};
use crate::support::{AnyServer, Outcome, RedisServer, trials_of};

trials_of! {
    "tool_run::failover";
    a_wait_goes_on_while_the_server_is_full,
    the_leader_of_the_recipe_leads_again,
    the_leaders_of_all_recipes_lead_again_once_the_new_master_has_a_replica,
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

/// Returns the command of the page.
fn page() -> &'static str {
    let section = PAGE.split_once("### Lead").expect("the page has it").1;
    section.split("```").nth(1).expect("a block").split_once('\n').expect("its lines").1
}

/// Returns the unit's command.
fn unit() -> String {
    let value = |name: &str| UNIT.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    value("ExecStart=").replace(" --password-file ${CREDENTIALS_DIRECTORY}/redis", "")
}

/// Returns the command of the Deployment.
fn deployment() -> String {
    let words = DEPLOYMENT.lines().find_map(|line| line.trim().strip_prefix("command: [")?.strip_suffix(']'));
    words.expect("a command").replace(", ", " ")
}

/// Runs a recipe's command by a shell, with another worker and a lease of this length.
fn recipe(url: &str, text: &str, key: &str, worker: &str, lease: &str) -> Result<Running, Failed> {
    assert!(text.contains("--lead") && text.contains("-e 15s") && text.contains("leader:worker"), "{text}");
    let text = text.replace("-e 15s", lease).replace("leader:worker", key);
    let text = text.replace("/usr/local/bin/", "").replace("./worker", "worker").trim().to_owned();
    let text = text.strip_suffix("-- worker").expect("it runs a worker").to_owned() + "-- " + worker;
    let mut command = Command::new("env");
    command.args(["--default-signal", "sh", "-c", &format!("exec {text}")]);
    command.envs(tool(url).get_envs().filter_map(|(name, value)| Some((name, value?))));
    let bin = program().parent().expect("a folder").display();
    command.env("PATH", format!("{bin}:{}", std::env::var("PATH")?));
    Ok(Running::start(&mut command)?)
}

/// A master that takes writes only with a replica fails over,
/// and its replicas are away for some time: nobody has to come.
fn the_leaders_of_all_recipes_lead_again_once_the_new_master_has_a_replica() -> Outcome {
    // More than twice as long as the tool retries.
    const AWAY: Duration = Duration::from_secs(12);
    let mut failover = Failover::start_with(DOWN_AFTER, "min-replicas-to-write 1", "")?;
    let recipes = [page().to_owned(), unit(), deployment()];
    let start = |(n, text): (usize, &String)| {
        let worker = "sh -c 'echo leads; exec sleep 1000'";
        recipe(&failover.url(), text, &format!("leader:{n}"), worker, "-e 3s")
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
    // A leader notices the loss of its lock within a few seconds.
    let start = || recipe(&server.url(), page(), "k", "sh -c 'echo leads; exec sleep 1000'", "-e 2s");
    let first = start()?;
    first.prints("leads");
    let second = start()?;
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
    let leads = |process: &Running| process.prints_any("leads");
    until("one leads again", || leads(&first) || leads(&second));
    for process in [&first, &second] {
        process.send(Signal::TERM)?;
    }
    for process in [first, second] {
        process.ends()?.with_code(143);
    }
    Ok(())
}

//! For how long the lock is held: extended while the command runs,
//! kept for a time after it, and by whom others see that it is held.

use std::io;

use redis::Commands as _;
use setnx_lock_testing::TestServer;

use super::running::{Running, finished, run};
use crate::support::notified::{connection, until};
use crate::support::tool::tool;
use crate::support::{AnyServer, Outcome, trials_of};

trials_of! {
    "tool_run::time";
    the_lease_is_extended_while_the_command_runs,
    a_command_that_outlives_what_it_may_take_is_ended,
    a_lock_that_is_kept_is_left_to_expire,
    a_lock_is_held_for_a_time_at_least,
    others_see_the_name,
}

const HOLD: [&str; 5] = ["k", "--", "sh", "-c", "echo started; read go; exit 3"];

fn the_lease_is_extended_while_the_command_runs() -> Outcome {
    let server = TestServer::start();
    let mut running = Running::started(run(&server.url()).args(["-e", "3s"]).args(HOLD))?;
    let mut connection = connection(&server);
    let mut value = || connection.get::<_, Option<String>>("k").expect("the server answers");
    // A second more than a lease passes.
    for _ in 0..4 {
        let before = value();
        until("the lease is extended", || value() != before);
    }
    finished(run(&server.url()).args(["-n", "k", "--", "true"]))?.with_code(75);
    running.say("go")?;
    running.ends()?.with_code(3).says_nothing();
    Ok(())
}

fn a_command_that_outlives_what_it_may_take_is_ended() -> Outcome {
    let server = TestServer::start();
    let options = ["-e", "0.5s", "--auto-extend", "0.5s", "--wait-forever"];
    let running = Running::start(run(&server.url()).args(options).args(HOLD))?;
    let ended = running.ends()?.with_code(70);
    ended.says(&["error: lock k: lost while the command ran: its lease has ended"]);
    Ok(())
}

fn a_lock_that_is_kept_is_left_to_expire() -> Outcome {
    let server = TestServer::start();
    let tool = |protocol: &str, options: &[&str]| {
        let mut tool = run(&server.url());
        tool.args(["--protocol", protocol]).args(options).args([protocol, "--", "sh", "-c", "exit 3"]);
        finished(&mut tool)
    };
    for protocol in ["auto", "ttl"] {
        tool(protocol, &["--keep"])?.with_code(3).says_nothing();
        tool(protocol, &["-n"])?.with_code(75);
        server.say(&["DEL", protocol])?;
        tool(protocol, &["-e", "1s", "--wait-forever", "--keep"])?.with_code(3);
    }
    // Until it expires.
    for protocol in ["auto", "ttl"] {
        tool(protocol, &["--wait-forever"])?.with_code(3);
    }
    Ok(())
}

/// So a job that two machines start at about the same time, as cron does, runs once.
fn a_lock_is_held_for_a_time_at_least() -> Outcome {
    let server = TestServer::start();
    for (key, protocol, options, code) in [
        ("a", "auto", &["-n"][..], 75),
        ("c", "classic", &["-n"], 75),
        ("t", "ttl", &["-n"], 75),
        ("cron", "auto", &["-n", "-E", "0"], 0),
    ] {
        let options = [options, &["--protocol", protocol, "--hold-at-least", "1h", key, "--"]].concat();
        // The tool does not wait for that time, which is longer than the tests wait.
        finished(run(&server.url()).args(&options).args(["echo", "ran"]))?.with_code(0).prints("ran\n");
        finished(run(&server.url()).args(&options).args(["echo", "ran"]))?.with_code(code).prints("");
    }
    // A command that takes longer than that: the lock is released.
    let mut running = Running::started(run(&server.url()).args(["--hold-at-least", "1ms"]).args(HOLD))?;
    running.say("go")?;
    running.ends()?.with_code(3).says_nothing();
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    Ok(())
}

fn others_see_the_name() -> Outcome {
    let server = TestServer::start();
    let holder = || -> io::Result<String> {
        let status = tool(&server.url()).args(["status", "k"]).output()?;
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        let holder = status.lines().find_map(|line| line.trim().strip_prefix("holder: "));
        let name = holder.and_then(|holder| Some(holder.rsplit_once(" for ")?.0));
        Ok(name.unwrap_or_default().to_owned())
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    for option in ["--name=nightly on db 1", "--name=", "--quiet"] {
        let mut running = Running::started(run(&server.url()).arg(option).args(HOLD))?;
        let expected = match option {
            "--name=" => {
                let name = format!("{}:{}", host.trim(), running.number());
                // The longest name.
                name[name.len().saturating_sub(64)..].to_owned()
            }
            "--quiet" => String::new(),
            _ => "nightly on db 1".to_owned(),
        };
        assert_eq!(holder()?, expected);
        running.say("go")?;
        running.ends()?.with_code(3).says_nothing();
        assert_eq!(holder()?, "");
    }
    Ok(())
}

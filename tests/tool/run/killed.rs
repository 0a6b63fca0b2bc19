//! The tool is killed: another process ends the command, and the lock is taken over when its lease has passed.

use std::process::Command;
use std::{fs, io, thread};

use rustix::process::Signal;
use setnx_lock_testing::TestServer;

use super::running::{Running, run, shell};
use crate::support::notified::until;
use crate::support::tool::program;
use crate::support::{AnyServer, Outcome, millis, trials_of};

trials_of! {
    "tool_run::killed";
    the_command_gets_sigterm,
    a_command_that_ignores_sigterm_is_killed,
    all_processes_of_the_command_end,
    the_command_runs_on_if_wanted,
    the_lock_is_taken_over,
    a_command_that_has_just_begun_ends,
    the_guardian_has_a_name,
}

/// Starts a shell script under the lock, and returns when it has printed `started`. Before that the tool has passed a
/// signal on: so it waits for the command, and the process that ends the command knows which one.
fn script(server: &impl AnyServer, options: &[&str], key: &str, script: &str) -> io::Result<Running> {
    let script = format!("trap 'echo waits' USR1; echo begins; read go; {script}");
    let mut running =
        Running::start(run(&server.url()).args(options).args([key, "--"]).args(shell(&script)))?;
    running.prints("begins");
    running.send(Signal::USR1)?;
    running.prints("waits");
    running.say("go")?;
    running.prints("started");
    Ok(running)
}

fn the_command_gets_sigterm() -> Outcome {
    let server = TestServer::start();
    let running = script(&server, &[], "k", "trap 'echo cleans up; exit 7' TERM; echo started; read go")?;
    running.send(Signal::KILL)?;
    running.prints("cleans up");
    let ended = running.ends()?.by_signal(Signal::KILL).prints("");
    ended.says(&[
        "setnx-lock: warning: lock k: the tool was killed while its command ran",
        "the lock stays held until it expires",
    ]);
    assert_eq!(server.say(&["EXISTS", "k"])?, ":1");
    Ok(())
}

fn a_command_that_ignores_sigterm_is_killed() -> Outcome {
    let server = TestServer::start();
    let ignores = "trap 'echo got it' TERM; echo started; read go; while :; do sleep 1; done";
    let running = script(&server, &["--kill-after", "0.2s"], "k", ignores)?;
    running.send(Signal::KILL)?;
    running.prints("got it");
    running.ends()?.by_signal(Signal::KILL).prints("");
    server.say(&["DEL", "k"])?;
    // Within the grace it may end by itself.
    let takes_its_time = "trap 'echo got it; read go; echo done; exit 0' TERM; echo started; read go";
    let mut running = script(&server, &["--kill-after", "10m"], "k", takes_its_time)?;
    running.send(Signal::KILL)?;
    running.prints("got it");
    running.say("go")?;
    running.ends()?.by_signal(Signal::KILL).prints("done\n");
    Ok(())
}

/// The end of the output is the end of all that have it.
fn all_processes_of_the_command_end() -> Outcome {
    let server = TestServer::start();
    let children = "sleep 3000 & (trap '' TERM; sleep 3000) & echo started; wait";
    let traps = "trap 'echo trapped' TERM; (trap '' TERM; sleep 3000) & echo started; wait; sleep 3000";
    let stopped = "echo started; kill -STOP $$; read go; echo ran on";
    for (key, options, command) in [
        ("a", &["--kill-after", "0.2s"][..], children),
        ("b", &["--on-loss", "kill", "--kill-after", "10m"], traps),
        ("c", &["--kill-after", "10m"], stopped),
    ] {
        let running = script(&server, options, key, command)?;
        running.send(Signal::KILL)?;
        running.ends()?.by_signal(Signal::KILL).prints("");
    }
    Ok(())
}

fn the_command_runs_on_if_wanted() -> Outcome {
    let server = TestServer::start();
    let traps = "trap 'echo trapped' TERM; echo started; read go; echo ran on";
    let mut running = script(&server, &["--on-loss", "warn"], "k", traps)?;
    running.send(Signal::KILL)?;
    until("it is killed", || running.has_ended());
    thread::sleep(millis(300));
    running.say("go")?;
    running.ends()?.by_signal(Signal::KILL).prints("ran on\n").says_nothing();
    Ok(())
}

fn the_lock_is_taken_over() -> Outcome {
    let server = TestServer::start();
    let take_over = |protocol: &str| -> io::Result<_> {
        let options = ["-e", "1s", "--wait-forever", "--protocol", protocol];
        let holds = script(&server, &options, protocol, "echo started; read go")?;
        holds.send(Signal::KILL)?;
        // It begins while the key is still there.
        Ok((holds, Running::start(run(&server.url()).args(options).args([protocol, "--", "echo", "ran"]))?))
    };
    let all = ["auto", "ttl"].map(take_over);
    for outcome in all {
        let (holds, next) = outcome?;
        next.ends()?.with_code(0).prints("ran\n");
        holds.ends()?.by_signal(Signal::KILL).prints("");
    }
    assert_eq!(server.say(&["DBSIZE"])?, ":0", "released");
    Ok(())
}

/// It is known to the guardian before it begins, also under nohup.
fn a_command_that_has_just_begun_ends() -> Outcome {
    let server = TestServer::start();
    for n in 0..10 {
        let tool = run(&server.url());
        let mut command = Command::new(if n % 2 == 0 { "nohup" } else { "env" });
        command.arg(program()).args(["run", &n.to_string(), "--", "sh", "-c", "echo started; exec cat"]);
        command.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let running = Running::started(&mut command)?;
        running.send(Signal::KILL)?;
        // Its input is open, and so it would never end by itself.
        running.ends()?.by_signal(Signal::KILL).prints("");
    }
    Ok(())
}

/// As `ps` shows it.
fn the_guardian_has_a_name() -> Outcome {
    let server = TestServer::start();
    let running = script(&server, &[], "k", "echo started; read go")?;
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.number()))?;
    let name = |id: &str| fs::read_to_string(format!("/proc/{id}/comm"));
    let is_guardian = |id| name(id).is_ok_and(|name| name == "setnx-guardian\n");
    // It is called otherwise until it has begun.
    until("one is the guardian", || children.split_whitespace().any(is_guardian));
    Ok(())
}

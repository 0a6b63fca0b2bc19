//! Locks that are lost while the command runs: it is ended, with all that it has started, and the exit code is 70.

use libtest_mimic::Trial;
use redis::Commands as _;

use super::running::{Ended, Running, finished, run, shell};
use crate::support::notified::connection;
use crate::support::scenario::FOREIGN;
use crate::support::tool::{program, tool};
use crate::support::{Outcome, RedisServer, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::loss",
        tests![
            the_command_gets_sigterm,
            a_command_that_ignores_sigterm_is_killed,
            a_grace_of_zero_kills,
            processes_that_the_command_has_started_end_too,
            what_the_command_leaves_is_killed_as_well,
            a_stopped_command_is_ended,
            the_command_is_killed_at_once_if_wanted,
            the_command_runs_on_if_wanted,
            a_lock_that_another_holder_overwrote,
            a_loss_that_is_found_at_the_release,
            the_exit_code_can_be_given,
        ],
    )
}

/// The lease is long, so that a loss has its reason in the test, and short enough for a look at the key twice a second.
const LEASE: [&str; 2] = ["-e", "5s"];

/// Starts a shell script under the lock.
fn script(server: &RedisServer, options: &[&str], script: &str) -> std::io::Result<Running> {
    Running::started(run(&server.url()).args(LEASE).args(options).args(["k", "--"]).args(shell(script)))
}

fn clear(server: &RedisServer) {
    let cleared = tool(&server.url()).args(["clear", "--yes", "k"]).output();
    assert!(cleared.is_ok_and(|cleared| cleared.status.success()));
}

fn delete(server: &RedisServer) {
    let deleted: u64 = connection(server).del("k").unwrap();
    assert_eq!(deleted, 1);
}

#[track_caller]
fn says_lost(ended: Ended, how: &str) -> Ended {
    let last = ended.errors.lines().last().unwrap_or_default().to_owned();
    let words = ["setnx-lock: error: lock k: lost while the command ran: its key is missing", how];
    assert!(words.iter().all(|words| last.contains(words)), "{last}");
    ended
}

fn the_command_gets_sigterm() -> Outcome {
    let server = RedisServer::start()?;
    let cleans_up = "trap 'echo cleans up; exit 7' TERM; echo started; read go";
    for lose in [clear, delete] {
        let running = script(&server, &[], cleans_up)?;
        lose(&server);
        running.prints("cleans up");
        let ended = says_lost(running.ends()?.with_code(70), "the command exited with 7");
        let ended = ended.says(&["warning: lock k: lost: its key is missing"]);
        assert_eq!(ended.errors.lines().count(), 2, "a warning, and why it exits: {}", ended.errors);
        assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    }
    let running = script(&server, &[], "echo started; read go; echo ran on")?;
    delete(&server);
    says_lost(running.ends()?.with_code(70).prints(""), "the command was ended by SIGTERM");
    Ok(())
}

fn a_command_that_ignores_sigterm_is_killed() -> Outcome {
    let server = RedisServer::start()?;
    let ignores = "trap '' TERM; echo started; read go; echo ran on";
    let running = script(&server, &["-v", "--grace", "0.2s"], ignores)?;
    delete(&server);
    let ended = says_lost(running.ends()?.with_code(70).prints(""), "the command was ended by SIGKILL");
    ended.says(&["sent SIGTERM to the command; SIGKILL follows in 200ms", "sent SIGKILL to the command"]);
    // Within the grace it may end by itself.
    let takes_its_time = "trap 'echo got it; read go; exit 0' TERM; echo started; read go";
    let mut running = script(&server, &["--grace", "10m"], takes_its_time)?;
    delete(&server);
    running.prints("got it");
    running.say("go")?;
    says_lost(running.ends()?.with_code(70), "the command exited with 0");
    Ok(())
}

fn a_grace_of_zero_kills() -> Outcome {
    let server = RedisServer::start()?;
    let running = script(&server, &["--grace", "0"], "trap '' TERM; echo started; read go; echo ran on")?;
    delete(&server);
    says_lost(running.ends()?.with_code(70).prints(""), "the command was ended by SIGKILL");
    Ok(())
}

/// The end of the output is the end of all that have it.
fn processes_that_the_command_has_started_end_too() -> Outcome {
    let server = RedisServer::start()?;
    let children = "sleep 3000 & sh -c 'sleep 3000 & sleep 3000' & echo started; wait";
    for options in [&["--grace", "10m"][..], &["--on-loss", "kill"]] {
        let running = script(&server, options, children)?;
        delete(&server);
        running.ends()?.with_code(70).prints("");
    }
    Ok(())
}

/// The command ends by SIGTERM, a process that it has started ignores it.
fn what_the_command_leaves_is_killed_as_well() -> Outcome {
    let server = RedisServer::start()?;
    let child = "(trap '' TERM; echo started; sleep 3000) & read go; wait";
    let running = script(&server, &["--grace", "0.2s"], child)?;
    delete(&server);
    says_lost(running.ends()?.with_code(70).prints(""), "the command was ended by SIGTERM");
    Ok(())
}

fn a_stopped_command_is_ended() -> Outcome {
    let server = RedisServer::start()?;
    for options in [&["--grace", "10m"][..], &["--on-loss", "kill"]] {
        let running = script(&server, options, "echo started; kill -STOP $$; read go; echo ran on")?;
        delete(&server);
        running.ends()?.with_code(70).prints("");
    }
    Ok(())
}

fn the_command_is_killed_at_once_if_wanted() -> Outcome {
    let server = RedisServer::start()?;
    let trapped = "trap 'echo trapped; exit 0' TERM INT HUP; echo started; read go; echo ran on";
    let running = script(&server, &["--on-loss", "kill", "--grace", "10m"], trapped)?;
    delete(&server);
    says_lost(running.ends()?.with_code(70).prints(""), "the command was ended by SIGKILL");
    Ok(())
}

fn the_command_runs_on_if_wanted() -> Outcome {
    let server = RedisServer::start()?;
    let trapped = "trap 'echo trapped' TERM; echo started; read go; echo ran on; exit 3";
    let mut running = script(&server, &["--on-loss", "warn"], trapped)?;
    delete(&server);
    running.error_with("lock k: lost: its key is missing");
    assert!(!running.has_ended());
    running.say("go")?;
    running.ends()?.with_code(3).prints("ran on\n").says_nothing();
    Ok(())
}

fn a_lock_that_another_holder_overwrote() -> Outcome {
    let server = RedisServer::start()?;
    let running = script(&server, &[], "echo started; read go; echo ran on")?;
    let () = connection(&server).set("k", FOREIGN)?;
    let ended = running.ends()?.with_code(70).prints("");
    ended.says(&["lost while the command ran: its key holds another client's value (held until 2030-"]);
    let value: String = connection(&server).get("k")?;
    assert_eq!(value, FOREIGN, "the other holder's");
    Ok(())
}

/// The command ends before the loss is noticed: the key is looked at every five seconds.
fn a_loss_that_is_found_at_the_release() -> Outcome {
    let server = RedisServer::start()?;
    let lost = |options: &[&str]| -> std::io::Result<Ended> {
        let mut command = run(&server.url());
        command.args(["-e", "1h"]).args(options).args(["k", "--"]).arg(program());
        finished(command.args(["clear", "--yes", "k"]))
    };
    let ended = lost(&[])?.with_code(70);
    ended.says(&["error: lock k: lost while the command ran", "the command exited with 0"]);
    lost(&["--on-loss", "warn"])?.with_code(0).says(&["warning: lock k: "]);
    lost(&["-q", "--on-loss", "warn"])?.with_code(0).says_nothing();
    Ok(())
}

fn the_exit_code_can_be_given() -> Outcome {
    let server = RedisServer::start()?;
    let running = script(&server, &["-E", "lost=99,contended=0"], "echo started; read go")?;
    delete(&server);
    says_lost(running.ends()?.with_code(99), "the command was ended by SIGTERM");
    Ok(())
}

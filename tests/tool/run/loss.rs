//! Locks that are lost while the command runs: it is ended, with all that it has started, and the exit code is 70.

use redis::Commands as _;
use setnx_lock_testing::TestServer;

use super::running::{Ended, Running, finished, run, shell};
use crate::support::notified::connection;
use crate::support::scenario::FOREIGN;
use crate::support::tool::program;
use crate::support::{AnyServer, Outcome, trials_of};

trials_of! {
    "tool_run::loss";
    the_command_gets_sigterm,
    a_command_that_ignores_sigterm_is_killed,
    processes_that_the_command_has_started_end_too,
    the_command_runs_on_if_wanted,
    a_lock_that_another_holder_overwrote,
    a_loss_that_is_found_at_the_release,
    a_release_that_the_server_hangs_on_is_finished_before_it_exits,
    a_server_that_hangs_hides_no_end_of_the_lease,
}

/// The lease is long, so that a loss has its reason in the test, and short enough for a look at the key twice a second.
const LEASE: [&str; 2] = ["-e", "5s"];

/// Starts a shell script under the lock.
fn script(server: &impl AnyServer, options: &[&str], script: &str) -> std::io::Result<Running> {
    Running::started(run(&server.url()).args(LEASE).args(options).args(["k", "--"]).args(shell(script)))
}

fn delete(server: &impl AnyServer) {
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
    let server = TestServer::start();
    let running = script(&server, &[], "trap 'echo cleans up; exit 7' TERM; echo started; read go")?;
    delete(&server);
    running.prints("cleans up");
    let ended = says_lost(running.ends()?.with_code(70), "the command exited with 7");
    let ended = ended.says(&["warning: lock k: lost: its key is missing"]);
    assert_eq!(ended.errors.lines().count(), 2, "a warning, and why it exits: {}", ended.errors);
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    let options = ["-E", "lost=99,contended=0"];
    let running = script(&server, &options, "echo started; read go; echo ran on")?;
    delete(&server);
    says_lost(running.ends()?.with_code(99).prints(""), "the command was ended by SIGTERM");
    Ok(())
}

fn a_command_that_ignores_sigterm_is_killed() -> Outcome {
    let server = TestServer::start();
    let ignores = "trap '' TERM; echo started; read go; echo ran on";
    let running = script(&server, &["-v", "--kill-after", "0.2s"], ignores)?;
    delete(&server);
    let ended = says_lost(running.ends()?.with_code(70).prints(""), "the command was ended by SIGKILL");
    ended.says(&["sent SIGTERM to the command; SIGKILL follows in 200ms", "sent SIGKILL to the command"]);
    let traps = "trap 'echo trapped; exit 0' TERM INT HUP; echo started; read go; echo ran on";
    for (options, command) in
        [(&["--kill-after", "0"][..], ignores), (&["--on-loss", "kill", "--kill-after", "10m"], traps)]
    {
        let running = script(&server, options, command)?;
        delete(&server);
        says_lost(running.ends()?.with_code(70).prints(""), "the command was ended by SIGKILL");
    }
    // Within the grace it may end by itself.
    let takes_its_time = "trap 'echo got it; read go; exit 0' TERM; echo started; read go";
    let mut running = script(&server, &["--kill-after", "10m"], takes_its_time)?;
    delete(&server);
    running.prints("got it");
    running.say("go")?;
    says_lost(running.ends()?.with_code(70), "the command exited with 0");
    Ok(())
}

/// The end of the output is the end of all that have it.
fn processes_that_the_command_has_started_end_too() -> Outcome {
    let server = TestServer::start();
    let children = "sleep 3000 & sh -c 'sleep 3000 & sleep 3000' & echo started; wait";
    let ignoring = "(trap '' TERM; echo started; sleep 3000) & read go; wait";
    let stopped = "echo started; kill -STOP $$; read go; echo ran on";
    for (options, command) in [
        (&["--kill-after", "10m"][..], children),
        (&["--kill-after", "0.2s"], ignoring),
        (&["--on-loss", "kill"], children),
        (&["--kill-after", "10m"], stopped),
        (&["--on-loss", "kill"], stopped),
    ] {
        let running = script(&server, options, command)?;
        delete(&server);
        running.ends()?.with_code(70).prints("");
    }
    Ok(())
}

fn the_command_runs_on_if_wanted() -> Outcome {
    let server = TestServer::start();
    let trapped = "trap 'echo trapped' TERM; echo started; read go; echo ran on; exit 3";
    let mut running = script(&server, &["--on-loss", "warn"], trapped)?;
    delete(&server);
    running.error_with("lock k: lost: its key is missing");
    assert!(!running.has_ended());
    running.say("go")?;
    running.ends()?.with_code(3).prints("ran on\n");
    Ok(())
}

fn a_lock_that_another_holder_overwrote() -> Outcome {
    let server = TestServer::start();
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
    let server = TestServer::start();
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

fn a_release_that_the_server_hangs_on_is_finished_before_it_exits() -> Outcome {
    let server = TestServer::start();
    let command = shell("echo started; read go; exit 3");
    let options = ["-e", "600s", "--protocol", "watched", "k", "--"];
    let mut running = Running::started(run(&server.url()).args(options).args(command))?;
    server.hang();
    running.say("go")?;
    running.error_with("the release is tried again");
    server.resume();
    let ended = running.ends()?.with_code(3);
    assert!(!ended.errors.contains("others wait"), "{}", ended.errors);
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    Ok(())
}

/// The keeper waits for the reply to an extension, and may do so for long. The command is ended all the same.
fn a_server_that_hangs_hides_no_end_of_the_lease() -> Outcome {
    let server = TestServer::start();
    let options = ["-e", "3s", "--command-timeout", "10m", "k", "l", "--"];
    let script = "trap 'echo ended; exit 3' TERM; echo started; while :; do sleep 0.05; done";
    let running = Running::started(run(&server.url()).args(options).args(shell(script)))?;
    server.hang();
    running.prints("ended");
    server.resume();
    running.ends()?.with_code(70).says(&["lost while the command ran"]);
    Ok(())
}

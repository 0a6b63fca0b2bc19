//! `run --lead`: the command runs again and again, in one process at a time.

use std::fs;

use rustix::process::Signal;
use setnx_lock_testing::TestServer;

use super::running::{Running, finished, run, shell};
use crate::support::notified::until;
use crate::support::{AnyServer, LONG, Outcome, millis, trials_of};
use crate::tool::keys::schema::{RUN_EVENT, read};

trials_of! {
    "tool_run::lead";
    the_command_runs_again_whatever_its_end,
    it_ends_by_signals_that_end_programs,
    a_command_that_cannot_be_run_for_now,
    what_cannot_be_led,
    a_server_that_is_away_is_waited_for,
}

fn leads(server: &TestServer, options: &[&str], script: &str) -> std::io::Result<Running> {
    let command = [&["--lead"][..], options, &["k", "--"]].concat();
    Running::start(run(&server.url()).args(command).args(shell(script)))
}

fn the_command_runs_again_whatever_its_end() -> Outcome {
    let server = TestServer::start();
    let script = "echo $SETNX_LOCK_FENCING_TOKEN; [ $SETNX_LOCK_FENCING_TOKEN = 1 ] && exit 3; \
                  [ $SETNX_LOCK_FENCING_TOKEN = 2 ] && exit 0; exec sleep 1000";
    let options = ["--json", "--fence", "--max-runtime", "2s"];
    let leader = leads(&server, &options, script)?;
    for number in ["1", "2", "3", "4"] {
        leader.prints(number);
    }
    leader.send(Signal::TERM)?;
    let ended = leader.ends()?;
    let events: Vec<_> = ended.errors.lines().map(|line| read(RUN_EVENT, line)).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    let term =
        ["acquired", "leadership_began", "started", "ended", "warning", "released", "leadership_ended"];
    assert_eq!(names[..7], term, "{names:?}");
    assert_eq!(
        names[7..13],
        ["acquired", "leadership_began", "started", "ended", "released", "leadership_ended"]
    );
    ended.with_code(143).says(&["exited with 3; it is started again", "ended after --max-runtime 2s"]);
    assert_eq!(server.get("k"), None);
    Ok(())
}

fn it_ends_by_signals_that_end_programs() -> Outcome {
    let server = TestServer::start();
    let script = "trap 'echo reloads' HUP; trap 'exit 7' TERM; echo leads; while :; do sleep 0.05; done";
    let leader = leads(&server, &[], script)?;
    leader.prints("leads");
    let waits = leads(&server, &[], script)?;
    // The first of each is a probe.
    until("it waits", || server.names().iter().filter(|name| *name == "GET").count() > 3);
    leader.send(Signal::HUP)?;
    leader.prints("reloads");
    // One that has no command has nothing to reload.
    for signal in [Signal::HUP, Signal::USR1] {
        waits.send(signal)?;
    }
    std::thread::sleep(millis(200));
    waits.send(Signal::TERM)?;
    waits.ends()?.with_code(143).prints("").says_nothing();
    leader.send(Signal::TERM)?;
    let ended = leader.ends()?.with_code(7).prints("");
    assert!(!ended.errors.contains("started again"), "{}", ended.errors);
    assert_eq!(server.get("k"), None);
    // A command that another signal ends is started again; the last one has no name.
    let leader = leads(&server, &[], "echo leads; kill -64 $$")?;
    for _ in 0..2 {
        leader.prints("leads");
    }
    leader.send(Signal::TERM)?;
    leader.ends()?;
    // One that ends by a signal which was passed on is not.
    let leader = leads(&server, &[], "echo leads; exec sleep 1000")?;
    leader.prints("leads");
    leader.send(Signal::USR1)?;
    leader.ends()?.with_code(138).prints("");
    Ok(())
}

fn a_command_that_cannot_be_run_for_now() -> Outcome {
    let server = TestServer::start();
    let folder = tempfile::tempdir()?;
    let worker = folder.path().join("worker").display().to_string();
    assert!(std::process::Command::new("cp").args(["/bin/sh", &worker]).status()?.success());
    let command = ["--lead", "k", "--", &worker, "-c", "echo leads; read go"];
    let mut leader = Running::start(run(&server.url()).args(command))?;
    leader.prints("leads");
    fs::remove_file(&worker)?;
    leader.say("go")?;
    leader.error_with("cannot run ");
    assert!(std::process::Command::new("cp").args(["/bin/sh", &worker]).status()?.success());
    leader.prints("leads");
    leader.send(Signal::TERM)?;
    leader.ends()?.with_code(143);
    Ok(())
}

fn what_cannot_be_led() -> Outcome {
    let server = TestServer::start();
    for (options, words) in [
        (&["--on-loss", "warn", "k"][..], "--on-loss cannot be warn"),
        (&["k", "l"], "need a single key"),
        (&["--keep", "k"], "cannot be used with"),
        (&["--permits", "2", "k"], "cannot be used with"),
        (&["-w", "1s", "k"], "cannot be used with"),
        (&["-n", "k"], "cannot be used with"),
    ] {
        let ended = finished(run(&server.url()).arg("--lead").args(options).args(["--", "true"]))?;
        ended.with_code(64).prints("").says(&[words]);
    }
    finished(run(&server.url()).args(["--lead", "k", "--", "no-such-program"]))?.with_code(127);
    let file = tempfile::NamedTempFile::new()?.path().display().to_string();
    fs::write(&file, "")?;
    finished(run(&server.url()).args(["--lead", "k", "--", &file]))?.with_code(126).says(&["not executable"]);
    fs::remove_file(&file)?;
    Ok(())
}

fn a_server_that_is_away_is_waited_for() -> Outcome {
    let server = TestServer::start();
    let options = ["-e", "2s", "--retry-for", "300ms"];
    let leader = leads(&server, &options, "echo leads; exec sleep 1000")?;
    leader.prints("leads");
    server.stop();
    leader.error_with("lost while the command ran");
    leader.error_with("no connection");
    server.start_again();
    leader.prints("leads");
    // It fails whenever a number is wanted: that may pass.
    leader.send(Signal::TERM)?;
    leader.ends()?.with_code(143);
    server.refuse("INCR", "ERR not now");
    let leader = leads(&server, &["--fence"], "echo leads; exec sleep 1000")?;
    leader.error_with("not now");
    server.clear_faults();
    leader.prints("leads");
    leader.send(Signal::TERM)?;
    leader.ends()?.with_code(143);
    server.hold("k", LONG);
    let leader = leads(&server, &[], "echo leads")?;
    std::thread::sleep(millis(300));
    leader.send(Signal::INT)?;
    leader.ends()?.with_code(130).prints("").says_nothing();
    Ok(())
}

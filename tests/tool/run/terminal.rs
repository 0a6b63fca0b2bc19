//! The tool as a job of an interactive shell on a terminal: Ctrl-C,
//! Ctrl-Z, commands that read from the terminal, and what is shown there.

mod screen;

use std::path::Path;
use std::{fs, thread};

use setnx_lock_testing::TestServer;

use super::running::{Running, finished, run};
use crate::support::notified::until;
use crate::support::scenario::FOREIGN;
use crate::support::{AnyServer, Outcome, millis, trials_of};
use screen::Screen;

trials_of! {
    "tool_run::terminal";
    ctrl_c_ends_the_command,
    ctrl_c_and_ctrl_z_while_it_waits_for_the_lock,
    ctrl_z_stops_the_job_until_it_is_resumed,
    a_job_that_was_stopped_too_long_has_lost_the_lock,
    a_command_reads_from_the_terminal,
    a_job_in_the_background_stops_when_it_reads,
    what_the_command_leaves_behind_has_no_terminal,
    a_terminal_that_is_closed_ends_the_command,
    the_holder_is_shown_in_colors_while_it_waits,
}

/// Reads from the terminal.
const READS: &str = "sh -c 'echo started; read line; echo \"got $line\"; exit 3'";

// The shell prints the commands of its jobs: in those that are
// stopped, words that a test waits for are written in another way.

/// Does not read from the terminal.
const SLEEPS: &str = r#"bash -c 'echo started; while :; do read -t 0.1 _ <> "$NEVER"; done'"#;

/// A command that prints ticks until a file is there. Not of `sh`: some stop only half while they start a program.
fn until_exists(file: &Path) -> String {
    let file = file.display();
    format!(
        "bash -c 'until [ -e {file} ]; do echo ti\"\"ck; read -t 0.1 _ <> \"$NEVER\"; done; echo do\"\"ne; exit 3'"
    )
}

/// A command that handles a signal.
fn handles(signal: &str) -> String {
    format!(
        "bash -c 'trap \"echo cleans u\\\\p; exit 7\" {signal}; echo started; while :; do read -t 0.1 _ <> \"$NEVER\"; done'"
    )
}

fn is_held(server: &impl AnyServer) -> std::io::Result<bool> {
    Ok(server.say(&["EXISTS", "k"])? == ":1")
}

fn ctrl_c_ends_the_command() -> Outcome {
    let server = TestServer::start();
    let mut screen = Screen::open(&server)?;
    // It reads from the terminal, or not.
    for (command, code) in [(SLEEPS, 130), (handles("INT").as_str(), 7), (READS, 130)] {
        screen.line(&format!("setnx-lock run k -- {command}"))?;
        screen.shows("started")?;
        screen.control('c')?;
        let shown = screen.exit_code(code)?;
        assert_eq!(shown.contains("cleans up"), code == 7, "{shown:?}");
        assert!(!is_held(&server)?);
    }
    screen.line("setnx-lock run k -- sh -c 'read line; echo $line; read line'")?;
    screen.line("has the terminal")?;
    screen.shows("has the terminal")?;
    screen.control('c')?;
    screen.exit_code(130)?;
    screen.still_reads()
}

fn ctrl_c_and_ctrl_z_while_it_waits_for_the_lock() -> Outcome {
    let server = TestServer::start();
    server.say(&["SET", "k", FOREIGN])?;
    let mut screen = Screen::open(&server)?;
    screen.line("setnx-lock run --wait-forever k -- echo ran")?;
    screen.shows("waiting for k")?;
    screen.control('c')?;
    let shown = screen.exit_code(130)?;
    assert!(!shown.contains("ran"), "{shown:?}");
    screen.line("setnx-lock run --wait-forever k -- echo ran")?;
    screen.shows("waiting for k")?;
    screen.stops()?;
    server.say(&["DEL", "k"])?;
    thread::sleep(millis(300));
    assert!(!is_held(&server)?, "a stopped job acquires nothing");
    screen.line("fg")?;
    screen.shows("ran")?;
    screen.exit_code(0)?;
    screen.still_reads()
}

fn ctrl_z_stops_the_job_until_it_is_resumed() -> Outcome {
    let server = TestServer::start();
    let mut screen = Screen::open(&server)?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("go");
    screen.line(&format!("setnx-lock run k -- {}", until_exists(&file)))?;
    screen.shows("tick")?;
    screen.stops()?;
    screen.line("jobs")?;
    screen.shows("Stopped")?;
    screen.shows("setnx-lock run k")?;
    screen.prompt()?;
    screen.line("fg")?;
    screen.shows("tick")?;
    screen.stops()?;
    // Its command is stopped, too.
    fs::write(&file, "")?;
    thread::sleep(millis(300));
    assert!(is_held(&server)?);
    screen.line("fg")?;
    let shown = screen.exit_code(3)?;
    assert!(shown.contains("done"), "{shown:?}");
    assert!(!is_held(&server)?);
    // In the background it goes on as well.
    fs::remove_file(&file)?;
    screen.line(&format!("setnx-lock run k -- {}", until_exists(&file)))?;
    screen.shows("tick")?;
    screen.stops()?;
    screen.line("bg")?;
    screen.prompt()?;
    fs::write(&file, "")?;
    screen.shows("done")?;
    screen.line("wait %1")?;
    screen.exit_code(3)?;
    assert!(!is_held(&server)?);
    screen.still_reads()
}

fn a_job_that_was_stopped_too_long_has_lost_the_lock() -> Outcome {
    let server = TestServer::start();
    let mut screen = Screen::open(&server)?;
    screen.line(&format!("setnx-lock run -e 3s k -- {}", handles("TERM")))?;
    screen.shows("started")?;
    screen.stops()?;
    // Another run takes it over.
    finished(run(&server.url()).args(["--wait-forever", "--keep", "k", "--", "true"]))?.with_code(0);
    screen.line("fg")?;
    screen.shows("cleans up")?;
    screen.shows("lost while the command ran")?;
    screen.exit_code(70)?;
    assert!(is_held(&server)?, "by the other");
    screen.still_reads()
}

fn a_command_reads_from_the_terminal() -> Outcome {
    let server = TestServer::start();
    let mut screen = Screen::open(&server)?;
    let reads = "for n in 1 2; do read line; echo \"$n $line\"; done; exit 3";
    screen.line(&format!("setnx-lock run k -- bash -c '{reads}'"))?;
    screen.line("a")?;
    screen.shows("1 a")?;
    screen.stops()?;
    screen.still_reads()?;
    screen.line("fg")?;
    screen.line("b")?;
    screen.shows("2 b")?;
    screen.exit_code(3)?;
    // To the end of the input.
    screen.line("setnx-lock run k -- cat")?;
    screen.line("one")?;
    screen.shows("one")?;
    screen.control('d')?;
    screen.exit_code(0)?;
    // It sets the terminal: now a process of the background stops when it writes, too.
    screen.line("setnx-lock run k -- sh -c 'stty tostop; echo set'")?;
    screen.shows("set")?;
    screen.exit_code(0)?;
    screen.line("setnx-lock run k -- sh -c 'echo written; exit 3'")?;
    screen.shows("written")?;
    screen.exit_code(3)?;
    assert!(!is_held(&server)?);
    screen.still_reads()
}

/// No shell could resume it.
fn what_the_command_leaves_behind_has_no_terminal() -> Outcome {
    let server = TestServer::start();
    let mut screen = Screen::open(&server)?;
    // It would be stopped with the job if it had one, and the lock held until somebody ended it.
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("go");
    let left = format!("sleep 0.5; until test -e {}; do echo left; sleep 0.05; done", file.display());
    screen.line(&format!("setnx-lock run --wait-group k -- sh -c '({left}) & exit 3'"))?;
    screen.shows("left")?;
    screen.control('z')?;
    thread::sleep(millis(300));
    fs::write(&file, "")?;
    screen.exit_code(3)?;
    assert!(!is_held(&server)?);
    screen.line("setnx-lock run --wait-group k -- sh -c '(sleep 0.5; read line < /dev/tty) & exit 3'")?;
    screen.exit_code(3)?;
    assert!(!is_held(&server)?);
    screen.still_reads()
}

fn a_job_in_the_background_stops_when_it_reads() -> Outcome {
    let server = TestServer::start();
    let mut screen = Screen::open(&server)?;
    screen.line(&format!("setnx-lock run k -- {READS} &"))?;
    screen.shows("started")?;
    screen.until_shows("jobs", "Stopped")?;
    screen.still_reads()?;
    screen.line("fg")?;
    screen.shows("setnx-lock run k")?;
    screen.line("hello")?;
    screen.shows("got hello")?;
    screen.exit_code(3)?;
    assert!(!is_held(&server)?);
    screen.still_reads()
}

fn a_terminal_that_is_closed_ends_the_command() -> Outcome {
    let server = TestServer::start();
    for command in [SLEEPS, READS] {
        let mut screen = Screen::open(&server)?;
        screen.line(&format!("setnx-lock run k -- {command}"))?;
        screen.shows("started")?;
        assert!(is_held(&server)?);
        drop(screen);
        until("the lock is released", || !is_held(&server).unwrap());
    }
    Ok(())
}

fn the_holder_is_shown_in_colors_while_it_waits() -> Outcome {
    let server = TestServer::start();
    let hold = ["--name=the other job", "-e", "1h", "k", "--", "sh", "-c", "echo started; read go"];
    let mut holds = Running::started(run(&server.url()).args(hold))?;
    let mut screen = Screen::open(&server)?;
    screen.line("setnx-lock run --wait-forever k -- echo ran")?;
    screen.shows("waiting for k: held for 59m")?;
    screen.shows("by the other job")?;
    holds.say("go")?;
    screen.shows("ran")?;
    screen.exit_code(0)?;
    server.say(&["SET", "k", FOREIGN])?;
    screen.line("setnx-lock run -n k -- true")?;
    let shown = screen.exit_code(75)?;
    assert!(shown.contains("\x1b[31m") && shown.contains("lock k: not acquired"), "{shown:?}");
    // Quiet, there is nothing to see while it waits.
    screen.line("NO_COLOR=1 setnx-lock run -q -w 1.5s k -- echo ran")?;
    let shown = screen.exit_code(75)?;
    assert!(!shown.contains("waiting") && !shown.contains("ran"), "{shown:?}");
    assert!(!shown.contains('\x1b') && !shown.contains("error"), "{shown:?}");
    Ok(())
}

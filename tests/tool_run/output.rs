//! What the tool says beside the output of the command: nothing, warnings, or all events; also where no process reads it.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use super::running::{Running, finished, run};
use crate::support::notified::until;
use crate::support::scenario::FOREIGN;
use crate::support::{Outcome, RedisServer, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::output",
        tests![
            a_run_that_succeeds_says_nothing_unless_it_is_verbose,
            warnings_are_said_unless_it_is_quiet,
            a_pipe_shows_neither_a_spinner_nor_colors,
            streams_that_are_closed_change_nothing,
            pipes_that_nothing_reads_change_nothing,
            a_pipe_that_is_full_delays_no_end,
        ],
    )
}

fn a_run_that_succeeds_says_nothing_unless_it_is_verbose() -> Outcome {
    let server = RedisServer::start()?;
    for options in [&[][..], &["--quiet"], &["-q"]] {
        let ended = finished(run(&server.url()).args(options).args(["k", "--", "echo", "out"]))?;
        ended.with_code(0).prints("out\n").says_nothing();
    }
    for option in ["-v", "--verbose"] {
        let ended = finished(run(&server.url()).args([option, "k", "--", "echo", "out"]))?;
        let ended = ended.with_code(0).prints("out\n");
        let ended =
            ended.says(&["setnx-lock: lock k: acquired after ", "setnx-lock: lock k: released after "]);
        assert!(ended.errors.lines().all(|line| line.starts_with("setnx-lock: ")), "{}", ended.errors);
        let mut numbers = ended.errors.split(|c: char| !c.is_ascii_digit());
        assert!(numbers.all(|digits| digits.len() < 6), "times are rounded: {}", ended.errors);
    }
    Ok(())
}

fn warnings_are_said_unless_it_is_quiet() -> Outcome {
    let server = RedisServer::start()?;
    let script = ["k", "--", "sh", "-c", "echo started; read go"];
    for (options, warns) in [(&["--on-loss", "warn"][..], true), (&["--on-loss", "warn", "-q"], false)] {
        let mut running = Running::started(run(&server.url()).args(options).args(script))?;
        server.say(&["DEL", "k"])?;
        running.say("go")?;
        let ended = running.ends()?.with_code(0);
        if warns {
            ended.says(&["setnx-lock: warning: lock k: "]);
        } else {
            ended.says_nothing();
        }
    }
    Ok(())
}

fn a_pipe_shows_neither_a_spinner_nor_colors() -> Outcome {
    let server = RedisServer::start()?;
    server.say(&["SET", "k", FOREIGN])?;
    // Longer than it takes until a terminal shows the spinner.
    let mut command = run(&server.url());
    command.env("TERM", "xterm").args(["-w", "1.5s", "k", "--", "true"]);
    let ended = finished(&mut command)?.with_code(75).says_one_line(&["lock k: not acquired"]);
    assert!(!ended.errors.contains('\x1b') && !ended.errors.contains('\r'), "{:?}", ended.errors);
    Ok(())
}

fn streams_that_are_closed_change_nothing() -> Outcome {
    let server = RedisServer::start()?;
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        for (options, code) in [("-v", 3), ("--name=", 3), ("--help", 0), ("--bogus", 64)] {
            let tool = run(&server.url());
            let words: Vec<_> = tool.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            let script = format!("exec env {} {options} k -- sh -c 'exit 3' {closed}", words.join(" "));
            let mut command = Command::new("sh");
            command.args(["-c", &script]).env("REDIS_URL", server.url());
            finished(&mut command)?.with_code(code);
            assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "{script}");
        }
    }
    Ok(())
}

fn pipes_that_nothing_reads_change_nothing() -> Outcome {
    let server = RedisServer::start()?;
    let mut process = run(&server.url())
        .args(["-v", "--name=", "k", "--", "sh", "-c", "read go; exit 3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    drop((process.stdout.take(), process.stderr.take()));
    drop(process.stdin.take());
    until("it ends", || process.try_wait().is_ok_and(|status| status.is_some()));
    assert_eq!(process.wait()?.code(), Some(3));
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    Ok(())
}

/// A pipe that takes no more bytes, as a terminal after Ctrl-S.
fn full_pipe() -> io::Result<(io::PipeReader, io::PipeWriter)> {
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(&vec![b'.'; PIPE])?;
    Ok((reader, writer))
}

/// Whether this process has ended, though its parent may not know yet.
fn has_ended(process: &Path) -> bool {
    fs::read_to_string(process.join("stat")).map_or(true, |status| status.contains(") Z "))
}

/// How many bytes Linux keeps in a pipe.
const PIPE: usize = 1 << 16;

fn a_pipe_that_is_full_delays_no_end() -> Outcome {
    let server = RedisServer::start()?;
    for is_killed in [false, true] {
        let (mut errors, full) = full_pipe()?;
        let mut command = run(&server.url());
        // Once a signal was passed on, the guardian knows the command.
        let script =
            "exec 2>/dev/null; trap 'echo $$' USR1; trap '' TERM; echo begins; while :; do sleep 0.1; done";
        command.args(["-e", "1s", "--grace", "0.2s", "k", "--", "sh", "-c", script]);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(full).spawn()?;
        drop(command);
        let mut output = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let mut line = || output.next().expect("a line");
        assert_eq!(line()?, "begins");
        let id = Pid::from_raw(process.id().cast_signed()).expect("a process");
        kill_process(id, Signal::USR1)?;
        let begun = PathBuf::from("/proc").join(line()?);
        if is_killed {
            kill_process(id, Signal::KILL)?;
        } else {
            server.say(&["DEL", "k"])?;
        }
        // Nothing has read the errors.
        until("the command has ended", || has_ended(&begun));
        let reads = thread::spawn(move || {
            let mut all = Vec::new();
            errors.read_to_end(&mut all).map(|_| all)
        });
        let code = process.wait()?.code();
        let said = reads.join().expect("it reads")?;
        let said = String::from_utf8_lossy(&said[PIPE..]).into_owned();
        // The guardian waits only for a moment until its words are read.
        let is_said = is_killed || said.contains("lost while the command ran");
        assert!(code == (!is_killed).then_some(70) && is_said, "{code:?} {said}");
        server.say(&["DEL", "k"])?;
    }
    Ok(())
}

//! What the tool says beside the output of the command: nothing,
//! warnings, or all events; also where no process reads it.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::{fs, thread};

use setnx_lock_testing::TestServer;

use super::running::{finished, run};
use crate::support::notified::until;
use crate::support::scenario::FOREIGN;
use crate::support::{AnyServer, Outcome, trials_of};

trials_of! {
    "tool_run::output";
    a_run_that_succeeds_says_nothing_unless_it_is_verbose,
    streams_that_are_closed_change_nothing,
    a_pipe_that_is_full_delays_no_end,
}

fn a_run_that_succeeds_says_nothing_unless_it_is_verbose() -> Outcome {
    let server = TestServer::start();
    for options in [&[][..], &["--quiet"]] {
        let ended = finished(run(&server.url()).args(options).args(["k", "--", "echo", "out"]))?;
        ended.with_code(0).prints("out\n").says_nothing();
    }
    let ended = finished(run(&server.url()).args(["-v", "k", "--", "echo", "out"]))?.with_code(0);
    let ended = ended.prints("out\n");
    let ended = ended.says(&["setnx-lock: lock k: acquired after ", "setnx-lock: lock k: released after "]);
    assert!(ended.errors.lines().all(|line| line.starts_with("setnx-lock: ")), "{}", ended.errors);
    // A pipe shows nothing while it waits, for longer than it takes until a terminal shows it.
    server.say(&["SET", "k", FOREIGN])?;
    let mut command = run(&server.url());
    command.env("TERM", "xterm").args(["-w", "1.5s", "k", "--", "true"]);
    let ended = finished(&mut command)?.with_code(75).says_one_line(&["lock k: not acquired"]);
    assert!(!ended.errors.contains('\x1b') && !ended.errors.contains('\r'), "{:?}", ended.errors);
    Ok(())
}

fn streams_that_are_closed_change_nothing() -> Outcome {
    let server = TestServer::start();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        for (options, code) in [("-v", 3), ("--help", 0), ("--bogus", 64)] {
            let tool = run(&server.url());
            let words: Vec<_> = tool.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            let script = format!("exec env {} {options} k -- sh -c 'exit 3' {closed}", words.join(" "));
            let mut command = Command::new("sh");
            command.args(["-c", &script]).env("REDIS_URL", server.url());
            finished(&mut command)?.with_code(code);
            assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "{script}");
        }
    }
    // Nor does a pipe that nothing reads.
    let (reader, writer) = io::pipe()?;
    drop(reader);
    let mut command = run(&server.url());
    command.args(["-v", "k", "--", "sh", "-c", "exit 3"]).stdin(Stdio::null());
    assert_eq!(command.stdout(writer.try_clone()?).stderr(writer).status()?.code(), Some(3));
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    Ok(())
}

/// How many bytes Linux keeps in a pipe.
const PIPE: usize = 1 << 16;

fn a_pipe_that_is_full_delays_no_end() -> Outcome {
    let server = TestServer::start();
    // It takes no more bytes, as a terminal after Ctrl-S.
    let (mut errors, mut full) = io::pipe()?;
    full.write_all(&vec![b'.'; PIPE])?;
    let mut command = run(&server.url());
    let script = "exec 2>/dev/null; trap '' TERM; echo $$; while :; do sleep 0.1; done";
    command.args(["-e", "1s", "--kill-after", "0.2s", "k", "--", "sh", "-c", script]);
    let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(full).spawn()?;
    drop(command);
    let mut output = BufReader::new(process.stdout.take().expect("it is piped")).lines();
    let begun = format!("/proc/{}/stat", output.next().expect("a line")?);
    server.say(&["DEL", "k"])?;
    // Nothing has read the errors. Its parent may not know yet that it has ended.
    until("the command has ended", || {
        fs::read_to_string(&begun).map_or(true, |status| status.contains(") Z "))
    });
    let reads = thread::spawn(move || {
        let mut all = Vec::new();
        errors.read_to_end(&mut all).map(|_| all)
    });
    let code = process.wait()?.code();
    let said = reads.join().expect("it reads")?;
    let said = String::from_utf8_lossy(&said[PIPE..]).into_owned();
    assert!(code == Some(70) && said.contains("lost while the command ran"), "{code:?} {said}");
    Ok(())
}

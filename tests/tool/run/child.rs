//! What the command finds when it begins: its environment, its input and output, and the signals that it inherits.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use setnx_lock_testing::TestServer;

use super::running::{Running, finished, run};
use crate::support::notified::{connection, until};
use crate::support::{AnyServer, Outcome, trials_of};

trials_of! {
    "tool_run::child";
    the_key_and_the_token_are_in_the_environment,
    the_end_of_the_lease_is_in_the_environment,
    input_and_output_are_those_of_the_tool,
    arguments_are_passed_as_they_are_or_to_the_shell,
    it_has_a_process_group_and_no_blocked_signal,
    what_names_the_tool_names_the_command,
    processes_that_it_leaves_live_on,
}

fn the_key_and_the_token_are_in_the_environment() -> Outcome {
    let server = TestServer::start();
    let print = ["--", "sh", "-c", "printf %s \"$SETNX_LOCK_KEY\""];
    for key in [&b"k"[..], b" a\nb\t\"'$HOME`ls`\\ ", b"\xff\xfe \xc3\xa9", b"="] {
        let mut command = run(&server.url());
        command.arg(OsStr::from_bytes(key)).args(print).env("SETNX_LOCK_KEY", "of an outer lock");
        let ended = finished(&mut command)?.with_code(0).says_nothing();
        assert_eq!(ended.output, key, "{:?}", String::from_utf8_lossy(&ended.output));
    }
    let print = ["k", "--", "sh", "-c", "echo ${SETNX_LOCK_FENCING_TOKEN-none} $MINE; pwd"];
    let folder = tempfile::tempdir()?;
    let folder = folder.path().canonicalize()?;
    let fence = &["--fence"][..];
    for (options, token) in [(fence, "1"), (fence, "2"), (&[], "none"), (fence, "3")] {
        let mut command = run(&server.url());
        // That of an enclosing lock is not this one's. The rest is unchanged.
        command.env("SETNX_LOCK_FENCING_TOKEN", "99").env("MINE", "kept").current_dir(&folder);
        let printed = format!("{token} kept\n{}\n", folder.display());
        finished(command.args(options).args(print))?.with_code(0).prints(&printed).says_nothing();
    }
    Ok(())
}

/// As systemd says whom it passes sockets to, and whom it watches.
fn what_names_the_tool_names_the_command() -> Outcome {
    let server = TestServer::start();
    let print = "echo $(($LISTEN_PID - $$)) $(($WATCHDOG_PID - $$)) ${LISTEN_PIDFDID-none} $LISTEN_FDS";
    // By way of a shell that becomes the tool.
    let ran = |options: &[&str], of: &str| {
        let named = format!("LISTEN_PID={of} WATCHDOG_PID={of} LISTEN_PIDFDID=7 LISTEN_FDS=2 exec \"$@\"");
        let tool = run(&server.url());
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &named, "sh"]).arg(tool.get_program()).args(tool.get_args());
        command.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
        finished(command.args(options).args(["k", "--", "sh", "-c", print]))
    };
    for options in [&[][..], &["--on-loss", "warn"], &["--on-loss", "kill"]] {
        ran(options, "$$")?.with_code(0).prints("0 0 none 2\n").says_nothing();
    }
    // Another process is named: that is none of the tool's business.
    let ended = ran(&[], "1$$")?.with_code(0).says_nothing();
    let printed = String::from_utf8(ended.output)?;
    assert!(printed.ends_with(" 7 2\n") && !printed.starts_with("0 "), "{printed}");
    Ok(())
}

fn the_end_of_the_lease_is_in_the_environment() -> Outcome {
    let server = TestServer::start();
    let print = ["--", "sh", "-c", "echo started; echo \"$SETNX_LOCK_EXPIRES_AT\"; read go"];
    let mut running = Running::started(run(&server.url()).args(["-e", "1000s", "k"]).args(print))?;
    let value: String = redis::cmd("GET").arg("k").query(&mut connection(&server))?;
    running.say("go")?;
    let ended = running.ends()?.with_code(0);
    let printed: f64 = String::from_utf8(ended.output)?.trim().parse()?;
    // The key holds a time ten seconds later.
    let held_until: f64 = value.parse()?;
    assert!((held_until - 11.0..=held_until - 10.0).contains(&printed), "{printed} of {held_until}");
    Ok(())
}

fn input_and_output_are_those_of_the_tool() -> Outcome {
    let server = TestServer::start();
    let mut running = Running::start(run(&server.url()).args(["k", "--", "cat"]))?;
    for line in ["first", "second"] {
        running.say(line)?;
        running.prints(line);
    }
    running.close_input();
    running.ends()?.with_code(0).prints("").says_nothing();
    let both = "echo out; echo err >&2";
    finished(run(&server.url()).args(["k", "--", "sh", "-c", both]))?.prints("out\n").says(&["err\n"]);
    Ok(())
}

fn arguments_are_passed_as_they_are_or_to_the_shell() -> Outcome {
    let server = TestServer::start();
    let arguments: [&[u8]; 7] = [b"two words", b"", b"--no-wait", b"-n", b"--", b"\xff\n", b"$HOME; exit 9"];
    let arguments = arguments.map(OsStr::from_bytes);
    let ended = finished(run(&server.url()).args(["k", "--", "printf", "<%s>"]).args(arguments))?;
    assert_eq!(ended.with_code(0).output, b"<two words><><--no-wait><-n><--><\xff\n><$HOME; exit 9>");
    let shell = |command: &[&str]| finished(run(&server.url()).args(["--shell", "k", "--"]).args(command));
    shell(&["echo \"$SETNX_LOCK_KEY\" | tr k l && exit 9"])?.with_code(9).prints("l\n").says_nothing();
    // Several arguments are one command line.
    shell(&["echo", "a", "$((1 + 1))", ";", "echo b"])?.with_code(0).prints("a 2\nb\n");
    Ok(())
}

/// The tool handles signals, and waits for some of them in a thread: the command gets none of that.
fn it_has_a_process_group_and_no_blocked_signal() -> Outcome {
    let server = TestServer::start();
    let files = ["k", "--", "cat", "/proc/self/stat", "/proc/self/status"];
    let status = String::from_utf8(finished(run(&server.url()).args(files))?.with_code(0).output)?;
    // The number, the name, the state, the parent, the group.
    let fields: Vec<&str> = status.split(' ').collect();
    assert_eq!(fields[0], fields[4], "{status}");
    for field in ["SigBlk:", "SigIgn:"] {
        let mask = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
        // The C library keeps 32 and 33 for itself.
        let mask = u64::from_str_radix(mask.trim(), 16)? & !(0b11 << 31);
        assert_eq!(mask, 0, "{field} {mask:x}");
    }
    Ok(())
}

fn processes_that_it_leaves_live_on() -> Outcome {
    let server = TestServer::start();
    let script = "exec 3<&0; { read line <&3; echo \"late $line\"; } & echo started; exit 5";
    let mut running = Running::started(run(&server.url()).args(["k", "--", "sh", "-c", script]))?;
    until("the tool ends", || running.has_ended());
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "released");
    running.say("line")?;
    running.prints("late line");
    running.ends()?.with_code(5).says_nothing();
    Ok(())
}

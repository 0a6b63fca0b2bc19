//! What the command finds when it begins: its environment, its input and output, and the signals that it inherits.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use libtest_mimic::Trial;

use super::running::{Running, finished, run};
use crate::support::notified::connection;
use crate::support::{Outcome, RedisServer, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::child",
        tests![
            the_key_of_any_bytes_is_in_the_environment,
            the_end_of_the_lease_is_in_the_environment,
            a_fencing_token_is_in_the_environment_if_wanted,
            the_rest_of_the_environment_is_unchanged,
            input_and_output_are_those_of_the_tool,
            arguments_are_passed_as_they_are,
            a_command_is_run_by_the_shell,
            it_inherits_no_signal_that_is_ignored_or_blocked,
            it_is_a_process_group_of_its_own,
            processes_that_it_leaves_live_on,
        ],
    )
}

const PRINT_KEY: [&str; 4] = ["--", "sh", "-c", "printf %s \"$SETNX_LOCK_KEY\""];

fn the_key_of_any_bytes_is_in_the_environment() -> Outcome {
    let server = RedisServer::start()?;
    for key in [&b"k"[..], b"two words", b" a\nb\t\"'$HOME`ls`\\ ", b"\xff\xfe \xc3\xa9", b"=", b"-e"] {
        let as_argument = finished(run(&server.url()).arg(OsStr::from_bytes(key)).args(PRINT_KEY));
        let in_hex = key.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        let ended = finished(run(&server.url()).args(["--key-hex", &in_hex]).args(PRINT_KEY))?.with_code(0);
        assert_eq!(ended.output, key);
        if key[0] != b'-' {
            let ended = as_argument?.with_code(0).says_nothing();
            assert_eq!(ended.output, key, "{:?}", String::from_utf8_lossy(&ended.output));
        }
    }
    // A variable cannot have a zero.
    let ended = finished(run(&server.url()).args(["--key-hex", "610062"]).args(PRINT_KEY))?;
    ended.with_code(0).prints("a\\u{0}b");
    // The key is that of the server, too.
    let held = Running::started(run(&server.url()).args([
        "--key-hex",
        "ff00",
        "--",
        "sh",
        "-c",
        "echo started; read go",
    ]))?;
    let exists: bool = redis::cmd("EXISTS").arg(b"\xff\0").query(&mut connection(&server))?;
    assert!(exists);
    drop(held);
    Ok(())
}

fn the_end_of_the_lease_is_in_the_environment() -> Outcome {
    let server = RedisServer::start()?;
    let print = ["--", "sh", "-c", "echo started; echo \"$SETNX_LOCK_EXPIRES_AT\"; read go"];
    let mut running = Running::started(run(&server.url()).args(["-e", "1000s", "k"]).args(print))?;
    let value: String = redis::cmd("GET").arg("k").query(&mut connection(&server))?;
    running.say("go")?;
    let ended = running.ends()?.with_code(0);
    let printed: f64 = String::from_utf8(ended.output)?.trim().parse()?;
    // The key holds the same time with a fraction, and may be taken over one second later.
    let held_until: f64 = value.parse()?;
    assert!((held_until - 2.0..=held_until).contains(&printed), "{printed} of {held_until}");
    Ok(())
}

fn a_fencing_token_is_in_the_environment_if_wanted() -> Outcome {
    let server = RedisServer::start()?;
    let print = ["k", "--", "sh", "-c", "echo ${SETNX_LOCK_FENCING_TOKEN-none}"];
    for token in ["1\n", "2\n"] {
        finished(run(&server.url()).arg("--fence").args(print))?.with_code(0).prints(token).says_nothing();
    }
    // That of an enclosing lock is not this one's.
    let mut command = run(&server.url());
    finished(command.env("SETNX_LOCK_FENCING_TOKEN", "99").args(print))?.with_code(0).prints("none\n");
    finished(run(&server.url()).arg("--fence").args(print))?.with_code(0).prints("3\n");
    Ok(())
}

fn the_rest_of_the_environment_is_unchanged() -> Outcome {
    let server = RedisServer::start()?;
    let print = ["k", "--", "sh", "-c", "echo \"$MINE $SETNX_LOCK_KEY\"; pwd"];
    let folder = tempfile::tempdir()?;
    let folder = folder.path().canonicalize()?;
    let mut command = run(&server.url());
    command.env("MINE", "kept").env("SETNX_LOCK_KEY", "of an outer lock").current_dir(&folder).args(print);
    finished(&mut command)?.with_code(0).prints(&format!("kept k\n{}\n", folder.display()));
    Ok(())
}

fn input_and_output_are_those_of_the_tool() -> Outcome {
    let server = RedisServer::start()?;
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

fn arguments_are_passed_as_they_are() -> Outcome {
    let server = RedisServer::start()?;
    let arguments: [&[u8]; 7] = [b"two words", b"", b"--no-wait", b"-n", b"--", b"\xff\n", b"$HOME *"];
    let arguments = arguments.map(OsStr::from_bytes);
    let ended = finished(run(&server.url()).args(["k", "--", "printf", "<%s>"]).args(arguments))?;
    assert_eq!(ended.with_code(0).output, b"<two words><><--no-wait><-n><--><\xff\n><$HOME *>");
    Ok(())
}

fn a_command_is_run_by_the_shell() -> Outcome {
    let server = RedisServer::start()?;
    let shell = |command: &[&str]| finished(run(&server.url()).args(["--shell", "k", "--"]).args(command));
    shell(&["echo \"$SETNX_LOCK_KEY\" | tr k l && exit 9"])?.with_code(9).prints("l\n").says_nothing();
    // Several arguments are one command line.
    shell(&["echo", "a", "$((1 + 1))", ";", "echo b"])?.with_code(0).prints("a 2\nb\n");
    // Without it they are not.
    finished(run(&server.url()).args(["k", "--", "echo", "$HOME; exit 9"]))?
        .with_code(0)
        .prints("$HOME; exit 9\n");
    Ok(())
}

/// The tool handles signals, and waits for some of them in a thread: the command gets none of that.
fn it_inherits_no_signal_that_is_ignored_or_blocked() -> Outcome {
    let server = RedisServer::start()?;
    let ended = finished(run(&server.url()).args(["k", "--", "cat", "/proc/self/status"]))?.with_code(0);
    let status = String::from_utf8(ended.output)?;
    for field in ["SigBlk:", "SigIgn:"] {
        let mask = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
        // The C library keeps 32 and 33 for itself.
        let mask = u64::from_str_radix(mask.trim(), 16)? & !(0b11 << 31);
        assert_eq!(mask, 0, "{field} {mask:x}");
    }
    Ok(())
}

fn it_is_a_process_group_of_its_own() -> Outcome {
    let server = RedisServer::start()?;
    let ended = finished(run(&server.url()).args(["k", "--", "cat", "/proc/self/stat"]))?.with_code(0);
    let stat = String::from_utf8(ended.output)?;
    // The number, the name, the state, the parent, the group.
    let fields: Vec<&str> = stat.split(' ').collect();
    assert_eq!(fields[0], fields[4], "{stat}");
    Ok(())
}

fn processes_that_it_leaves_live_on() -> Outcome {
    let server = RedisServer::start()?;
    let script = "exec 3<&0; { read line <&3; echo \"late $line\"; } & echo started; exit 5";
    let mut running = Running::started(run(&server.url()).args(["k", "--", "sh", "-c", script]))?;
    crate::support::notified::until("the tool ends", || running.has_ended());
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "released");
    running.say("line")?;
    running.prints("late line");
    running.ends()?.with_code(5).says_nothing();
    Ok(())
}

//! Signals to the tool. While it waits for the lock they end the wait. While the command runs the command gets them,
//! and the lock is held until its end.

use std::process::Command;
use std::thread;

use rustix::process::Signal;
use setnx_lock_testing::{Proxy, TestServer};

use super::running::{Running, run, shell};
use crate::support::notified::{until, until_waiting};
use crate::support::scenario::FOREIGN;
use crate::support::tool::program;
use crate::support::{AnyServer, Outcome, millis, trials_of};

trials_of! {
    "tool_run::signals";
    a_command_that_handles_a_signal_ends_with_its_code,
    a_command_that_does_not_is_ended_by_it,
    each_signal_is_passed_on_once,
    a_signal_that_is_ignored_ends_nothing,
    signals_that_were_blocked_are_passed_on,
    a_signal_that_was_blocked_ends_the_wait,
    signals_reach_the_commands_children,
    a_signal_ends_the_wait,
    an_ignored_signal_does_not_but_a_release_does,
    a_signal_before_the_command_begins,
    a_notification_ends_the_wait,
}

const ENDING: [(Signal, &str); 4] =
    [(Signal::INT, "INT"), (Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")];

/// Starts a shell script under the lock.
fn script(server: &impl AnyServer, script: &str) -> std::io::Result<Running> {
    Running::started(run(&server.url()).args(["k", "--"]).args(shell(script)))
}

fn is_held(server: &impl AnyServer) -> std::io::Result<bool> {
    Ok(server.say(&["EXISTS", "k"])? == ":1")
}

fn a_command_that_handles_a_signal_ends_with_its_code() -> Outcome {
    let server = TestServer::start();
    for (signal, name) in ENDING {
        // The lock is held while the command cleans up.
        let cleans_up = format!("trap 'echo cleans up; read go; exit 7' {name}; echo started; read go");
        let mut running = script(&server, &cleans_up)?;
        running.send(signal)?;
        running.prints("cleans up");
        assert!(is_held(&server)?);
        running.say("go")?;
        running.ends()?.with_code(7).prints("").says_nothing();
        assert!(!is_held(&server)?);
    }
    Ok(())
}

fn a_command_that_does_not_is_ended_by_it() -> Outcome {
    let server = TestServer::start();
    let stops = "kill -STOP $$;";
    for (signal, code, stop) in [
        (Signal::HUP, 129, ""),
        (Signal::INT, 130, ""),
        (Signal::TERM, 143, ""),
        (Signal::INT, 130, stops),
        (Signal::TERM, 143, stops),
    ] {
        let running = script(&server, &format!("echo started; {stop} read go; echo ran on"))?;
        // It may not be stopped yet: then it is ended before.
        thread::sleep(millis(if stop.is_empty() { 0 } else { 100 }));
        running.send(signal)?;
        running.ends()?.with_code(code).prints("").says_nothing();
        assert!(!is_held(&server)?);
    }
    Ok(())
}

/// Even if it is sent to the process group, as by a terminal.
fn each_signal_is_passed_on_once() -> Outcome {
    let server = TestServer::start();
    let traps = "for s in INT TERM HUP QUIT USR1 USR2 WINCH; do trap \"echo got $s\" $s; done";
    let mut running = script(&server, &format!("{traps}; echo started; read go; exit 5"))?;
    let others = [(Signal::USR1, "USR1"), (Signal::USR2, "USR2"), (Signal::WINCH, "WINCH")];
    for (signal, name) in ENDING.into_iter().chain(others) {
        running.send(signal)?;
        running.prints(&format!("got {name}"));
        assert!(is_held(&server)?);
    }
    for (signal, name) in ENDING {
        running.send_to_group(signal)?;
        running.prints(&format!("got {name}"));
    }
    thread::sleep(millis(100));
    running.say("go")?;
    running.ends()?.with_code(5).prints("").says_nothing();
    assert!(!is_held(&server)?);
    Ok(())
}

/// By the command, or by the tool since it was started.
fn a_signal_that_is_ignored_ends_nothing() -> Outcome {
    let server = TestServer::start();
    let inner = "kill -HUP $$; kill -INT $$; echo started; read go; exit 4";
    let outer = "trap '' HUP INT; exec \"$0\" run k -- sh -c \"$1\"";
    let mut command = Command::new("env");
    command.args(["--default-signal", "sh", "-c", outer]).arg(program()).arg(inner);
    command.env("REDIS_URL", server.url());
    let ignores = "trap '' INT TERM HUP; echo started; read go; exit 4";
    let mut ignoring = run(&server.url());
    ignoring.args(["k", "--"]).args(shell(ignores));
    for (mut command, signals) in
        [(ignoring, &[Signal::INT, Signal::TERM, Signal::HUP][..]), (command, &[Signal::INT, Signal::HUP])]
    {
        let mut running = Running::started(&mut command)?;
        for signal in signals {
            running.send(*signal)?;
            running.send_to_group(*signal)?;
        }
        thread::sleep(millis(300));
        assert!(!running.has_ended() && is_held(&server)?);
        running.say("go")?;
        running.ends()?.with_code(4).says_nothing();
        assert!(!is_held(&server)?);
    }
    Ok(())
}

/// Has the tool started by a program that blocks these.
fn blocking(signals: &str, tool: &Command) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(format!("--block-signal={signals}")).arg(program());
    command.args(tool.get_args().skip(2));
    command.envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// The command gets the mask that the tool was given, less these.
fn signals_that_were_blocked_are_passed_on() -> Outcome {
    let server = TestServer::start();
    let blocked = "INT,TERM,HUP,QUIT,USR1,USR2,WINCH,TSTP,CHLD,CONT,ALRM,PIPE";
    let mask = "while read -r name value; do [ $name = SigBlk: ] && echo $value; done < /proc/self/status";
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::USR1, 138)] {
        let mut tool = run(&server.url());
        tool.args(["k", "--"]).args(shell(&format!("echo started; {mask}; read go; echo ran on")));
        let running = Running::started(&mut blocking(blocked, &tool))?;
        // SIGALRM and SIGPIPE.
        running.prints("0000000000003000");
        running.send(signal)?;
        running.ends()?.with_code(code).prints("").says_nothing();
        assert!(!is_held(&server)?);
    }
    Ok(())
}

fn a_signal_that_was_blocked_ends_the_wait() -> Outcome {
    let server = TestServer::start();
    server.say(&["SET", "k", FOREIGN])?;
    let mut runs = run(&server.url());
    runs.args(["--wait-forever", "k", "--", "true"]);
    let mut acquires = crate::support::tool::tool(&server.url());
    acquires.args(["acquire", "--wait-forever", "k"]);
    let mut watches = crate::support::tool::tool(&server.url());
    watches.args(["watch", "k"]);
    for tool in [runs, acquires, watches] {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            server.clear_log();
            let mut running = Running::start(&mut blocking("INT,TERM,HUP", &tool))?;
            until("it has asked", || {
                server.names().iter().any(|name| ["SETNX", "SET", "TYPE"].contains(&name.as_str()))
            });
            running.send(signal)?;
            until("it has ended", || running.has_ended());
        }
    }
    Ok(())
}

fn signals_reach_the_commands_children() -> Outcome {
    let server = TestServer::start();
    // The shell is ready before its child says so. A background process of a shell has no input of its own.
    let both = "exec 3<&0; trap 'wait; echo outer; exit 8' TERM; \
                bash -c 'trap \"echo inner; exit 1\" TERM; echo started; read go' <&3 & wait";
    let running = script(&server, both)?;
    running.send(Signal::TERM)?;
    running.prints("inner");
    running.prints("outer");
    running.ends()?.with_code(8).says_nothing();
    assert!(!is_held(&server)?);
    Ok(())
}

/// A server whose lock is held.
fn held() -> TestServer {
    let server = TestServer::start();
    server.run(&["SET", "k", FOREIGN]);
    server
}

fn until_it_waits(server: &Proxy) {
    until("it asks for the lock", || server.names().contains(&"SET".to_owned()));
}

fn a_signal_ends_the_wait() -> Outcome {
    let server = held();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        for options in [&["-w", "10m"][..], &["--wait-forever", "--poll", "10m"]] {
            server.clear_log();
            let running = Running::start(run(&server.url()).args(options).args(["k", "--", "echo", "ran"]))?;
            until_it_waits(&server);
            running.send_to_group(signal)?;
            // One that comes again changes nothing; the program may have ended.
            let _ = running.send(signal);
            running.ends()?.with_code(code).prints("");
        }
    }
    assert_eq!(server.run(&["STRLEN", "k"]), FOREIGN.len().to_string(), "untouched");
    Ok(())
}

fn an_ignored_signal_does_not_but_a_release_does() -> Outcome {
    let server = held();
    let tool = run(&server.url());
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$0\" run --wait-forever k -- echo ran"])
        .arg(program())
        .envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(&mut command)?;
    until_it_waits(&server);
    running.send(Signal::HUP)?;
    running.send(Signal::WINCH)?;
    thread::sleep(millis(300));
    assert!(!running.has_ended());
    server.delete("k");
    running.ends()?.with_code(0).prints("ran\n").says_nothing();
    Ok(())
}

/// The lock is granted when the signal has come.
fn a_signal_before_the_command_begins() -> Outcome {
    let server = TestServer::start();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let hold = server.pause("SET", 1);
        let mut running = Running::start(run(&server.url()).args(["k", "--", "cat"]))?;
        hold.reached();
        running.send(signal)?;
        until("the signal is delivered, or the program ended", || {
            running.has_ended() || running.pending_signals().is_none_or(|pending| pending == 0)
        });
        hold.go_on();
        running.ends()?.with_code(code).prints("");
        assert_eq!(server.say(&["EXISTS", "k"])?, ":0", "released");
    }
    Ok(())
}

/// The waiter looks at the key every ten minutes only.
fn a_notification_ends_the_wait() -> Outcome {
    let server = TestServer::start();
    let options = ["--notify", "--wait-forever", "--poll", "10m", "-e", "1h", "k", "--"];
    let script = ["sh", "-c", "echo started; read go"];
    let mut holds = Running::started(run(&server.url()).args(options).args(script))?;
    let waits = Running::start(run(&server.url()).args(options).args(["echo", "ran"]))?;
    until_waiting(&server, "k", 1);
    holds.say("go")?;
    holds.ends()?.with_code(0).says_nothing();
    waits.ends()?.with_code(0).prints("ran\n").says_nothing();
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    Ok(())
}

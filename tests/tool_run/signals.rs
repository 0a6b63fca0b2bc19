//! Signals to the tool while the command runs: the command gets them, and its end is that of the tool. The lock is held until then.

use std::process::Command;
use std::thread;

use libtest_mimic::Trial;
use rustix::process::Signal;

use super::running::{Running, run, shell};
use crate::support::tool::program;
use crate::support::{Outcome, RedisServer, millis, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::signals",
        tests![
            a_command_that_handles_a_signal_ends_with_its_code,
            a_command_that_does_not_is_ended_by_it,
            a_signal_to_the_process_group_arrives_once,
            each_signal_is_passed_on,
            a_command_that_ignores_signals_keeps_the_lock,
            signals_that_are_ignored_stay_so,
            a_command_that_is_stopped_is_ended,
            signals_reach_the_commands_children,
        ],
    )
}

const ENDING: [(Signal, &str, i32); 4] =
    [(Signal::INT, "INT", 2), (Signal::TERM, "TERM", 15), (Signal::HUP, "HUP", 1), (Signal::QUIT, "QUIT", 3)];

/// Starts a shell script under the lock.
fn script(server: &RedisServer, script: &str) -> std::io::Result<Running> {
    Running::started(run(&server.url()).args(["k", "--"]).args(shell(script)))
}

fn is_held(server: &RedisServer) -> std::io::Result<bool> {
    Ok(server.say(&["EXISTS", "k"])? == ":1")
}

fn a_command_that_handles_a_signal_ends_with_its_code() -> Outcome {
    let server = RedisServer::start()?;
    for (signal, name, _) in ENDING {
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
    let server = RedisServer::start()?;
    for (signal, _, number) in ENDING {
        if signal == Signal::QUIT {
            // It would leave a core dump.
            continue;
        }
        let running = script(&server, "echo started; read go; echo ran on")?;
        running.send(signal)?;
        running.ends()?.with_code(128 + number).prints("").says_nothing();
        assert!(!is_held(&server)?);
    }
    Ok(())
}

fn a_signal_to_the_process_group_arrives_once() -> Outcome {
    let server = RedisServer::start()?;
    for (signal, name, _) in ENDING {
        let counts = format!("n=0; trap 'n=$((n + 1)); echo got $n' {name}; echo started; read go; exit $n");
        let mut running = script(&server, &counts)?;
        running.send_to_group(signal)?;
        running.prints("got 1");
        thread::sleep(millis(100));
        running.say("go")?;
        running.ends()?.with_code(1).prints("");
        assert!(!is_held(&server)?);
    }
    Ok(())
}

fn each_signal_is_passed_on() -> Outcome {
    let server = RedisServer::start()?;
    let traps = "for s in INT TERM HUP QUIT USR1 USR2 WINCH; do trap \"echo got $s\" $s; done";
    let mut running = script(&server, &format!("{traps}; echo started; read go; exit 5"))?;
    let others = [(Signal::USR1, "USR1", 10), (Signal::USR2, "USR2", 12), (Signal::WINCH, "WINCH", 28)];
    for (signal, name, _) in ENDING.into_iter().chain(others).chain(ENDING) {
        running.send(signal)?;
        running.prints(&format!("got {name}"));
        assert!(is_held(&server)?);
    }
    running.say("go")?;
    running.ends()?.with_code(5).prints("").says_nothing();
    assert!(!is_held(&server)?);
    Ok(())
}

fn a_command_that_ignores_signals_keeps_the_lock() -> Outcome {
    let server = RedisServer::start()?;
    let mut running = script(&server, "trap '' INT TERM HUP; echo started; read go; exit 4")?;
    for (signal, ..) in ENDING.into_iter().filter(|(signal, ..)| *signal != Signal::QUIT) {
        running.send(signal)?;
        running.send(signal)?;
    }
    thread::sleep(millis(300));
    assert!(!running.has_ended() && is_held(&server)?);
    running.say("go")?;
    running.ends()?.with_code(4).says_nothing();
    assert!(!is_held(&server)?);
    Ok(())
}

fn signals_that_are_ignored_stay_so() -> Outcome {
    let server = RedisServer::start()?;
    let inner = "kill -HUP $$; kill -INT $$; echo started; read go; exit 6";
    let outer = "trap '' HUP INT; exec \"$0\" run k -- sh -c \"$1\"";
    let mut command = Command::new("env");
    command.args(["--default-signal", "sh", "-c", outer]).arg(program()).arg(inner);
    let mut running = Running::started(command.env("REDIS_URL", server.url()))?;
    for signal in [Signal::HUP, Signal::INT] {
        running.send(signal)?;
        running.send_to_group(signal)?;
    }
    thread::sleep(millis(300));
    assert!(!running.has_ended() && is_held(&server)?);
    running.say("go")?;
    running.ends()?.with_code(6).says_nothing();
    assert!(!is_held(&server)?);
    Ok(())
}

fn a_command_that_is_stopped_is_ended() -> Outcome {
    let server = RedisServer::start()?;
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let running = script(&server, "echo started; kill -STOP $$; read go; echo ran on")?;
        // It may not be stopped yet: then it is ended before.
        thread::sleep(millis(100));
        running.send(signal)?;
        running.ends()?.with_code(code).prints("").says_nothing();
        assert!(!is_held(&server)?);
    }
    Ok(())
}

fn signals_reach_the_commands_children() -> Outcome {
    let server = RedisServer::start()?;
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

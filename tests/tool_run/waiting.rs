//! Signals while the tool waits for the lock, and waits that end with the lock.

use std::thread;

use libtest_mimic::Trial;
use rustix::process::Signal;

use super::running::{Running, run};
use crate::servers::Proxy;
use crate::support::notified::{until, until_waiting};
use crate::support::scenario::FOREIGN;
use crate::support::{Outcome, RedisServer, millis, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::waiting",
        tests![
            a_signal_ends_the_wait,
            a_signal_that_is_ignored_does_not,
            a_signal_before_the_command_begins,
            a_release_ends_the_wait,
            a_notification_ends_the_wait,
        ],
    )
}

/// A server whose lock is held, and a proxy that knows when it is asked for.
fn held() -> std::io::Result<(RedisServer, Proxy)> {
    let server = RedisServer::start()?;
    server.say(&["SET", "k", FOREIGN])?;
    let proxy = Proxy::before(server.address())?;
    Ok((server, proxy))
}

fn until_it_waits(proxy: &Proxy) {
    until("it asks for the lock", || proxy.names().contains(&"SETNX".to_owned()));
}

fn a_signal_ends_the_wait() -> Outcome {
    let (server, proxy) = held()?;
    for options in [&["--wait-forever"][..], &["-w", "10m"], &["--wait-forever", "--poll", "10m"]] {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
            for to_group in [false, true] {
                proxy.forget();
                let running =
                    Running::start(run(&proxy.url()).args(options).args(["k", "--", "echo", "ran"]))?;
                until_it_waits(&proxy);
                if to_group {
                    running.send_to_group(signal)?;
                    // One that comes again changes nothing; the program may have ended.
                    let _ = running.send(signal);
                } else {
                    running.send(signal)?;
                }
                running.ends()?.with_code(code).prints("");
            }
        }
    }
    assert_eq!(server.say(&["STRLEN", "k"])?, format!(":{}", FOREIGN.len()), "untouched");
    Ok(())
}

fn a_signal_that_is_ignored_does_not() -> Outcome {
    let (server, proxy) = held()?;
    let tool = run(&proxy.url());
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$0\" run --wait-forever k -- echo ran"])
        .arg(crate::support::tool::program())
        .envs(tool.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut running = Running::start(&mut command)?;
    until_it_waits(&proxy);
    running.send(Signal::HUP)?;
    running.send(Signal::WINCH)?;
    thread::sleep(millis(300));
    assert!(!running.has_ended());
    server.say(&["DEL", "k"])?;
    running.ends()?.with_code(0).prints("ran\n").says_nothing();
    Ok(())
}

/// The lock is granted when the signal has come.
fn a_signal_before_the_command_begins() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let hold = proxy.hold("SETNX", 1);
        let mut running = Running::start(run(&proxy.url()).args(["k", "--", "cat"]))?;
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

fn a_release_ends_the_wait() -> Outcome {
    let (server, proxy) = held()?;
    let waits = Running::start(run(&proxy.url()).args(["--wait-forever", "k", "--", "echo", "ran"]))?;
    until_it_waits(&proxy);
    server.say(&["DEL", "k"])?;
    waits.ends()?.with_code(0).prints("ran\n").says_nothing();
    Ok(())
}

/// The waiter looks at the key every ten minutes only.
fn a_notification_ends_the_wait() -> Outcome {
    let server = RedisServer::start()?;
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

//! For how long the lock is held: extended while the command runs, kept for a time after it, and by whom others see that it is held.

use std::io;

use libtest_mimic::Trial;
use redis::Commands as _;

use super::running::{Running, finished, run};
use crate::servers::{Emulated, Proxy};
use crate::support::notified::{connection, until};
use crate::support::tool::tool;
use crate::support::{Outcome, RedisServer, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "tool_run::time",
        tests![
            the_lease_is_extended_while_the_command_runs,
            a_command_that_outlives_what_it_may_take_is_ended,
            a_lock_that_is_kept_is_left_to_expire,
            a_lock_is_held_for_a_time_at_least,
            a_job_of_two_machines_runs_once,
            others_see_the_name,
            a_server_without_names_and_notifications,
        ],
    )
}

/// On a busy machine a short lease may run out: one of so many attempts goes well.
const ATTEMPTS: usize = 20;

const HOLD: [&str; 5] = ["k", "--", "sh", "-c", "echo started; read go; exit 3"];

/// Lets the lease be extended some times, and returns whether the command ended by itself.
fn extended(server: &RedisServer, protocol: &str) -> io::Result<bool> {
    let mut connection = connection(server);
    let options = ["-e", "1s", "--wait-forever", "--protocol", protocol];
    let mut running = Running::started(run(&server.url()).args(options).args(HOLD))?;
    let mut value = || connection.get::<_, Option<String>>("k").ok().flatten();
    // A second more than a lease passes.
    for _ in 0..4 {
        let before = value();
        until("the lease is extended, or lost", || {
            running.has_ended() || before.is_some() && value().is_some_and(|now| Some(now) != before)
        });
    }
    let others = finished(run(&server.url()).args(["-n", "--protocol", protocol, "k", "--", "true"]))?;
    let is_held = others.code() == Some(75);
    // It may have ended.
    let _ = running.say("go");
    let ended = running.ends()?;
    assert!([Some(3), Some(70)].contains(&ended.code()), "{ended:?}");
    Ok(is_held && ended.code() == Some(3) && ended.errors.is_empty())
}

fn the_lease_is_extended_while_the_command_runs() -> Outcome {
    let server = RedisServer::start()?;
    for protocol in ["auto", "classic"] {
        let mut attempts = (0..ATTEMPTS).map(|_| extended(&server, protocol));
        attempts.find(|outcome| !matches!(outcome, Ok(false))).ok_or("the lock is lost each time")??;
    }
    Ok(())
}

fn a_command_that_outlives_what_it_may_take_is_ended() -> Outcome {
    let server = RedisServer::start()?;
    let options = ["-e", "1s", "--auto-extend", "1s", "--wait-forever"];
    let running = Running::start(run(&server.url()).args(options).args(HOLD))?;
    let ended = running.ends()?.with_code(70);
    ended.says(&["error: lock k: lost while the command ran: its lease has ended"]);
    // Without a look at what it does.
    let options = ["-e", "1s", "--auto-extend", "1s", "--wait-forever", "--on-loss", "warn"];
    let mut running = Running::started(run(&server.url()).args(options).args(HOLD))?;
    finished(run(&server.url()).args(["--wait-forever", "k", "--", "true"]))?.with_code(0);
    running.say("go")?;
    running.ends()?.with_code(3).says(&["warning: lock k: "]);
    Ok(())
}

fn a_lock_that_is_kept_is_left_to_expire() -> Outcome {
    let server = RedisServer::start()?;
    let command = ["sh", "-c", "exit 3"];
    let keep = |protocol: &str| -> io::Result<Running> {
        let tool = |options: &[&str]| {
            let mut tool = run(&server.url());
            tool.args(["--protocol", protocol]).args(options).args([protocol, "--"]).args(command);
            tool
        };
        finished(&mut tool(&["--keep"]))?.with_code(3).says_nothing();
        finished(&mut tool(&["-n"]))?.with_code(75);
        server.say(&["DEL", protocol])?;
        finished(&mut tool(&["-e", "1s", "--wait-forever", "--keep"]))?.with_code(3);
        // Until it expires.
        Running::start(&mut tool(&["--wait-forever"]))
    };
    for waits in ["auto", "classic", "ttl"].map(keep) {
        waits?.ends()?.with_code(3);
    }
    Ok(())
}

/// The tool does not wait for that time, which is longer than the tests wait.
fn a_lock_is_held_for_a_time_at_least() -> Outcome {
    let server = RedisServer::start()?;
    for (n, protocol) in ["auto", "classic", "ttl"].iter().enumerate() {
        let key = format!("k{n}");
        let options = ["--no-wait", "--protocol", protocol, "--hold-at-least", "1h"];
        for (command, code) in [("exit 3", 3), ("echo ran", 75)] {
            let ended = finished(run(&server.url()).args(options).args([&key, "--", "sh", "-c", command]))?;
            ended.with_code(code).prints("");
        }
    }
    // A command that takes longer than that: the lock is released.
    let mut running = Running::started(run(&server.url()).args(["--hold-at-least", "1ms"]).args(HOLD))?;
    running.say("go")?;
    running.ends()?.with_code(3).says_nothing();
    assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    Ok(())
}

/// Two machines whose clocks start the job at about the same time, as cron does.
fn a_job_of_two_machines_runs_once() -> Outcome {
    let server = RedisServer::start()?;
    let (folder, url) = (tempfile::tempdir()?, server.url());
    let file = folder.path().join("runs");
    let tick = |key: &str, options: &[&str]| -> io::Result<(usize, Vec<Option<i32>>)> {
        let job = format!("echo ran >> {}", file.display());
        let start = || {
            let mut command = run(&url);
            Running::start(command.args(["-n"]).args(options).args(["--shell", key, "--", &job]))
        };
        let first = start()?;
        std::thread::sleep(std::time::Duration::from_millis(60));
        let second = start()?;
        let mut codes = vec![first.ends()?.code(), second.ends()?.code()];
        codes.sort_unstable();
        let runs = std::fs::read_to_string(&file)?.lines().count();
        std::fs::remove_file(&file)?;
        Ok((runs, codes))
    };
    for (n, protocol) in ["auto", "classic", "ttl"].iter().enumerate() {
        let options = ["--hold-at-least", "55s", "--protocol", protocol];
        let ran = tick(&format!("cron{n}"), &options)?;
        assert_eq!(ran, (1, vec![Some(0), Some(75)]), "{protocol}");
    }
    let ran = tick("cron", &["--hold-at-least", "55s", "-E", "0"])?;
    assert_eq!(ran, (1, vec![Some(0), Some(0)]));
    // Without that time the second finds the lock released: in one of some attempts, if the machine is busy.
    let twice = (0..ATTEMPTS)
        .find_map(|_| tick("report", &[]).map(|(runs, _)| (runs == 2).then_some(())).transpose());
    twice.ok_or("without a time to hold it each machine runs it")??;
    Ok(())
}

fn others_see_the_name() -> Outcome {
    let server = RedisServer::start()?;
    let holder = || -> io::Result<String> {
        let status = tool(&server.url()).args(["status", "k"]).output()?;
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        let holder = status.lines().find_map(|line| line.trim().strip_prefix("holder: "));
        Ok(holder.unwrap_or_default().to_owned())
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    for option in ["--name=nightly on db 1", "--name=", "--quiet"] {
        let mut running = Running::started(run(&server.url()).arg(option).args(HOLD))?;
        let expected = match option {
            "--name=" => format!("{}:{}", host.trim(), running.number()),
            "--quiet" => String::new(),
            _ => "nightly on db 1".to_owned(),
        };
        assert_eq!(holder()?, expected);
        running.say("go")?;
        running.ends()?.with_code(3).says_nothing();
        assert_eq!(holder()?, "");
    }
    Ok(())
}

/// The lock works all the same.
fn a_server_without_names_and_notifications() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::emulating(Emulated::V1_2, server.address())?;
    for option in ["--name=me", "--notify"] {
        let mut running = Running::started(run(&proxy.url()).arg(option).args(HOLD))?;
        assert_eq!(server.say(&["EXISTS", "k"])?, ":1");
        running.say("go")?;
        running.ends()?.with_code(3);
        assert_eq!(server.say(&["EXISTS", "k"])?, ":0");
    }
    Ok(())
}

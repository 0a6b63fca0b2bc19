//! The library's own socket: replies that come in pieces, are long, or are interrupted by a signal.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;
use std::{io, thread};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use setnx_lock::{Error, Lock, LockOptions, Locker};

use crate::support::processes::{TaskOutcome, worker};
use crate::support::scenario::opened;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "sockets",
        tests![
            a_reply_that_trickles_in_takes_no_longer_than_a_command_may,
            a_process_that_is_stopped_and_continued_gets_its_reply,
        ],
    )
}

/// The first byte of the reply comes at once, and each of the rest in time for a read of its own.
fn a_reply_that_trickles_in_takes_no_longer_than_a_command_may() -> Outcome {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let url = format!("redis://{}/", listener.local_addr()?);
    let trickling = thread::spawn(move || -> io::Result<usize> {
        let (mut stream, _) = listener.accept()?;
        let _ = stream.read(&mut [0; 1000])?;
        let mut sent = 0;
        // Fails once the client has hung up.
        while stream.write_all(b":").is_ok() {
            sent += 1;
            thread::sleep(millis(50));
        }
        Ok(sent)
    });
    let builder = Locker::builder(&url)?.skip_server_check().command_timeout(millis(300));
    let lock = Lock::new(&builder.retry_for(Duration::ZERO).build()?, "trickles", expiring())?;
    let error = lock.state().expect_err("no reply is complete");
    assert!(error.to_string().contains("trickles"), "{error}");
    let Error::Unavailable { cause, .. } = &error else { panic!("{error:?}") };
    assert_eq!(cause.kind(), io::ErrorKind::TimedOut);
    assert!(trickling.join().unwrap()? > 1);
    Ok(())
}

/// Acquires and releases a lock without an expiration, whose lost replies cannot be resolved, for each line of input.
pub(crate) fn acquire_for_each_line(url: &str, key: &str) -> TaskOutcome {
    let lock = Lock::new(&opened(url)?, key, LockOptions::without_expiration().timeout(LONG))?;
    println!("ready");
    for line in io::stdin().lines() {
        line?;
        println!("asking");
        println!("{}", lock.lock()?.release().is_ok());
    }
    Ok(())
}

/// Stopping and continuing a process ends its blocking system calls.
fn a_process_that_is_stopped_and_continued_gets_its_reply() -> Outcome {
    let server = RedisServer::start()?;
    let mut worker = worker(&["acquire_for_each_line", &server.url(), "interrupted"])?;
    let pid = i32::try_from(worker.id()).ok().and_then(Pid::from_raw).expect("a process has an id");
    let mut input = worker.stdin.take().expect("stdin is piped");
    let mut lines = BufReader::new(worker.stdout.take().expect("stdout is piped")).lines();
    let mut line = || lines.next().expect("the worker goes on");
    assert_eq!(line()?, "ready");
    for freezes in [false, true] {
        if freezes {
            server.freeze();
        }
        writeln!(input, "again")?;
        assert_eq!(line()?, "asking");
        for _ in 0..if freezes { 3 } else { 0 } {
            thread::sleep(millis(100));
            kill_process(pid, Signal::STOP)?;
            thread::sleep(millis(20));
            kill_process(pid, Signal::CONT)?;
        }
        server.thaw();
        assert_eq!(line()?, "true");
    }
    drop(input);
    assert!(worker.wait()?.success());
    Ok(())
}

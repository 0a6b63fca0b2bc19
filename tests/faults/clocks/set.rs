//! Clocks that are set while a lock is held, and clocks that nobody has set.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use setnx_lock::{Error, Lock, LockOptions, Protocol};

use super::{Worker, fake};
use crate::support::processes;
use crate::support::scenario::opened;
use crate::support::target::PROTOCOLS;
use crate::support::tool::tool;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, trials_of};

trials_of! {
    "clocks";
    a_clock_set_forward_ends_the_lease,
    a_clock_set_forward_is_noticed_by_a_thread,
    a_clock_set_back_does_not_lengthen_the_lease,
    a_clock_set_back_shows_no_earlier_time_to_others,
    a_clock_that_falls_back_to_1970_is_a_loss,
    a_clock_that_shows_1970_acquires_nothing,
}

/// From now to a day in 1970 or before: what a clock shows that nobody has set.
const TO_1970: &str = "-20800d";

/// Worker: acquires the lock, and for each line of input prints what it knows about the lease.
pub(crate) fn report_the_lease(url: &str, key: &str, expiration: &str) -> processes::TaskOutcome {
    let options = LockOptions::expiring_after(humantime::parse_duration(expiration)?);
    let held = Lock::new(&opened(url)?, key, options)?.lock()?;
    let taken = Instant::now();
    println!("holding");
    for _asked in io::stdin().lines() {
        let still = match held.ensure_held() {
            Ok(()) => "held",
            Err(Error::Lost { .. }) => "expired",
            Err(error) => return Err(error.into()),
        };
        let remaining = held.remaining().expect("it expires");
        println!("{still} {} {}", remaining.as_micros(), taken.elapsed().as_micros());
    }
    match held.release() {
        Err(Error::Lost { reason, .. }) => println!("{reason:?}"),
        released => released?,
    }
    Ok(())
}

/// Reads what a worker prints about its lease: whether it holds,
/// the time that remains, and the time since it was granted.
fn reported(line: &str) -> Result<(bool, Duration, Duration), Box<dyn std::error::Error>> {
    let words: Vec<&str> = line.split(' ').collect();
    let [still, remaining, held] = words.as_slice() else { return Err(line.into()) };
    let micros = |word: &str| word.parse().map(Duration::from_micros);
    Ok((*still == "held", micros(remaining)?, micros(held)?))
}

/// Starts a worker whose clock has the offset in a file. Returns both once the worker has acquired the lock.
fn holder(server: &RedisServer, expiration: &str) -> Result<(Worker, PathBuf), Box<dyn std::error::Error>> {
    let file = server.folder().join("clock");
    fs::write(&file, "+0s")?;
    let worker = Worker::with_clock_in(&file, &["report_the_lease", &server.url(), "clocks", expiration])?;
    assert_eq!(worker.lines.recv_timeout(LONG)?, "holding");
    Ok((worker, file))
}

fn a_clock_set_forward_ends_the_lease() -> Outcome {
    const LEASE: Duration = Duration::from_millis(4900);
    let server = RedisServer::start()?;
    loop {
        let (mut worker, file) = holder(&server, "4900ms")?;
        let (holds, ..) = reported(&worker.ask("?")?)?;
        fs::write(&file, "+5s")?;
        let (still_holds, remaining, held) = reported(&worker.ask("?")?)?;
        if holds && held < LEASE {
            assert!(!still_holds, "by the wall clock, which contenders go by, the lease has passed");
            assert_eq!(remaining, Duration::ZERO);
            return Ok(());
        }
        // The machine was so busy that the lease has passed anyway.
        server.say(&["DEL", "clocks"])?;
    }
}

/// Worker: acquires the lock, and prints when a loss of it is noticed.
pub(crate) fn notice_the_loss(url: &str, key: &str, expiration: &str) -> processes::TaskOutcome {
    let options = LockOptions::expiring_after(humantime::parse_duration(expiration)?);
    let held = Lock::new(&opened(url)?, key, options)?.lock()?;
    held.on_loss(|reason| println!("{reason:?}"));
    println!("holding");
    let ended = io::stdin().lines().next().is_none();
    drop(held);
    if ended { Ok(()) } else { Err("there was a line".into()) }
}

fn a_clock_set_forward_is_noticed_by_a_thread() -> Outcome {
    let server = RedisServer::start()?;
    let file = server.folder().join("clock");
    fs::write(&file, "+0s")?;
    let worker = Worker::with_clock_in(&file, &["notice_the_loss", &server.url(), "clocks", "1h"])?;
    assert_eq!(worker.lines.recv_timeout(LONG)?, "holding");
    fs::write(&file, "+2h")?;
    assert_eq!(worker.lines.recv_timeout(LONG)?, "Expired", "long before an hour has passed");
    Ok(())
}

fn a_clock_set_back_does_not_lengthen_the_lease() -> Outcome {
    const LEASE: Duration = Duration::from_secs(2);
    let server = RedisServer::start()?;
    let (mut worker, file) = holder(&server, "2s")?;
    fs::write(&file, "-5s")?;
    let (_, remaining, held) = reported(&worker.ask("?")?)?;
    assert!(remaining <= LEASE.saturating_sub(held) + millis(1), "{remaining:?} left after {held:?}");
    thread::sleep(remaining);
    let (holds, remaining, _) = reported(&worker.ask("?")?)?;
    assert_eq!((holds, remaining), (false, Duration::ZERO), "by the monotonic clock");
    drop(worker.process.stdin.take());
    assert_eq!(worker.lines.recv_timeout(LONG)?, "Expired");
    Ok(())
}

/// Starts a worker of `keeping` whose lease is extended, with a clock that a file sets.
fn keeper(server: &RedisServer, protocol: Protocol) -> Result<(Worker, PathBuf), Box<dyn std::error::Error>> {
    let file = server.folder().join("clock");
    fs::write(&file, "+0s")?;
    let protocol = format!("{protocol:?}").to_lowercase();
    let worker = Worker::with_clock_in(&file, &["keep", &server.url(), "clocks", "2s", &protocol])?;
    assert_eq!(worker.lines.recv_timeout(LONG)?, "holding");
    Ok((worker, file))
}

/// Those who read it would take the lock over.
fn a_clock_set_back_shows_no_earlier_time_to_others() -> Outcome {
    for protocol in PROTOCOLS {
        let server = RedisServer::start()?;
        let (mut worker, file) = keeper(&server, protocol)?;
        fs::write(&file, "-1h")?;
        let lock = Lock::new(&opened(&server.url())?, "clocks", expiring().protocol(protocol))?;
        // Several extensions.
        let acquired = lock.try_lock_for(Duration::from_secs(6))?.is_some();
        let reason = worker.ask("still there?")?;
        // On a machine that stands still the lease may pass: then it is known.
        assert!(!acquired || reason.starts_with("Some"), "{protocol:?}: two have it");
        assert_eq!((acquired, reason.as_str()), (false, "None"), "{protocol:?}");
    }
    Ok(())
}

fn a_clock_that_falls_back_to_1970_is_a_loss() -> Outcome {
    for protocol in PROTOCOLS {
        let server = RedisServer::start()?;
        let (mut worker, file) = keeper(&server, protocol)?;
        fs::write(&file, TO_1970)?;
        assert_eq!(worker.ask("still there?")?, "Some(ClockUnset)");
        // What it has written before is a time that others can read.
        let lock = Lock::new(&opened(&server.url())?, "clocks", expiring().protocol(protocol))?;
        lock.try_lock_for(LONG)?.ok_or("it is never free")?.release()?;
    }
    Ok(())
}

fn a_clock_that_shows_1970_acquires_nothing() -> Outcome {
    let server = RedisServer::start()?;
    let says = |arguments: &[&str], code: i32, words: &[&str]| -> Outcome {
        let mut tool = tool(&server.url());
        fake(&mut tool)?;
        let ended = tool.env("FAKETIME", "@1970-01-01 00:00:24").env("TZ", "UTC").args(arguments).output()?;
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(ended.status.code(), Some(code), "{arguments:?}: {said}");
        for words in words {
            assert!(said.contains(words), "{arguments:?}: {said}");
        }
        Ok(())
    };
    let shows = ["the clock of this machine shows 1970-01-01T00:00:2", "set"];
    for protocol in ["auto", "classic", "watched", "ttl"] {
        let run = ["run", "--protocol", protocol];
        for keys in [&["k"][..], &["k", "l"], &["--lead", "k"], &["--permits", "2", "k"]] {
            says(&[&run, keys, &["--", "true"]].concat(), 64, &shows)?;
        }
        says(&["acquire", "--protocol", protocol, "k"], 64, &shows)?;
    }
    says(&["doctor"], 2, &shows)?;
    assert_eq!(server.say(&["DBSIZE"])?, ":0");
    Ok(())
}

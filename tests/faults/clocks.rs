//! Clocks that differ, and clocks that are set while a lock is held: `faketime`
//! sets the wall clock of worker processes. The tests compare leases by the
//! monotonic clock, which it leaves alone and which is the same for all processes.

pub(crate) mod set;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{env, fs, io, mem, thread};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol, Quorum};
use setnx_lock_testing::{ServerVersion, TestServer};

use crate::faults::stress::harness::contender::BETWEEN_URLS;
use crate::faults::stress::harness::moment::Moment;
use crate::support::processes::{self, TASK, protocol_named};
use crate::support::scenario::opened;
use crate::support::tool::tool;
use crate::support::{AnyServer, LONG, Outcome, RedisServer, millis, server_of, tests, trial};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials =
        crate::support::trials("clocks", tests![a_clock_that_differs_from_the_server_s_is_found_by_doctor,]);
    trials.extend(set::trials());
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let apart: (&str, fn(Protocol) -> Outcome) = match protocol {
            Protocol::Ttl => ("clocks_hours_apart_let_no_leases_overlap", hours_apart),
            _ => ("clocks_further_apart_than_the_guard_let_two_leases_overlap", further_apart),
        };
        let (name, test) = apart;
        let name = format!("clocks::{protocol:?}::{name}").to_lowercase();
        trials.push(trial(name, move || test(protocol)));
        for (name, clock) in [("ahead", "+0.9s"), ("behind", "-0.9s")] {
            let name = format!("clocks::{protocol:?}::a_clock_nearly_a_second_{name}_lets_no_leases_overlap");
            trials.push(trial(name.to_lowercase(), move || nearly_a_second_apart(protocol, clock)));
        }
    }
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let name = |statement: &str| format!("clocks::{protocol:?}::{statement}").to_lowercase();
        trials.push(trial(
            name("a_quorum_with_a_clock_nearly_a_second_ahead_lets_no_leases_overlap"),
            move || nearly_a_second_apart_on_three(protocol),
        ));
        trials.push(trial(name("a_quorum_needs_an_allowance_for_clocks_further_apart"), move || {
            further_apart_on_three(protocol)
        }));
    }
    trials
}

/// The lease of each hold in a contest.
const LEASE: Duration = Duration::from_millis(300);

/// A worker whose wall clock is set. Killed when dropped.
struct Worker {
    process: Child,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts one whose clock is `offset` (`+0.9s`) from the machine's.
    fn with_clock(offset: &str, task: &[&str]) -> io::Result<Self> {
        Self::start(faked()?.env("FAKETIME", offset), task)
    }

    /// Starts one whose clock has the offset in a file.
    fn with_clock_in(file: &Path, task: &[&str]) -> io::Result<Self> {
        Self::start(faked()?.env("FAKETIME_TIMESTAMP_FILE", file).env("FAKETIME_NO_CACHE", "1"), task)
    }

    fn start(command: &mut Command, task: &[&str]) -> io::Result<Self> {
        let command = command.env(TASK, task.join(",")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let output = BufReader::new(process.stdout.take().expect("it is piped"));
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Ok(Self { process, lines })
    }

    /// Sends a line to its input, and returns its next line of output.
    fn ask(&mut self, line: &str) -> Result<String, Box<dyn std::error::Error>> {
        writeln!(self.process.stdin.as_mut().expect("it is piped"), "{line}")?;
        Ok(self.lines.recv_timeout(LONG)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        // What the library leaves behind of a process that is killed keeps a later one of the same id from starting.
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{name}{}", self.process.id()));
        }
    }
}

/// Returns a command that runs this program with `faketime`'s library.
fn faked() -> io::Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    fake(&mut command)?;
    Ok(command)
}

/// Has a command start with a wall clock that can be set.
fn fake(command: &mut Command) -> io::Result<()> {
    static LIBRARY: Mutex<Option<String>> = Mutex::new(None);
    let mut library = LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
    let library = match &mut *library {
        Some(library) => library,
        none => none.insert(faketime_s_library()?),
    };
    command.env("LD_PRELOAD", library).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Ok(())
}

/// Asks `faketime` for the path of its library.
fn faketime_s_library() -> io::Result<String> {
    let mut reported = None;
    // More than once: what a killed process has left behind keeps one of the same id from starting.
    for _ in 0..10 {
        let output = Command::new("faketime").args(["-m", "-f", "+0s", "env"]).output().map_err(|error| {
            io::Error::new(error.kind(), format!("faketime: {error}; `make test-all` installs it"))
        })?;
        let lines = String::from_utf8_lossy(&output.stdout);
        if let Some(library) = lines.lines().find_map(|line| line.strip_prefix("LD_PRELOAD=")) {
            return Ok(library.to_owned());
        }
        reported = Some(output);
    }
    Err(io::Error::other(format!("faketime names no library: {reported:?}")))
}

/// Worker: acquires the lock again and again, prints when each lease begins and ends, and never releases it, so that
/// the other worker takes it over.
pub(crate) fn take_over(url: &str, key: &str, protocol: &str) -> processes::TaskOutcome {
    let options = LockOptions::expiring_after(LEASE).protocol(protocol_named(protocol)?).timeout(LONG);
    let options = options.poll_interval(millis(5));
    let lock = Lock::new(&opened(url)?, key, options)?;
    let mut connection = redis::Client::open(url)?.get_connection()?;
    loop {
        let held = lock.lock()?;
        // In this order: the printed end is never later than the real one.
        let enter = Moment::now();
        let valid_until = enter.after(held.remaining().expect("it expires"));
        writeln!(io::stdout(), "{enter} {valid_until}")?;
        mem::forget(held);
        // Waits for the other worker: the one whose clock is ahead could take over its own lock first.
        let mine: Option<String> = connection.get(key)?;
        while connection.get::<_, Option<String>>(key)? == mine {
            thread::sleep(millis(5));
        }
    }
}

/// Worker: the same on a quorum of servers, for which clocks may differ by so much more than a second.
pub(crate) fn take_over_on_each(
    urls: &str,
    key: &str,
    [expiration, allowance, protocol]: [&str; 3],
) -> processes::TaskOutcome {
    let options = LockOptions::expiring_after(humantime::parse_duration(expiration)?).timeout(LONG);
    let options = options.protocol(protocol_named(protocol)?).poll_interval(millis(5));
    let lockers = urls.split(BETWEEN_URLS).map(opened).collect::<Result<Vec<Locker>, Error>>()?;
    let lock = Quorum::new(&lockers, key, options)?;
    let lock = lock.max_clock_difference(humantime::parse_duration(allowance)?)?;
    let locks: Vec<Lock> =
        lockers.iter().map(|locker| Lock::new(locker, key, options)).collect::<Result<_, _>>()?;
    loop {
        let held = lock.lock()?;
        let enter = Moment::now();
        let valid_until = enter.after(held.remaining());
        writeln!(io::stdout(), "{enter} {valid_until}")?;
        mem::forget(held);
        // Those that grant it later have a lease of their own.
        let states = || locks.iter().map(Lock::state).collect::<Result<Vec<_>, _>>();
        let mine = states()?;
        while states()?.iter().zip(&mine).filter(|(now, mine)| now != mine).count() < 2 {
            thread::sleep(millis(5));
        }
    }
}

/// A lease, as a worker printed it.
#[derive(Clone, Copy, Debug)]
struct Lease {
    holder: usize,
    enter: Moment,
    valid_until: Moment,
}

type Overlap = Option<(Lease, Lease)>;

/// Lets two workers take the lock over from each other until each has acquired it `turns` times, or two leases overlap.
fn contest(
    clocks: [&str; 2],
    protocol: Protocol,
    turns: usize,
) -> Result<Overlap, Box<dyn std::error::Error>> {
    let server = TestServer::start();
    let protocol = format!("{protocol:?}").to_lowercase();
    contest_by(clocks, &["take_over", &server.url(), "clocks", &protocol], turns)
}

/// The same on three servers, with an allowance for clocks.
fn contest_on_three(
    clocks: [&str; 2],
    protocol: Protocol,
    [expiration, allowance]: [&str; 2],
    turns: usize,
) -> Result<Overlap, Box<dyn std::error::Error>> {
    let servers = (0..3).map(|_| RedisServer::start()).collect::<io::Result<Vec<_>>>()?;
    let urls = servers.iter().map(RedisServer::url).collect::<Vec<_>>().join(BETWEEN_URLS);
    let protocol = format!("{protocol:?}").to_lowercase();
    contest_by(clocks, &["take_over_on_each", &urls, "clocks", expiration, allowance, &protocol], turns)
}

fn contest_by(clocks: [&str; 2], task: &[&str], turns: usize) -> Result<Overlap, Box<dyn std::error::Error>> {
    let workers = clocks.map(|clock| Worker::with_clock(clock, task));
    let mut leases: Vec<Lease> = Vec::new();
    let began = Instant::now();
    loop {
        for (holder, worker) in workers.iter().enumerate() {
            for line in worker.as_ref().map_err(ToString::to_string)?.lines.try_iter() {
                let (enter, valid_until) = line.split_once(' ').ok_or("a worker prints two times")?;
                leases.push(Lease { holder, enter: enter.parse()?, valid_until: valid_until.parse()? });
            }
        }
        leases.sort_by_key(|lease| lease.enter);
        if let Some(pair) = leases.windows(2).find(|pair| pair[1].enter < pair[0].valid_until) {
            return Ok(Some((pair[0], pair[1])));
        }
        if (0..2).all(|n| leases.iter().filter(|lease| lease.holder == n).count() >= turns) {
            return Ok(None);
        }
        if began.elapsed() > LONG {
            return Err(format!("fewer turns within {LONG:?}: {leases:?}").into());
        }
        thread::sleep(millis(10));
    }
}

fn nearly_a_second_apart(protocol: Protocol, clock: &str) -> Outcome {
    let overlap = contest(["+0s", clock], protocol, 2)?;
    assert!(overlap.is_none(), "{overlap:?}");
    Ok(())
}

fn nearly_a_second_apart_on_three(protocol: Protocol) -> Outcome {
    let overlap = contest_on_three(["+0s", "+0.9s"], protocol, ["300ms", "0s"], 2)?;
    assert!(overlap.is_none(), "{overlap:?}");
    Ok(())
}

/// Without an allowance two leases overlap, with one of a second they do not.
fn further_apart_on_three(protocol: Protocol) -> Outcome {
    let clocks = ["+0.9s", "-0.9s"];
    let overlap = contest_on_three(clocks, protocol, ["2500ms", "0s"], usize::MAX)?;
    assert!(overlap.is_some_and(|(first, second)| first.holder != second.holder), "{overlap:?}");
    let overlap = contest_on_three(clocks, protocol, ["2500ms", "1s"], 2)?;
    assert!(overlap.is_none(), "{overlap:?}");
    Ok(())
}

fn further_apart(protocol: Protocol) -> Outcome {
    let overlap = contest(["+0.9s", "-0.9s"], protocol, usize::MAX)?;
    assert!(overlap.is_some_and(|(first, second)| first.holder != second.holder), "{overlap:?}");
    Ok(())
}

/// The server's clock alone decides when the lock of a crashed holder is free.
fn hours_apart(protocol: Protocol) -> Outcome {
    let overlap = contest(["+7200s", "-7200s"], protocol, 3)?;
    assert!(overlap.is_none(), "{overlap:?}");
    Ok(())
}

fn a_clock_that_differs_from_the_server_s_is_found_by_doctor() -> Outcome {
    let server = RedisServer::start()?;
    let old = server_of(ServerVersion::V2_4);
    for (clock, found) in [
        ("+0s", None),
        ("+5s", Some("behind ours")),
        ("-5s", Some("ahead of ours")),
        // So far ahead that a key that expires in an hour has expired at the server.
        ("-2h", Some("ahead of ours")),
    ] {
        for url in [server.url(), old.url()] {
            let mut doctor = tool(&url);
            fake(&mut doctor)?;
            let doctor = doctor.env("FAKETIME", clock).arg("doctor").output()?;
            let report = String::from_utf8(doctor.stdout)?;
            assert_eq!(doctor.status.code(), Some(i32::from(found.is_some())), "{clock} at {url}: {report}");
            let warned = report.lines().find(|line| line.starts_with("warning: its clock is "));
            assert_eq!(warned.is_some(), found.is_some(), "{clock} at {url}: {report}");
            assert!(
                warned.unwrap_or_default().contains(found.unwrap_or_default()),
                "{clock} at {url}: {report}"
            );
        }
    }
    Ok(())
}

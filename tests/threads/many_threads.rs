//! Many more threads than connections, connecting while no thread waits, and the library's own threads.

use std::process::{Command, ExitCode};
use std::sync::Barrier;
use std::{env, fs, thread};

use rustix::process::{Resource, Rlimit, setrlimit};
use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
use setnx_lock_testing::TestServer;

use crate::support::scenario::{opened, patient};
use crate::support::{LONG, Outcome, RedisServer, chain, expiring, millis, trials_of};

trials_of! {
    "many_threads";
    two_thousand_threads_on_few_connections,
    many_threads_in_other_ways,
    a_server_is_left_alone_while_no_call_waits,
    a_locker_is_opened_where_no_thread_can_be_started,
}

/// Each thread acquires and releases a lock of its own a few times, all at once. No call may fail.
fn all_succeed(locker: &Locker, threads: usize, options: LockOptions) -> Outcome {
    let barrier = Barrier::new(threads);
    let failed: Vec<Error> = thread::scope(|scope| {
        let work = |number: usize| {
            let lock = Lock::new(locker, format!("many:{number}"), options)?;
            barrier.wait();
            (0..3).try_for_each(|_| lock.lock()?.release().map(drop))
        };
        let spawn = |number| {
            let builder = thread::Builder::new().stack_size(256 * 1024);
            builder.spawn_scoped(scope, move || work(number)).expect("a thread")
        };
        let threads: Vec<_> = (0..threads).map(spawn).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
    });
    assert!(failed.is_empty(), "{} of {threads} threads failed, {:?}", failed.len(), failed.first());
    Ok(())
}

/// Options of a call that has all the time that a busy machine needs.
fn unhurried() -> LockOptions {
    LockOptions::expiring_after(LONG * 10).timeout(LONG * 10)
}

fn two_thousand_threads_on_few_connections() -> Outcome {
    let server = TestServer::start();
    for builder in [patient(&server.url())?, patient(&server.url())?.pool_size(1)] {
        all_succeed(&builder.build()?, 2000, unhurried())?;
    }
    Ok(())
}

fn many_threads_in_other_ways() -> Outcome {
    let server = TestServer::start();
    // Releases by transactions.
    all_succeed(&opened(&server.url())?, 500, unhurried().protocol(Protocol::Watched))?;
    // More threads than the server takes clients. With a password it refuses AUTH, without one the first command.
    for (config, password) in [("", ""), ("requirepass secret", ":secret@")] {
        let server = TestServer::builder().config(&format!("maxclients 3\n{config}")).start();
        let url = server.url().replace("redis://", &format!("redis://{password}"));
        all_succeed(&opened(&url)?, 100, unhurried())?;
    }
    Ok(())
}

/// How many connections the server has accepted, by INFO.
fn accepted(url: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let mut asking = redis::Client::open(url)?.get_connection()?;
    let info: String = redis::cmd("INFO").arg("stats").query(&mut asking)?;
    let count = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    Ok(count.ok_or("not reported")?.trim().parse()?)
}

/// Asserts that the library opens no connection while no call waits. Returns how many there were before.
fn is_left_alone(url: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let before = accepted(url)?;
    thread::sleep(millis(500));
    // The connection that asks is the only one since.
    assert_eq!(accepted(url)?, before + 1);
    Ok(before)
}

fn a_server_is_left_alone_while_no_call_waits() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let locker = opened(&server.url().replace("redis://", "redis://:wrong@"))?;
    let lock = Lock::new(&locker, "password", expiring())?;
    for _ in 0..10 {
        assert!(matches!(lock.lock(), Err(Error::Refused { .. })));
    }
    let before = is_left_alone(&server.url().replace("redis://", "redis://:secret@"))?;
    assert!(before <= 2 + 10, "one attempt for each call at most: {before}");

    let mut server = RedisServer::start()?;
    let locker = Locker::builder(&server.url())?.retry_for(millis(100)).build()?;
    let lock = Lock::new(&locker, "dead", expiring())?;
    server.stop();
    assert!(matches!(lock.lock(), Err(Error::Unavailable { .. })));
    server.restart()?;
    is_left_alone(&server.url())?;
    drop(lock.lock()?);
    Ok(())
}

/// Makes this program the process of the test below.
const PART: &str = "SETNX_LOCK_TEST_THREADS";

/// What the process does that was started to have no threads.
pub(crate) fn as_worker() -> Option<ExitCode> {
    env::var(PART).ok()?;
    let outcome = lock_without_threads(&env::var("REDIS_URL").unwrap_or_default());
    Some(outcome.map_or_else(
        |problem| {
            println!("{problem}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

type PartOutcome = Result<(), Box<dyn std::error::Error>>;

/// Less than the stack of a thread.
const LITTLE: u64 = 1024 * 1024;

/// Ends well if a locker is opened, and a lock that needs a connection returns an error that says why there is none:
/// this process may have no memory for a thread's stack.
fn lock_without_threads(url: &str) -> PartOutcome {
    let pages: u64 = fs::read_to_string("/proc/self/statm")?.split(' ').next().unwrap_or_default().parse()?;
    let current = Some(pages * u64::try_from(rustix::param::page_size())? + LITTLE);
    setrlimit(Resource::As, Rlimit { current, maximum: current })?;
    let error =
        Lock::new(&Locker::open(url)?, "threads", expiring())?.try_lock().expect_err("no thread connects");
    let text = chain(&error);
    if text.contains("no thread could be started to connect") { Ok(()) } else { Err(text.into()) }
}

/// Starts this program to do one part, and asserts that it ends well.
fn runs(part: &str) -> Outcome {
    let server = TestServer::start();
    let mut command = Command::new(env::current_exe()?);
    command.env(PART, part).env("REDIS_URL", server.url());
    let output = command.output()?;
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed);
    assert!(output.status.success() && !printed.contains("panicked"), "{printed}");
    Ok(())
}

fn a_locker_is_opened_where_no_thread_can_be_started() -> Outcome {
    runs("none")
}

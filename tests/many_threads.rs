//! Many more threads than connections, connecting while no thread waits, and the library's own threads.

use std::process::{Command, ExitCode};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};

use crate::support::scenario::opened;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "many_threads",
        tests![
            two_thousand_threads_on_the_default_pool,
            two_thousand_threads_on_one_connection,
            many_threads_that_release_by_transactions,
            many_threads_that_share_no_batches,
            more_threads_than_the_server_takes_clients,
            a_wrong_password_is_sent_only_while_a_call_waits,
            a_dead_server_is_left_alone_while_no_call_waits,
            lockers_leave_no_threads_behind,
            a_locker_is_opened_where_no_thread_can_be_started,
        ],
    )
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
fn patient() -> LockOptions {
    LockOptions::expiring_after(LONG * 10).timeout(LONG * 10)
}

fn two_thousand_threads_on_the_default_pool() -> Outcome {
    let server = RedisServer::start()?;
    all_succeed(&opened(&server.url())?, 2000, patient())
}

fn two_thousand_threads_on_one_connection() -> Outcome {
    let server = RedisServer::start()?;
    all_succeed(&patient_locker(&server)?.pool_size(1).build()?, 2000, patient())
}

/// A release has the time of one command for all that it waits for.
fn patient_locker(server: &RedisServer) -> Result<setnx_lock::LockerBuilder, Error> {
    crate::support::scenario::patient(&server.url())
}

fn many_threads_that_release_by_transactions() -> Outcome {
    let server = RedisServer::start()?;
    all_succeed(&patient_locker(&server)?.build()?, 500, patient().protocol(Protocol::Watched))
}

fn many_threads_that_share_no_batches() -> Outcome {
    let server = RedisServer::start()?;
    all_succeed(&patient_locker(&server)?.build()?.pipelining(false), 500, patient())
}

fn more_threads_than_the_server_takes_clients() -> Outcome {
    let server = RedisServer::start_with("maxclients 3")?;
    for pipelining in [true, false] {
        all_succeed(&patient_locker(&server)?.build()?.pipelining(pipelining), 100, patient())?;
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

fn a_wrong_password_is_sent_only_while_a_call_waits() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    let url = server.url().replace("redis://", "redis://:secret@");
    let locker = opened(&server.url().replace("redis://", "redis://:wrong@"))?;
    let lock = Lock::new(&locker, "password", expiring())?;
    for _ in 0..10 {
        let error = lock.lock().expect_err("the password is wrong");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    }
    let before = accepted(&url)?;
    assert!(before <= 2 + 10, "one attempt for each call at most: {before}");
    thread::sleep(millis(500));
    // The connection that asks is the only one since.
    assert_eq!(accepted(&url)?, before + 1);
    Ok(())
}

fn a_dead_server_is_left_alone_while_no_call_waits() -> Outcome {
    let mut server = RedisServer::start()?;
    let locker = Locker::builder(&server.url())?.unreachable_timeout(millis(100)).build()?;
    let lock = Lock::new(&locker, "dead", expiring())?;
    server.stop();
    for _ in 0..3 {
        assert!(matches!(lock.lock(), Err(Error::NoConnection { .. })));
    }
    server.restart()?;
    let before = accepted(&server.url())?;
    thread::sleep(millis(500));
    assert_eq!(accepted(&server.url())?, before + 1, "no call waits for a connection");
    drop(lock.lock()?);
    Ok(())
}

/// Names what a process that is started for one of the tests below does.
const PART: &str = "SETNX_LOCK_TEST_THREADS";

/// What the process does that was started to count its threads, or to have none.
pub(crate) fn as_worker() -> Option<ExitCode> {
    let (part, url) = (env::var(PART).ok()?, env::var("REDIS_URL").unwrap_or_default());
    let outcome = match part.as_str() {
        "count" => count_threads(&url),
        _ => lock_without_threads(&url),
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    })
}

fn threads() -> Result<usize, Box<dyn std::error::Error>> {
    Ok(fs::read_dir("/proc/self/task")?.count())
}

/// Uses and drops lockers, and ends well if no thread is left.
fn count_threads(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let before = threads()?;
    for number in 0..300 {
        let locker = opened(url)?;
        if number % 10 == 0 {
            drop(Lock::new(&locker, "threads", expiring())?.lock()?);
        }
    }
    let end = Instant::now() + LONG;
    while threads()? > before {
        if Instant::now() > end {
            return Err(format!("{} threads are left, {before} were there", threads()?).into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Ends well if a locker is opened, and a lock that needs a connection returns an error that says why there is none.
fn lock_without_threads(url: &str) -> Result<(), Box<dyn std::error::Error>> {
    let error =
        Lock::new(&Locker::open(url)?, "threads", expiring())?.try_lock().expect_err("no thread connects");
    let text = crate::support::chain(&error);
    if text.contains("no thread could be started to connect") { Ok(()) } else { Err(text.into()) }
}

/// Starts this program to do one part, and asserts that it ends well.
fn runs(part: &str, stack: Option<&str>) -> Outcome {
    let server = RedisServer::start()?;
    let mut command = Command::new(env::current_exe()?);
    command.env(PART, part).env("REDIS_URL", server.url());
    if let Some(stack) = stack {
        command.env("RUST_MIN_STACK", stack);
    }
    let output = command.output()?;
    let printed =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert!(!printed.contains("panicked"), "{printed}");
    Ok(())
}

fn lockers_leave_no_threads_behind() -> Outcome {
    runs("count", None)
}

/// No thread starts whose stack is larger than the memory that a process can have.
fn a_locker_is_opened_where_no_thread_can_be_started() -> Outcome {
    runs("none", Some("1000000000000000"))
}

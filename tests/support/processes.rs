//! The workers of tests with several processes. They run the suite's own program.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use std::{env, fs, io, iter, thread};

use setnx_lock::{Error, Lock, LockOptions, LossReason, Protocol};

use crate::api::{cron, fencing};
use crate::faults::{clocks, forks, keeping, sockets, stacks};
use crate::support::{LONG, Variant, millis};
use crate::threads::{notifications, notified_permits, permits};

/// Makes this program a worker. Its value is the task and the task's arguments, separated by commas.
pub(crate) const TASK: &str = "SETNX_LOCK_TEST_WORKER";

const THREADS: usize = 2;

/// Performs the task of a worker if this process was started as one.
pub(crate) fn as_worker() -> Option<ExitCode> {
    let task = env::var(TASK).ok()?;
    let words: Vec<&str> = task.split(',').collect();
    let performed = match words.as_slice() {
        ["hold", url, key, expiration, protocol, variant] => hold(url, key, expiration, protocol, variant),
        ["churn", url, key, file, rounds, expiration, protocol, variant] => {
            churn(url, key, Path::new(file), [rounds, expiration, protocol, variant])
        }
        ["take_over", url, key, protocol] => clocks::take_over(url, key, protocol),
        ["take_over_on_each", urls, key, expiration, allowance, protocol] => {
            clocks::take_over_on_each(urls, key, [expiration, allowance, protocol])
        }
        ["report_the_lease", url, key, expiration] => clocks::set::report_the_lease(url, key, expiration),
        ["notice_the_loss", url, key, expiration] => clocks::set::notice_the_loss(url, key, expiration),
        ["notifications", task @ ..] => notifications::as_worker(task),
        ["keep", url, key, expiration, protocol] => keeping::as_worker(url, key, expiration, protocol),
        ["forked", url, how] => forks::as_worker(url, how),
        ["siblings", url] => forks::siblings(url),
        ["stack", url, kib] => stacks::as_worker(url, kib),
        ["count_keepers", url] => keeping::count_keepers(url),
        ["fenced", url, key, protocol] => fencing::as_worker(url, key, protocol),
        ["cron", url, key, file, at_least, protocol] => cron::as_worker(url, key, file, at_least, protocol),
        ["acquire_for_each_line", url, key] => sockets::acquire_for_each_line(url, key),
        ["notified_permits", task @ ..] => notified_permits::as_worker(task),
        ["permits", task @ ..] => permits::as_worker(task),
        _ => Err(format!("no such task: {task}").into()),
    };
    Some(performed.map_or_else(
        |error| {
            eprintln!("worker: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}

/// Starts a worker.
pub(crate) fn worker(task: &[&str]) -> io::Result<Child> {
    Command::new(env::current_exe()?)
        .env(TASK, task.join(","))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
}

/// The outcome of a task.
pub(crate) type TaskOutcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Acquires the lock, prints `holding`, and holds it for a minute, or until killed.
fn hold(url: &str, key: &str, expiration: &str, protocol: &str, variant: &str) -> TaskOutcome {
    let expiration = humantime::parse_duration(expiration)?;
    let options = LockOptions::expiring_after(expiration).protocol(protocol_named(protocol)?);
    let variant = Variant::named(variant)?;
    let (locker, contention) = variant.open(url)?;
    let held = Lock::new(&locker, key, variant.set(options))?.lock()?;
    // Ends the load threads, so that a kill leaves none of their keys behind.
    drop(contention);
    println!("holding");
    thread::sleep(LONG);
    drop(held);
    Ok(())
}

/// Prints `ready`, waits for a line of input, and increments the number in a file under the lock, as the peer in Ruby
/// does. It runs two threads, so that a release asks for the next. `rounds` are those of both.
fn churn(
    url: &str,
    key: &str,
    file: &Path,
    [rounds, expiration, protocol, variant]: [&str; 4],
) -> TaskOutcome {
    let rounds = rounds.parse::<usize>()? / THREADS;
    let options = LockOptions::expiring_after(Duration::from_secs(expiration.parse()?));
    let variant = Variant::named(variant)?;
    let (locker, _load_threads) = variant.open(url)?;
    let options = variant.set(options.protocol(protocol_named(protocol)?).timeout(LONG));
    let lock = Lock::new(&locker, key, options)?;
    println!("ready");
    io::stdin().read_line(&mut String::new())?;
    thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(|| churn_on_a_thread(&lock, file, rounds)));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

fn churn_on_a_thread(lock: &Lock, file: &Path, rounds: usize) -> TaskOutcome {
    for round in 0..rounds {
        let work = || -> TaskOutcome {
            let number: u32 = fs::read_to_string(file)?.trim().parse()?;
            thread::sleep(millis(2));
            Ok(fs::write(file, (number + 1).to_string())?)
        };
        if round % 4 > 0 {
            lock.with_result(|_| work())?;
        } else {
            // It goes on by a token. One that a gem has overwritten just before is lost, and no work was done. No client
            // has the lock then, but the gem's value would stay for minutes.
            let resumed = || {
                let held = lock.lock()?.into_token().and_then(|token| lock.resume(&token));
                if let Err(Error::Lost { reason: LossReason::Taken(_), .. }) = &held {
                    lock.clear()?;
                }
                held
            };
            let held = iter::repeat_with(resumed).find(|held| !held.as_ref().is_err_and(Error::is_lost));
            let held = held.expect("it is repeated until then")?;
            work()?;
            held.release()?;
        }
        // From 0 to 7 ms, at random.
        thread::sleep(millis(RandomState::new().hash_one(round) % 8));
    }
    Ok(())
}

pub(crate) fn protocol_named(name: &str) -> Result<Protocol, String> {
    [Protocol::Auto, Protocol::Classic, Protocol::Watched, Protocol::Ttl]
        .into_iter()
        .find(|protocol| format!("{protocol:?}").to_lowercase() == name)
        .ok_or_else(|| format!("no such protocol: {name}"))
}

//! Options and settings at their extremes, in any combination: a call ends with a lock or an error, and never panics.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use setnx_lock::{CancelToken, Error, Lock, LockGuard, LockOptions, Locker, Protocol};
use setnx_lock_testing::TestServer;

use crate::support::{LONG, Outcome, trials_of};

trials_of! {
    "extremes";
    any_options_and_settings,
}

const NANO: Duration = Duration::from_nanos(1);
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// How long calls may go on that would go on for ever.
const BEFORE_CANCELLING: Duration = Duration::from_millis(20);
/// The last that a wall clock in microseconds can be ahead, about.
const AGES: Duration = Duration::from_micros(u64::MAX);

fn durations() -> impl Strategy<Value = Duration> {
    prop::sample::select(vec![Duration::ZERO, NANO, MILLI, SECOND, AGES, Duration::MAX])
}

fn options() -> impl Strategy<Value = LockOptions> {
    let protocols = [Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto];
    (
        prop::option::of(durations()),
        prop::option::of(durations()),
        durations(),
        prop::sample::select(protocols.to_vec()),
        any::<bool>(),
    )
        .prop_map(|(expiration, timeout, interval, protocol, notifies)| {
            let options = expiration.map_or(LockOptions::without_expiration(), LockOptions::expiring_after);
            let options = timeout.map_or(options.wait_forever(), |timeout| options.timeout(timeout));
            let options = options.poll_interval(interval).protocol(protocol);
            if notifies { options.notify_waiters(true) } else { options }
        })
}

type Settings = ([Duration; 3], u32);

fn settings() -> impl Strategy<Value = Settings> {
    let pool_sizes = prop::sample::select(vec![1, 10, 65_535]);
    // Zero is refused.
    let limit = || durations().prop_map(|limit| limit.max(NANO));
    ([limit().boxed(), limit().boxed(), durations().boxed()], pool_sizes)
}

/// What a key holds before a call.
fn values() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "1",
        "0",
        "1532000016.5000000000000001",
        "1895000000.5000000000000001",
        "1e400",
        "-1e400",
        "99999999999999999999",
    ])
}

fn locker(url: &str, ([connect, command, unreachable], pool_size): Settings) -> Result<Locker, Error> {
    Locker::builder(url)?
        .connect_timeout(connect)
        .command_timeout(command)
        .retry_for(unreachable)
        .pool_size(pool_size)
        .build()
}

/// Acquires a free lock, waits for a held one, and releases, until all
/// waits are cancelled. Whatever comes of it is right, if it comes.
fn exercise(
    url: &str,
    settings: Settings,
    options: LockOptions,
    found: &str,
    wait: Duration,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut direct = redis::Client::open(url)?.get_connection()?;
    redis::cmd("FLUSHALL").exec(&mut direct)?;
    redis::cmd("SET").arg("extremes:found").arg(found).exec(&mut direct)?;
    let locker = locker(url, settings)?;
    let token = CancelToken::new();
    let lock = |key: &str| Ok::<_, Error>(Lock::new(&locker, key, options)?.cancelled_by(&token));
    let (free, key) = (lock("extremes:free")?, lock("extremes:found")?);
    let _ = format!("{options:?} {locker:?} {free:?}");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(BEFORE_CANCELLING);
            token.cancel();
        });
        let held = free.lock();
        if let Ok(held) = &held {
            let _ = (held.remaining(), held.expires_at(), held.ensure_held(), format!("{held:?}"));
            let _contended = free.try_lock_for(wait);
        }
        drop(held);
        let _ = key.try_lock_for(wait).map(|held| held.map(LockGuard::release));
        let _ = free.with(LockGuard::remaining);
    });
    let _ = (key.state(), key.clear(), free.clear());
    Ok(())
}

fn any_options_and_settings() -> Outcome {
    let server = TestServer::start();
    let url = server.url();
    let all = (settings(), options(), values(), durations());
    TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() }).run(
        &all,
        |(settings, options, found, wait)| {
            let (sender, ended) = mpsc::channel();
            let url = url.clone();
            let call = thread::spawn(move || {
                let outcome =
                    exercise(&url, settings, options, found, wait).map_err(|error| error.to_string());
                // The receiver has gone only if this took too long.
                let _ = sender.send(());
                outcome
            });
            prop_assert!(
                ended.recv_timeout(LONG) != Err(mpsc::RecvTimeoutError::Timeout),
                "a call that was cancelled does not end"
            );
            prop_assert!(call.join().is_ok(), "it panicked");
            Ok(())
        },
    )?;
    Ok(())
}

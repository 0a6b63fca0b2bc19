//! How long a call takes: the rows of the table in `docs/limits.md`. The time is the server's, which sends each reply late. So a call has taken longer
//! than it may if it makes more trips than fit into its limit, or uses a reply that comes after it; and one that a busy machine delays makes fewer.

use std::sync::Arc;
use std::time::Duration;
use std::{fs, mem, thread};

use libtest_mimic::Trial;
use setnx_lock::{
    Error, Lock, LockGuard, LockOptions, Locker, MultiLock, MultiLockGuard, Protocol, Semaphore,
};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, tests};

const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);
/// The timeout of a lock.
const TIMEOUT: Duration = COMMAND_TIMEOUT;
/// How late each reply is: two fit into a command timeout.
const LATE: Duration = Duration::from_millis(90);
const RETRY_FOR: Duration = Duration::from_millis(400);
/// So many cuts, each before or after another command of the call.
const CUTS: usize = 4;
/// A failed release is tried again soon, which a machine that stalls may count to the call.
const TRIES: usize = 5;

const ONE: &str = "`try_lock()`, `resume()`, `release()`, `extend()`, `verify()`, `fencing_token()`, `into_token()`, `state()`, `holder()`, `clear()`";

/// The rows: the calls, within which time each returns, and the trials for it.
const ROWS: [(&str, &str); 8] = [
    (
        "`lock()`, `try_lock_for()`, acquiring in `with()`, `acquire()` of a permit",
        "the timeout plus one command timeout",
    ),
    (
        "the same with `wait_forever()`",
        "no limit; keeps waiting while all connections are in use, or the server [refuses for now][operations.md#a-server-that-refuses-for-now]",
    ),
    (
        "either, while the server is unreachable or a replica",
        "`retry_for`, or the timeout if shorter, plus one connect timeout",
    ),
    (ONE, "one command timeout"),
    ("`release_token()`", "two command timeouts"),
    ("acquiring several keys", "as for one key, plus up to four command timeouts"),
    (
        "calls on the guard of several keys",
        "as for one key; in a cluster, plus one command timeout: a node may hang, or have fewer connections than slots",
    ),
    ("`ensure_held()`, `remaining()`, `is_lost()`", "at once"),
];

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "time_limits",
        tests![
            the_table_has_these_rows,
            acquiring_takes_the_timeout_and_a_command_timeout,
            waiting_for_ever_has_no_limit,
            a_replica_is_asked_for_retry_for_and_a_connect_timeout,
            a_call_on_one_lock_takes_a_command_timeout,
            releasing_a_token_takes_two_command_timeouts,
            acquiring_several_keys_takes_four_command_timeouts_more,
            a_call_on_several_keys_takes_a_command_timeout,
            what_is_known_is_said_at_once,
        ],
    )
}

fn the_table_has_these_rows() -> Outcome {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/limits.md"))?;
    let (_, table) = page.split_once("| call | returns within |\n|---|---|\n").expect("the table");
    let rows = table.lines().map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    assert_eq!(rows.collect::<Vec<_>>(), ROWS);
    Ok(())
}

/// A server, a locker on it, and options.
#[derive(Clone)]
struct Stage {
    server: Arc<TestServer>,
    locker: Locker,
    options: LockOptions,
}

/// A call that is ready to be made. Returns true if it succeeds.
type Ready = Box<dyn FnOnce() -> bool + Send>;
/// A call, by its name.
type Call = (&'static str, fn(&Stage) -> Result<Ready, Error>);

impl Stage {
    fn of(protocol: Protocol) -> Result<Self, Error> {
        let server = Arc::new(TestServer::start());
        let builder = Locker::builder(&server.url())?.connect_timeout(LONG).command_timeout(COMMAND_TIMEOUT);
        let locker = builder.retry_for(RETRY_FOR).pool_size(2).build()?;
        let options = LockOptions::expiring_after(LONG).protocol(protocol).timeout(TIMEOUT);
        let stage = Self { server, locker, options };
        stage.lock("first")?.lock()?.release()?;
        Ok(stage)
    }

    fn lock(&self, key: &str) -> Result<Lock, Error> {
        Lock::new(&self.locker, key, self.options)
    }

    fn held(&self) -> Result<LockGuard, Error> {
        self.lock("held")?.lock()
    }

    fn several(&self, keys: usize) -> Result<MultiLock, Error> {
        MultiLock::new(&self.locker, (0..keys).map(|n| format!("k{n}")), self.options)
    }
}

/// Returns true if a call has succeeded. Its guard is not dropped: that would send commands.
fn kept<T>(outcome: Result<T, Error>) -> bool {
    outcome.map(mem::forget).is_ok()
}

/// The same of one that may return no guard.
fn acquired<T>(outcome: Result<Option<T>, Error>) -> bool {
    outcome.is_ok_and(|guard| guard.map(mem::forget).is_some())
}

/// Has each call end within its limit, by each protocol.
#[track_caller]
fn assert_within(limit: Duration, calls: &[Call]) -> Outcome {
    let calls = calls.iter().flat_map(|call| PROTOCOLS.map(|protocol| (protocol, *call)));
    let running: Vec<_> = calls
        .map(|(protocol, call)| {
            thread::spawn(move || within(limit, protocol, call).map_err(|error| error.chain().to_string()))
        })
        .collect();
    for running in running {
        running.join().expect("no thread panics")?.map_or(Ok(()), Err)?;
    }
    Ok(())
}

/// Returns how a call exceeds its limit, if it does.
fn within(limit: Duration, protocol: Protocol, (name, prepare): Call) -> Result<Option<String>, Error> {
    let stage = Stage::of(protocol)?;
    let ready = prepare(&stage)?;
    stage.server.delay(limit * 5 / 4);
    if ready() {
        return Ok(Some(format!("{protocol:?} {name}: it has used a reply that came after {limit:?}")));
    }
    let fit = 1 + usize::try_from(limit.as_millis() / LATE.as_millis()).unwrap_or(usize::MAX);
    let faults = (1..=CUTS).flat_map(|nth| [Some((nth, Fault::CutBefore)), Some((nth, Fault::CutAfter))]);
    for fault in faults.chain([None]) {
        // A command that is cut off is not late.
        let most = fit + usize::from(fault.is_some());
        let mut made = trips(protocol, prepare, fault.as_ref())?;
        for _ in 1..TRIES {
            if made > most {
                made = trips(protocol, prepare, fault.as_ref())?;
            }
        }
        if made > most {
            let text = format!("{protocol:?} {name}, {fault:?}: {made} trips, and {most} fit into {limit:?}");
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// Makes a call, with a fault at the nth of its commands. Returns how often it goes to the server, which replies late.
fn trips(
    protocol: Protocol,
    prepare: fn(&Stage) -> Result<Ready, Error>,
    fault: Option<&(usize, Fault)>,
) -> Result<usize, Error> {
    let stage = Stage::of(protocol)?;
    let ready = prepare(&stage)?;
    stage.server.clear_log();
    stage.server.delay(LATE);
    if let Some((nth, fault)) = fault {
        stage.server.at(*nth, fault.clone());
    }
    ready();
    Ok(stage.server.batches().len())
}

fn acquiring_takes_the_timeout_and_a_command_timeout() -> Outcome {
    let calls: [Call; 5] = [
        ("lock", |stage| {
            let lock = stage.lock("k")?;
            Ok(Box::new(move || kept(lock.lock())))
        }),
        ("lock, held by another", |stage| {
            stage.server.hold("k", LONG);
            let lock = stage.lock("k")?;
            Ok(Box::new(move || kept(lock.lock())))
        }),
        ("lock, expired", |stage| {
            stage.server.run(&["SET", "k", "1532000016.5"]);
            let lock = stage.lock("k")?;
            Ok(Box::new(move || kept(lock.lock())))
        }),
        ("try_lock_for", |stage| {
            let lock = stage.lock("k")?;
            Ok(Box::new(move || acquired(lock.try_lock_for(TIMEOUT))))
        }),
        ("acquire", |stage| {
            let permits = Semaphore::new(&stage.locker, "permits", 3, stage.options)?;
            Ok(Box::new(move || kept(permits.acquire())))
        }),
    ];
    assert_within(TIMEOUT + COMMAND_TIMEOUT, &calls)
}

fn waiting_for_ever_has_no_limit() -> Outcome {
    for protocol in PROTOCOLS {
        let stage = Stage::of(protocol)?;
        let lock = Lock::new(&stage.locker, "k", stage.options.wait_forever())?;
        stage.server.fill_up();
        let waiting = thread::spawn(move || kept(lock.lock()));
        thread::sleep(2 * (TIMEOUT + COMMAND_TIMEOUT + RETRY_FOR));
        assert!(!waiting.is_finished(), "{protocol:?}");
        stage.server.free_memory();
        assert!(waiting.join().expect("it does not panic"));
    }
    Ok(())
}

/// Each look at the server is a new connection, which is answered late.
fn a_replica_is_asked_for_retry_for_and_a_connect_timeout() -> Outcome {
    let server = TestServer::start();
    server.become_replica();
    server.delay(LATE);
    let connect_timeout = 2 * LATE;
    for options in
        [LockOptions::expiring_after(LONG).timeout(LONG), LockOptions::expiring_after(LONG).wait_forever()]
    {
        let builder = Locker::builder(&server.url())?.connect_timeout(connect_timeout).retry_for(RETRY_FOR);
        let lock = Lock::new(&builder.command_timeout(LONG).build()?, "k", options)?;
        server.clear_log();
        let error = lock.lock().expect_err("it is a replica");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let looks = server.whole_log().iter().filter(|asked| asked.name == "INFO").count();
        let fit = 1 + usize::try_from((RETRY_FOR + connect_timeout).as_millis() / LATE.as_millis())?;
        assert!((2..=fit).contains(&looks), "{looks} looks, and {fit} fit");
    }
    Ok(())
}

fn a_call_on_one_lock_takes_a_command_timeout() -> Outcome {
    let calls: [Call; 12] = [
        ("try_lock", |stage| {
            let lock = stage.lock("k")?;
            Ok(Box::new(move || acquired(lock.try_lock())))
        }),
        ("try_lock, expired", |stage| {
            stage.server.run(&["SET", "k", "1532000016.5"]);
            let lock = stage.lock("k")?;
            Ok(Box::new(move || acquired(lock.try_lock())))
        }),
        ("resume", |stage| {
            let (token, lock) = (stage.held()?.into_token()?, stage.lock("held")?);
            Ok(Box::new(move || kept(lock.resume(&token))))
        }),
        ("release", |stage| {
            let held = stage.held()?;
            Ok(Box::new(move || held.release().is_ok()))
        }),
        ("extend", |stage| on_guard(stage, LockGuard::extend)),
        ("extend, with a token", |stage| {
            let stage = Stage { options: stage.options.forget_tokens_after(2 * LONG), ..stage.clone() };
            let held = stage.held()?;
            held.fencing_token()?;
            Ok(calling(held, LockGuard::extend))
        }),
        ("verify", |stage| on_guard(stage, LockGuard::verify)),
        ("fencing_token", |stage| on_guard(stage, |held| held.fencing_token().map(drop))),
        ("into_token, after an extension without a reply", |stage| {
            let held = stage.held()?;
            stage.server.next("EXEC", Fault::CutBefore);
            stage.server.next("GETSET", Fault::CutBefore);
            let _ = held.extend();
            stage.server.clear_faults();
            Ok(Box::new(move || held.into_token().is_ok()))
        }),
        ("state", |stage| on_lock(stage, |lock| lock.state().map(drop))),
        ("holder", |stage| on_lock(stage, |lock| lock.holder().map(drop))),
        ("clear", |stage| on_lock(stage, |lock| lock.clear().map(drop))),
    ];
    assert_within(COMMAND_TIMEOUT, &calls)
}

fn on_guard(stage: &Stage, call: fn(&LockGuard) -> Result<(), Error>) -> Result<Ready, Error> {
    Ok(calling(stage.held()?, call))
}

/// A call on a guard, which is not dropped.
fn calling<G: Send + 'static>(held: G, call: fn(&G) -> Result<(), Error>) -> Ready {
    Box::new(move || {
        let outcome = call(&held);
        mem::forget(held);
        outcome.is_ok()
    })
}

fn on_lock(stage: &Stage, call: fn(&Lock) -> Result<(), Error>) -> Result<Ready, Error> {
    let lock = stage.lock("k")?;
    Ok(Box::new(move || call(&lock).is_ok()))
}

fn releasing_a_token_takes_two_command_timeouts() -> Outcome {
    let calls: [Call; 1] = [("release_token", |stage| {
        let (token, locker) = (stage.held()?.into_token()?, stage.locker.clone());
        Ok(Box::new(move || locker.release_token(&token).is_ok()))
    })];
    assert_within(2 * COMMAND_TIMEOUT, &calls)
}

fn acquiring_several_keys_takes_four_command_timeouts_more() -> Outcome {
    let calls: [Call; 3] = [
        ("3 keys", |stage| {
            let locks = stage.several(3)?;
            Ok(Box::new(move || kept(locks.lock())))
        }),
        ("10 keys", |stage| {
            let locks = stage.several(10)?;
            Ok(Box::new(move || kept(locks.lock())))
        }),
        ("10 keys, the last held by another", |stage| {
            stage.server.hold("k9", LONG);
            let locks = stage.several(10)?;
            Ok(Box::new(move || kept(locks.lock())))
        }),
    ];
    assert_within(TIMEOUT + 5 * COMMAND_TIMEOUT, &calls)
}

fn a_call_on_several_keys_takes_a_command_timeout() -> Outcome {
    let calls: [Call; 5] = [
        ("extend 3", |stage| on_guards(stage, 3, MultiLockGuard::extend)),
        ("extend 10", |stage| on_guards(stage, 10, MultiLockGuard::extend)),
        ("verify 10", |stage| on_guards(stage, 10, MultiLockGuard::verify)),
        ("fencing_tokens 10", |stage| on_guards(stage, 10, |held| held.fencing_tokens().map(drop))),
        ("release 10", |stage| {
            let held = stage.several(10)?.lock()?;
            Ok(Box::new(move || held.release().is_ok()))
        }),
    ];
    assert_within(COMMAND_TIMEOUT, &calls)
}

fn on_guards(
    stage: &Stage,
    keys: usize,
    call: fn(&MultiLockGuard) -> Result<(), Error>,
) -> Result<Ready, Error> {
    Ok(calling(stage.several(keys)?.lock()?, call))
}

/// The server answers nothing any more.
fn what_is_known_is_said_at_once() -> Outcome {
    let stage = Stage::of(Protocol::Auto)?;
    let (held, several) = (stage.held()?, stage.several(3)?.lock()?);
    let signal = held.loss_signal();
    stage.server.clear_log();
    stage.server.hang();
    held.ensure_held()?;
    several.ensure_held()?;
    assert!(held.remaining().is_some() && several.remaining().is_some() && !signal.is_lost());
    assert_eq!(stage.server.names(), Vec::<String>::new());
    stage.server.resume();
    Ok(())
}

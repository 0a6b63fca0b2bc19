//! Commands of several threads travel together on few connections. Each thread gets the outcome that it would get alone.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, Locker, LockerBuilder, RefusalKind};
use setnx_lock_testing::{Proxy, Received, TestServer};

use crate::support::contention::{await_batch_of, contention, contention_with_faults, pairs};
use crate::support::scenario::Scenario;
use crate::support::{LONG, Outcome, Target, expiring, releases, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "pipelining",
        tests![
            each_thread_gets_the_reply_to_its_own_command,
            a_refusal_goes_to_the_thread_whose_command_was_refused,
        ],
    )
}

/// What a thread does in a loop.
type Work<'a> = Box<dyn FnMut() -> Result<(), Error> + 'a>;

/// How many threads send commands at the same time.
pub(crate) const THREADS: usize = 12;

/// A locker with one connection, so that any two threads share it, and with time limits that no load exceeds.
pub(crate) fn with_one_connection(url: &str) -> Locker {
    one_connection(url).build().unwrap()
}

pub(crate) fn one_connection(url: &str) -> LockerBuilder {
    Locker::builder(url)
        .unwrap()
        .pool_size(1)
        .command_timeout(LONG)
        .retry_for(LONG)
        .observer(releases::record)
}

fn assert_one_connection(server: &Proxy) {
    assert!(server.log().iter().all(|asked| asked.connection == 0), "the connection stays in use");
}

fn each_thread_gets_the_reply_to_its_own_command() -> Outcome {
    let scenario = Scenario::set();
    let locker = with_one_connection(&scenario.server.url());
    let mut direct = scenario.target.connection();
    for n in 0..THREADS {
        let () = direct.set(format!("taken:{n}"), format!("18950000{n:02}.5"))?;
    }
    let states = Mutex::new(HashSet::new());
    await_batch_of(&scenario.server, 4);
    let errors = contention_with_faults(THREADS, &scenario.server, |n| -> Work<'_> {
        let taken = Lock::new(&locker, format!("taken:{n}"), expiring()).unwrap();
        match n % 4 {
            0 => Box::new(pairs(&scenario.target, &locker, &format!("free:{n}"), expiring(), false)),
            1 => Box::new(move || {
                assert!(taken.try_lock()?.is_none());
                Ok(())
            }),
            2 => {
                let state = taken.state().unwrap();
                assert!(
                    states.lock().unwrap().insert(state.to_string()),
                    "the state of another key: {state}"
                );
                Box::new(move || {
                    assert_eq!(taken.state()?, state);
                    Ok(())
                })
            }
            _ => {
                let mut direct = scenario.target.connection();
                let cleared = Lock::new(&locker, format!("cleared:{n}"), expiring()).unwrap();
                Box::new(move || {
                    let () = direct.set(format!("cleared:{n}"), "1").unwrap();
                    assert!(cleared.clear()? && !cleared.clear()?);
                    Ok(())
                })
            }
        }
    });
    assert!(errors.is_empty(), "{errors:?}");
    assert_one_connection(&scenario.server);
    Ok(())
}

fn a_refusal_goes_to_the_thread_whose_command_was_refused() -> Outcome {
    let rules = "user weak on >pw ~list:* ~free:* &* +@all";
    let server = Arc::new(TestServer::builder().config(rules).start());
    let target = Target::of(&server);
    let locker = with_one_connection(&server.url().replace("redis://", "redis://weak:pw@"));
    for n in 0..THREADS {
        let () = target.connection().rpush(format!("list:{n}"), "item")?;
    }
    // Whether a command is refused that precedes others in its batch.
    let precedes_others = |name: &str, key: &str| {
        let is = |asked: &Received, key: &str| asked.arguments[0].starts_with(key);
        server.batches().iter().any(|batch| {
            let refused = batch.iter().position(|asked| asked.name == name && is(asked, key));
            refused.is_some_and(|refused| batch[refused..].iter().any(|asked| is(asked, "free:")))
        })
    };
    // Tries to acquire a lock, and is refused each time, for this reason.
    let refused = |key: String, kind: RefusalKind| -> Work<'_> {
        let lock = Lock::new(&locker, key, expiring()).unwrap();
        Box::new(move || match lock.try_lock() {
            Err(Error::Refused { refusal, .. }) if refusal.kind() == kind => Ok(()),
            other => panic!("{other:?}"),
        })
    };
    let errors = contention(
        THREADS,
        "a refusal before other replies",
        || precedes_others("SETNX", "not:") && precedes_others("GET", "list:"),
        |n| match n % 3 {
            0 => refused(format!("not:{n}"), RefusalKind::NotPermitted),
            1 => refused(format!("list:{n}"), RefusalKind::WrongType),
            _ => Box::new(pairs(&target, &locker, &format!("free:{n}"), expiring(), false)),
        },
    );
    assert!(errors.is_empty(), "{errors:?}");
    assert_one_connection(&server);
    Ok(())
}

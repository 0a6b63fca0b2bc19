//! Threads that change their keys by transactions share two trips: WATCH and GET of each key, then all the changes and one EXEC. Each has the
//! outcome that it would have alone.

use std::thread;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockGuard, Protocol};
use setnx_lock_testing::{Fault, Received};

use crate::support::scenario::{FOREIGN, Scenario};
use crate::support::{
    Connections, LONG, Outcome, Release, TestKey, expiring, millis, release, releases, tests,
};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials_on_both(
        "shared_transactions",
        tests![
            threads_that_release_share_two_trips,
            threads_that_extend_share_two_trips,
            a_key_that_was_written_meanwhile_is_another_threads_matter,
            a_change_that_is_refused_is_another_threads_matter,
            a_key_that_is_touched_is_another_threads_matter,
            a_server_that_refuses_exec,
            a_server_that_refuses_multi,
            a_watch_that_is_refused_is_another_threads_matter,
            a_connection_that_is_cut_behind_exec,
        ],
    )
}

const THREADS: usize = 5;

type Released = Result<Release, Error>;

const CERTIFIED: Release = Release::Released { certified: true };

/// What is done while the first of these commands is held.
type Meanwhile<'a> = Option<(&'static str, &'a dyn Fn(&[TestKey]))>;

/// Where it took place, the keys, and what came of each thread.
type Round<T> = (Scenario, Vec<TestKey>, Vec<T>);

/// Has the threads do `work` with a lock each, all of them queued behind another thread's command, until their keys were watched in one trip.
fn together<T: Send>(
    connections: Connections,
    fault: Option<(&'static str, &Fault)>,
    meanwhile: Meanwhile<'_>,
    work: impl Fn(LockGuard) -> T + Copy + Send,
) -> Result<Round<T>, Box<dyn std::error::Error>> {
    loop {
        let scenario = Scenario::set();
        let locker = connections.to(&scenario.server.url(), 1).command_timeout(LONG).retry_for(LONG);
        let locker = scenario.open(locker.observer(releases::record));
        let lock =
            |key: &TestKey| Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched)).unwrap();
        let keys: Vec<TestKey> = (0..THREADS).map(|n| scenario.target.key(&format!("own:{n}"))).collect();
        let held: Vec<LockGuard> = keys.iter().map(|key| lock(key).lock()).collect::<Result<_, _>>()?;
        let other = scenario.target.key("other");
        let other = lock(&other);
        scenario.server.clear_log();
        let looking = scenario.server.pause("GET", 1);
        let changing = meanwhile.map(|(command, act)| (scenario.server.pause(command, 1), act));
        if let Some((command, fault)) = fault {
            scenario.server.next(command, fault.clone());
        }
        let outcomes = thread::scope(|scope| {
            let first = scope.spawn(|| other.state());
            looking.reached();
            let threads: Vec<_> = held.into_iter().map(|held| scope.spawn(move || work(held))).collect();
            // For the threads to queue. One that does not in this time makes another round.
            thread::sleep(millis(100));
            looking.go_on();
            if let Some((held, act)) = &changing {
                held.reached();
                act(&keys);
                held.go_on();
            }
            assert!(first.join().unwrap().is_ok());
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        if scenario.server.batches().iter().any(|batch| count(batch, "WATCH") == THREADS) {
            return Ok((scenario, keys, outcomes));
        }
    }
}

fn count(batch: &[Received], name: &str) -> usize {
    batch.iter().filter(|asked| asked.name == name).count()
}

fn names(batch: &[Received]) -> Vec<&str> {
    batch.iter().map(|asked| asked.name.as_str()).collect()
}

/// Asserts that each but the first released its lock, and returns what came of the first.
fn others_released(outcomes: Vec<Released>) -> Released {
    let mut outcomes = outcomes.into_iter();
    let first = outcomes.next().unwrap();
    for outcome in outcomes {
        assert_eq!(outcome.unwrap(), CERTIFIED);
    }
    first
}

fn threads_that_release_share_two_trips(connections: Connections) -> Outcome {
    let (scenario, _keys, released) = together(connections, None, None, release)?;
    assert_eq!(others_released(released)?, CERTIFIED);
    let batches = scenario.server.batches();
    let watching = batches.iter().position(|batch| count(batch, "WATCH") == THREADS).unwrap();
    assert_eq!(names(&batches[watching]), [["WATCH", "GET"].repeat(THREADS), vec!["MULTI"]].concat());
    assert_eq!(names(&batches[watching + 1]), [["DEL"].repeat(THREADS), vec!["EXEC"]].concat());
    Ok(())
}

fn threads_that_extend_share_two_trips(connections: Connections) -> Outcome {
    let extend = |held: LockGuard| held.extend().map(|()| held);
    let (scenario, _keys, extended) = together(connections, None, None, extend)?;
    for held in extended {
        assert_eq!(release(held?)?, CERTIFIED);
    }
    let changed = |batch: &Vec<Received>| names(batch) == [["SET"].repeat(THREADS), vec!["EXEC"]].concat();
    assert!(scenario.server.batches().iter().any(changed), "{:?}", scenario.server.batches());
    Ok(())
}

fn a_key_that_was_written_meanwhile_is_another_threads_matter(connections: Connections) -> Outcome {
    let (_, keys, released) =
        together(connections, None, Some(("DEL", &|keys| keys[0].set(FOREIGN))), release)?;
    assert_eq!(others_released(released)?, Release::Lost);
    assert_eq!(keys[0].value().as_deref(), Some(FOREIGN));
    Ok(())
}

fn a_change_that_is_refused_is_another_threads_matter(connections: Connections) -> Outcome {
    let refusal = Fault::Say("-OOM command not allowed when used memory > 'maxmemory'\r\n");
    let (_, _, mut released) = together(connections, Some(("DEL", &refusal)), None, release)?;
    let is_refused = |released: &Released| matches!(released, Err(Error::Refused { .. }));
    let first = released.iter().position(is_refused).ok_or("the server refused one")?;
    drop(released.remove(first));
    for released in released {
        assert_eq!(released?, CERTIFIED);
    }
    Ok(())
}

/// The server says it of EXEC, and may mean any of them.
fn a_key_that_is_touched_is_another_threads_matter(connections: Connections) -> Outcome {
    let touch = |keys: &[TestKey]| keys[0].touch();
    let (scenario, keys, released) = together(connections, None, Some(("DEL", &touch)), release)?;
    for released in released {
        assert_eq!(released?, CERTIFIED, "each was changed alone");
    }
    assert!(keys.iter().all(|key| key.value().is_none()));
    let last = scenario.server.batches().into_iter().rev().filter(|batch| count(batch, "WATCH") > 0);
    assert!(last.take(THREADS).all(|batch| count(&batch, "WATCH") == 1), "{:?}", scenario.server.batches());
    Ok(())
}

fn a_server_that_refuses_exec(connections: Connections) -> Outcome {
    let refusal = Fault::Say("-ERR command not allowed when used memory > 'maxmemory'\r\n");
    let (_, _, released) = together(connections, Some(("EXEC", &refusal)), None, release)?;
    assert_eq!(others_released(released)?, CERTIFIED, "it was changed alone");
    Ok(())
}

/// Then nothing is on its way that would change a key outside of a transaction.
fn a_server_that_refuses_multi(connections: Connections) -> Outcome {
    let refusal = Fault::Say("-NOPERM this user has no permissions to run the 'multi' command\r\n");
    let (scenario, _keys, released) = together(connections, Some(("MULTI", &refusal)), None, release)?;
    for released in released {
        let refused = matches!(&released, Err(Error::Refused { .. }));
        assert!(refused, "{released:?}");
    }
    assert!(!scenario.server.names().contains(&"DEL".to_string()));
    Ok(())
}

fn a_watch_that_is_refused_is_another_threads_matter(connections: Connections) -> Outcome {
    let refusal = Fault::Say("-WRONGTYPE Operation against a key holding the wrong kind of value\r\n");
    let (scenario, _keys, mut released) = together(connections, Some(("WATCH", &refusal)), None, release)?;
    let refused = released.extract_if(.., |released| matches!(released, Err(Error::Refused { .. })));
    assert_eq!(refused.count(), 1);
    for released in released {
        assert_eq!(released?, CERTIFIED);
    }
    assert!(scenario.server.log().iter().all(|asked| asked.connection == 0), "the connection stays in use");
    Ok(())
}

/// It may be watched no more, and each finds out by reading its key, once.
fn a_connection_that_is_cut_behind_exec(connections: Connections) -> Outcome {
    let (scenario, _keys, released) = together(connections, Some(("EXEC", &Fault::CutAfter)), None, release)?;
    for released in released {
        assert_eq!(released?, Release::Released { certified: false });
    }
    assert_eq!(scenario.server.names().iter().filter(|name| *name == "EXEC").count(), 1);
    Ok(())
}

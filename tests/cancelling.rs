//! Waits that are ended from outside: by a canceller, by a signal, by shutting the locker down.

use std::io::{BufRead as _, BufReader};
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use setnx_lock::{Canceller, Error, Lock, LockGuard, LockOptions, Locker, Release};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;

use crate::processes::{Played, worker};
use crate::servers::{Fault, Gate};
use crate::support::asleep::asleep;
use crate::support::monitor::connected;
use crate::support::{Ground, LONG, Outcome, RedisServer, TestKey, Way, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "cancelling",
        tests![
            a_cancelled_wait_ends_at_once_and_says_so,
            the_others_wait_on_and_in_order,
            a_cancelled_head_passes_its_place_on,
            a_used_canceller_lets_nothing_begin,
            who_is_cancelled_gets_no_lock_that_is_given_back_later,
            what_is_in_doubt_is_told_of_before_the_cancelling,
            one_canceller_ends_the_waits_of_many_threads_and_keys,
            a_command_under_way_is_waited_for_and_may_get_the_lock,
            a_wait_for_a_connection_ends_too,
            shutting_down_ends_all_waits_and_lets_holders_release,
            a_signal_ends_a_wait,
        ],
    )
}

const NEVER_POLLS: LockOptions = LockOptions::expiring_after(LONG).poll_interval(LONG).wait_forever();

fn scene(test: &str) -> Result<(Arc<RedisServer>, TestKey, Locker), Box<dyn std::error::Error>> {
    let server = Arc::new(RedisServer::start()?);
    let key = Ground::of(&server).key(test);
    let locker = Locker::open(&server.url())?;
    Ok((server, key, locker))
}

type Waiting = thread::JoinHandle<Result<LockGuard, Error>>;

fn waiting(lock: &Lock) -> Waiting {
    let lock = lock.clone();
    asleep(move || lock.lock())
}

#[track_caller]
fn assert_cancelled(waiting: Waiting, key: &TestKey) {
    let error = waiting.join().unwrap().expect_err("cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    assert_eq!(error.key(), Some(&key.key));
    assert!(error.to_string().contains("the wait was cancelled after "), "{error}");
}

fn a_cancelled_wait_ends_at_once_and_says_so() -> Outcome {
    let (_server, key, locker) = scene("at_once")?;
    key.set("1895000000.5");
    for way in Way::ALL {
        let canceller = Canceller::new();
        let lock = Lock::new(&locker, &key.key, way.set(NEVER_POLLS))?.cancelled_by(&canceller);
        let waiting = waiting(&lock);
        assert!(!waiting.is_finished() && !canceller.is_cancelled());
        canceller.cancel();
        assert_cancelled(waiting, &key);
        assert!(canceller.is_cancelled());
    }
    assert_eq!(key.value().as_deref(), Some("1895000000.5"));
    Ok(())
}

fn the_others_wait_on_and_in_order() -> Outcome {
    let (_server, key, locker) = scene("others")?;
    let lock = Lock::new(&locker, &key.key, NEVER_POLLS)?;
    let canceller = Canceller::new();
    let held = lock.lock()?;
    let ann = waiting(&lock);
    let bob = waiting(&lock.clone().cancelled_by(&canceller));
    let cid = waiting(&lock);
    canceller.cancel();
    assert_cancelled(bob, &key);
    drop(held);
    let ann = ann.join().unwrap()?;
    assert!(!cid.is_finished());
    drop(ann);
    drop(cid.join().unwrap()?);
    Ok(())
}

fn a_cancelled_head_passes_its_place_on() -> Outcome {
    let (_server, key, locker) = scene("head")?;
    key.set("1895000000.5");
    let canceller = Canceller::new();
    let head = waiting(&Lock::new(&locker, &key.key, NEVER_POLLS)?.cancelled_by(&canceller));
    let next = waiting(&Lock::new(&locker, &key.key, NEVER_POLLS.poll_interval(millis(20)))?);
    canceller.cancel();
    assert_cancelled(head, &key);
    key.delete();
    drop(next.join().unwrap()?);
    Ok(())
}

fn a_used_canceller_lets_nothing_begin() -> Outcome {
    let (server, key, locker) = scene("used")?;
    let canceller = Canceller::new();
    let lock = Lock::new(&locker, &key.key, NEVER_POLLS)?;
    let ended = lock.clone().cancelled_by(&canceller);
    let held = ended.lock()?;
    canceller.cancel();
    held.ensure_held()?;
    assert!(matches!(ended.try_lock(), Err(Error::Cancelled { .. })));
    assert!(matches!(ended.lock(), Err(Error::Cancelled { .. })));
    assert!(matches!(ended.with(|_| Ok::<_, Error>(())), Err(Error::Cancelled { .. })));
    assert_eq!(held.release()?, Release::Released { certified: false }, "what is held can be given back");
    drop(lock.lock()?);
    assert_eq!(server.say(&["DBSIZE"])?, ":0");
    Ok(())
}

fn who_is_cancelled_gets_no_lock_that_is_given_back_later() -> Outcome {
    let (_server, key, locker) = scene("later")?;
    let unexpiring = LockOptions::held_until_released().poll_interval(LONG).wait_forever();
    for options in [NEVER_POLLS, NEVER_POLLS.hand_over(9), unexpiring.hand_over(9)] {
        for _ in 0..10 {
            let canceller = Canceller::new();
            let lock = Lock::new(&locker, &key.key, options)?;
            let held = lock.lock()?;
            let ended = waiting(&lock.clone().cancelled_by(&canceller));
            let next = waiting(&lock);
            canceller.cancel();
            drop(held);
            assert_cancelled(ended, &key);
            drop(next.join().unwrap()?);
            assert_eq!(key.value(), None, "nothing is left behind");
        }
    }
    Ok(())
}

fn what_is_in_doubt_is_told_of_before_the_cancelling() -> Outcome {
    let (server, key, _) = scene("doubt")?;
    let gate = Gate::before(server.address())?;
    let canceller = Canceller::new();
    let lock = Lock::new(&Locker::open(&gate.url())?, &key.key, NEVER_POLLS)?;
    let lock = connected(lock.cancelled_by(&canceller))?;
    gate.next("SETNX", Fault::CutAfter);
    gate.next("GET", Fault::CutBefore);
    let waiting = waiting(&lock);
    while gate.faults_left() > 0 {
        thread::sleep(millis(5));
    }
    thread::sleep(millis(50));
    canceller.cancel();
    let error = waiting.join().unwrap().expect_err("cancelled");
    assert!(matches!(error, Error::Unknown { .. }), "it is ours, and nobody has read so: {error:?}");
    Ok(())
}

fn one_canceller_ends_the_waits_of_many_threads_and_keys() -> Outcome {
    let (_server, key, locker) = scene("many")?;
    let canceller = Canceller::new();
    let held: Vec<LockGuard> = (0..4)
        .map(|n| Lock::new(&locker, format!("many:{n}"), NEVER_POLLS)?.lock())
        .collect::<Result<_, _>>()?;
    let waiting: Vec<Waiting> = (0..20)
        .map(|n| {
            let lock = Lock::new(&locker, format!("many:{}", n % 4), NEVER_POLLS)?;
            Ok(waiting(&lock.cancelled_by(&canceller)))
        })
        .collect::<Result<_, Error>>()?;
    canceller.clone().cancel();
    for waiting in waiting {
        assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled { .. })));
    }
    drop((held, key));
    Ok(())
}

fn a_command_under_way_is_waited_for_and_may_get_the_lock() -> Outcome {
    let (server, key, _) = scene("under_way")?;
    let gate = Gate::before(server.address())?;
    let locker = Locker::open(&gate.url())?;
    let canceller = Canceller::new();
    let lock = connected(Lock::new(&locker, &key.key, NEVER_POLLS)?.cancelled_by(&canceller))?;
    gate.next("SETNX", Fault::AnswerLate(millis(300)));
    let waiting = waiting(&lock);
    canceller.cancel();
    let held = waiting.join().unwrap()?;
    assert_eq!(held.release()?, Release::Released { certified: false });
    Ok(())
}

fn a_wait_for_a_connection_ends_too() -> Outcome {
    let server = RedisServer::start()?;
    let url = server.url();
    drop(server);
    let locker = Locker::open(&url)?;
    let canceller = Canceller::new();
    let patient = LockOptions::expiring_after(LONG).timeout(LONG * 60);
    let lock = Lock::new(&locker, "unreachable", patient)?.cancelled_by(&canceller);
    let waits = [waiting(&lock), waiting(&lock)];
    canceller.cancel();
    for wait in waits {
        let error = wait.join().unwrap().expect_err("there is no server");
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    }
    Ok(())
}

fn shutting_down_ends_all_waits_and_lets_holders_release() -> Outcome {
    let (server, key, _) = scene("shut_down")?;
    for way in Way::ALL {
        let locker = Locker::open(&server.url())?;
        let lock = Lock::new(&locker, &key.key, way.set(NEVER_POLLS))?;
        let other = Lock::new(&locker.clone(), "elsewhere", way.set(NEVER_POLLS))?;
        let held = [lock.lock()?, other.lock()?];
        let waits = [waiting(&lock), waiting(&lock), waiting(&other)];
        locker.clone().shut_down();
        for wait in waits {
            let error = wait.join().unwrap().expect_err("shut down");
            assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
            assert!(error.to_string().contains("its locker was shut down"), "{error}");
        }
        for refused in [lock.lock().map(Some), lock.try_lock(), lock.try_lock_for(millis(5))] {
            assert!(matches!(refused, Err(Error::ShutDown { .. })));
        }
        for held in held {
            assert_eq!(held.release()?, Release::Released { certified: false });
        }
        assert_eq!(key.value(), None);
    }
    Ok(())
}

/// Waits for a lock until a signal comes, as a worker that is to stop does.
pub(crate) fn wait_for_a_signal(url: &str, key: &str) -> Played {
    let canceller = Canceller::new();
    let mut signals = Signals::new([SIGTERM])?;
    let handling = canceller.clone();
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            handling.cancel();
        }
    });
    let lock = Lock::new(&Locker::open(url)?, key, NEVER_POLLS)?.cancelled_by(&canceller);
    println!("waiting");
    match lock.lock() {
        Err(Error::Cancelled { .. }) => println!("cancelled"),
        other => println!("{other:?}"),
    }
    Ok(())
}

fn a_signal_ends_a_wait() -> Outcome {
    let (server, key, locker) = scene("signal")?;
    let held = Lock::new(&locker, &key.key, NEVER_POLLS)?.lock()?;
    let mut waiting = worker(&["wait_for_a_signal", &server.url(), &key.key.to_string()])?;
    let mut output = BufReader::new(waiting.stdout.take().expect("it is piped"));
    let mut line = || -> io::Result<String> {
        let mut line = String::new();
        output.read_line(&mut line)?;
        Ok(line)
    };
    assert_eq!(line()?, "waiting\n");
    thread::sleep(Duration::from_millis(100));
    let pid = i32::try_from(waiting.id()).ok().and_then(Pid::from_raw).expect("a process has a number");
    kill_process(pid, Signal::TERM)?;
    assert_eq!(line()?, "cancelled\n");
    assert!(waiting.wait()?.success());
    held.ensure_held()?;
    assert_eq!(held.release()?, Release::Released { certified: false });
    Ok(())
}

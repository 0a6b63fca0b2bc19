//! Releases that fail: they are tried again until the lease ends, and end as a release does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use setnx_lock::{Error, Event, Lock, LockOptions, Locker, LockerBuilder, MultiLock, Protocol, Settlement};
use setnx_lock_testing::{Fault, TestServer};

use testkit::failover::{Failover, MASTER, ask};

use crate::support::notified::{Waiter, elsewhere, until, until_waiting, within};
use crate::support::scenario::Scenario;
use crate::support::{
    AnyServer, LONG, Outcome, RedisServer, Target, TestKey, assert_says, millis, trials_of,
};

/// The protocols with transactions.
const BOTH: [Protocol; 2] = [Protocol::Watched, Protocol::Ttl];

trials_of! {
    "failed_releases";
    a_server_that_stops_for_a_while_lets_the_next_process_in,
    many_releases_that_fail_are_all_finished,
    releases_in_a_failover_are_carried_out_by_the_new_master,
    a_fault_at_each_command_keeps_no_key_held,
    the_next_thread_gets_the_lock,
    a_refusal_that_passes_is_waited_out,
    a_full_server_loses_no_waiting_process,
    a_refusal_that_stays_is_final,
    it_is_tried_once_more_when_the_locker_ends,
}

/// A lease that does not end before the test.
pub(super) const LEASE: Duration = Duration::from_secs(1800);
/// Shorter than an outage, and longer than a reply takes.
const TIMEOUT: Duration = Duration::from_millis(500);

const AGAIN: &str = "the release is tried again until the lease ends";

/// Counts the releases that a later attempt has carried out.
#[derive(Clone, Default)]
pub(super) struct Late(Arc<AtomicUsize>);

impl Late {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn observes(&self, builder: LockerBuilder) -> LockerBuilder {
        let count = Arc::clone(&self.0);
        builder.observer(move |event: &Event<'_>| {
            if matches!(event, Event::Settled { outcome: Settlement::Released, .. }) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        })
    }
}

pub(super) fn holding_by(protocol: Protocol) -> LockOptions {
    LockOptions::expiring_after(LEASE).protocol(protocol).timeout(LEASE)
}

/// A locker through a server whose commands fail soon.
pub(super) fn through_a_proxy(late: &Late) -> Result<(Scenario, Locker), Box<dyn std::error::Error>> {
    let scenario = Scenario::set();
    let builder = Locker::builder(&scenario.server.url())?.connect_timeout(LONG).command_timeout(TIMEOUT);
    let locker = late.observes(builder.pool_size(2)).build()?;
    Ok((scenario, locker))
}

fn a_server_that_stops_for_a_while_lets_the_next_process_in() -> Outcome {
    for (protocol, notifies) in [(Protocol::Watched, false), (Protocol::Ttl, true), (Protocol::Auto, true)] {
        let (server, late) = (Arc::new(TestServer::start()), Late::default());
        let key = Target::of(&server).key("outage");
        let name = String::from_utf8_lossy(key.key.as_bytes()).into_owned();
        let options = holding_by(protocol).notify_waiters(notifies);
        let locker = late.observes(Locker::builder(&server.url())?.command_timeout(TIMEOUT)).build()?;
        let held = Lock::new(&locker, &key.key, options)?.lock()?;
        let next = Waiter::of(&elsewhere(&server, &name, options)?);
        if notifies {
            until_waiting(&server, &name, 1);
        }
        server.hang();
        let error = held.release().expect_err("the server does not answer");
        assert_says(&error, &key, &[AGAIN]);
        assert!(error.is_transient(), "{error:?}");
        server.resume();
        next.came()?.release()?;
        until("one event", || late.count() == 1);
    }
    Ok(())
}

fn many_releases_that_fail_are_all_finished() -> Outcome {
    const THREADS: usize = 32;
    const KEYS: usize = 16;
    let (server, late) = (Arc::new(TestServer::start()), Late::default());
    let locker = late.observes(Locker::builder(&server.url())?.command_timeout(TIMEOUT)).build()?;
    let keys = Target::of(&server).keys("many", THREADS * KEYS);
    let options = holding_by(Protocol::Auto);
    let failed = AtomicUsize::new(0);
    let all_hold = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        for some in keys.chunks(KEYS) {
            let (locker, failed, all_hold) = (&locker, &failed, &all_hold);
            scope.spawn(move || {
                let locks = MultiLock::new(locker, some.iter().map(|key| &key.key), options).unwrap();
                let held = locks.lock().unwrap();
                all_hold.wait();
                all_hold.wait();
                let count = match held.release() {
                    Err(Error::Several { others, .. }) => others.len() + 1,
                    outcome => usize::from(outcome.is_err()),
                };
                failed.fetch_add(count, Ordering::Relaxed);
            });
        }
        all_hold.wait();
        server.hang();
        all_hold.wait();
    });
    assert_eq!(failed.into_inner(), keys.len());
    server.resume();
    until("all are released", || keys.iter().all(|key| key.value().is_none()));
    until("an event for each", || late.count() == keys.len());
    Ok(())
}

/// The master is killed, and the new one takes no write until a replica follows it.
fn releases_in_a_failover_are_carried_out_by_the_new_master() -> Outcome {
    const THREADS: usize = 64;
    let (mut failover, late) =
        (Failover::start_with(Duration::from_secs(1), "min-replicas-to-write 1", "")?, Late::default());
    let builder = Locker::sentinel_builder(failover.addresses(), MASTER)?.command_timeout(TIMEOUT);
    let locker = late.observes(builder.connect_timeout(TIMEOUT)).build()?;
    let keys: Vec<String> = (0..THREADS).map(|n| format!("failover:{n}")).collect();
    let lock = |key: &String| Lock::new(&locker, key.as_str(), holding_by(Protocol::Auto))?.lock();
    let held = keys.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
    let master = failover.master();
    let count = |server: &RedisServer| -> redis::RedisResult<usize> {
        let keys: Vec<String> = ask(server, redis::cmd("KEYS").arg("failover:*"))?;
        Ok(keys.len())
    };
    for server in &failover.servers {
        until("it is replicated", || count(server).is_ok_and(|count| count == THREADS));
    }
    failover.servers[master].stop();
    let failed = thread::scope(|scope| {
        let threads: Vec<_> = held.into_iter().map(|held| scope.spawn(|| held.release().is_err())).collect();
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
    });
    assert!(failed > 0, "the master is gone");
    let new = failover.until_other_than(master);
    until("all are released", || count(&failover.servers[new]).is_ok_and(|count| count == 0));
    until("an event for each", || late.count() == failed);
    Ok(())
}

fn a_fault_at_each_command_keeps_no_key_held() -> Outcome {
    let faults = [
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::CutWithin,
        Fault::LoseReply,
        Fault::Hang,
        Fault::Say("-LOADING Redis is loading the dataset in memory\r\n"),
    ];
    let cases = BOTH.into_iter().flat_map(|protocol| faults.iter().map(move |fault| (protocol, fault)));
    thread::scope(|scope| {
        let threads: Vec<_> = cases
            .map(|(protocol, fault)| {
                scope.spawn(move || {
                    release_despite(protocol, fault)
                        .map_err(|error| error.message().unwrap_or_default().to_owned())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    Ok(())
}

/// Releases a lock while this happens to each command in turn.
fn release_despite(protocol: Protocol, fault: &Fault) -> Outcome {
    // The second command of a name as well: the rules look, and settle a lost reply, by themselves.
    for names in [&["WATCH"][..], &["EXEC"], &["WATCH", "WATCH"], &["EXEC", "GET"], &["MULTI"], &["DEL"]] {
        let late = Late::default();
        let (scenario, locker) = through_a_proxy(&late)?;
        let key = scenario.target.key("fault");
        let held = Lock::new(&locker, &key.key, holding_by(protocol))?.lock()?;
        for name in names {
            // There is one behind WATCH.
            let nth = if *name == "GET" { 2 } else { 1 };
            scenario.server.nth(name, nth, fault.clone());
        }
        let released = held.release();
        let what = || format!("{protocol:?}, {names:?}, {fault:?}: {released:?}");
        assert!(within(LONG, || key.value().is_none()), "{}", what());
        let events = usize::from(released.is_err());
        assert!(within(LONG, || late.count() == events), "{}", what());
    }
    Ok(())
}

fn the_next_thread_gets_the_lock() -> Outcome {
    for protocol in BOTH {
        for (names, fault) in [
            (["WATCH", "WATCH"], Fault::CutAfter),
            (["EXEC", "GET"], Fault::CutBefore),
            (["EXEC", "GET"], Fault::CutAfter),
        ] {
            let late = Late::default();
            let (scenario, locker) = through_a_proxy(&late)?;
            let key = scenario.target.key("next");
            let lock = Lock::new(&locker, &key.key, holding_by(protocol).poll_interval(LONG))?;
            let held = lock.lock()?;
            let next = Waiter::of(&lock);
            // For the thread to queue. If it comes later, it acquires the lock by itself.
            thread::sleep(millis(50));
            scenario.server.clear_log();
            for name in names {
                scenario.server.nth(name, if name == "GET" { 2 } else { 1 }, fault.clone());
            }
            let released = held.release();
            next.came()?.release()?;
            until("the key is free", || key.value().is_none());
            assert!(late.count() <= usize::from(released.is_err()), "{released:?}");
        }
    }
    Ok(())
}

fn a_refusal_that_passes_is_waited_out() -> Outcome {
    let again = ["the release is tried again"];
    for options in [holding_by(Protocol::Classic), LockOptions::without_expiration()] {
        let late = Late::default();
        let (scenario, locker) = through_a_proxy(&late)?;
        let key = scenario.target.key("loading");
        let held = Lock::new(&locker, &key.key, options)?.lock()?;
        for n in 1..=3 {
            scenario.server.nth("DEL", n, Fault::Say("-LOADING Redis is loading the dataset in memory\r\n"));
        }
        let error = held.release().expect_err("the server loads");
        assert_says(&error, &key, &again);
        until("it is released", || key.value().is_none());
        until("one event", || late.count() == 1);
        assert_eq!(scenario.server.names().iter().filter(|name| *name == "DEL").count(), 4);
    }
    Ok(())
}

/// It refuses EXEC, carries out the LPOP behind it, and then DEL alone.
fn a_full_server_loses_no_waiting_process() -> Outcome {
    let (server, late) = (Arc::new(TestServer::builder().config("maxmemory 100mb").start()), Late::default());
    let name = "full";
    let options = holding_by(Protocol::Watched).notify_waiters(true);
    let locker = late.observes(Locker::builder(&server.url())?).build()?;
    let held = Lock::new(&locker, name, options)?.lock()?;
    let locks = (0..3).map(|_| elsewhere(&server, name, options)).collect::<Result<Vec<_>, _>>()?;
    let acquire = |lock: Lock| thread::spawn(move || lock.lock()?.release());
    let waiting: Vec<_> = locks.into_iter().map(acquire).collect();
    until_waiting(&server, name, 3);
    server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
    // Later if the machine stalls between its look and what follows soon.
    let stalled = usize::from(held.release().is_err());
    // Several attempts of those that wait.
    thread::sleep(millis(500));
    server.say(&["CONFIG", "SET", "maxmemory", "100mb"])?;
    for waiting in waiting {
        waiting.join().unwrap()?;
    }
    until("each is released once", || late.count() == stalled);
    Ok(())
}

fn a_refusal_that_stays_is_final() -> Outcome {
    let late = Late::default();
    let (scenario, locker) = through_a_proxy(&late)?;
    let key = scenario.target.key("refused");
    let held = Lock::new(&locker, &key.key, holding_by(Protocol::Classic))?.lock()?;
    scenario
        .server
        .next("DEL", Fault::Say("-NOPERM this user has no permissions to run the 'del' command\r\n"));
    let error = held.release().expect_err("it is refused");
    assert_says(&error, &key, &["it was not released, and frees itself when its lease has passed"]);
    thread::sleep(millis(500));
    assert_eq!(scenario.server.names().iter().filter(|name| *name == "DEL").count(), 1);
    Ok(())
}

fn it_is_tried_once_more_when_the_locker_ends() -> Outcome {
    type End = fn(Locker);
    let ends: [End; 2] = [drop, |locker| locker.shut_down()];
    for end in ends {
        for comes_back in [true, false] {
            let late = Late::default();
            let (scenario, locker) = through_a_proxy(&late)?;
            let key: TestKey = scenario.target.key("end");
            let held = Lock::new(&locker, &key.key, holding_by(Protocol::Watched))?.lock()?;
            let refusal = Fault::Say("-LOADING Redis is loading the dataset in memory\r\n");
            // The fourth attempt is 0.7 s after the first.
            let attempts = if comes_back { 1 } else { 20 };
            for n in 1..=attempts {
                scenario.server.nth("WATCH", n, refusal.clone());
            }
            held.release().expect_err("the server loads");
            end(locker);
            if comes_back {
                assert_eq!((key.value(), late.count()), (None, 1));
            } else {
                let sent = scenario.server.names().len();
                thread::sleep(millis(1500));
                assert_eq!(scenario.server.names().len(), sent, "it has ended");
                assert!(key.value().is_some());
            }
        }
    }
    Ok(())
}

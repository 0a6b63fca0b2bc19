//! A server that refuses for a reason that may pass: a call that waits goes on until its own deadline, one that tries
//! once returns the refusal.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use setnx_lock::{
    CancelToken, Error, Event, Lock, LockOptions, Locker, MultiLock, Protocol, Quorum, RefusalKind, RwLock,
    Semaphore,
};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::scenario::{Scenario, patient};
use crate::support::{AnyServer, LONG, Outcome, RedisServer, Target, expiring, millis, trials_of};

trials_of! {
    "refused_for_now";
    a_wait_goes_on_whatever_the_words,
    all_kinds_of_locks_are_waited_for,
    the_refusal_is_the_error_at_the_deadline,
    with_notifications_the_pauses_grow_as_well,
    a_wait_is_ended_from_outside,
    an_address_that_leads_to_a_replica_is_retried_for_some_time,
    a_server_that_runs_a_script_is_waited_for,
    a_quorum_waits_for_a_majority,
    a_kept_lock_lasts_for_its_lease,
}

const NO_REPLICAS: [&str; 4] = ["CONFIG", "SET", "min-replicas-to-write", "1"];
const ENOUGH_REPLICAS: [&str; 4] = ["CONFIG", "SET", "min-replicas-to-write", "0"];

fn kind(error: &Error) -> Option<RefusalKind> {
    if let Error::Refused { refusal, .. } = error { Some(refusal.kind()) } else { None }
}

/// What a locker's calls came to.
#[derive(Default)]
struct Counts {
    refused: AtomicU32,
    /// The most attempts of a call that succeeded.
    attempts: AtomicU32,
}

impl Counts {
    /// Returns how many waits were refused, of which none may be an attempt. A lock that is handed over takes none.
    fn refused(&self) -> u32 {
        assert!(self.attempts.load(Ordering::SeqCst) <= 1, "a refusal counts no attempt");
        self.refused.load(Ordering::SeqCst)
    }
}

fn counting(url: &str) -> Result<(Locker, Arc<Counts>), Error> {
    let counts = Arc::new(Counts::default());
    let counted = Arc::clone(&counts);
    let observer = move |event: &Event<'_>| match event {
        Event::RefusedForNow { .. } => {
            counted.refused.fetch_add(1, Ordering::SeqCst);
        }
        Event::AcquireFinished { attempts, outcome: Ok(()), .. } => {
            counted.attempts.fetch_max(*attempts, Ordering::SeqCst);
        }
        _ => {}
    };
    Ok((patient(url)?.observer(observer).build()?, counts))
}

/// The waiting list is refused too, and the key is absent all the time, or a crashed holder's.
fn with_notifications_the_pauses_grow_as_well() -> Outcome {
    for (protocol, is_expired) in [
        (Protocol::Auto, false),
        (Protocol::Auto, true),
        (Protocol::Watched, true),
        (Protocol::Classic, true),
    ] {
        let server = TestServer::start();
        let (locker, counts) = counting(&server.url())?;
        if is_expired {
            server.say(&["SET", "full", "1532000016.5"])?;
        }
        server.say(&NO_REPLICAS)?;
        let options = expiring().protocol(protocol).notify_waiters(true).timeout(Duration::from_secs(3));
        Lock::new(&locker, "full", options)?.lock().expect_err("it has no replica");
        let refused = counts.refused();
        // After 0.1, 0.3, 0.7 and 1.5 s, and then each second.
        assert!((2..=8).contains(&refused), "{protocol:?}: {refused}");
    }
    Ok(())
}

fn a_wait_goes_on_whatever_the_words() -> Outcome {
    let scenario = Scenario::set();
    let (locker, refused) = counting(&scenario.server.url())?;
    for words in [
        "-NOREPLICAS Not enough good replicas to write.\r\n",
        "-MISCONF Redis is configured to save RDB snapshots\r\n",
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        "-BUSY Redis is busy running a module command.\r\n",
        "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n",
        "-MASTERDOWN Link with MASTER is down\r\n",
        // Of twemproxy.
        "-ERR Connection refused\r\n",
        "-ERR Connection timed out\r\n",
    ] {
        let key = scenario.target.key("words");
        for (protocol, command) in
            [(Protocol::Classic, "SETNX"), (Protocol::Watched, "SETNX"), (Protocol::Auto, "SET")]
        {
            let options = expiring().protocol(protocol).timeout(LONG).poll_interval(millis(5));
            let lock = Lock::new(&locker, &key.key, options)?;
            for _ in 0..3 {
                scenario.server.next(command, Fault::Say(words));
            }
            let before = refused.refused();
            let held = lock.lock()?;
            assert_eq!(refused.refused() - before, 3, "{words}");
            // Auto does not step down for it.
            assert_eq!(key.time_to_live() > 0, protocol == Protocol::Auto, "{words}");
            held.release()?;
            scenario.server.next(command, Fault::Say(words));
            assert!(lock.try_lock().is_err_and(|error| error.is_transient()), "{words}");
        }
    }
    Ok(())
}

/// Runs `wait` on a server that takes no writes, and has it take them once that waits.
fn until_it_takes_writes(wait: impl FnOnce(&Locker) -> Result<(), Error> + Send) -> Outcome {
    let server = TestServer::start();
    server.say(&NO_REPLICAS)?;
    let (sender, refused) = mpsc::channel();
    let observer = move |event: &Event<'_>| {
        if let Event::RefusedForNow { refusal, .. } = event {
            let _ = sender.send(refusal.kind());
        }
    };
    let locker = patient(&server.url())?.observer(observer).build()?;
    thread::scope(|scope| {
        let waits = scope.spawn(|| wait(&locker));
        assert_eq!(refused.recv_timeout(LONG)?, RefusalKind::NoReplicas);
        server.say(&ENOUGH_REPLICAS)?;
        waits.join().unwrap()?;
        Ok(())
    })
}

fn all_kinds_of_locks_are_waited_for() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Auto] {
        let options = expiring().protocol(protocol).wait_forever();
        until_it_takes_writes(|locker| Lock::new(locker, "k", options)?.with(|_| ()))?;
        until_it_takes_writes(|locker| MultiLock::new(locker, ["a", "b", "c"], options)?.with(|_| ()))?;
        until_it_takes_writes(|locker| Semaphore::new(locker, "s", 3, options)?.with(|_| ()))?;
        until_it_takes_writes(|locker| RwLock::new(locker, "rw", 3, options)?.write().map(drop))?;
        // One after the other, in one process.
        until_it_takes_writes(|locker| {
            let lock = Lock::new(locker, "k", options)?;
            thread::scope(|scope| {
                let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| lock.with(|_| ()))).collect();
                threads.into_iter().try_for_each(|thread| thread.join().unwrap())
            })
        })?;
    }
    Ok(())
}

fn the_refusal_is_the_error_at_the_deadline() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let key = target.key("deadline");
    server.say(&NO_REPLICAS)?;
    for options in
        [expiring().timeout(millis(300)), expiring().timeout(Duration::ZERO), expiring().max_attempts(1)]
    {
        let error = target.lock(&key, options).lock().expect_err("no replicas");
        assert_eq!(kind(&error), Some(RefusalKind::NoReplicas), "{error}");
        assert!(error.to_string().contains("min-replicas-to-write"), "{error}");
    }
    assert_eq!(key.value(), None);
    Ok(())
}

fn a_wait_is_ended_from_outside() -> Outcome {
    let server = TestServer::start();
    server.say(&NO_REPLICAS)?;
    for shuts_down in [false, true] {
        let (locker, refused) = counting(&server.url())?;
        let cancel = CancelToken::new();
        let lock = Lock::new(&locker, "k", expiring().wait_forever())?.cancelled_by(&cancel);
        let error = thread::scope(|scope| {
            let waits = scope.spawn(|| lock.lock().map(drop));
            while refused.refused() == 0 {
                thread::sleep(millis(1));
            }
            if shuts_down {
                locker.shut_down();
            } else {
                cancel.cancel();
            }
            waits.join().unwrap().expect_err("it was ended")
        });
        let is_expected = if shuts_down {
            matches!(error, Error::ShutDown { .. })
        } else {
            matches!(error, Error::Cancelled { .. })
        };
        assert!(is_expected, "{error:?}");
    }
    Ok(())
}

fn an_address_that_leads_to_a_replica_is_retried_for_some_time() -> Outcome {
    let (master, server) = (RedisServer::start()?, RedisServer::start()?);
    let be_replica = || server.say(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let options = expiring().wait_forever();
    // A connection from before, and a new one.
    for is_connected in [true, false] {
        let brief = patient(&server.url())?.retry_for(millis(200)).build()?;
        let (locker, _) = counting(&server.url())?;
        if is_connected {
            Lock::new(&brief, "k", options)?.with(|_| ())?;
            Lock::new(&locker, "k", options)?.with(|_| ())?;
        }
        be_replica()?;
        let error = Lock::new(&brief, "k", options)?.lock().expect_err("a replica");
        assert_eq!(kind(&error), Some(RefusalKind::ReadOnly), "{error}");
        thread::scope(|scope| {
            let waits = scope.spawn(|| Lock::new(&locker, "k", options)?.with(|_| ()));
            thread::sleep(millis(300));
            server.say(&["REPLICAOF", "NO", "ONE"])?;
            Ok::<_, Box<dyn std::error::Error>>(waits.join().unwrap()?)
        })?;
    }
    Ok(())
}

fn a_server_that_runs_a_script_is_waited_for() -> Outcome {
    let server = Arc::new(RedisServer::start_with("lua-time-limit 50")?);
    let target = Target::of(&server);
    let (locker, _) = counting(&server.url())?;
    let lock = Lock::new(&locker, "k", LockOptions::expiring_after(LONG).timeout(LONG))?;
    lock.with(|_| ())?;
    let script = "local t = redis.call('TIME')[1] + 2 while tonumber(redis.call('TIME')[1]) < t do end";
    thread::scope(|scope| {
        let runs =
            scope.spawn(|| redis::cmd("EVAL").arg(script).arg(0).query::<()>(&mut target.connection()));
        // Until it is known to take long.
        while lock.state().is_ok() && !runs.is_finished() {}
        // It refuses INFO as well. One that connects meanwhile still finds out what the server has.
        let (fresh, _) = counting(&server.url())?;
        let options = LockOptions::expiring_after(LONG).protocol(Protocol::Auto).timeout(LONG);
        let held = Lock::new(&fresh, "fresh", options)?.lock()?;
        let left: i64 = redis::cmd("PTTL").arg("fresh").query(&mut target.connection())?;
        assert!(left > 0, "it is not decided by clocks: {left}");
        held.release()?;
        lock.with(|_| ())?;
        Ok::<_, Box<dyn std::error::Error>>(runs.join().unwrap()?)
    })?;
    Ok(())
}

fn a_quorum_waits_for_a_majority() -> Outcome {
    let servers = [0; 3].map(|_| TestServer::start());
    let open = |server: &TestServer| patient(&server.url())?.retry_for(Duration::ZERO).build();
    let lockers = servers.iter().map(open).collect::<Result<Vec<_>, Error>>()?;
    let quorum = |timeout| Quorum::new(&lockers, "k", LockOptions::expiring_after(LONG).timeout(timeout));
    // A minority is not waited for.
    servers[0].say(&NO_REPLICAS)?;
    quorum(LONG)?.with(|_| ())?;
    servers[1].say(&NO_REPLICAS)?;
    assert!(matches!(quorum(millis(300))?.lock(), Err(Error::NoMajority { .. })));
    let lock = quorum(LONG)?;
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock.with(|_| ()));
        thread::sleep(millis(300));
        assert!(!waits.is_finished());
        servers[1].say(&ENOUGH_REPLICAS)?;
        Ok::<_, Box<dyn std::error::Error>>(waits.join().unwrap()?)
    })?;
    Ok(())
}

/// The keeper tries again, and a lock that cannot be extended is lost only when its lease ends.
fn a_kept_lock_lasts_for_its_lease() -> Outcome {
    let server = Arc::new(TestServer::start());
    let (sender, failed) = mpsc::channel();
    let observer = move |event: &Event<'_>| {
        if let Event::ExtendFailed { .. } = event {
            let _ = sender.send(());
        }
    };
    let locker = patient(&server.url())?.observer(observer).build()?;
    let options =
        LockOptions::expiring_after(Duration::from_secs(9)).auto_extend(LONG).protocol(Protocol::Auto);
    let held = Lock::new(&locker, "k", options)?.lock()?;
    server.say(&NO_REPLICAS)?;
    failed.recv_timeout(LONG)?;
    held.ensure_held()?;
    let left = held.remaining();
    server.say(&ENOUGH_REPLICAS)?;
    while held.remaining() <= left {
        held.ensure_held()?;
        thread::sleep(millis(5));
    }
    held.release()?;
    Ok(())
}

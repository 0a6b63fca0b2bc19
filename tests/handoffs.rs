//! Hand-over: a held lock passes from thread to thread of a process, with a lease of its own for each, and as often in a row as the
//! options say.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, Lock, LockGuard, LockOptions, LockState, Locker, Protocol, Release};

use crate::events::EventLog;
use crate::servers::Proxy;
use crate::support::asleep::Sleeper;
use crate::support::load_threads::{self, LoadThreads, Tolerance};
use crate::support::monitor::{Monitor, connected, names};
use crate::support::{LONG, Load, Outcome, RedisServer, Target, TestKey, expiring, millis};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = of_each_protocol(
        "handoffs",
        &[
            ("a_lock_passes_on_as_often_as_its_options_say", as_often_as_said),
            ("each_heir_has_all_of_its_own_time", own_time),
            ("a_lease_that_has_passed_is_not_handed_over", passed_lease),
            ("a_lock_that_was_cleared_meanwhile_is_told_lost", cleared),
            ("a_lock_that_was_stolen_meanwhile_is_told_lost", stolen),
            ("what_a_loser_of_a_takeover_wrote_keeps_no_lock_from_passing_on", losers_value),
            ("without_the_option_nothing_passes_on", without_the_option),
            ("one_try_inherits_nothing", one_try),
            ("a_panic_and_another_thread_s_drop_pass_the_lock_on", however_it_is_dropped),
        ],
    );
    trials.push(Trial::test("handoffs::a_lock_passes_on_to_its_own_kind_alone", own_kind));
    trials
}

pub(crate) type OfAProtocol = fn(Protocol) -> Outcome;

/// Names a test for each protocol.
pub(crate) fn of_each_protocol(part: &str, tests: &[(&str, OfAProtocol)]) -> Vec<Trial> {
    let protocols = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];
    let trials = protocols.into_iter().flat_map(|protocol| {
        tests.iter().map(move |(name, test)| {
            let (test, of) = (*test, format!("{protocol:?}").to_lowercase());
            Trial::test(format!("{part}::{of}::{name}"), move || test(protocol))
        })
    });
    trials.collect()
}

/// A lock that whoever waits for it was given, or was told of: nobody polls.
pub(crate) const QUEUED: LockOptions = LockOptions::expiring_after(LONG).poll_interval(LONG).timeout(LONG);

/// Another's value, of a time far away.
pub(crate) const FOREIGN: &str = "1895000000.5";

/// A server behind a gate, and a key that the threads of one locker are in line for.
pub(crate) struct Stage {
    pub(crate) server: Arc<RedisServer>,
    pub(crate) proxy: Proxy,
    pub(crate) key: TestKey,
    pub(crate) locker: Locker,
    pub(crate) events: EventLog,
    pub(crate) protocol: Protocol,
    _companions: Option<LoadThreads>,
}

impl Stage {
    pub(crate) fn set(protocol: Protocol) -> Result<Self, Box<dyn StdError>> {
        Self::under_load(protocol, Load::Any)
    }

    pub(crate) fn under_load(protocol: Protocol, load: Load) -> Result<Self, Box<dyn StdError>> {
        let server = Arc::new(RedisServer::start()?);
        let proxy = Proxy::before(server.address())?;
        let key = Target::of(&server).key("handoff");
        let events = EventLog::default();
        // No command that is held at the gate is given up.
        let settings = Locker::builder(&proxy.url())?.command_timeout(LONG);
        let settings = if load == Load::Contended { settings.pool_size(2) } else { settings };
        let (locker, load_threads) = load.join(settings.build()?, Tolerance::Patient);
        proxy.overlook(load_threads::KEYS);
        let locker = locker.observed_by(events.clone());
        Ok(Self { server, proxy, key, locker, events, protocol, _companions: load_threads })
    }

    pub(crate) fn lock(&self, options: LockOptions) -> Lock {
        Lock::new(&self.locker, &self.key.key, options.protocol(self.protocol)).unwrap()
    }

    /// The same lock for another process, as far as a lock can tell.
    pub(crate) fn elsewhere(&self) -> Result<Lock, Error> {
        Lock::new(&Locker::open(&self.server.url())?, &self.key.key, expiring().protocol(self.protocol))
    }

    /// Asserts that the key holds the value of this very lease.
    #[track_caller]
    pub(crate) fn assert_has_it(&self, held: &LockGuard) {
        held.ensure_held().unwrap();
        let LockState::Until(expiry) = self.elsewhere().unwrap().state().unwrap() else {
            panic!("it is free")
        };
        let promised = held.expires_at_system_time().unwrap();
        assert_eq!(expiry.system_time().unwrap(), promised + Duration::from_secs(1));
    }

    /// Returns once a command has come so often.
    #[track_caller]
    pub(crate) fn is_asked(&self, command: &str, times: usize) {
        let end = Instant::now() + LONG;
        while self.proxy.names().iter().filter(|name| *name == command).count() < times {
            assert!(Instant::now() < end, "{:?}", self.proxy.names());
            thread::sleep(millis(5));
        }
    }

    /// What a release says that deletes the key.
    pub(crate) fn released(&self) -> Release {
        Release::Released { certified: self.protocol != Protocol::Classic }
    }
}

pub(crate) const HANDED_OFF: Release = Release::HandedOff { certified: true };

/// A thread that stands in the line, and leaves it with the lock or an error.
pub(crate) type Successor = Sleeper<Result<LockGuard, Error>>;

/// Returns once the thread sleeps in the line.
pub(crate) fn successor(lock: &Lock) -> Successor {
    let lock = lock.clone();
    let successor = Sleeper::start(move || lock.lock());
    successor.rests();
    successor
}

#[track_caller]
pub(crate) fn assert_cancelled(successor: Successor) {
    let error = successor.join().expect_err("cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
}

fn as_often_as_said(protocol: Protocol) -> Outcome {
    let (ask, pass_on, free): (_, &[_], &[_]) = match protocol {
        Protocol::Classic => ("SETNX", &["GETSET"], &["DEL"]),
        Protocol::Watched => {
            ("SETNX", &["WATCH", "GET", "MULTI", "SET", "EXEC"], &["WATCH", "GET", "MULTI", "DEL", "EXEC"])
        }
        _ => ("SET", &["WATCH", "GET", "MULTI", "SET", "EXEC"], &["WATCH", "GET", "MULTI", "DEL", "EXEC"]),
    };
    for times in [1, 3] {
        let stage = Stage::set(protocol)?;
        let lock = connected(stage.lock(QUEUED.handoff(times)))?;
        let monitor = Monitor::on(&stage.server)?;
        // The lock goes round twice.
        let mut held = lock.lock()?;
        let mut heirs: VecDeque<Successor> = (0..=2 * times).map(|_| successor(&lock)).collect();
        let (mut attempts, mut reported) = (vec![held.attempts()], Vec::new());
        while let Some(next) = heirs.pop_front() {
            reported.push(held.release()?);
            held = next.join()?;
            attempts.push(held.attempts());
            // Who is next has been woken, since he is the head of the line now.
            heirs.iter().take(1).for_each(Sleeper::rests);
        }
        reported.push(held.release()?);

        let count = times as usize;
        let commands = monitor.recorded(&stage.server)?;
        let round = [&[ask], &*pass_on.repeat(count), free].concat();
        assert_eq!(names(&commands), round.repeat(2));
        assert!(commands.iter().all(|words| words.len() == 1 || words[1] == stage.key.key.to_string()));
        assert_eq!(reported, [vec![HANDED_OFF; count], vec![stage.released()]].concat().repeat(2));
        assert_eq!(attempts, [vec![1], vec![0; count]].concat().repeat(2), "heirs ask for nothing");
        // The one who got it may tell before the one who gave it.
        let mut events = stage.events.lines();
        events.sort();
        let mut expected = vec!["Acquired".to_owned(); 2 * (count + 1)];
        expected.extend(vec![format!("Released {HANDED_OFF:?}"); 2 * count]);
        expected.extend(vec![format!("Released {:?}", stage.released()); 2]);
        assert_eq!(events, expected);
    }
    Ok(())
}

fn own_time(protocol: Protocol) -> Outcome {
    let stage = Stage::set(protocol)?;
    let locks = [60, 20, 3600, 90].map(|seconds| {
        let options = LockOptions::expiring_after(Duration::from_secs(seconds)).handoff(9);
        stage.lock(options.poll_interval(LONG).timeout(LONG))
    });
    let mut held = locks[0].lock()?;
    let heirs: Vec<(Successor, Duration)> = [20, 3600, 90]
        .into_iter()
        .zip(&locks[1..])
        .map(|(seconds, lock)| (successor(lock), Duration::from_secs(seconds)))
        .collect();
    for (next, expiration) in heirs {
        next.rests();
        stage.proxy.forget();
        let began = SystemTime::now();
        assert_eq!(held.release()?, HANDED_OFF);
        let ended = SystemTime::now();
        held = next.join()?;
        stage.assert_has_it(&held);
        let begins = held.expires_at_system_time().unwrap() - expiration;
        assert!(began - Duration::from_micros(1) <= begins && begins <= ended, "{expiration:?}");
        assert!(held.remaining().unwrap() <= expiration);
        let asked = stage.proxy.asked();
        let written = asked.iter().find(|asked| asked.arguments.len() > 1).expect("something is written");
        let to_live = (expiration + Duration::from_secs(1)).as_millis().to_string();
        let options: &[&str] = if protocol == Protocol::Ttl { &["PX", &to_live] } else { &[] };
        assert_eq!(written.arguments[2..], *options, "{asked:?}");
    }
    Ok(())
}

fn passed_lease(protocol: Protocol) -> Outcome {
    for stolen in [false, true] {
        let stage = Stage::set(protocol)?;
        let held = stage.lock(LockOptions::expiring_after(millis(300)).handoff(9)).lock()?;
        // With the margin it does not take over meanwhile.
        let cancel_token = CancelToken::new();
        let successor = successor(&stage.lock(QUEUED.takeover_margin(LONG)).cancelled_by(&cancel_token));
        while held.ensure_held().is_ok() {
            thread::sleep(millis(10));
        }
        if stolen {
            stage.key.set(FOREIGN);
        }
        let before = stage.key.value();
        stage.proxy.forget();
        let outcome = held.release()?;
        if protocol == Protocol::Classic || stolen {
            assert_eq!(outcome, Release::Expired);
            let written = stage
                .proxy
                .names()
                .into_iter()
                .filter(|name| !["WATCH", "GET", "UNWATCH"].contains(&name.as_str()));
            assert_eq!(written.collect::<Vec<_>>(), [""; 0]);
            assert_eq!(stage.key.value(), before);
            cancel_token.cancel();
            assert_cancelled(successor);
        } else {
            // Given back, since nobody has taken it, and asked for anew.
            assert_eq!(outcome, stage.released());
            let successor = successor.join()?;
            assert!(successor.attempts() > 0);
            stage.assert_has_it(&successor);
        }
    }
    Ok(())
}

fn cleared(protocol: Protocol) -> Outcome {
    let stage = Stage::set(protocol)?;
    let lock = stage.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let successor = successor(&lock);
    stage.key.delete();
    assert_eq!(held.release()?, Release::Lost);
    let successor = successor.join()?;
    // In Classic the passing itself has taken it anew.
    assert_eq!(successor.attempts() > 0, protocol != Protocol::Classic);
    stage.assert_has_it(&successor);
    assert_eq!(successor.release()?, stage.released());
    Ok(())
}

fn stolen(protocol: Protocol) -> Outcome {
    for foreign in [FOREIGN, "1", "", "whatever"] {
        let stage = Stage::set(protocol)?;
        let cancel_token = CancelToken::new();
        let lock = stage.lock(QUEUED.handoff(9)).cancelled_by(&cancel_token);
        let held = lock.lock()?;
        let successor = successor(&lock);
        stage.key.set(foreign);
        stage.proxy.forget();
        assert_eq!(held.release()?, Release::Lost, "{foreign:?}");
        // It is told, looks, and waits on. In the transactions the releaser looks twice.
        let looks = if protocol == Protocol::Classic { 1 } else { 3 };
        stage.is_asked("GET", looks);
        successor.rests();
        cancel_token.cancel();
        assert_cancelled(successor);
        let overwrote = stage.events.lines().contains(&"ValueOverwritten".to_owned());
        assert_eq!(overwrote, protocol == Protocol::Classic);
        assert_eq!(stage.key.value().as_deref() == Some(foreign), protocol != Protocol::Classic);
    }
    Ok(())
}

/// A gem that lost a takeover to the holder wrote nearly the same time over his value.
pub(crate) fn write_as_a_loser(key: &TestKey, held: &LockGuard) -> Result<(), Box<dyn StdError>> {
    let promised = held.expires_at_system_time().ok_or("it expires")?;
    let until = promised + Duration::from_secs(1) + millis(5);
    key.set(&format!("{:.6}", until.duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64()));
    Ok(())
}

fn losers_value(protocol: Protocol) -> Outcome {
    let stage = Stage::set(protocol)?;
    let lock = stage.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let successor = successor(&lock);
    write_as_a_loser(&stage.key, &held)?;
    assert_eq!(held.release()?, Release::HandedOff { certified: false });
    let successor = successor.join()?;
    assert_eq!(successor.attempts(), 0);
    stage.assert_has_it(&successor);
    Ok(())
}

fn without_the_option(protocol: Protocol) -> Outcome {
    for options in [QUEUED, QUEUED.handoff(9).handoff(0)] {
        let stage = Stage::set(protocol)?;
        let held = stage.lock(options).lock()?;
        // It is the one who has the lock whose option counts.
        let successor = successor(&stage.lock(QUEUED.handoff(9)));
        assert_eq!(held.release()?, stage.released());
        let successor = successor.join()?;
        assert_eq!(successor.attempts(), 1);
        stage.assert_has_it(&successor);
    }
    Ok(())
}

fn one_try(protocol: Protocol) -> Outcome {
    let stage = Stage::set(protocol)?;
    let lock = stage.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let looking = stage.proxy.hold("GET", 1);
    let trying = Sleeper::start({
        let lock = lock.clone();
        move || lock.try_lock()
    });
    looking.reached();
    assert_eq!(held.release()?, stage.released());
    looking.go_on();
    let _either = trying.join()?;
    Ok(())
}

fn however_it_is_dropped(protocol: Protocol) -> Outcome {
    let stage = Stage::set(protocol)?;
    let lock = stage.lock(QUEUED.handoff(9));
    let held = lock.lock()?;
    let [first, second] = [successor(&lock), successor(&lock)];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _held = held;
        resume_unwind(Box::new("on purpose"))
    }));
    assert!(panicked.is_err());
    let first = first.join()?;
    second.rests();
    thread::spawn(move || drop(first)).join().unwrap();
    let second = second.join()?;
    assert_eq!(second.attempts(), 0);
    stage.assert_has_it(&second);
    let handed_over = format!("Released {HANDED_OFF:?}");
    assert_eq!(stage.events.lines().iter().filter(|line| **line == handed_over).count(), 2);
    Ok(())
}

fn own_kind() -> Outcome {
    let stage = Stage::set(Protocol::Classic)?;
    let endless = LockOptions::held_until_released().poll_interval(LONG).timeout(LONG);
    let kinds = [
        QUEUED,
        QUEUED.protocol(Protocol::Watched),
        QUEUED.protocol(Protocol::Ttl),
        endless,
        endless.protocol(Protocol::Watched),
    ];
    let lock = |options: LockOptions| Lock::new(&stage.locker, &stage.key.key, options.handoff(9));
    for (n, mine) in kinds.into_iter().enumerate() {
        for (m, his) in kinds.into_iter().enumerate() {
            let held = lock(mine)?.lock()?;
            let successor = successor(&lock(his)?);
            stage.proxy.forget();
            let outcome = held.release()?;
            let successor = successor.join()?;
            assert_eq!(matches!(outcome, Release::HandedOff { .. }), n == m, "{mine:?} to {his:?}");
            // Who takes over from the dead looks for himself at what one without an expiration holds.
            let looks = u32::from(n != m) + u32::from(n >= 3 && m < 3);
            assert_eq!(successor.attempts(), looks, "{mine:?} to {his:?}");
            if n == m && n >= 3 {
                assert_eq!(outcome, Release::HandedOff { certified: false }, "1 names nobody");
                assert_eq!(stage.proxy.names(), [""; 0], "there is nothing to renew");
                assert_eq!(stage.key.value().as_deref(), Some("1"));
            }
            assert!(matches!(successor.release()?, Release::Released { .. }));
            assert_eq!(stage.key.value(), None);
        }
    }
    Ok(())
}

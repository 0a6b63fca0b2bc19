//! The line before a key: first come, first served among the threads of a process, and each keeps to its own options.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol, Release};

use crate::support::asleep::asleep;
use crate::support::monitor::{Monitor, connected, names};
use crate::support::{LONG, Outcome, RedisServer, Target, TestKey, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "queueing",
        tests![
            threads_are_served_in_the_order_they_came,
            a_release_wakes_the_next_thread_at_once,
            only_the_head_of_the_line_talks_to_the_server,
            an_acquisition_in_a_line_takes_two_commands,
            a_thread_that_gives_up_leaves_the_others_in_order,
            the_head_that_gives_up_lets_the_next_go_on,
            a_thread_behind_others_times_out_with_what_they_saw,
            one_try_waits_in_no_line,
            locks_with_different_options_share_a_line,
            who_waits_in_another_way_looks_for_himself,
            a_server_that_is_down_is_put_up_with_once_by_a_whole_line,
            who_gives_up_sooner_takes_no_patience_from_those_behind,
            those_behind_are_told_that_the_server_is_down,
            lockers_and_keys_have_lines_of_their_own,
            a_forgotten_guard_holds_nobody_up_for_longer_than_its_lease,
            a_holder_that_overran_lets_the_next_in_and_does_not_disturb_it,
            a_lock_that_is_cleared_goes_to_the_head_of_the_line,
            many_threads_on_many_keys_lose_no_update,
            waiters_back_off_and_still_keep_their_deadline,
        ],
    )
}

/// So long that whoever is served was woken.
const NEVER_POLLS: LockOptions = expiring_for_long().poll_interval(LONG).timeout(LONG);

const fn expiring_for_long() -> LockOptions {
    LockOptions::expiring_after(LONG)
}

struct Scenario {
    server: Arc<RedisServer>,
    key: TestKey,
    locker: Locker,
}

impl Scenario {
    fn set(test: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let server = Arc::new(RedisServer::start()?);
        let key = Target::of(&server).key(test);
        let locker = Locker::open(&server.url())?;
        Ok(Self { server, key, locker })
    }

    fn lock(&self, options: LockOptions) -> Result<Lock, Error> {
        Lock::new(&self.locker, &self.key.key, options)
    }
}

type Served = Arc<Mutex<Vec<&'static str>>>;

/// Waits in the line until served, and writes that down.
fn waiter(
    lock: Lock,
    name: &'static str,
    served: &Served,
) -> std::thread::JoinHandle<Result<Release, Error>> {
    let served = Arc::clone(served);
    asleep(move || {
        let held = lock.lock()?;
        served.lock().unwrap().push(name);
        held.release()
    })
}

fn threads_are_served_in_the_order_they_came() -> Outcome {
    let scenario = Scenario::set("order")?;
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let lock = scenario.lock(NEVER_POLLS.protocol(protocol))?;
        let served = Served::default();
        let held = lock.lock()?;
        let order = ["ann", "bob", "cid", "dot", "eve", "fay"];
        let waiters = order.map(|name| waiter(lock.clone(), name, &served));
        assert_eq!(*served.lock().unwrap(), [""; 0]);
        drop(held);
        for waiter in waiters {
            let _ = waiter.join().unwrap()?;
        }
        assert_eq!(*served.lock().unwrap(), order, "{protocol:?}");
    }
    Ok(())
}

fn a_release_wakes_the_next_thread_at_once() -> Outcome {
    let scenario = Scenario::set("at_once")?;
    for options in [NEVER_POLLS, LockOptions::held_until_released().poll_interval(LONG).timeout(LONG)] {
        let lock = scenario.lock(options)?;
        // By a release, a drop, the end of a block, and a panic in it.
        let variants: [fn(&Lock, mem::ManuallyDrop<setnx_lock::LockGuard>); 2] = [
            |_, held| drop(mem::ManuallyDrop::into_inner(held)),
            |_, held| {
                let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    let _held = mem::ManuallyDrop::into_inner(held);
                    std::panic::resume_unwind(Box::new("on purpose"))
                }));
                assert!(panicked.is_err());
            },
        ];
        for give_back in variants {
            let held = lock.lock()?;
            let served = Served::default();
            let waiting = waiter(lock.clone(), "next", &served);
            give_back(&lock, mem::ManuallyDrop::new(held));
            assert!(matches!(waiting.join().unwrap()?, Release::Released { .. }));
        }
    }
    Ok(())
}

fn only_the_head_of_the_line_talks_to_the_server() -> Outcome {
    let scenario = Scenario::set("head")?;
    scenario.key.set("1895000000.5");
    let lock = scenario.lock(expiring().poll_interval(millis(20)).timeout(millis(400)))?;
    let lock = connected(lock)?;
    let monitor = Monitor::on(&scenario.server)?;
    let waiting: Vec<_> = (0..16)
        .map(|_| {
            let lock = lock.clone();
            asleep(move || lock.lock().map(|held| held.attempts()))
        })
        .collect();
    let mut tries = 0;
    for waiting in waiting {
        let Err(Error::Timeout { details, .. }) = waiting.join().unwrap() else { panic!("it is held") };
        tries += details.attempts;
        assert!(details.waited >= millis(400), "{details:?}");
    }
    let commands = monitor.recorded(&scenario.server)?;
    // The first asks and looks; from then on there is one command for each look, of whoever is the head.
    assert_eq!(names(&commands)[..2], ["SETNX", "GET"]);
    assert!(names(&commands)[2..].iter().all(|name| *name == "GET"), "{commands:?}");
    assert_eq!(u32::try_from(commands.len())?, tries + 1, "{commands:?}");
    Ok(())
}

fn an_acquisition_in_a_line_takes_two_commands() -> Outcome {
    let scenario = Scenario::set("two")?;
    let lock = connected(scenario.lock(NEVER_POLLS)?)?;
    let held = lock.lock()?;
    let monitor = Monitor::on(&scenario.server)?;
    let served = Served::default();
    let waiters: Vec<_> = (0..5).map(|_| waiter(lock.clone(), "", &served)).collect();
    drop(held);
    for waiter in waiters {
        let _ = waiter.join().unwrap()?;
    }
    let commands = monitor.recorded(&scenario.server)?;
    let expected: Vec<&str> = ["DEL"].into_iter().chain(["SETNX", "DEL"].repeat(5)).collect();
    assert_eq!(names(&commands), expected);
    Ok(())
}

fn a_thread_that_gives_up_leaves_the_others_in_order() -> Outcome {
    let scenario = Scenario::set("gives_up")?;
    let lock = scenario.lock(NEVER_POLLS)?;
    let hasty = scenario.lock(NEVER_POLLS.timeout(millis(50)))?;
    let served = Served::default();
    let held = lock.lock()?;
    let ann = waiter(lock.clone(), "ann", &served);
    let hasty = waiter(hasty, "hasty", &served);
    let bob = waiter(lock.clone(), "bob", &served);
    assert!(matches!(hasty.join().unwrap(), Err(Error::Timeout { .. })));
    drop(held);
    for waiter in [ann, bob] {
        let _ = waiter.join().unwrap()?;
    }
    assert_eq!(*served.lock().unwrap(), ["ann", "bob"]);
    Ok(())
}

fn the_head_that_gives_up_lets_the_next_go_on() -> Outcome {
    let scenario = Scenario::set("head_gives_up")?;
    // Held by somebody in another process, whose release nobody tells of.
    scenario.key.set("1895000000.5");
    let hasty = scenario.lock(NEVER_POLLS.timeout(millis(50)))?;
    let served = Served::default();
    let hasty = waiter(hasty, "hasty", &served);
    let ann = waiter(scenario.lock(NEVER_POLLS.poll_interval(millis(20)))?, "ann", &served);
    let Err(Error::Timeout { details, .. }) = hasty.join().unwrap() else { panic!("it is held") };
    assert!(details.attempts >= 2, "one at once, and a last one: {details:?}");
    scenario.key.delete();
    let _ = ann.join().unwrap()?;
    Ok(())
}

fn a_thread_behind_others_times_out_with_what_they_saw() -> Outcome {
    let scenario = Scenario::set("behind")?;
    scenario.key.set("1895000000.5");
    let head = waiter(scenario.lock(NEVER_POLLS)?, "head", &Served::default());
    let error = scenario.lock(NEVER_POLLS.timeout(millis(50)))?.lock().expect_err("it is held");
    let text = crate::support::chain(&error);
    let Error::Timeout { details, .. } = error else { panic!("{text}") };
    assert_eq!((details.attempts, details.ahead), (0, 1));
    let expected = "after 0 attempts: other threads of this process were queued ahead, and 1 still are; \
                    last seen: held until 2030-";
    assert!(text.contains(expected), "{text}");
    scenario.locker.shut_down();
    assert!(matches!(head.join().unwrap(), Err(Error::ShutDown { .. })));
    Ok(())
}

fn one_try_waits_in_no_line() -> Outcome {
    let scenario = Scenario::set("one_try")?;
    let lock = connected(scenario.lock(NEVER_POLLS)?)?;
    let held = lock.lock()?;
    let served = Served::default();
    let waiting = waiter(lock.clone(), "waiting", &served);
    let monitor = Monitor::on(&scenario.server)?;
    assert!(lock.try_lock()?.is_none());
    let error = scenario.lock(NEVER_POLLS.timeout(Duration::ZERO))?.lock().expect_err("it is held");
    assert!(error.to_string().contains("exceeded 0 sec after 1 attempt;"), "{error}");
    assert_eq!(names(&monitor.recorded(&scenario.server)?), ["SETNX", "GET"].repeat(2));
    drop(held);
    let _ = waiting.join().unwrap()?;
    // What one try has got, others wait for, and are told of its end.
    let held = lock.try_lock()?.expect("it is free");
    let waiting = waiter(lock.clone(), "waiting", &served);
    drop(held);
    let _ = waiting.join().unwrap()?;
    Ok(())
}

fn locks_with_different_options_share_a_line() -> Outcome {
    let scenario = Scenario::set("options")?;
    let all = [
        NEVER_POLLS,
        NEVER_POLLS.protocol(Protocol::Watched).handoff(8),
        LockOptions::held_until_released().poll_interval(LONG).timeout(LONG),
        LockOptions::expiring_after(millis(30_000)).wait_forever().poll_interval(LONG),
        NEVER_POLLS.protocol(Protocol::Ttl),
        NEVER_POLLS.takeover_margin(millis(5)).handoff(1),
    ];
    let names = ["plain", "watched", "unexpiring", "for ever", "ttl", "margin"];
    for first in all {
        let held = scenario.lock(first)?.lock()?;
        let served = Served::default();
        let waiters: Vec<_> = all
            .iter()
            .zip(names)
            .map(|(options, name)| Ok(waiter(scenario.lock(*options)?, name, &served)))
            .collect::<Result<_, Error>>()?;
        drop(held);
        for waiter in waiters {
            let _ = waiter.join().unwrap()?;
        }
        assert_eq!(*served.lock().unwrap(), names, "after {first:?}");
        assert_eq!(scenario.key.value(), None);
    }
    Ok(())
}

fn who_waits_in_another_way_looks_for_himself() -> Outcome {
    let scenario = Scenario::set("ways")?;
    let never_takes_over = LockOptions::held_until_released().poll_interval(LONG).timeout(LONG);
    // Its holder is dead.
    scenario.key.set("1532000016.5");
    let first = waiter(scenario.lock(never_takes_over)?, "first", &Served::default());
    let held = scenario.lock(NEVER_POLLS)?.try_lock_for(LONG)?.expect("he may take over");
    assert!(!first.is_finished());
    drop(held);
    let _ = first.join().unwrap()?;

    // Cleared by somebody in another process: one looks often, and another hardly ever.
    scenario.key.set("1895000000.5");
    let rarely = waiter(scenario.lock(NEVER_POLLS)?, "rarely", &Served::default());
    let often = waiter(scenario.lock(NEVER_POLLS.poll_interval(millis(10)))?, "often", &Served::default());
    scenario.key.delete();
    let _ = often.join().unwrap()?;
    let _ = rarely.join().unwrap()?;
    Ok(())
}

fn dead_server() -> Result<Locker, Box<dyn std::error::Error>> {
    let server = RedisServer::start()?;
    let settings = Locker::builder(&server.url())?.unreachable_timeout(millis(3000));
    drop(server);
    Ok(settings.build()?)
}

fn a_server_that_is_down_is_put_up_with_once_by_a_whole_line() -> Outcome {
    let lock = Lock::new(&dead_server()?, "down", NEVER_POLLS.wait_forever())?;
    let began = std::time::Instant::now();
    let waiters: Vec<_> = (0..8).map(|_| waiter(lock.clone(), "", &Served::default())).collect();
    for waiter in waiters {
        let error = waiter.join().unwrap().expect_err("there is no server");
        assert!(matches!(error, Error::NoConnection { .. }), "{error:?}");
    }
    // One after the other it would be 24 s.
    assert!(began.elapsed() < millis(15_000), "{:?}", began.elapsed());
    Ok(())
}

fn who_gives_up_sooner_takes_no_patience_from_those_behind() -> Outcome {
    let locker = dead_server()?;
    let hasty = Lock::new(&locker, "down", NEVER_POLLS.timeout(millis(300)))?;
    let hasty = waiter(hasty, "hasty", &Served::default());
    let began = std::time::Instant::now();
    let patient = waiter(Lock::new(&locker, "down", NEVER_POLLS.wait_forever())?, "", &Served::default());
    assert!(matches!(hasty.join().unwrap(), Err(Error::NoConnection { .. })));
    assert!(matches!(patient.join().unwrap(), Err(Error::NoConnection { .. })));
    assert!(began.elapsed() >= millis(2900), "its own patience is three seconds: {:?}", began.elapsed());
    Ok(())
}

fn those_behind_are_told_that_the_server_is_down() -> Outcome {
    let lock = Lock::new(&dead_server()?, "down", NEVER_POLLS)?;
    let head = waiter(Lock::clone(&lock), "head", &Served::default());
    for time in [20, 200] {
        let error = lock.try_lock_for(millis(time)).expect_err("there is no server");
        assert!(matches!(error, Error::NoConnection { .. }), "{error:?}");
    }
    drop(head);
    Ok(())
}

fn lockers_and_keys_have_lines_of_their_own() -> Outcome {
    let scenario = Scenario::set("own")?;
    let other_key = Lock::new(&scenario.locker, "another", NEVER_POLLS)?;
    let other_locker = Locker::open(&scenario.server.url())?;
    let elsewhere = Lock::new(&other_locker, &scenario.key.key, NEVER_POLLS.poll_interval(millis(5)))?;
    let held = scenario.lock(NEVER_POLLS)?.lock()?;
    let waiting = waiter(scenario.lock(NEVER_POLLS)?, "here", &Served::default());
    drop(other_key.lock()?);
    let elsewhere = asleep(move || elsewhere.lock().map(drop));
    drop(held);
    let _ = waiting.join().unwrap()?;
    elsewhere.join().unwrap()?;
    Ok(())
}

fn a_forgotten_guard_holds_nobody_up_for_longer_than_its_lease() -> Outcome {
    let scenario = Scenario::set("forgotten")?;
    let brief = LockOptions::expiring_after(millis(100)).timeout(LONG).poll_interval(LONG);
    for _ in 0..2 {
        mem::forget(scenario.lock(brief)?.lock()?);
    }
    let held = scenario.lock(NEVER_POLLS)?.lock()?;
    let waiting = waiter(scenario.lock(NEVER_POLLS)?, "next", &Served::default());
    drop(held);
    let _ = waiting.join().unwrap()?;
    Ok(())
}

fn a_holder_that_overran_lets_the_next_in_and_does_not_disturb_it() -> Outcome {
    let scenario = Scenario::set("overran")?;
    let brief = LockOptions::expiring_after(millis(50)).timeout(LONG).poll_interval(LONG);
    let overran = scenario.lock(brief)?.lock()?;
    let next = scenario.lock(NEVER_POLLS)?.lock()?;
    let third = waiter(scenario.lock(NEVER_POLLS)?, "third", &Served::default());
    let value = scenario.key.value();
    assert_eq!(overran.release()?, Release::Expired);
    assert_eq!(scenario.key.value(), value);
    assert!(!third.is_finished());
    drop(next);
    let _ = third.join().unwrap()?;
    Ok(())
}

fn a_lock_that_is_cleared_goes_to_the_head_of_the_line() -> Outcome {
    let scenario = Scenario::set("cleared")?;
    let polling = expiring().timeout(LONG).poll_interval(millis(20));
    let held = scenario.lock(polling)?.lock()?;
    let lock = scenario.lock(polling)?;
    let next = asleep(move || lock.lock());
    assert!(scenario.lock(polling)?.clear()?);
    let next = next.join().unwrap()?;
    next.ensure_held()?;
    drop((held, next));
    Ok(())
}

fn many_threads_on_many_keys_lose_no_update() -> Outcome {
    const KEYS: usize = 3;
    const THREADS: usize = 12;
    const ROUNDS: u32 = 40;
    let scenario = Scenario::set("many")?;
    let numbers: [std::sync::atomic::AtomicU32; KEYS] = Default::default();
    let locks: Vec<Lock> = (0..KEYS)
        .map(|n| Lock::new(&scenario.locker, format!("many:{n}"), NEVER_POLLS))
        .collect::<Result<_, _>>()?;
    std::thread::scope(|scope| -> Result<(), Error> {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (locks, numbers) = (&locks, &numbers);
                scope.spawn(move || {
                    (0..ROUNDS).try_for_each(|round| {
                        let key = (n + round as usize) % KEYS;
                        locks[key].try_with(|_| {
                            let read = numbers[key].load(std::sync::atomic::Ordering::Relaxed);
                            std::thread::yield_now();
                            numbers[key].store(read + 1, std::sync::atomic::Ordering::Relaxed);
                            Ok(())
                        })
                    })
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    let counted: u32 = numbers.iter().map(|n| n.load(std::sync::atomic::Ordering::Relaxed)).sum();
    assert_eq!(counted, u32::try_from(THREADS)? * ROUNDS);
    Ok(())
}

fn waiters_back_off_and_still_keep_their_deadline() -> Outcome {
    let scenario = Scenario::set("back_off")?;
    scenario.key.set("1895000000.5");
    let polling = setnx_lock::Polling::every(millis(2)).backing_off_to(LONG).jittered_by(50);
    let lock = connected(scenario.lock(expiring().timeout(millis(600)).polling(polling))?)?;
    let monitor = Monitor::on(&scenario.server)?;
    let Err(Error::Timeout { details, .. }) = lock.lock() else { panic!("it is held") };
    assert!(details.waited >= millis(600), "{details:?}");
    // Pauses of 1 to 2 ms, 2 to 4, 4 to 8 …: ten of them are longer than that, and the last try is one more.
    let commands = monitor.recorded(&scenario.server)?;
    assert!(commands.len() <= 13, "{commands:?}");
    Ok(())
}

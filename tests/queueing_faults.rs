//! Queued threads and faults: waiters that give up, unreachable servers, forgotten guards, expired leases and cleared keys.

use std::mem;
use std::time::Instant;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, Locker, Release};

use crate::queueing::{Order, Scenario, named_waiter, waiter};
use crate::support::asleep::asleep;
use crate::support::scenario::{FOREIGN, QUEUED, closed_port};
use crate::support::{LONG, Outcome, chain, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "queueing_faults",
        tests![
            a_thread_that_gives_up_leaves_the_others_in_order,
            a_head_that_gives_up_makes_the_next_thread_the_head,
            a_thread_behind_others_times_out_with_what_they_saw,
            a_whole_queue_waits_once_for_an_unreachable_server,
            a_head_that_times_out_leaves_the_others_their_unreachable_timeout,
            threads_behind_the_head_report_the_unreachable_server,
            a_forgotten_guard_blocks_the_queue_no_longer_than_its_lease,
            an_expired_holder_leaves_the_next_holder_alone,
            a_lock_that_is_cleared_goes_to_the_head_of_the_queue,
        ],
    )
}

fn a_thread_that_gives_up_leaves_the_others_in_order() -> Outcome {
    let scenario = Scenario::new("gives_up")?;
    let lock = scenario.lock(QUEUED)?;
    let order = Order::default();
    let held = lock.lock()?;
    let first = named_waiter(lock.clone(), "first", &order);
    let gives_up = waiter(scenario.lock(QUEUED.timeout(millis(50)))?);
    let second = named_waiter(lock.clone(), "second", &order);
    assert!(matches!(gives_up.join().unwrap(), Err(Error::Timeout { .. })));
    drop(held);
    for waiter in [first, second] {
        waiter.join().unwrap()?;
    }
    assert_eq!(*order.lock().unwrap(), ["first", "second"]);
    Ok(())
}

fn a_head_that_gives_up_makes_the_next_thread_the_head() -> Outcome {
    let scenario = Scenario::new("head_gives_up")?;
    // Held by another process, which sends no notification.
    scenario.key.set(FOREIGN);
    let head = waiter(scenario.lock(QUEUED.timeout(millis(1500)))?);
    let next = waiter(scenario.lock(QUEUED.poll_interval(millis(20)))?);
    let Err(Error::Timeout { details, .. }) = head.join().unwrap() else { panic!("the lock is held") };
    assert!(details.attempts >= 2, "one at once, and one at the deadline: {details:?}");
    scenario.key.delete();
    next.join().unwrap()?;
    Ok(())
}

fn a_thread_behind_others_times_out_with_what_they_saw() -> Outcome {
    let scenario = Scenario::new("behind")?;
    scenario.key.set(FOREIGN);
    let head = waiter(scenario.lock(QUEUED)?);
    let error = scenario.lock(QUEUED.timeout(millis(50)))?.lock().expect_err("the lock is held");
    let text = chain(&error);
    let Error::Timeout { details, .. } = error else { panic!("{text}") };
    assert_eq!((details.attempts, details.ahead), (0, 1));
    let expected = "after 0 attempts: other threads of this process were queued ahead, and 1 still are; \
                    last seen: held until 2030-";
    assert!(text.contains(expected), "{text}");
    scenario.locker.shut_down();
    assert!(matches!(head.join().unwrap(), Err(Error::ShutDown { .. })));
    Ok(())
}

/// A locker for a port that no server listens on.
fn unreachable() -> Result<Locker, Box<dyn std::error::Error>> {
    let builder = Locker::builder(&format!("redis://127.0.0.1:{}/", closed_port()?))?;
    Ok(builder.unreachable_timeout(millis(3000)).build()?)
}

fn a_whole_queue_waits_once_for_an_unreachable_server() -> Outcome {
    let lock = Lock::new(&unreachable()?, "down", QUEUED.wait_forever())?;
    let began = Instant::now();
    let waiters: Vec<_> = (0..8).map(|_| waiter(lock.clone())).collect();
    for waiter in waiters {
        let error = waiter.join().unwrap().expect_err("there is no server");
        assert!(matches!(error, Error::NoConnection { .. }), "{error:?}");
    }
    // One after the other would take 24 s.
    assert!(began.elapsed() < millis(20_000), "{:?}", began.elapsed());
    Ok(())
}

fn a_head_that_times_out_leaves_the_others_their_unreachable_timeout() -> Outcome {
    let locker = unreachable()?;
    let head = waiter(Lock::new(&locker, "down", QUEUED.timeout(millis(1000)))?);
    let began = Instant::now();
    let next = waiter(Lock::new(&locker, "down", QUEUED.wait_forever())?);
    for waiter in [head, next] {
        let error = waiter.join().unwrap().expect_err("there is no server");
        assert!(matches!(error, Error::NoConnection { .. }), "{error:?}");
    }
    assert!(began.elapsed() >= millis(2900), "its unreachable timeout is 3 s: {:?}", began.elapsed());
    Ok(())
}

fn threads_behind_the_head_report_the_unreachable_server() -> Outcome {
    let lock = Lock::new(&unreachable()?, "down", QUEUED)?;
    let head = waiter(lock.clone());
    for time in [20, 200] {
        let error = lock.try_lock_for(millis(time)).expect_err("there is no server");
        assert!(matches!(error, Error::NoConnection { .. }), "{error:?}");
    }
    drop(head);
    Ok(())
}

fn a_forgotten_guard_blocks_the_queue_no_longer_than_its_lease() -> Outcome {
    let scenario = Scenario::new("forgotten")?;
    let brief = LockOptions::expiring_after(millis(100)).timeout(LONG).poll_interval(LONG);
    for _ in 0..2 {
        mem::forget(scenario.lock(brief)?.lock()?);
    }
    let held = scenario.lock(QUEUED)?.lock()?;
    let next = waiter(scenario.lock(QUEUED)?);
    drop(held);
    next.join().unwrap()?;
    Ok(())
}

fn an_expired_holder_leaves_the_next_holder_alone() -> Outcome {
    let scenario = Scenario::new("expired")?;
    let brief = LockOptions::expiring_after(millis(50)).timeout(LONG).poll_interval(LONG);
    let expired = scenario.lock(brief)?.lock()?;
    let next = scenario.lock(QUEUED)?.lock()?;
    let third = waiter(scenario.lock(QUEUED)?);
    let value = scenario.key.value();
    assert_eq!(expired.release()?, Release::Expired);
    assert_eq!(scenario.key.value(), value);
    assert!(!third.is_finished());
    drop(next);
    third.join().unwrap()?;
    Ok(())
}

fn a_lock_that_is_cleared_goes_to_the_head_of_the_queue() -> Outcome {
    let scenario = Scenario::new("cleared")?;
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

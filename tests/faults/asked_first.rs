//! What a call does with the answer to its first command, which it sends before it waits.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use setnx_lock::{CancelToken, Error, Event, Lock, Semaphore};

use crate::support::scenario::{Scenario, patient};
use crate::support::{Outcome, expiring, trials_of};

trials_of! {
    "asked_first";
    a_call_that_has_ended_before_sends_nothing,
    a_permit_that_is_held_elsewhere_costs_no_second_look,
    the_event_of_a_permit_names_the_semaphore,
}

fn a_call_that_has_ended_before_sends_nothing() -> Outcome {
    let scenario = Scenario::set();
    let key = scenario.target.key("ended");
    let locker = patient(&scenario.server.url())?.build()?;
    let token = CancelToken::new();
    let lock = Lock::new(&locker, &key.key, expiring())?;
    let pool = Semaphore::new(&locker, &key.key, 3, expiring())?;
    token.cancel();
    let cancelled = [
        lock.clone().cancelled_by(&token).lock().map(drop),
        lock.clone().cancelled_by(&token).try_lock().map(drop),
        pool.clone().cancelled_by(&token).acquire().map(drop),
    ];
    locker.shut_down();
    for ended in cancelled.into_iter().chain([lock.lock().map(drop), pool.acquire().map(drop)]) {
        assert!(matches!(ended, Err(Error::Cancelled { .. } | Error::ShutDown { .. })), "{ended:?}");
    }
    assert_eq!(scenario.server.whole_log().len(), 0);
    Ok(())
}

fn a_permit_that_is_held_elsewhere_costs_no_second_look() -> Outcome {
    let scenario = Scenario::set();
    let key = scenario.target.key("permits");
    let pool = Semaphore::new(&scenario.locker(), &key.key, 2, expiring().timeout(Duration::ZERO))?;
    let other = Semaphore::new(&scenario.locker(), &key.key, 2, expiring())?;
    let held = [other.acquire()?, other.acquire()?];
    scenario.server.clear_log();
    assert!(pool.try_acquire()?.is_none());
    assert_eq!(scenario.server.names(), ["SETNX", "MGET"]);
    drop(held);
    Ok(())
}

fn the_event_of_a_permit_names_the_semaphore() -> Outcome {
    let scenario = Scenario::set();
    let key = scenario.target.key("named");
    let names = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&names);
    let observer = move |event: &Event<'_>| {
        if let Event::AcquireFinished { key, .. } = event {
            noted.lock().unwrap().push(key.to_string());
        }
    };
    let locker = patient(&scenario.server.url())?.observer(observer).build()?;
    let pool = Semaphore::new(&locker, &key.key, 2, expiring())?;
    // The second waits for its turn, since a thread of this process has a permit.
    let held = [pool.acquire()?, pool.acquire()?];
    assert_eq!(*names.lock().unwrap(), [key.key.to_string(), key.key.to_string()]);
    drop(held);
    Ok(())
}

//! Semaphores: permits that are ordinary locks.

use std::collections::BTreeSet;
use std::panic;
use std::thread;
use std::time::{Duration, SystemTime};

use setnx_lock::{
    CancelToken, Error, Lock, LockOptions, LockState, Locker, Permit, Protocol, RwLock, Semaphore,
};
use setnx_lock_proto::values::SideKey;

use crate::support::asleep::Sleeper;
use crate::support::scenario::{ANOTHERS, FOREIGN, QUEUED, patient};
use crate::support::{
    HANDED_OVER, LONG, Outcome, PAST, Release, Target, TestKey, assert_says, attempts, expiring, extend,
    millis, release, tests,
};

pub(super) const TESTS: super::Tests = tests![
    as_many_permits_are_held_as_there_are,
    a_permit_is_an_ordinary_lock,
    expired_permits_are_taken_over,
    a_permit_that_never_expires_is_not_taken_over,
    a_release_ends_the_wait_of_a_queued_thread,
    a_wait_for_a_permit_times_out_and_names_the_semaphore,
    a_wait_for_a_permit_is_cancelled,
    a_holder_of_a_permit_has_a_lock,
    a_permit_without_an_expiration,
    callers_with_fewer_permits_use_the_first,
    a_semaphore_that_makes_no_sense_is_refused,
    a_semaphore_runs_a_body,
    a_thread_that_holds_all_permits_is_refused_another,
    a_lock_of_the_same_name_holds_no_permit,
];

/// A name and the keys of its permits, which are deleted at the end.
pub(super) struct Pool<'a> {
    target: &'a Target,
    pub(super) name: TestKey,
    pub(super) slots: Vec<TestKey>,
    /// The key of the number of readers.
    pub(super) number: TestKey,
}

impl<'a> Pool<'a> {
    pub(super) fn of(target: &'a Target, test: &str, permits: usize) -> Self {
        let name = format!("permits-{test}");
        let slots = (0..permits).map(|slot| target.key(&format!("{name}:{slot}"))).collect();
        let name = target.key(&name);
        let number = name.beside(SideKey::Readers);
        Self { target, name, slots, number }
    }

    pub(super) fn semaphore(&self, options: LockOptions) -> Semaphore {
        self.semaphore_through(&self.target.locker(), options)
    }

    fn semaphore_through(&self, locker: &Locker, options: LockOptions) -> Semaphore {
        self.semaphore_of(locker, self.slots.len(), options)
    }

    fn semaphore_of(&self, locker: &Locker, permits: usize, options: LockOptions) -> Semaphore {
        Semaphore::new(locker, &self.name.key, permits, options.protocol(self.target.protocol)).unwrap()
    }

    pub(super) fn rw_lock(&self, options: LockOptions) -> RwLock {
        self.rw_lock_through(&self.target.locker(), options)
    }

    pub(super) fn rw_lock_through(&self, locker: &Locker, options: LockOptions) -> RwLock {
        self.rw_lock_of(locker, self.slots.len(), options)
    }

    pub(super) fn rw_lock_of(&self, locker: &Locker, readers: usize, options: LockOptions) -> RwLock {
        RwLock::new(locker, &self.name.key, readers, options.protocol(self.target.protocol)).unwrap()
    }

    /// Which keys are there.
    pub(super) fn held(&self) -> Vec<usize> {
        let held = self.slots.iter().enumerate().filter(|(_, key)| key.value().is_some());
        held.map(|(slot, _)| slot).collect()
    }

    fn set_all(&self, value: &str) {
        self.slots.iter().for_each(|slot| slot.set(value));
    }
}

/// Starts a thread that waits. Returns once it sleeps in the queue.
pub(super) fn waiting<T: Send + 'static>(wait: impl FnOnce() -> T + Send + 'static) -> Sleeper<T> {
    let sleeper = Sleeper::start(wait);
    sleeper.rests();
    sleeper
}

fn acquire_all(semaphore: &Semaphore) -> Result<Vec<Permit>, Error> {
    (0..semaphore.keys().len()).map(|_| semaphore.acquire()).collect()
}

fn slot(held: &Permit) -> usize {
    held.slot()
}

fn as_many_permits_are_held_as_there_are(target: &Target) -> Outcome {
    let pool = Pool::of(target, "permits", 3);
    let semaphore = pool.semaphore(expiring());
    let keys: Vec<_> = pool.slots.iter().map(|slot| slot.key.clone()).collect();
    assert_eq!(semaphore.keys(), keys);
    let mut held = acquire_all(&semaphore)?;
    let slots: BTreeSet<usize> = held.iter().map(slot).collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]), "each has a permit of its own");
    for held in &held {
        held.ensure_held()?;
        assert_eq!(held.key(), &keys[slot(held)]);
        assert_eq!(held.protocol(), target.decided_protocol());
        assert!(attempts() >= 1);
    }
    for other in [&semaphore, &pool.semaphore(expiring())] {
        assert!(other.try_acquire()?.is_none());
        assert!(other.try_acquire_for(millis(20))?.is_none());
    }
    assert_eq!(pool.held(), [0, 1, 2]);
    assert!(target.lock(&pool.name, expiring()).try_lock()?.is_some(), "a lock of that name is another");
    let last = held.pop().expect("there are three");
    let freed = slot(&last);
    assert_eq!(release(last)?, target.released());
    assert!(!pool.held().contains(&freed));
    let again = semaphore.try_acquire()?.expect("one is free");
    assert_eq!(slot(&again), freed);
    drop((held, again));
    assert_eq!(pool.held(), [0_usize; 0]);
    Ok(())
}

fn a_permit_is_an_ordinary_lock(target: &Target) -> Outcome {
    let pool = Pool::of(target, "ordinary", 4);
    let semaphore = pool.semaphore(expiring());
    let locks: Vec<Lock> = pool.slots.iter().map(|slot| target.lock(slot, expiring())).collect();
    let held = semaphore.acquire()?;
    let lock = &locks[slot(&held)];
    assert!(lock.try_lock()?.is_none());
    let promised = held.expires_at().map(SystemTime::from).expect("it expires");
    assert_eq!(pool.slots[slot(&held)].until(), Some(promised + target.shown_later()));
    assert_eq!(release(held)?, target.released());

    let lock = locks[0].lock()?;
    pool.slots[1].set(FOREIGN);
    pool.slots[3].set("1");
    let held = semaphore.acquire()?;
    assert_eq!(slot(&held), 2, "the others are taken away");
    assert!(semaphore.try_acquire()?.is_none());
    let states = semaphore.states()?;
    assert!(matches!(
        &states[..],
        [LockState::Until { .. }, LockState::Until { .. }, LockState::Until { .. }, LockState::Unexpiring]
    ));
    let LockState::Until { expiry: until, .. } = &states[0] else { panic!("{states:?}") };
    assert_eq!(until.date().map(SystemTime::from), pool.slots[0].until());
    drop(lock);
    assert_eq!(semaphore.states()?[0], LockState::Absent);
    assert_eq!(slot(&semaphore.try_acquire()?.expect("it is free")), 0);
    Ok(())
}

fn expired_permits_are_taken_over(target: &Target) -> Outcome {
    let pool = Pool::of(target, "expired", 3);
    let semaphore = pool.semaphore(expiring());
    pool.set_all(FOREIGN);
    pool.slots[1].set(PAST);
    let held = semaphore.acquire()?;
    assert_eq!(slot(&held), 1);
    assert!(semaphore.try_acquire()?.is_none());
    drop(held);

    pool.set_all(PAST);
    let held = acquire_all(&semaphore)?;
    let slots: BTreeSet<usize> = held.iter().map(slot).collect();
    assert_eq!(slots, BTreeSet::from([0, 1, 2]));
    assert!(semaphore.try_acquire()?.is_none());
    for held in held {
        held.ensure_held()?;
        assert_eq!(release(held)?, target.released());
    }

    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    let past = format!("{:?}", now - 5.0);
    pool.set_all(&past);
    assert!(pool.semaphore(expiring()).try_acquire()?.is_some());
    pool.slots.iter().for_each(TestKey::delete);

    // What is free comes before what has expired.
    pool.slots[0].set(PAST);
    let held = [semaphore.acquire()?, semaphore.acquire()?];
    assert_eq!(pool.slots[0].value().as_deref(), Some(PAST));
    assert_eq!(slot(&semaphore.acquire()?), 0);
    drop(held);
    Ok(())
}

fn a_permit_that_never_expires_is_not_taken_over(target: &Target) -> Outcome {
    let pool = Pool::of(target, "never-expires", 2);
    for value in ["1", "", "rubbish"] {
        pool.set_all(value);
        let error = pool.semaphore(expiring().timeout(millis(20))).acquire().expect_err("they never expire");
        assert_says(&error, &pool.name, &["clear it by hand"]);
        assert!(pool.slots.iter().all(|slot| slot.value().as_deref() == Some(value)));
    }
    Ok(())
}

fn a_release_ends_the_wait_of_a_queued_thread(target: &Target) -> Outcome {
    let pool = Pool::of(target, "queued", 2);
    let semaphore = pool.semaphore(QUEUED);
    let mut held = acquire_all(&semaphore)?;
    let waiters = [(); 4].map(|()| {
        let semaphore = semaphore.clone();
        waiting(move || semaphore.acquire())
    });
    for waiter in waiters {
        // Whichever it is: the next thread of the process has it. One that looks just then, as each does first when it is next, is passed over.
        waiter.rests();
        let released = held.remove(0);
        let freed = slot(&released);
        assert_eq!(release(released)?, HANDED_OVER);
        let next = waiter.join()?;
        assert_eq!(slot(&next), freed, "the others are held");
        next.ensure_held()?;
        assert_eq!(pool.held(), [0, 1]);
        held.push(next);
    }
    drop(held);
    assert_eq!(pool.held(), [0_usize; 0]);
    Ok(())
}

fn a_wait_for_a_permit_times_out_and_names_the_semaphore(target: &Target) -> Outcome {
    let pool = Pool::of(target, "timeout", 2);
    let held = acquire_all(&pool.semaphore(expiring()))?;
    let waiter = pool.semaphore(expiring().timeout(millis(250)));
    let error = waiter.acquire().expect_err("all are held");
    assert_says(&error, &pool.name, &["Timeout on lock", "exceeded 0.25 sec", "held until 2"]);
    assert!(matches!(&error, Error::Contended { .. }) && error.is_contention(), "{error:?}");
    let error = pool.semaphore(expiring().max_attempts(1)).acquire().expect_err("all are held");
    assert!(error.is_contention(), "{error:?}");
    drop(held);
    assert!(waiter.try_acquire()?.is_some());
    Ok(())
}

fn a_wait_for_a_permit_is_cancelled(target: &Target) -> Outcome {
    let pool = Pool::of(target, "cancelled", 2);
    let locker = target.locker();
    let held = acquire_all(&pool.semaphore_through(&locker, QUEUED))?;
    let token = CancelToken::new();
    let semaphore = pool.semaphore_through(&locker, QUEUED).cancelled_by(&token);
    let waiter = semaphore.clone();
    let waiter = waiting(move || waiter.acquire());
    token.cancel();
    let error = waiter.join().expect_err("the wait was cancelled");
    assert!(matches!(&error, Error::Cancelled { .. }), "{error:?}");
    assert_eq!(error.key(), Some(&pool.name.key));
    assert!(matches!(semaphore.try_acquire(), Err(Error::Cancelled { .. })));
    assert_eq!(pool.held(), [0, 1], "those that are held stay so");
    drop(held);
    assert_eq!(pool.held(), [0_usize; 0]);
    Ok(())
}

fn a_holder_of_a_permit_has_a_lock(target: &Target) -> Outcome {
    let pool = Pool::of(target, "powers", 2);
    let fenced = pool.semaphore(expiring().auto_extend(LONG));
    let held = fenced.acquire()?;
    let key = &pool.slots[slot(&held)];
    assert!(extend(&held)?);
    held.verify()?;
    let first = held.fencing_token()?;
    drop(held);

    // Each permit counts its own holders.
    let both = acquire_all(&fenced)?;
    let again = both.iter().find(|held| held.key() == &key.key).expect("both are held");
    assert!(again.fencing_token()? > first);
    let mut both = both.into_iter();
    let (lost, kept) = (both.next().unwrap(), both.next().unwrap());
    pool.slots[slot(&lost)].set(ANOTHERS);
    assert!(matches!(lost.extend(), Err(Error::Lost { .. })));
    assert!(lost.loss_signal().is_lost() && !kept.loss_signal().is_lost());
    assert_eq!(release(lost)?, Release::Lost);
    kept.ensure_held()?;
    assert_eq!(release(kept)?, target.released());
    Ok(())
}

fn a_permit_without_an_expiration(target: &Target) -> Outcome {
    let pool = Pool::of(target, "unexpiring", 2);
    let options = LockOptions::without_expiration().timeout(LONG);
    let locker = target.locker();
    if target.protocol == Protocol::Ttl {
        let refused = Semaphore::new(&locker, &pool.name.key, 2, options.protocol(Protocol::Ttl));
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        return Ok(());
    }
    let semaphore = pool.semaphore_through(&locker, options);
    pool.slots[0].set(PAST);
    let held = semaphore.acquire()?;
    assert_eq!(slot(&held), 1, "one without an expiration takes nothing over");
    assert_eq!(pool.slots[1].value().as_deref(), Some("1"));
    assert_eq!((held.remaining(), held.expires_at()), (None, None));
    assert!(semaphore.try_acquire()?.is_none());
    assert_eq!(release(held)?, Release::Released { certified: false });
    assert_eq!(pool.slots[1].value(), None);
    Ok(())
}

fn callers_with_fewer_permits_use_the_first(target: &Target) -> Outcome {
    let pool = Pool::of(target, "fewer", 4);
    let locker = target.locker();
    let (all, few) = (pool.semaphore_through(&locker, QUEUED), pool.semaphore_of(&locker, 2, QUEUED));
    let held = acquire_all(&few)?;
    assert!(held.iter().all(|held| slot(held) < 2));
    assert!(few.try_acquire()?.is_none());
    let mut others = [all.acquire()?, all.acquire()?].map(Some);
    assert!(others.iter().flatten().all(|held| slot(held) >= 2));
    assert!(all.try_acquire()?.is_none());
    // It polls: so seldom that it is found asleep on a busy machine, too.
    let few = pool.semaphore_of(&locker, 2, QUEUED.poll_interval(millis(1000)));
    let waiter = waiting(move || few.acquire());
    others[0] = None;
    assert!(slot(&all.acquire()?) >= 2, "the last permits are not for it");
    drop(held);
    assert!(slot(&waiter.join()?) < 2);
    Ok(())
}

fn a_semaphore_that_makes_no_sense_is_refused(target: &Target) -> Outcome {
    let locker = target.locker();
    let options = expiring().protocol(target.protocol);
    for (permits, options, words) in [
        (0, options, "there is no permit"),
        (Semaphore::MAX_PERMITS + 1, options, "over 1000 permits"),
        (2, LockOptions::expiring_after(Duration::ZERO), ""),
    ] {
        let refused = Semaphore::new(&locker, "senseless", permits, options).expect_err("it makes no sense");
        assert!(matches!(refused, Error::Invalid { .. }), "{refused:?}");
        assert_eq!(refused.key().map(ToString::to_string).as_deref(), Some("senseless"));
        assert!(refused.to_string().contains(words), "{refused}");
        let refused = RwLock::new(&locker, "senseless", permits, options).expect_err("it makes no sense");
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert!(matches!(Semaphore::new(&locker, "", 2, options), Err(Error::Invalid { .. })));
    assert!(matches!(RwLock::new(&locker, "", 2, options), Err(Error::Invalid { .. })));
    let most = Semaphore::new(&locker, "most", Semaphore::MAX_PERMITS, options)?;
    assert_eq!(most.keys().last().map(ToString::to_string).as_deref(), Some("most:999"));
    Ok(())
}

fn a_lock_of_the_same_name_holds_no_permit(target: &Target) -> Outcome {
    let pool = Pool::of(target, "same-name", 2);
    let locker = patient(&target.url)?.holder_name("worker").build()?;
    let of_the_name = target.lock_through(&locker, &pool.name, expiring()).lock()?;
    pool.set_all(FOREIGN);
    let semaphore = pool.semaphore_of(&locker, 2, expiring().timeout(millis(50)));
    let error = semaphore.acquire().expect_err("both are held");
    let Error::Contended { details, .. } = &error else { panic!("{error:?}") };
    assert_eq!((details.permits, details.holder()), (Some(2), None));
    of_the_name.release()?;
    Ok(())
}

fn a_semaphore_runs_a_body(target: &Target) -> Outcome {
    let pool = Pool::of(target, "body", 2);
    let semaphore = pool.semaphore(expiring());
    semaphore.with(|held| assert_eq!(pool.held(), [slot(held)]))?;
    assert_eq!(pool.held(), [0_usize; 0]);
    let failed = semaphore.with_result(|_| Err::<(), _>(Box::<dyn std::error::Error>::from("went wrong")));
    assert_eq!(failed.map_err(|error| error.to_string()), Err("went wrong".into()));
    let unwind = || -> Result<(), Error> { panic::resume_unwind(Box::new("on purpose")) };
    assert!(panic::catch_unwind(panic::AssertUnwindSafe(|| semaphore.with(|_| unwind()))).is_err());
    assert_eq!(pool.held(), [0_usize; 0]);
    Ok(())
}

fn a_thread_that_holds_all_permits_is_refused_another(target: &Target) -> Outcome {
    let pool = Pool::of(target, "nested", 2);
    let semaphore = pool.semaphore(expiring().timeout(millis(20)));
    semaphore.with(|_| {
        // Some of them are no reason.
        semaphore.with(|_| {
            for refused in [semaphore.acquire().map(drop), semaphore.with(|_| ())] {
                let error = refused.expect_err("it would wait for itself");
                assert!(matches!(&error, Error::Nested { .. }), "{error:?}");
                assert_eq!(error.key(), Some(&pool.name.key));
            }
            // Another thread waits, and no longer than it would.
            let there = semaphore.clone();
            assert!(thread::spawn(move || there.try_acquire()).join().unwrap().unwrap().is_none());
        })
    })??;
    // Guards may move to another thread, so they are waited for.
    let held = acquire_all(&semaphore)?;
    assert!(matches!(semaphore.acquire(), Err(Error::Contended { .. })));
    drop(held);
    semaphore.with(|_| ())?;
    Ok(())
}

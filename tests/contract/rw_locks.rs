//! Readers and writers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::{slice, thread};

use setnx_lock::{CancelToken, Error, Locker, Permit, RwLock, WriteGuard};

use super::permits::{Pool, waiting};
use crate::support::asleep::Sleeper;
use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, QUEUED, opened};
use crate::support::{LONG, Outcome, PAST, Target, TestKey, assert_says, expiring, millis, release, tests};

pub(super) const TESTS: super::Tests = tests![
    readers_read_together_and_a_writer_writes_alone,
    a_writer_takes_over_what_has_expired,
    a_writer_waits_for_all_readers,
    readers_wait_for_a_writer,
    a_writer_becomes_a_reader_without_a_gap,
    who_reads_and_writes_at_once_would_wait_for_itself,
    a_writer_s_wait_ends_and_leaves_nothing_behind,
    a_writer_among_readers_and_a_reader_among_writers_get_their_turn,
    readers_and_writers_of_several_lockers,
    all_callers_share_one_number_of_readers,
    the_number_of_readers_is_changed_while_nobody_reads_or_writes,
];

fn readers_read_together_and_a_writer_writes_alone(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw", 3);
    let (here, elsewhere) = (pool.rw_lock(expiring()), pool.rw_lock(expiring()));
    assert_eq!(here.semaphore().keys().len(), 3);
    let readers = [here.read()?, elsewhere.read()?];
    for lock in [&here, &elsewhere] {
        assert!(lock.try_write()?.is_none());
        assert!(lock.try_write_for(millis(20))?.is_none());
    }
    assert_eq!(pool.held().len(), 2, "a writer that gives up leaves nothing behind");
    let last = elsewhere.try_read()?.expect("there may be three");
    assert!(here.try_read()?.is_none() && here.try_read_for(millis(20))?.is_none());
    drop((readers, last));

    let writer = here.write()?;
    writer.ensure_held()?;
    assert_eq!((writer.guards().len(), pool.held()), (3, vec![0, 1, 2]));
    for lock in [&here, &elsewhere] {
        assert!(lock.try_read()?.is_none() && lock.try_write()?.is_none());
        assert!(lock.try_read_for(millis(20))?.is_none());
        assert!(lock.try_write_for(millis(20))?.is_none());
    }
    writer.release()?;
    assert_eq!(pool.held(), [0_usize; 0]);
    let written = here.with_write(|writer| writer.guards().len())?;
    let read = elsewhere.with_read(|_| pool.held().len())?;
    assert_eq!((written, read), (3, 1));
    assert_eq!(pool.held(), [0_usize; 0]);
    Ok(())
}

fn a_writer_takes_over_what_has_expired(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw-expired", 3);
    let lock = pool.rw_lock(expiring());
    pool.slots[1].set(PAST);
    drop(lock.write()?);
    pool.slots[2].set(FOREIGN);
    assert!(lock.try_write()?.is_none());
    assert_eq!(pool.held(), [2]);
    pool.slots.iter().for_each(|slot| slot.set(PAST));
    drop(lock.write()?);
    assert_eq!(pool.held(), [0_usize; 0]);
    Ok(())
}

fn a_writer_waits_for_all_readers(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw-write", 3);
    let lock = pool.rw_lock(QUEUED);
    let mut readers = [lock.read()?, lock.read()?, lock.read()?].map(Some);
    readers.sort_by_key(|held| held.as_ref().map(Permit::slot));
    let there = lock.clone();
    let writer = waiting(move || there.write());
    // In any order: each is acquired for the writer, or stays free until it is its turn.
    for reader in [1, 0] {
        drop(readers[reader].take());
        writer.rests();
        assert!(lock.try_write()?.is_none());
    }
    // What the writer has stays its own.
    until("the writer has what is free", || pool.held() == [0, 1, 2]);
    assert!(lock.try_read()?.is_none());
    drop(readers);
    let writer = writer.join()?;
    writer.ensure_held()?;
    assert_eq!(pool.held(), [0, 1, 2]);
    drop(writer);
    assert_eq!(pool.held(), [0_usize; 0]);
    Ok(())
}

fn readers_wait_for_a_writer(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw-read", 3);
    let lock = pool.rw_lock(QUEUED);
    let writer = lock.write()?;
    let readers = [(); 3].map(|()| {
        let lock = lock.clone();
        waiting(move || lock.read())
    });
    writer.release()?;
    // All read at a time.
    let mut slots = Vec::new();
    let readers: Vec<Permit> = readers.into_iter().map(Sleeper::join).collect::<Result<_, _>>()?;
    for reader in &readers {
        reader.ensure_held()?;
        slots.push(reader.slot());
    }
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2]);
    assert!(lock.try_write()?.is_none());
    drop(readers);
    drop(lock.write()?);
    Ok(())
}

fn a_writer_becomes_a_reader_without_a_gap(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw-downgrade", 4);
    let lock = pool.rw_lock(QUEUED);
    let downgraded = |writing: WriteGuard| -> Result<Permit, Box<dyn std::error::Error>> {
        let value = pool.slots[3].value();
        let reading = writing.downgrade();
        assert_eq!(reading.slot(), 3);
        assert_eq!(pool.slots[3].value(), value, "it has been held all the time");
        reading.ensure_held()?;
        Ok(reading)
    };
    let writing = lock.write()?;
    let there = lock.clone();
    let reader = waiting(move || there.read());
    let reading = downgraded(writing)?;
    // Another reader gets in, and a writer does not.
    let reader = reader.join()?;
    reader.ensure_held()?;
    let next = lock.clone();
    let writer = waiting(move || next.write());
    assert!(lock.try_write()?.is_none());
    assert_eq!(release(reading)?, target.released());
    writer.rests();
    drop(reader);
    let writer = writer.join()?;
    writer.ensure_held()?;
    assert_eq!(pool.held(), [0, 1, 2, 3]);
    // A writer that waited before takes what is free, and waits for the rest.
    let next = lock.clone();
    let last = waiting(move || next.write());
    let reading = downgraded(writer)?;
    last.rests();
    drop(reading);
    drop(last.join()?);
    assert_eq!(pool.held(), [0_usize; 0]);
    Ok(())
}

fn who_reads_and_writes_at_once_would_wait_for_itself(target: &Target) -> Outcome {
    for readers in [1, 3] {
        let pool = Pool::of(target, "rw-nested", readers);
        let lock = pool.rw_lock(expiring());
        let assert_refused = |refused: Result<(), Error>, key: &TestKey| {
            let error = refused.expect_err("it would wait for itself");
            assert!(matches!(&error, Error::Nested { .. }), "{error:?}");
            assert_eq!(error.key(), Some(&key.key));
        };
        lock.with_read_result(|reading| -> Outcome {
            let slot = &pool.slots[reading.slot()];
            for refused in [lock.with_write(|_| ()), lock.write().map(drop), lock.try_write().map(drop)] {
                assert_refused(refused, slot);
            }
            assert_eq!(pool.held().len(), 1);
            // A second reader is none that waits for itself, if there may be one.
            if readers > 1 {
                lock.with_read(|_| ())?;
            }
            Ok(())
        })?;
        let named = if readers == 1 { &pool.slots[0] } else { &pool.name };
        lock.with_write(|_| {
            for refused in [lock.with_read(|_| ()), lock.read().map(drop), lock.try_read().map(drop)] {
                assert_refused(refused, named);
            }
            assert!(matches!(lock.with_write(|_| ()), Err(Error::Nested { .. })));
        })?;
        assert_eq!(pool.held(), [0_usize; 0]);
        lock.with_read(|_| ())?;
    }
    Ok(())
}

fn a_writer_s_wait_ends_and_leaves_nothing_behind(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw-ends", 3);
    let locker = target.locker();
    let lock = pool.rw_lock_through(&locker, QUEUED);
    let reading = lock.read()?;
    let slot = reading.slot();
    let impatient = pool.rw_lock_through(&locker, QUEUED.timeout(millis(50)));
    let error = impatient.write().expect_err("there is a reader");
    assert_says(&error, &pool.slots[slot], &["exceeded 0.05 sec"]);
    assert_eq!(pool.held(), [slot]);
    let token = CancelToken::new();
    let cancelled = lock.clone().cancelled_by(&token);
    let writer = waiting(move || cancelled.write());
    token.cancel();
    let error = writer.join().expect_err("it was cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    assert_eq!(pool.held(), [slot]);
    drop(lock.try_read()?.expect("there may be three"));
    drop(reading);
    drop(lock.try_write()?.expect("there is no reader"));
    Ok(())
}

/// What readers and writers do to a number in two parts: a reader
/// finds them equal, and a writer changes one after the other.
#[derive(Default)]
struct Pair {
    parts: [AtomicU32; 2],
    readers: AtomicU32,
    over: AtomicBool,
}

impl Pair {
    fn read(&self, most: u32) {
        assert!(self.readers.fetch_add(1, Ordering::SeqCst) < most, "too many readers");
        let first = self.parts[0].load(Ordering::SeqCst);
        thread::sleep(millis(1));
        assert_eq!(first, self.parts[1].load(Ordering::SeqCst), "a writer was there");
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    fn write(&self) {
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a reader is there");
        let number = self.parts[0].fetch_add(1, Ordering::SeqCst) + 1;
        thread::sleep(millis(1));
        assert_eq!(self.parts[1].fetch_add(1, Ordering::SeqCst) + 1, number, "another writer was there");
        assert_eq!(self.readers.load(Ordering::SeqCst), 0, "a reader is there");
    }

    /// Repeats the action until it is over. It is over, too, if the action panics.
    fn repeat(&self, mut act: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
        let _over_if_it_panics = OverAfterPanic(self);
        while !self.over.load(Ordering::SeqCst) {
            act()?;
        }
        Ok(())
    }

    fn is_over(&self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

struct OverAfterPanic<'a>(&'a Pair);

impl Drop for OverAfterPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.is_over();
        }
    }
}

const READERS: usize = 3;

fn a_writer_among_readers_and_a_reader_among_writers_get_their_turn(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw-turns", READERS);
    let lock = pool.rw_lock(expiring().poll_interval(LONG));
    let locks = slice::from_ref(&lock);
    turns(locks, [5, 0], |pair, lock| (0..3).try_for_each(|_| lock.with_write(|_| pair.write())))?;
    turns(locks, [0, 3], |pair, lock| (0..3).try_for_each(|_| lock.with_read(|_| pair.read(3))))
}

fn readers_and_writers_of_several_lockers(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw-lockers", READERS);
    let options = expiring().poll_interval(millis(3));
    let lockers: Vec<Locker> = (0..2).map(|_| target.locker()).collect();
    let locks: Vec<RwLock> = lockers.iter().map(|locker| pool.rw_lock_through(locker, options)).collect();
    turns(&locks, [2, 1], |pair, lock| {
        for _ in 0..5 {
            lock.with_write(|_| pair.write())?;
            lock.with_read(|_| pair.read(3))?;
        }
        Ok(())
    })
}

fn readers(lock: &RwLock) -> [Result<(), Error>; 6] {
    [
        lock.read().map(drop),
        lock.try_read().map(drop),
        lock.with_read(|_| ()),
        lock.write().map(drop),
        lock.try_write_for(millis(20)).map(drop),
        lock.with_write_result(|_| Ok(())),
    ]
}

/// Asserts that no call gets the lock, since others use it with another number of readers.
#[track_caller]
fn assert_refused(pool: &Pool<'_>, lock: &RwLock, found: &str, own: usize) {
    for outcome in readers(lock) {
        let error = outcome.expect_err("others use another number");
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let words = format!("this key says {found} readers, and this `RwLock` has {own},");
        assert_says(&error, &pool.number, &[&words, "`RwLock::set_readers`"]);
    }
    assert_eq!(pool.held(), [0_usize; 0], "no lock is acquired");
}

fn all_callers_share_one_number_of_readers(target: &Target) -> Outcome {
    for readers in [1, 3] {
        let pool = Pool::of(target, "rw-number", readers);
        let (locker, number) = (target.locker(), &pool.number);
        let lock = pool.rw_lock_through(&locker, expiring());
        assert_eq!(number.value(), None, "it is written by the first call that asks");
        drop(lock.write()?);
        assert_eq!(number.value(), Some(readers.to_string()));
        for locker in [&locker, &target.locker()] {
            assert_refused(&pool, &pool.rw_lock_of(locker, 2, expiring()), &readers.to_string(), 2);
            drop(pool.rw_lock_through(locker, expiring()).read()?);
        }
        // A locker compares it once.
        for found in ["5", "many"] {
            number.set(found);
            drop(lock.read()?);
            drop(pool.rw_lock_through(&locker, expiring()).write()?);
            assert_refused(&pool, &pool.rw_lock_through(&opened(&target.url)?, expiring()), found, readers);
        }
    }
    Ok(())
}

fn the_number_of_readers_is_changed_while_nobody_reads_or_writes(target: &Target) -> Outcome {
    let pool = Pool::of(target, "rw-change", 5);
    let (locker, number) = (target.locker(), &pool.number);
    let impatient = expiring().timeout(millis(50));
    let few = pool.rw_lock_of(&locker, 3, impatient);
    few.set_readers()?;
    assert_eq!(number.value().as_deref(), Some("3"), "there was none");
    let (reading, more) = (few.read()?, pool.rw_lock_through(&locker, impatient));
    assert!(more.set_readers().is_err_and(|error| error.is_contention()));
    assert_eq!((number.value().as_deref(), pool.held()), (Some("3"), vec![reading.slot()]));
    drop(reading);
    more.set_readers()?;
    assert_eq!((number.value().as_deref(), pool.held()), (Some("5"), vec![]));
    drop(more.write()?);
    // One that reads by the greater number is waited for.
    pool.slots[4].set(FOREIGN);
    let few = pool.rw_lock_of(&locker, 3, impatient);
    assert!(few.set_readers().is_err_and(|error| error.is_contention()));
    pool.slots[4].delete();
    let token = CancelToken::new();
    token.cancel();
    assert!(matches!(few.clone().cancelled_by(&token).set_readers(), Err(Error::Cancelled { .. })));
    assert_refused(&pool, &few, "5", 3);
    few.set_readers()?;
    drop(few.read()?);
    // The same locker has compared the old number, and compares it anew.
    assert_refused(&pool, &more, "3", 5);
    // What another program has written there is no number to wait for.
    number.set("many");
    few.set_readers()?;
    assert_eq!((number.value().as_deref(), pool.held()), (Some("3"), vec![]));
    Ok(())
}

/// Has so many threads read by each of these locks, and so many write, until `done` has returned on the first.
fn turns(
    locks: &[RwLock],
    [reading, writing]: [usize; 2],
    done: impl FnOnce(&Pair, &RwLock) -> Result<(), Error>,
) -> Outcome {
    let pair = &Pair::default();
    let most = u32::try_from(READERS)?;
    thread::scope(|scope| -> Result<(), Error> {
        let _over_if_it_panics = OverAfterPanic(pair);
        let mut threads = Vec::new();
        for lock in locks.iter().flat_map(|lock| vec![lock; reading]) {
            threads.push(scope.spawn(move || pair.repeat(|| lock.with_read(|_| pair.read(most)))));
        }
        for lock in locks.iter().flat_map(|lock| vec![lock; writing]) {
            threads.push(scope.spawn(move || pair.repeat(|| lock.with_write(|_| pair.write()))));
        }
        let outcome = done(pair, &locks[0]);
        pair.is_over();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())?;
        outcome
    })?;
    Ok(())
}

//! What an acquisition took and a release came to, as the events
//! of their thread say it. Lockers that tests open record it.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use setnx_lock::{Error, Event, Key, LockGuard, LossReason, MultiLockGuard, Permit};

/// What a release came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    Released { certified: bool },
    LeftToExpire,
    Expired,
    Lost,
}

pub(crate) const CERTIFIED: Release = Release::Released { certified: true };
pub(crate) const UNCERTIFIED: Release = Release::Released { certified: false };

/// The outcome of a release that hands the lock over: our own
/// bytes were replaced, which proves that no other client had it.
pub(crate) const HANDED_OVER: Release = Release::Released { certified: true };

thread_local! {
    /// The releases of this thread's last call.
    static RELEASES: RefCell<Vec<(Key, Release)>> = const { RefCell::new(Vec::new()) };
    /// How often the last call of this thread asked for a lock, and how long it waited.
    static ACQUIRED: Cell<(u32, Duration)> = const { Cell::new((0, Duration::ZERO)) };
    /// Whether its last extension was certified.
    static EXTENDED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Records a release. An observer is called on the thread that releases.
pub(crate) fn record(event: &Event<'_>) {
    let (key, release) = match event {
        Event::Released { key, left_to_expire: true, .. } => (*key, Release::LeftToExpire),
        Event::Released { key, certified, .. } => (*key, Release::Released { certified: *certified }),
        Event::Lost { key, reason: LossReason::Expired, .. } => (*key, Release::Expired),
        Event::Lost { key, .. } => (*key, Release::Lost),
        Event::AcquireFinished { attempts, waited, .. } => return ACQUIRED.set((*attempts, *waited)),
        Event::Extended { certified, .. } => return EXTENDED.set(Some(*certified)),
        _ => return,
    };
    RELEASES.with_borrow_mut(|releases| releases.push((key.clone(), release)));
}

/// How often the last call of this thread asked for a lock.
pub(crate) fn attempts() -> u32 {
    ACQUIRED.get().0
}

/// How long the last call of this thread waited for a lock.
pub(crate) fn waited() -> Duration {
    ACQUIRED.get().1
}

/// Extends a lease, and returns whether that was certified.
pub(crate) fn extend(held: &LockGuard) -> Result<bool, Error> {
    EXTENDED.take();
    held.extend()?;
    Ok(EXTENDED.take().expect("an event of the extension"))
}

/// The guard of one lock.
pub(crate) trait Held {
    fn end(self) -> Result<(), Error>;
}

impl Held for LockGuard {
    fn end(self) -> Result<(), Error> {
        self.release()
    }
}

impl Held for Permit {
    fn end(self) -> Result<(), Error> {
        self.release()
    }
}

/// Releases a lock whose locker is [recorded](record), and returns what that came to.
pub(crate) fn release(held: impl Held) -> Result<Release, Error> {
    outcome(|| held.end())
}

/// The same for [`LockGuard::leave_to_expire`].
pub(crate) fn leave_to_expire(held: LockGuard) -> Result<Release, Error> {
    outcome(|| held.leave_to_expire())
}

fn outcome(end: impl FnOnce() -> Result<(), Error>) -> Result<Release, Error> {
    RELEASES.take();
    match end() {
        Ok(()) => match &RELEASES.take()[..] {
            [(_, release)] => Ok(*release),
            releases => panic!("one release, and these events: {releases:?}"),
        },
        Err(error) => lost(error),
    }
}

/// Releases several locks whose locker is [recorded](record), and returns what that came to for each key.
pub(crate) fn release_all(held: MultiLockGuard) -> Vec<(Key, Result<Release, Error>)> {
    let keys: Vec<Key> = held.guards().iter().map(|guard| guard.key().clone()).collect();
    RELEASES.take();
    let released = held.release();
    let ended = RELEASES.take();
    // A loss is the error of the whole call, and may have been noticed before.
    let loss = match &released {
        Err(Error::Lost { reason: LossReason::Expired, .. }) => Some(Release::Expired),
        Err(Error::Lost { .. }) => Some(Release::Lost),
        _ => None,
    };
    let failures = if loss.is_some() { Ok(()) } else { released };
    let outcome = |(key, failure): (Key, Option<Error>)| {
        let found = ended.iter().find(|(of, _)| *of == key).map(|(_, release)| *release);
        let outcome = match failure {
            Some(error) => Err(error),
            None => Ok(found.or(loss).unwrap_or_else(|| panic!("no event of the release of {key}"))),
        };
        (key, outcome)
    };
    by_key(keys, failures).into_iter().map(outcome).collect()
}

/// What a call on several locks says of each key.
fn by_key(keys: impl IntoIterator<Item = Key>, outcome: Result<(), Error>) -> Vec<(Key, Option<Error>)> {
    let mut failures = match outcome {
        Ok(()) => Vec::new(),
        Err(Error::Several { cause, mut others, .. }) => {
            others.push(*cause);
            others
        }
        Err(error) => vec![error],
    };
    let mut of = |key: &Key| {
        failures.iter().position(|error| error.key() == Some(key)).map(|at| failures.swap_remove(at))
    };
    keys.into_iter().map(|key| (key.clone(), of(&key))).collect()
}

fn lost(error: Error) -> Result<Release, Error> {
    match error {
        Error::Lost { reason: LossReason::Expired, .. } => Ok(Release::Expired),
        Error::Lost { .. } => Ok(Release::Lost),
        error => Err(error),
    }
}

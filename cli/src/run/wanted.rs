//! What a command runs under: a lock, several, a permit, or the part of a reader or a writer.

use std::time::Duration;

use setnx_lock::chrono::{DateTime, Utc};
use setnx_lock::{
    CancelToken, Error, Key, Lock, LockGuard, LockState, LockToken, Locker, MultiLock, MultiLockGuard,
    Permit, RwLock, Semaphore, WriteGuard,
};

use super::event::Loss;
use crate::arguments::Run;
use crate::failure::Failure;

/// What is to be acquired.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Lock(Lock),
    Resumed(Lock, LockToken),
    Locks { all: MultiLock, each: Vec<Lock> },
    Permit(Semaphore),
    Reader(RwLock),
    Writer(RwLock),
}

impl Wanted {
    /// Returns what the arguments name. The locker adds the prefix.
    pub(super) fn of(
        arguments: &Run,
        token: Option<LockToken>,
        locker: &Locker,
        cancel: &CancelToken,
    ) -> Result<Self, Failure> {
        let (keys, options) = (arguments.keys(), arguments.options(token.as_ref())?);
        if let Some(token) = token {
            let lock = Lock::new(locker, token.key().clone(), options)?.cancelled_by(cancel);
            return Ok(Self::Resumed(lock, token));
        }
        Ok(match (keys.as_slice(), arguments.permits, arguments.readers) {
            ([key], None, None) => Self::Lock(Lock::new(locker, key, options)?.cancelled_by(cancel)),
            (keys @ [_, ..], None, None) => Self::Locks {
                all: MultiLock::new(locker, keys, options)?.cancelled_by(cancel),
                each: keys.iter().map(|key| Lock::new(locker, key, options)).collect::<Result<_, _>>()?,
            },
            ([key, ..], Some(permits), _) => {
                Self::Permit(Semaphore::new(locker, key, permits, options)?.cancelled_by(cancel))
            }
            ([key, ..], None, Some(readers)) => {
                let lock = RwLock::new(locker, key, readers, options)?.cancelled_by(cancel);
                if arguments.shared { Self::Reader(lock) } else { Self::Writer(lock) }
            }
            ([], ..) => return Err(Failure::usage("which key?")),
        })
    }

    pub(super) fn acquire(&self) -> Result<Held, Error> {
        Ok(match self {
            Self::Lock(lock) => Held::Lock(lock.lock()?),
            Self::Resumed(lock, token) => Held::Lock(lock.resume(token)?),
            Self::Locks { all, .. } => Held::Locks(all.lock()?),
            Self::Permit(semaphore) => Held::Permit(semaphore.acquire()?),
            Self::Reader(lock) => Held::Permit(lock.read()?),
            Self::Writer(lock) => Held::Writer(lock.write()?),
        })
    }

    /// What its keys hold.
    pub(super) fn states(&self) -> Result<Vec<LockState>, Error> {
        match self {
            Self::Lock(lock) | Self::Resumed(lock, _) => Ok(vec![lock.state()?]),
            Self::Locks { each, .. } => each.iter().map(Lock::state).collect(),
            Self::Permit(semaphore) => semaphore.states(),
            Self::Reader(lock) | Self::Writer(lock) => lock.semaphore().states(),
        }
    }

    /// The permits of which any was wanted, if the error with this key concerns all of them.
    pub(super) fn any_of(&self, key: &Key) -> &[Key] {
        match self {
            Self::Permit(semaphore) => Some(semaphore),
            Self::Reader(lock) => Some(lock.semaphore()),
            _ => None,
        }
        .map(Semaphore::keys)
        .filter(|keys| !keys.contains(key))
        .unwrap_or_default()
    }
}

/// What is held.
#[derive(Debug)]
pub(crate) enum Held {
    Lock(LockGuard),
    Locks(MultiLockGuard),
    Permit(Permit),
    Writer(WriteGuard),
}

impl Held {
    pub(super) fn hold(&self) -> Hold<'_> {
        match self {
            Self::Lock(guard) => Hold::of(guard),
            Self::Locks(guards) => Hold { guards: guards.guards(), slot: None },
            Self::Permit(permit) => Hold { slot: Some(permit.slot()), ..Hold::of(permit) },
            Self::Writer(guard) => Hold { guards: guard.guards(), slot: None },
        }
    }

    pub(super) fn end(self, keeps: bool) -> Result<(), Error> {
        match (self, keeps) {
            (Self::Lock(guard), false) => guard.release(),
            (Self::Lock(guard), true) => guard.leave_to_expire(),
            (Self::Locks(guards), false) => guards.release(),
            (Self::Locks(guards), true) => guards.leave_to_expire(),
            (Self::Permit(permit), false) => permit.release(),
            (Self::Permit(permit), true) => permit.leave_to_expire(),
            (Self::Writer(guard), false) => guard.release(),
            (Self::Writer(guard), true) => guard.leave_to_expire(),
        }
    }
}

/// The locks that a command runs under, at least one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold<'a> {
    pub(super) guards: &'a [LockGuard],
    /// The number of the permit, if it is one.
    pub(super) slot: Option<usize>,
}

impl<'a> Hold<'a> {
    pub(super) fn of(guard: &'a LockGuard) -> Self {
        Self { guards: std::slice::from_ref(guard), slot: None }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a Key> + use<'a> {
        self.guards.iter().map(LockGuard::key)
    }

    /// The keys, for people.
    pub(super) fn names(&self) -> String {
        names(self.keys())
    }

    pub(super) fn remaining(&self) -> Option<Duration> {
        self.guards.iter().filter_map(LockGuard::remaining).min()
    }

    pub(super) fn expires_at(&self) -> Option<DateTime<Utc>> {
        self.guards.iter().filter_map(LockGuard::expires_at).min()
    }

    /// The first loss, if one was noticed. Does not wait for the server.
    pub(super) fn loss(&self) -> Option<Loss> {
        self.guards.iter().find_map(|guard| match guard.ensure_held() {
            Err(Error::Lost { key, reason, .. }) => Some(Loss { key, reason }),
            _ => None,
        })
    }

    /// Calls `act` when a loss is noticed.
    pub(super) fn on_loss(&self, act: impl Fn() + Clone + Send + 'static) {
        for guard in self.guards {
            let act = act.clone();
            guard.on_loss(move |_| act());
        }
    }
}

/// Several keys, for people.
pub(super) fn names<'a>(keys: impl Iterator<Item = &'a Key>) -> String {
    keys.map(Key::to_string).collect::<Vec<_>>().join(", ")
}

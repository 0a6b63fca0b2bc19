//! What a locker knows, and what its keys hold.

use std::sync::Arc;
use std::time::Duration;

use proto::values::Key;

use crate::api::locker::Locker;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::report::state::LockState;
use crate::run::thread_holds::{self, HoldKind};
use crate::run::{Call, ReaderCount};
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::CancelToken;

impl Locker {
    pub(crate) fn address(&self) -> Option<String> {
        self.engine().backend.address()
    }

    pub(crate) fn key_prefix(&self) -> &Key {
        self.engine().key_prefix()
    }

    /// Returns a key of the program with the prefix.
    pub(crate) fn whole_key(&self, key: impl Into<Key>) -> Key {
        self.engine().whole_key(key.into())
    }

    pub(crate) fn command_timeout(&self) -> Duration {
        self.engine().backend.command_timeout()
    }

    pub(crate) fn retry_for(&self) -> Duration {
        self.engine().backend.retry_for()
    }

    /// Returns true if releases of this key can be notified.
    pub(crate) fn can_notify(&self, key: &Key) -> bool {
        self.engine().backend.can_listen() && self.engine().has_side_keys(key)
    }

    /// Returns true if all keys that begin with this name are on one node.
    pub(crate) fn have_one_slot(&self, name: &Key) -> bool {
        self.engine().have_one_slot(name)
    }

    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine().identity, &other.engine().identity)
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.engine().queue.is_closed()
    }

    pub(crate) fn refuse_after_fork(&self, key: &Key) -> Result<(), Error> {
        self.engine().refuse_after_fork(key)
    }

    /// Returns how this thread holds a lock, if it does.
    pub(crate) fn held_by_this_thread(&self, key: &Key) -> Option<HoldKind> {
        thread_holds::by_this_thread(&self.engine().identity, key)
    }

    pub(crate) fn notify(&self, event: &Event<'_>) {
        self.engine().observer.notify(event);
    }

    /// See [`Engine::other_readers`].
    pub(crate) fn other_readers(&self, count: &ReaderCount) -> Result<Option<usize>, Error> {
        self.engine().other_readers(count)
    }

    /// See [`Engine::set_readers`].
    pub(crate) fn set_readers(&self, count: &ReaderCount) -> Result<(), Error> {
        self.engine().set_readers(count)
    }

    pub(crate) fn random(&self) -> u64 {
        self.engine().identity.next_nonce().seed()
    }

    /// Begins a call that acquires locks.
    pub(crate) fn call<'a>(
        &'a self,
        options: &'a LockOptions,
        cancel_token: Option<&'a CancelToken>,
    ) -> Call<'a> {
        Call::new(self.engine(), options, cancel_token)
    }
}

/// Returns what these keys hold, in one trip: see [`Lock::state`](crate::Lock::state).
pub(crate) fn look_at_all(locker: &Locker, name: &Key, keys: &Arc<[Key]>) -> Result<Vec<LockState>, Error> {
    let found = locker.engine().states(name, keys, clock::now())?;
    Ok(found.iter().map(|found| LockState::of_value(found.as_deref())).collect())
}

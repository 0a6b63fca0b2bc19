//! Acquiring a permit: one of several locks, whichever is free. Threads of the process wait for all of them in one queue.

use std::slice;
use std::sync::Arc;

use super::acquire::Wait;
use super::engine::Engine;
use super::held::Acquired;
use super::readers::ReaderCount;
use crate::report::error::Error;
use crate::rules::{Command, Reply};
use crate::run::thread_holds::HoldKind;
use crate::values::clock;
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::wait::CancelToken;

/// The locks of which one is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Permits<'a> {
    /// The name of all.
    pub(crate) name: &'a Key,
    /// The name of their queue.
    pub(crate) queue: &'a Key,
    /// At least one.
    pub(crate) slots: &'a Arc<[Key]>,
    pub(crate) options: &'a LockOptions,
    pub(crate) cancel_token: Option<&'a CancelToken>,
    /// Where each is a reader's: the number of readers, which all callers must share.
    pub(crate) readers: Option<&'a ReaderCount>,
}

impl Engine {
    /// Waits until one of the locks is held, or there is an error. Returns which.
    pub(crate) fn acquire_permit(
        self: &Arc<Self>,
        wanted: Permits<'_>,
        kind: HoldKind,
    ) -> Result<(usize, Acquired), Error> {
        let Permits { name, queue, slots, options, cancel_token, readers } = wanted;
        let wait = Wait::new(self, name, options, cancel_token, clock::now()).comparing(readers);
        let (slot, acquired) = self.grant(&wait.for_one_of(slots, queue))?;
        self.note_begun(slice::from_ref(&acquired), Some(kind));
        Ok((slot, acquired))
    }

    /// Reads what several keys hold, with one MGET.
    pub(crate) fn states(&self, name: &Key, keys: &Arc<[Key]>) -> Result<Vec<Option<Vec<u8>>>, Error> {
        match self.once(name, Command::GetAll(Arc::clone(keys)))? {
            Reply::Bulks(found) => Ok(found),
            _ => unreachable!("a backend answers MGET with bulks"),
        }
    }
}

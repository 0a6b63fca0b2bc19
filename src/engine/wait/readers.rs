//! The number of readers of a reader-writer lock, which all its callers must share. It stands in a key beside the locks. A caller compares it
//! before it first asks for one of them, so nothing has to be given back where the numbers differ.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Wait;
use crate::backend::StopCheck;
use crate::clock;
use crate::engine::Engine;
use crate::engine::call::Call;
use crate::error::Error;
use crate::key::{Cut, Key};
use crate::options::Protocol;
use crate::protocol::{Command, Entry, GiveUp, Reply, Request};

/// How often the number is read: it may appear meanwhile, and a reply may be lost.
const LOOKS: u32 = 3;
/// Of how many locks a locker remembers the number. What it has forgotten it compares again.
const MAX_REMEMBERED: usize = 10_000;

/// The numbers of readers that callers have compared through a locker, by their keys.
#[derive(Debug, Default)]
pub(in crate::engine) struct ComparedReaders(Mutex<HashMap<Key, usize>>);

impl ComparedReaders {
    fn has(&self, count: &ReaderCount) -> bool {
        self.lock().get(&count.key) == Some(&count.readers)
    }

    fn note(&self, count: &ReaderCount) {
        let mut compared = self.lock();
        if compared.len() >= MAX_REMEMBERED {
            compared.clear();
        }
        compared.insert(count.key.clone(), count.readers);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many readers a caller of a reader-writer lock lets in.
#[derive(Clone, Debug)]
pub(crate) struct ReaderCount {
    /// The key that holds the number of all callers.
    key: Key,
    readers: usize,
}

impl ReaderCount {
    pub(crate) fn new(name: &Key, readers: usize) -> Self {
        Self { key: Key::joined([name.as_bytes(), b"setnx-lock", b"readers"]), readers }
    }

    fn value(&self) -> Vec<u8> {
        self.readers.to_string().into_bytes()
    }

    /// Compares the number with that of other callers.
    fn compare(&self, found: &[u8]) -> Result<(), Error> {
        if found == self.value() {
            return Ok(());
        }
        let (found, own) = (Cut(found), self.readers);
        let problem = format!(
            "it says that callers let in {found} readers, and this one lets in {own}, so writers would not exclude all readers; use one \
             number everywhere, or stop the other callers and change it by `RwLock::set_readers`"
        );
        Err(Error::invalid(self.key.clone(), problem))
    }
}

impl Wait<'_> {
    /// Compares the number of readers with that of other callers, once, and writes it if there is none yet. Waits as for the lock.
    pub(in crate::engine) fn agree(&self, count: Option<&ReaderCount>) -> Result<(), Error> {
        let compared = &self.engine.compared_readers;
        let Some(count) = count.filter(|count| !compared.has(count)) else { return Ok(()) };
        let stop = || self.is_over();
        let call = Call::new(self.engine, &count.key, Protocol::Classic, self.deadline);
        let call = call.stopped_by(StopCheck(&stop), self.engine.retry_for(self.began.uptime));
        // Where the wait was ended from outside, that is the reason.
        count.agree(call).or_else(|error| self.check().and(Err(error)))?;
        compared.note(count);
        Ok(())
    }
}

impl ReaderCount {
    fn agree(&self, mut call: Call<'_>) -> Result<(), Error> {
        let look = Request::at_any_time(Command::Get);
        let write = Request::at_any_time(Command::SetNx(Entry { value: self.value(), ttl: None }));
        for _ in 0..LOOKS {
            let reply = match call.send(&look, clock::now()) {
                Reply::Bulk(None) => call.send(&write, clock::now()),
                reply => reply,
            };
            match reply {
                Reply::Bulk(Some(found)) => return self.compare(&found),
                Reply::Integer(1) => return Ok(()),
                // Another caller was faster, or it is unknown whether the number was written (I6).
                Reply::Integer(_) | Reply::Lost => {}
                Reply::Refused | Reply::NoLock => return Err(call.error(GiveUp::Refused, "")),
                _ => return Err(call.error(GiveUp::Unsent, "")),
            }
        }
        Err(call.error(GiveUp::Io, ""))
    }
}

impl Engine {
    /// Reads the number of readers that all callers use; `None` if there is none, or another program wrote something else.
    pub(crate) fn readers(&self, count: &ReaderCount) -> Result<Option<usize>, Error> {
        match self.once(&count.key, Command::Get)? {
            Reply::Bulk(found) => Ok(found.and_then(|found| String::from_utf8(found).ok()?.parse().ok())),
            _ => unreachable!("a backend answers GET with a bulk"),
        }
    }

    /// Makes this number the one that all callers must use, whatever it was.
    pub(crate) fn set_readers(&self, count: &ReaderCount) -> Result<(), Error> {
        self.once(&count.key, Command::GetSet(count.value()))?;
        self.compared_readers.note(count);
        Ok(())
    }
}

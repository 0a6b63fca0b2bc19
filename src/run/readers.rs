//! The number of readers of a reader-writer lock, which all its callers must share. A key of its own holds it. A caller
//! compares it before it first asks for one of the locks, so nothing has to be given back if the numbers differ.

use proto::values::{Cut, Key, Protocol, SideKey, ValueBytes};
use proto::{Command, GiveUp, NewValue, Reply, Trip};

use super::engine::Engine;
use super::session::Session;
use crate::report::error::Error;
use crate::system::clock;

/// How often the number is read: it may appear meanwhile, and a reply may be lost.
const LOOKS: u32 = 3;
/// Of how many locks a locker remembers the number. What it has forgotten it compares again.
const MAX_REMEMBERED: usize = 10_000;

/// How many readers a caller of a reader-writer lock lets in.
#[derive(Clone, Debug)]
pub(crate) struct ReaderCount {
    /// The key that holds the number of all callers.
    pub(super) key: Key,
    readers: usize,
}

impl ReaderCount {
    pub(crate) fn new(name: &Key, readers: usize) -> Self {
        Self { key: Key::from(SideKey::Readers.of(name.as_bytes())), readers }
    }

    fn value(&self) -> ValueBytes {
        self.readers.to_string().as_bytes().into()
    }

    /// Reads the number of all callers, and writes this one if there is none. Returns what is there, if that is
    /// something else.
    fn differs(&self, mut session: Session<'_>) -> Result<Option<Vec<u8>>, Error> {
        let look = Trip::of(Command::Get);
        let write = Trip::of(Command::SetNx(NewValue { value: self.value(), ttl: None }));
        for _ in 0..LOOKS {
            let reply = match session.send(&look, clock::now()).plain() {
                Reply::Bulk(None) => session.send(&write, clock::now()).plain(),
                reply => reply,
            };
            match reply {
                Reply::Bulk(found) => return Ok(found.filter(|found| *found != self.value())),
                Reply::Integer(1) => return Ok(None),
                // Another caller was faster, or it is unknown whether the number was written (I6).
                Reply::Integer(_) | Reply::Lost => {}
                Reply::Refused(_) => return Err(session.error(GiveUp::Refused, "")),
                _ => return Err(session.error(GiveUp::Unsent, "")),
            }
        }
        if session.failures.are_unanswered() {
            return Err(session.error(GiveUp::Io, ""));
        }
        let problem = "it is missing whenever it is read and there whenever it is written; are reads sent to a replica?";
        Err(Error::invalid(self.key.clone(), problem))
    }

    /// Returns the error of a caller if others use another number.
    fn refused(&self, found: &[u8]) -> Error {
        let (found, own) = (Cut(found), self.readers);
        let problem = format!(
            "this key says {found} readers, and this `RwLock` has {own}, so a writer would not exclude all readers; use one number everywhere, \
             or stop the other callers and change it by `RwLock::set_readers`"
        );
        Error::invalid(self.key.clone(), problem)
    }
}

impl Engine {
    /// Compares the number of readers with that of other callers, once, and writes it if there is none yet.
    pub(super) fn agree_on_readers(&self, count: &ReaderCount, session: Session<'_>) -> Result<(), Error> {
        if self.has_compared(count) {
            return Ok(());
        }
        match count.differs(session) {
            Ok(Some(found)) => Err(count.refused(&found)),
            Ok(None) => {
                let mut compared = self.compared_readers.lock();
                if compared.len() >= MAX_REMEMBERED {
                    compared.clear();
                }
                compared.insert(count.key.clone(), count.readers);
                Ok(())
            }
            // So is the lock's command, which waits, and the next call compares.
            Err(Error::Refused { refusal, .. }) if refusal.is_transient() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns true if this number has been compared.
    pub(super) fn has_compared(&self, count: &ReaderCount) -> bool {
        self.compared_readers.lock().get(&count.key) == Some(&count.readers)
    }

    /// Returns the number of readers that other callers use, if it is not this one; zero if that is no number. Writes
    /// this one if there is none.
    pub(crate) fn other_readers(&self, count: &ReaderCount) -> Result<Option<usize>, Error> {
        self.refuse_after_fork(&count.key)?;
        let session = Session::new(self, &count.key, Protocol::Classic, Some(clock::now().uptime));
        let number = |found| String::from_utf8(found).ok().and_then(|found| found.parse().ok());
        Ok(count.differs(session)?.map(|found| number(found).unwrap_or_default()))
    }

    /// Makes this number the one that all callers must use, whatever it was.
    pub(crate) fn set_readers(&self, count: &ReaderCount) -> Result<(), Error> {
        self.compared_readers.lock().remove(&count.key);
        self.once(&count.key, Command::GetSet(count.value()))?;
        Ok(())
    }
}

//! Calls for one of several locks that have a name, whichever is free.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use proto::Command;
use proto::values::{Key, Now, Protocol, Terms, Uptime};

use super::calls::SeveralCall;
use super::guards::begin_anew;
use crate::api::guard::LockGuard;
use crate::report::error::{Contention, Error};
use crate::report::event::Event;
use crate::report::state::LockState;
use crate::run::thread_holds::{self, HoldKind};
use crate::run::{Asked, Call, ReaderCount};
use crate::system::clock;
use crate::values::options::LockOptions;

impl<'a> SeveralCall<'a> {
    /// Begins a call for one of several locks that have this name, which lasts until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// Nothing is sent then: none of the locks is to be waited for, or the call was ended from outside.
    pub(crate) fn begin_one_of(
        &self,
        name: &Key,
        keys: &[Key],
        readers: Option<&ReaderCount>,
    ) -> Result<impl Sized + use<'a>, Error> {
        let all_are = keys.iter().all(|key| self.engine.refuse_nested(key).is_err());
        let nested = if all_are { Err(Error::Nested { key: name.clone() }) } else { Ok(()) };
        let begun = self.begin(name, nested, readers);
        begun.inspect_err(|error| self.report_one_of(name, 0, Err(error)))
    }

    /// Acquires one lock, as a call for it alone.
    pub(crate) fn acquire_lock(&self, key: &'a Key, kind: HoldKind) -> Result<LockGuard, Error> {
        Ok(LockGuard::new(Arc::clone(self.engine), self.acquire(key, Some(kind))?))
    }

    /// Asks for one of several locks, and what all hold, in one trip.
    pub(crate) fn ask_and_look<'k>(&self, key: &'k Key, all: &Arc<[Key]>) -> Asked<'k> {
        let probed = self.probe(key);
        let mut asked = self.asks(key, self.engine.protocol_of(self.options), clock::now());
        asked.trip.behind = Some(Box::new(Command::GetAll(Arc::clone(all))));
        self.ask(slice::from_mut(&mut asked), probed);
        asked
    }

    /// Returns what all of several locks hold.
    pub(crate) fn look_at(&self, name: &Key, all: &Arc<[Key]>) -> Result<Vec<Option<Vec<u8>>>, Error> {
        // What is sent after the deadline shares the time of one command.
        let now = clock::now();
        let began = Now { uptime: self.deadline.map_or(now.uptime, |end| end.min(now.uptime)), ..now };
        self.engine.states(name, all, began)
    }

    /// Holds one of several locks that was granted.
    pub(crate) fn hold_one(&self, mut asked: Asked<'_>) -> LockGuard {
        LockGuard::new(Arc::clone(self.engine), self.hold(&mut asked))
    }

    /// Tries once to acquire one of several locks, after what came of asking for it, if that was done. `None` if
    /// another holder has it.
    pub(crate) fn try_one(&self, key: &'a Key, asked: Option<Asked<'a>>) -> Result<Option<LockGuard>, Error> {
        let began = clock::now();
        let options =
            LockOptions { terms: Terms { max_attempts: None, ..self.options.terms }, ..*self.options };
        let options = options.timeout(Duration::ZERO);
        // The tries of a call share its time.
        let deadline = Some(self.deadline.map_or(began.uptime, |deadline| deadline.min(began.uptime)));
        let call = Call { began, options: &options, deadline, ..self.call };
        let acquired = match call.try_or_wait_for(key, asked).0 {
            // A permit of this thread that is lost.
            Err(Error::Nested { .. }) => return Ok(None),
            acquired => Error::unless_contended(acquired)?,
        };
        Ok(acquired.map(|acquired| LockGuard::new(Arc::clone(self.engine), acquired)))
    }

    /// Begins a hold with the options of this call, now, in place of one that another thread has handed on.
    pub(crate) fn go_on(&self, handed: LockGuard) -> LockGuard {
        begin_anew(handed, self.options, clock::now())
    }

    /// Returns the error of a call for one of several locks that has found all of them held.
    pub(crate) fn contended(
        &self,
        name: &Key,
        locks: &[Key],
        attempts: u32,
        seen: Option<LockState>,
        ahead: usize,
    ) -> Error {
        let is_ours = |key: &Key| thread_holds::by_this_thread(&self.engine.identity, key).is_some();
        let details = Contention {
            attempts,
            waited: self.waited(),
            seen,
            expiring: self.expires(),
            ahead,
            permits: Some(locks.len()),
            left_to_writer: false,
            taken_by_this_thread: locks.iter().all(is_ours),
        };
        let timeout = (!self.has_time()).then(|| self.options.timeout.unwrap_or(Duration::MAX));
        Error::Contended { key: name.clone(), timeout, details: Box::new(details) }
    }

    /// Reports how a call for one of several locks that have this name has ended.
    pub(crate) fn report_one_of(&self, name: &Key, attempts: u32, acquired: Result<&LockGuard, &Error>) {
        let at = acquired.map_or_else(|_| clock::uptime(), |guard| guard.hold().acquired.uptime);
        self.report_ended(name, attempts, at, acquired.map(drop));
    }

    /// Returns random bits.
    pub(crate) fn random(&self) -> u64 {
        self.engine.identity.next_nonce().seed()
    }

    /// Returns the protocol that the options mean.
    pub(crate) fn protocol(&self) -> Protocol {
        self.engine.protocol_of(self.options)
    }

    /// Returns true if the lock of an error may be held still, which was in doubt then: it is owed, or what has acquired
    /// it is no debt and lasts.
    pub(crate) fn may_be_held(&self, in_doubt: &Error, since: Uptime) -> bool {
        let Error::InDoubt { key, command, .. } = in_doubt else { return false };
        let lasts = clock::uptime().since(since) < self.options.terms.expiration.unwrap_or(Duration::MAX);
        lasts && (*command == "GETSET" || self.engine.open_debts().contains_key(key))
    }

    /// Reports a refusal that is waited out.
    pub(crate) fn report_refusal(&self, error: &Error) {
        if let Error::Refused { key, refusal, .. } = error {
            self.engine.observer.notify(&Event::RefusedForNow { key, refusal });
        }
    }

    /// For how long the call goes on while the server is unreachable.
    pub(crate) fn retry_for(&self) -> Duration {
        self.engine.retry_for(self.began.uptime)
    }

    /// Notes that it has given up since the server is unreachable: others behind it need not wait as long.
    pub(crate) fn note_unreachable(&self) {
        self.engine.note_unreachable();
    }
}

//! How several locks are acquired: all in one trip if they are free. Otherwise in the order of their bytes, which all
//! clients share, by the rules of one lock: a call waits for a lock while it holds those before it and none behind it,
//! so that no two wait for each other. A writer that has to wait for readers is announced before, one at a time.

use std::collections::VecDeque;
use std::mem;

use crate::extend::{Asked, SeveralCall};
use crate::{Error, Key, LockGuard};

/// A call that some of its locks were not granted to at once.
struct InOrder<'a> {
    call: &'a SeveralCall<'a>,
    keys: &'a [Key],
    /// By which a writer is announced.
    next_writer: Option<&'a Key>,
    announced: Option<LockGuard>,
    /// Those of the first keys.
    held: Vec<LockGuard>,
    /// What came of asking for the next ones.
    asked: VecDeque<Asked<'a>>,
    /// Why locks were not given back.
    not_released: Vec<Error>,
}

/// Acquires these locks: at least one, in the order of their bytes, and no two equal. Returns with them what announces a
/// writer, if it had to wait. After an error none is held, as far as is known.
pub(super) fn acquire_in_order<'a>(
    call: &'a SeveralCall<'a>,
    keys: &'a [Key],
    next_writer: Option<&'a Key>,
) -> Result<(Vec<LockGuard>, Option<LockGuard>), Error> {
    loop {
        let (asked, is_behind) = call.ask_together(keys, next_writer);
        // A writer that has just written would be faster than those that wait.
        let is_behind = is_behind && call.may_wait();
        if !is_behind && asked.len() == keys.len() && asked.iter().all(Asked::is_granted) {
            return Ok((call.hold_all(asked), None));
        }
        let (announced, held, not_released) = (None, Vec::new(), Vec::new());
        let mut locks = InOrder { call, keys, next_writer, announced, held, asked, not_released };
        let acquired = if is_behind { locks.let_ahead() } else { Ok(()) };
        let acquired = acquired.and_then(|()| locks.one_by_one());
        let acquired = acquired.and_then(|()| call.hold_together(&mut locks.held));
        let error = match acquired {
            Ok(held) => return Ok((held, locks.announced)),
            Err(error) => error,
        };
        // Before the locks are given back, for others to get them.
        call.retract(locks.announced.take(), true);
        let not_released = locks.end(&error);
        // One was lost while another was waited for.
        if !(error.is_lost() && not_released.is_empty() && call.has_time()) {
            return Err(error.and(not_released));
        }
    }
}

impl InOrder<'_> {
    /// Waits for each lock that was not granted.
    fn one_by_one(&mut self) -> Result<(), Error> {
        while let Some(key) = self.keys.get(self.held.len()) {
            if self.asked.is_empty() {
                (self.asked, _) = self.call.ask_together(&self.keys[self.held.len()..], None);
            }
            self.refuse_doubt()?;
            let first = self.asked.pop_front();
            if self.call.may_wait() && !first.as_ref().is_some_and(Asked::is_granted) {
                let behind = mem::take(&mut self.asked);
                self.give_back(Vec::new(), behind);
                if first.as_ref().is_none_or(Asked::found_another) && self.announce()? {
                    continue;
                }
            }
            let is_last = self.held.len() + 1 == self.keys.len();
            self.held.push(self.call.hold_or_wait(key, first, is_last)?);
            self.not_released.retain(|error| error.key() != Some(key));
        }
        Ok(())
    }

    /// Gives back what was granted before a writer that is next, and waits for that.
    fn let_ahead(&mut self) -> Result<(), Error> {
        self.refuse_doubt()?;
        let asked = mem::take(&mut self.asked);
        self.give_back(Vec::new(), asked);
        self.announce().map(drop)
    }

    /// Announces a writer that is about to wait, unless that is known. Returns true if it is to ask again, since that has taken a while: one
    /// that holds no lock waits until no other writer is next.
    fn announce(&mut self) -> Result<bool, Error> {
        let Some(next_writer) = self.next_writer else { return Ok(false) };
        let is_announced = self.announced.as_ref().is_some_and(|announced| announced.ensure_held().is_ok());
        if is_announced {
            return Ok(false);
        }
        let waits = self.held.is_empty();
        let announced = self.call.announce(next_writer, waits).map_err(|error| error.about(&self.keys[0]));
        self.announced = announced.inspect_err(|error| self.call.report_failed(self.keys, error, 1))?;
        Ok(waits && self.announced.is_some())
    }

    /// Fails if a reply was lost and nothing can settle that: without an expiration the key names no holder.
    fn refuse_doubt(&mut self) -> Result<(), Error> {
        if self.call.expires() || !self.asked.iter().any(Asked::is_lost) {
            return Ok(());
        }
        let (lost, others): (VecDeque<_>, _) =
            mem::take(&mut self.asked).into_iter().partition(Asked::is_lost);
        self.asked = others;
        let in_doubt = lost.into_iter().filter_map(|asked| self.call.owe(asked).err());
        let error = Error::of_all(in_doubt.map(Err)).err();
        error.map_or(Ok(()), |error| {
            self.call.report_failed(self.keys, &error, 1);
            Err(error)
        })
    }

    /// Gives back what is held or granted. Returns why some were not, unless that is the `error` of the call.
    fn end(mut self, error: &Error) -> Vec<Error> {
        self.not_released.retain(|other| !(error.may_hold_lock() && other.key() == error.key()));
        let (held, asked) = (mem::take(&mut self.held), mem::take(&mut self.asked));
        self.give_back(held, asked);
        self.not_released
    }

    /// Gives locks back. What comes of it says more than what is known of their keys.
    fn give_back(&mut self, held: Vec<LockGuard>, asked: VecDeque<Asked<'_>>) {
        let keys: Vec<Key> =
            held.iter().map(LockGuard::key).chain(asked.iter().map(|one| one.key)).cloned().collect();
        self.not_released.retain(|error| !error.key().is_some_and(|key| keys.contains(key)));
        self.not_released.extend(self.call.give_back(held, asked));
    }
}

//! Calls that are one trip to the server, outside of a wait and of a hold.

use std::sync::Arc;
use std::time::Duration;

use proto::values::{Key, Now, Protocol, State};
use proto::{Command, GiveUp, Replies, Reply, Trip};

use super::engine::Engine;
use super::session::Session;
use crate::report::error::Error;
use crate::report::state::LockState;
use crate::system::clock;
use crate::wait::Hint;

impl Engine {
    /// Reads what the key holds, and when the server removes it, in one
    /// trip; in a locker's first call in two, which share the time of one.
    pub(crate) fn state(&self, key: &Key) -> Result<LockState, Error> {
        let began = clock::now();
        if !self.backend.is_known() {
            // Then it is, and servers that lack PTTL are not asked for it.
            self.once_with(key, Command::Get, None, began)?;
        }
        let removes = |version| version >= Protocol::Ttl.min_version();
        let asks = self.backend.server_version().is_some_and(removes);
        let behind = asks.then_some(Command::TimeToLive);
        let (found, left) = self.once_with(key, Command::Get, behind, began)?;
        let Reply::Bulk(found) = found else { unreachable!("a backend answers GET with a bulk") };
        let state = State::of_value(found.as_deref());
        let left = if let Some(Reply::Integer(left)) = left { u64::try_from(left).ok() } else { None };
        Ok(LockState::of(match left {
            Some(left) => state.removed_at(clock::now().wall.after(Duration::from_millis(left))),
            None => state,
        }))
    }

    /// Deletes the key, whatever it holds, with one DEL.
    pub(crate) fn clear(&self, key: &Key) -> Result<bool, Error> {
        match self.once(key, Command::Del)? {
            Reply::Integer(deleted) => {
                if deleted > 0 {
                    self.queue.notify(key, Hint::Freed);
                }
                Ok(deleted > 0)
            }
            _ => unreachable!("a backend answers DEL with an integer"),
        }
    }

    /// Reads what several keys hold, with one MGET, within one command timeout of when the call `began`.
    pub(crate) fn states(
        &self,
        name: &Key,
        keys: &Arc<[Key]>,
        began: Now,
    ) -> Result<Vec<Option<Vec<u8>>>, Error> {
        match self.once_with(name, Command::GetAll(Arc::clone(keys)), None, began)?.0 {
            Reply::Bulks(found) => Ok(found),
            _ => unreachable!("a backend answers MGET with bulks"),
        }
    }

    pub(super) fn once(&self, key: &Key, command: Command) -> Result<Reply, Error> {
        self.once_with(key, command, None, clock::now()).map(|(reply, _)| reply)
    }

    /// Sends a command, and another behind it, whose failure does not matter. Returns both replies. `began`: when the
    /// call began, whose trips share one command timeout.
    pub(super) fn once_with(
        &self,
        key: &Key,
        command: Command,
        behind: Option<Command>,
        began: Now,
    ) -> Result<(Reply, Option<Reply>), Error> {
        self.refuse_after_fork(key)?;
        let mut session = Session::new(self, key, Protocol::Classic, Some(began.uptime));
        let trip = Trip { behind: behind.map(Box::new), ..Trip::of(command) };
        let Replies { reply, behind, .. } = session.send(&trip, clock::now());
        let reason = match reply.unwrap_or(Reply::TooLate) {
            Reply::Lost if !trip.command.leaves_key() => GiveUp::Unknown,
            failed @ (Reply::Refused(_) | Reply::Unsent | Reply::TooLate | Reply::Lost) => failed.gives_up(),
            reply => return Ok((reply, behind)),
        };
        Err(session.error(reason, "look at the key again"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::scripted::ScriptedBackend;
    use crate::{Lock, LockOptions, Locker};

    #[test]
    fn commands_that_may_change_another_s_key_are_bound_in_time() {
        let backend = ScriptedBackend::replying(|command| match command {
            "SETNX" => Reply::Integer(0),
            "DEL" => Reply::Integer(1),
            _ => Reply::Bulk(Some(b"1532000016.5".to_vec())),
        });
        let options = LockOptions::expiring_after(Duration::from_secs(10));
        drop(Lock::new(&Locker::over(backend.clone()), "k", options).unwrap().lock().unwrap());
        let sent = backend.sent.lock().unwrap();
        let names: Vec<&str> = sent.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["SETNX", "GET", "GETSET", "DEL"]);
        for (name, at, before) in sent.iter() {
            let remaining = before.map(|end| end.remaining(*at));
            match *name {
                "GETSET" => assert_eq!(remaining, Some(Duration::from_millis(100)), "well within the guard"),
                "SETNX" | "DEL" => {
                    assert!(remaining.is_some_and(|time| time <= Duration::from_secs(10)), "the lease");
                }
                _ => assert_eq!(remaining, None),
            }
        }
    }
}

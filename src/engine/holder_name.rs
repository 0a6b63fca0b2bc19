//! The holder's name, for people: written after the acquisition and with each extension, read for errors. A failure does no harm to the lock.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::call::Call;
use super::outbox::{Outbox, Report};
use crate::backend::{Answers, KeyRequest, Limits, Next};
use crate::clock::{self, Now};
use crate::error::Error;
use crate::hold::Hold;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::holder_name::{HolderName, named};
use crate::protocol::{Command, GiveUp, Reply, Request};
use crate::version::Version;

/// The first version that has SETEX.
const NEEDED: Version = Version::new(2, 0, 0);

/// What a failure means.
const ADVICE: &str = "the lock is held all the same, but others may not see by whom";

impl Engine {
    /// Writes the names of holders behind their values, in one trip, if they have a name.
    pub(super) fn write_names<'a>(
        &self,
        holds: impl Iterator<Item = (&'a Arc<Hold>, Vec<u8>, Option<Duration>)>,
        outbox: &Outbox,
    ) {
        let Some(name) = self.holder_name.as_deref() else { return };
        let request = |(hold, value, lease): (&'a Arc<Hold>, Vec<u8>, Option<Duration>)| {
            let command = Command::HolderName(HolderName::write(name, &value, lease?));
            Some((hold, KeyRequest::new(&hold.key, Request::at_any_time(command))))
        };
        let (holds, requests): (Vec<&Arc<Hold>>, Vec<KeyRequest>) = holds.filter_map(request).unzip();
        let Some(first) = holds.first() else { return };
        if self.backend.server_version().is_some_and(|version| version < NEEDED) {
            return holds
                .iter()
                .for_each(|hold| outbox.push(Report::Unnamed(hold.key.clone(), too_old(&hold.key))));
        }
        let now = clock::now();
        // Half of the shortest lease at most: a name is worth less than the lock.
        let left = holds.iter().filter_map(|hold| hold.end()).map(|end| end.remaining(now)).min();
        let mut call = self.call(first, now, outbox);
        call.hurry(left.map_or(Duration::MAX, |left| left / 2));
        let written = self.backend.call_all(&requests, &call.limits_together(Protocol::Classic, now));
        for ((hold, request), Answers { own, .. }) in holds.iter().zip(&requests).zip(written) {
            let mut call = self.call(hold, now, outbox);
            let reply = call.reply(own, request.request.command.name(), true, Protocol::Classic);
            if let Some(error) = unnamed(call, &reply) {
                outbox.push(Report::Unnamed(hold.key.clone(), error));
            }
        }
    }

    /// Returns the name that the holder of a key has written, if it can be read.
    pub(super) fn name_of_holder(&self, key: &Key, now: Now) -> Option<String> {
        self.holder(key, now).ok().flatten()
    }

    /// Reads the key, and the name that goes with what it holds, in one trip.
    pub(crate) fn holder(&self, key: &Key, now: Now) -> Result<Option<String>, Error> {
        self.refuse_after_fork(key)?;
        let mut call = Call::new(self, key, Protocol::Classic, Some(now.uptime));
        let limits = Limits::within(self.budget(Some(now.uptime)), now);
        let read = Next {
            request: Request::at_any_time(Command::HolderName(HolderName::Read)),
            needs: Protocol::Classic,
        };
        let Answers { own, next } =
            self.backend.call(key, &Request::at_any_time(Command::Get), Some(&read), &limits);
        let value = match call.reply(own, "GET", true, Protocol::Classic) {
            Reply::Bulk(value) => value,
            Reply::Refused | Reply::NoLock => return Err(call.error(GiveUp::Refused, "")),
            Reply::Lost => return Err(call.error(GiveUp::Io, "")),
            _ => return Err(call.error(GiveUp::Unsent, "")),
        };
        Ok(match (value, next) {
            (Some(value), Some(Ok(Reply::Bulk(Some(entry))))) => named(&entry, &value),
            _ => None,
        })
    }
}

fn unnamed(call: Call<'_>, reply: &Reply) -> Option<Error> {
    let reason = match reply {
        Reply::Refused | Reply::NoLock => GiveUp::Refused,
        Reply::Unsent | Reply::TooLate => GiveUp::Unsent,
        Reply::Lost => GiveUp::Io,
        _ => return None,
    };
    Some(call.error(reason, ADVICE))
}

fn too_old(key: &Key) -> Error {
    Error::invalid(
        key.clone(),
        "a holder's name needs SETEX, which servers before Redis 2.0 lack; leave `holder_name` out, or use a newer server",
    )
}

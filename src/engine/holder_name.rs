//! The holder's name, for people: written after the acquisition and with each extension, read for errors. A failure does no harm to the lock.

use std::sync::Arc;
use std::time::Duration;

use super::Engine;
use super::call::{Call, LateReports};
use crate::backend::{Answers, Failure, KeyRequest, Limits, Next};
use crate::clock::{self, Now};
use crate::error::Error;
use crate::event::{Chain, ProblemKind};
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
    /// Returns the command that writes the holder's name behind this value, if it has one.
    pub(super) fn naming(&self, value: &[u8], lease: Option<Duration>) -> Option<Request> {
        let write = HolderName::write(self.holder_name.as_deref()?, value, lease?);
        Some(Request::at_any_time(Command::HolderName(write)))
    }

    /// Writes the holder's name, if it has one. Returns why not, to be reported, and what else is.
    pub(super) fn write_name(
        &self,
        hold: &Hold,
        value: &[u8],
        lease: Option<Duration>,
        now: Now,
    ) -> (Option<Error>, LateReports) {
        let Some(request) = self.naming(value, lease) else {
            return (None, LateReports::new());
        };
        if !self.has_names() {
            return (Some(too_old(&hold.key)), LateReports::new());
        }
        // Half of the lease at most: a name is worth less than the lock.
        let time = hold.end().map_or(Duration::MAX, |end| end.remaining(now) / 2);
        let mut call = self.call(hold, now).answered_within(time);
        let reply = call.send(&request, now);
        let late_reports = call.take_late_reports();
        (unnamed(call, &reply), late_reports)
    }

    /// Writes the names of several holders in one trip. Returns for which that failed, and why.
    pub(super) fn write_names<'a>(
        &self,
        named: Vec<(&'a Arc<Hold>, Request)>,
    ) -> Vec<(&'a Arc<Hold>, Error)> {
        let Some((first, _)) = named.first() else { return Vec::new() };
        if !self.has_names() {
            return named.into_iter().map(|(hold, _)| (hold, too_old(&hold.key))).collect();
        }
        let now = clock::now();
        let limits = self.call(first, now).limits_together(Protocol::Classic, now);
        let request = |(hold, request): &(&Arc<Hold>, Request)| KeyRequest::new(&hold.key, request.clone());
        let requests: Vec<KeyRequest> = named.iter().map(request).collect();
        let written = self.backend.call_all(&requests, &limits);
        let failed = |((hold, name), written): (&(&'a Arc<Hold>, Request), Answers)| {
            Some((*hold, self.name_error(&hold.key, written.own, name)?))
        };
        named.iter().zip(written).filter_map(failed).collect()
    }

    /// Returns why the name of a holder was not written, if that is what came of it.
    fn name_error(&self, key: &Key, written: Result<Reply, Failure>, name: &Request) -> Option<Error> {
        let mut call = Call::new(self, key, Protocol::Classic, None).reported_later();
        let reply = call.reply(written, name.command.name(), true, Protocol::Classic);
        unnamed(call, &reply)
    }

    /// Whether the server has what names are written by, as far as is known.
    pub(super) fn has_names(&self) -> bool {
        self.backend.server_version().is_none_or(|version| version >= NEEDED)
    }

    pub(super) fn report_unnamed(&self, hold: &Hold, error: Option<&Error>) {
        if let Some(error) = error {
            let details = format_args!("the holder's name is not written: {}", Chain(error));
            self.observer.problem(Some(&hold.key), ProblemKind::HolderNameNotWritten, &details);
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

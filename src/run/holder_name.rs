//! The holder's name, for people: written after the acquisition and with each extension, read for errors. A failure does no harm to the lock.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::session::Session;
use crate::net::KeyTrip;
use crate::report::error::Error;
use crate::report::event::ProblemKind;
use crate::rules::holder_name::{HolderName, named};
use crate::rules::{Command, Reply, Trip};
use crate::run::hold::Hold;
use crate::values::clock;
use crate::values::key::Key;
use crate::values::value::ValueBytes;
use crate::values::version::Version;

/// The first version that has SETEX.
const NEEDED: Version = Version::new(2, 0, 0);

/// What a failure means.
const ADVICE: &str = "the lock is held all the same, but others may not see by whom";

/// A hold, the value that its holder's name is written behind, and for how long.
pub(super) type Named<'a> = (&'a Arc<Hold>, ValueBytes, Option<Duration>);

impl Engine {
    /// Writes the names of holders behind their values, in one trip, if they have a name. Reports for which that failed.
    pub(super) fn write_names<'a>(&self, holds: impl Iterator<Item = Named<'a>>) {
        let Some(name) = self.holder_name.as_deref() else { return };
        let write = |(hold, value, lease): Named<'a>| {
            let command = Command::HolderName(HolderName::write(name, &value, lease?));
            Some((hold, Trip::of(command)))
        };
        let (holds, writes): (Vec<&Arc<Hold>>, Vec<Trip>) = holds.filter_map(write).unzip();
        let Some(first) = holds.first() else { return };
        if !self.has_names() {
            return holds.iter().for_each(|hold| self.report_unnamed(hold, &too_old(&hold.key)));
        }
        let now = clock::now();
        // Half of the shortest lease at most: a name is worth less than the lock.
        let left = holds.iter().filter_map(|hold| hold.end()).map(|end| end.remaining(now)).min();
        let session = |hold: &'a Arc<Hold>| {
            let mut session = Session::new(self, &hold.key, hold.options.protocol, Some(now.uptime));
            session.hurry(left.map_or(Duration::MAX, |left| left / 2));
            session
        };
        let trips: Vec<KeyTrip<'_>> =
            holds.iter().zip(&writes).map(|(hold, write)| KeyTrip::new(&hold.key, write)).collect();
        let written = self.backend.send_all(&trips, &session(first).limits(&writes[0], now));
        for ((hold, write), sent) in holds.iter().zip(&writes).zip(written) {
            let mut session = session(hold);
            let reply = session.heard(write, sent).own();
            if !matches!(reply, Reply::Integer(_)) {
                self.report_unnamed(hold, &session.error(reply.gives_up(), ADVICE));
            }
        }
    }

    /// Returns true if the server has what names are written by, as far as is known.
    pub(super) fn has_names(&self) -> bool {
        self.backend.server_version().is_none_or(|version| version >= NEEDED)
    }

    fn report_unnamed(&self, hold: &Hold, error: &Error) {
        let details = format!("the holder's name is not written: {}", error.chain());
        self.observer.problem(Some(&hold.key), ProblemKind::HolderNameNotWritten, details);
    }

    /// Returns the name that the holder of a key has written, if it can be read.
    pub(super) fn name_of_holder(&self, key: &Key) -> Option<String> {
        self.holder(key).ok().flatten()
    }

    /// Reads the key, and the name that goes with what it holds, in one trip.
    pub(crate) fn holder(&self, key: &Key) -> Result<Option<String>, Error> {
        let read = Command::HolderName(HolderName::Read);
        Ok(match self.once_with(key, Command::Get, Some(read))? {
            (Reply::Bulk(Some(value)), Some(Reply::Bulk(Some(entry)))) => named(&entry, &value),
            _ => None,
        })
    }
}

fn too_old(key: &Key) -> Error {
    Error::invalid(
        key.clone(),
        "a holder's name needs SETEX, which servers before Redis 2.0 lack; leave `holder_name` out, or use a newer server",
    )
}

//! Which connection carries a command: that of a transaction the one that watches.

use super::Call;
use crate::backend::{Answers, Changed, Limits, Next};
use crate::clock::Now;
use crate::protocol::{Change, Command, Reply, Request};

impl Call<'_> {
    /// Watches the key, and has the change sent at once if it holds our own bytes. Returns the reply to WATCH.
    pub(super) fn change(&mut self, own: &[u8], change: &Change, now: Now) -> Reply {
        self.unwatch();
        let exec = Command::Exec(change.clone());
        let behind = self.behind.clone();
        let sent = self.within_limits(&exec, now, |call, limits| {
            let along = call.along(&exec);
            let changed = call.engine.backend.change(call.key, own, change, along.as_ref(), limits);
            (along, changed, limits.needs, limits.for_watching())
        });
        let Some((along, changed, needs, limits)) = sent else { return Reply::Unsent };
        let reply = match changed {
            Ok((reply, Changed::Sent(answers))) => {
                self.changed = Some(Box::new((along, answers)));
                return self.reply(Ok(reply), "WATCH", true, needs);
            }
            Ok((reply, Changed::Watched(watched))) => {
                self.watched = Some(Box::new((watched, limits)));
                Ok(reply)
            }
            Ok((reply, Changed::Not)) => Ok(reply),
            Err(failure) => Err(failure),
        };
        self.behind = behind;
        self.reply(reply, "WATCH", true, needs)
    }

    /// A transaction goes to the connection that watches; every other command ends the watch first, so that a call never needs two
    /// connections at a time.
    pub(super) fn carry(&mut self, request: &Request, next: Option<&Next>, limits: &Limits<'_>) -> Answers {
        let backend = &self.engine.backend;
        match &request.command {
            Command::Exec(_) => match self.watched.take().map(|watched| *watched) {
                // It changes what is watched, or nothing, so it is right at any time.
                Some((watched, _)) => watched.exec(self.key, &request.command, next, limits),
                // The watch has ended, so the rules are to look again.
                None => Ok(Reply::Executed(None)).into(),
            },
            Command::WatchGet | Command::WatchGetTtl => {
                self.unwatch();
                let watched = backend.watch(self.key, &request.command, limits).map(|(reply, watched)| {
                    self.watched = Some(Box::new((watched, limits.for_watching())));
                    reply
                });
                watched.into()
            }
            _ => {
                self.unwatch();
                backend.call(self.key, request, next, limits)
            }
        }
    }

    /// Returns the connection that watches, if there is one (I9).
    pub(in crate::engine) fn unwatch(&mut self) {
        if let Some((watched, limits)) = self.watched.take().map(|watched| *watched) {
            watched.unwatch(&limits);
        }
    }

    /// Drops the connection that watches, without a round trip.
    pub(in crate::engine) fn abandon_watch(&mut self) {
        self.watched = None;
    }
}

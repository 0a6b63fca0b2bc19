//! How an attempt begins, and goes on after a pause.

use core::ops::ControlFlow::{self, Break, Continue};
use core::time::Duration;

use super::{Attempt, First, Round};
use crate::lease::Lease;
use crate::task::Io;
use crate::values::Protocol;
use crate::{Cue, Observation};

impl Attempt {
    /// Returns how a round begins, unless it is too early for one.
    pub(super) fn first(&mut self, io: &Io, cue: Cue) -> ControlFlow<Round, First> {
        self.pace.enter_round(io.now());
        match cue {
            Cue::Ask => Continue(self.freed()),
            Cue::Look(None) => Continue(self.woken()),
            Cue::Behind(observation) => self.behind(io, observation),
            Cue::Look(Some(found)) => {
                self.pace.answered();
                Continue(First::Look(Some(found)))
            }
            Cue::Sent(lease, replies) => {
                self.pace.was_sent(&lease);
                Continue(First::Ask(Some((lease, replies.plain()))))
            }
            Cue::HandedOver { lease, in_doubt } => self.handed_over(io, lease, in_doubt),
        }
    }

    fn freed(&mut self) -> First {
        self.pace.begin_round();
        if self.pace.in_doubt { First::Look(None) } else { First::Ask(None) }
    }

    /// The key is probably still held, so GET is enough; a takeover begins with it as well.
    fn woken(&mut self) -> First {
        if !self.pace.expires() {
            return self.freed();
        }
        self.pace.begin_round();
        First::Look(None)
    }

    fn behind(&mut self, io: &Io, Observation { seen, at }: Observation) -> ControlFlow<Round, First> {
        self.pace.seen = seen;
        // An unexpiring attempt takes nothing over, so it does not look. What was seen may have expired since.
        let looks = match &self.pace.seen {
            Some(seen) => self.may_take_over(seen, io.now().wall),
            None => self.pace.expires(),
        };
        if looks {
            return Continue(self.woken());
        }
        match self.pace.wait_from(at, io) {
            Round::Pause(Duration::ZERO) => Continue(self.woken()),
            round => Break(round),
        }
    }

    fn handed_over(&mut self, io: &Io, lease: Lease, in_doubt: bool) -> ControlFlow<Round, First> {
        debug_assert!(!self.pace.in_doubt, "it might have the lock twice");
        self.pace.protocol = lease.protocol;
        self.pace.begin_round();
        match lease.protocol {
            _ if !in_doubt => return Break(self.granted(io, lease, None)),
            Protocol::Watched | Protocol::Ttl => self.note_lost(io, lease, None),
            Protocol::Auto | Protocol::Classic => self.note_lost_getset(io, lease, None),
        }
        Continue(First::Look(None))
    }
}

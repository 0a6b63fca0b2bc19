//! How an attempt begins, and goes on after a pause.

use core::ops::ControlFlow::{self, Break, Continue};
use core::time::Duration;

use super::{Attempt, First, Round};
use crate::lease::Lease;
use crate::task::Io;
use crate::values::{Protocol, State, Uptime, classic_time};
use crate::{Cue, Note, Observation, window};

impl Attempt {
    /// Returns how a round begins, unless it is too early for one.
    pub(super) fn first(&mut self, io: &Io, cue: Cue) -> ControlFlow<Round, First> {
        self.pace.enter_round(io.now());
        match cue {
            Cue::Ask => Continue(self.freed()),
            Cue::Look => Continue(self.woken()),
            Cue::Behind(observation) => self.behind(io, observation),
            Cue::Saw(found) => {
                self.pace.not_before = None;
                self.pace.answered();
                Continue(First::Look(Some(found)))
            }
            Cue::Sent(lease, replies) => {
                self.pace.was_sent(&lease);
                Continue(First::Ask(Some((lease, replies.plain()))))
            }
            Cue::HandedOver { lease, in_doubt } => self.handed_over(io, lease, in_doubt),
            Cue::Leave(until) => self.leave_until(io, until),
            Cue::Window(end) => self.in_window(io, end),
        }
    }

    fn freed(&mut self) -> First {
        self.pace.begin_round();
        if self.pace.in_doubt { First::Look(None) } else { First::Ask(None) }
    }

    /// The key is probably still held, so GET is enough; a takeover begins with it as well.
    fn woken(&mut self) -> First {
        if self.pace.not_before.is_some() || !self.pace.expires() {
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

    /// Goes on to ask for the lock at the deadline, and for a moment if a poller has it. Looks now and then.
    fn in_window(&mut self, io: &Io, end: Uptime) -> ControlFlow<Round, First> {
        let now = io.now();
        if self.pace.is_last(now) || self.pace.asks(now.uptime) {
            return Continue(self.freed());
        }
        // Looks would use its attempts up.
        if self.pace.terms.max_attempts.is_some() {
            return self.leave_until(io, end);
        }
        if self.pace.not_before.is_none() || self.pace.seen.is_some() {
            return self.look_later(io, end);
        }
        self.pace.begin_round();
        Continue(First::Look(None))
    }

    /// What is seen before the lock is left says nothing about it afterwards.
    fn leave_until(&mut self, io: &Io, until: Uptime) -> ControlFlow<Round, First> {
        self.pace.seen = None;
        self.pace.leave_until(until, io)?;
        Continue(self.freed())
    }

    fn look_later(&mut self, io: &Io, end: Uptime) -> ControlFlow<Round, First> {
        let look = io.now().uptime.after(window::until_look(self.pace.tag.nonce.seed()));
        self.pace.take_nonce();
        self.looks_until = Some(end);
        self.leave_until(io, look.min(end))
    }

    /// In a window, goes on to wait unless a poller has the lock: then it asks for it for a moment.
    pub(super) fn look_for_poller(
        &mut self,
        io: &Io,
        state: &State,
        found: Option<&[u8]>,
    ) -> ControlFlow<Round> {
        let Some(end) = self.looks_until.take() else { return Continue(()) };
        let now = io.now();
        // What another process of this library has, it leaves by itself.
        if *state == State::Empty || found.and_then(classic_time).is_some() {
            self.pace.asks_until = Some(now.uptime.after(window::ASKS));
            io.note(Note::PollerMet);
        } else if now.uptime < end && !self.pace.is_last(now) {
            return self.look_later(io, end).map_continue(drop);
        }
        Continue(())
    }
}

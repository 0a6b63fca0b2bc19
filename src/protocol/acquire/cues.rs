//! How an attempt begins, and goes on after a pause.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use super::{Attempt, Cue, First, Note, Observation, Round};
use crate::clock::{Now, Uptime};
use crate::options::Protocol;
use crate::protocol::lease::Lease;
use crate::protocol::task::Io;
use crate::protocol::window;
use crate::value::{self, LockState};

impl Attempt {
    /// Begins a round, unless it is too early for one.
    pub(super) fn begin(&mut self, io: &Io, cue: Cue) -> ControlFlow<Round, First> {
        let now = io.now();
        match cue {
            Cue::Ask => Continue(self.freed()),
            Cue::Look => Continue(self.woken()),
            Cue::Behind(observation) => self.behind(io, observation),
            Cue::Saw(found) => {
                self.not_before = None;
                Continue(First::Look(Some(found)))
            }
            Cue::Sent(lease, reply) => {
                self.begin_round();
                Continue(First::Ask(Some((lease, reply))))
            }
            Cue::HandedOver { lease, protocol, in_doubt } => self.handed_over(io, lease, protocol, in_doubt),
            Cue::Leave(until) => self.leave_until(until, io),
            Cue::Window(_) if self.is_last(now) || self.asks(now.uptime) => Continue(self.freed()),
            // Looks would use its attempts up.
            Cue::Window(end) if self.params.options.max_attempts.is_some() => self.leave_until(end, io),
            Cue::Window(end) if self.not_before.is_none() || self.seen.is_some() => self.look_later(end, io),
            Cue::Window(_) => {
                self.begin_round();
                Continue(First::Look(None))
            }
        }
    }

    fn begin_round(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.immediate = (0, 0);
    }

    fn freed(&mut self) -> First {
        self.not_before = None;
        self.begin_round();
        if self.unresolved.in_doubt { First::Look(None) } else { First::Ask(None) }
    }

    /// The key is probably still held, so GET is enough; a takeover begins with it as well.
    fn woken(&mut self) -> First {
        if self.not_before.is_some() || !self.params.expires() {
            return self.freed();
        }
        self.begin_round();
        First::Look(None)
    }

    fn behind(&mut self, io: &Io, Observation { seen, at }: Observation) -> ControlFlow<Round, First> {
        self.seen = seen;
        // An unexpiring attempt takes nothing over, so it does not look. What was seen may have expired since.
        let looks = match &self.seen {
            Some(seen) => self.may_take_over(seen, io.now().wall),
            None => self.params.expires(),
        };
        if looks {
            return Continue(self.woken());
        }
        match self.wait_from(at, io) {
            Round::Pause(Duration::ZERO) => Continue(self.woken()),
            round => Break(round),
        }
    }

    fn handed_over(
        &mut self,
        io: &Io,
        lease: Lease,
        protocol: Protocol,
        in_doubt: bool,
    ) -> ControlFlow<Round, First> {
        debug_assert!(!self.unresolved.in_doubt, "it might have the lock twice");
        self.params.options.protocol = protocol;
        self.not_before = None;
        self.begin_round();
        match protocol {
            _ if !in_doubt => return Break(self.granted(io, lease, None)),
            Protocol::Watched | Protocol::Ttl => self.unresolved.keep(lease, None, io.now()),
            Protocol::Auto | Protocol::Classic => self.unresolved.keep_takeover(lease),
        }
        Continue(First::Look(None))
    }

    /// At the deadline the lock is asked for in any case.
    fn leave_until(&mut self, until: Uptime, io: &Io) -> ControlFlow<Round, First> {
        if self.is_last(io.now()) || io.now().uptime >= until {
            return Continue(self.freed());
        }
        self.not_before = Some(until);
        self.seen = None;
        Break(self.wait(io))
    }

    fn look_later(&mut self, end: Uptime, io: &Io) -> ControlFlow<Round, First> {
        let look = io.now().uptime.after(window::until_look(self.params.nonce.seed()));
        self.params.nonce = self.params.nonce.next();
        self.looks_until = Some(end);
        self.leave_until(look.min(end), io)
    }

    /// In a window, goes on to wait unless a poller has the lock: then it asks for it for a moment.
    pub(super) fn look_for_poller(
        &mut self,
        io: &Io,
        state: &LockState,
        found: Option<&[u8]>,
    ) -> ControlFlow<Round> {
        let Some(end) = self.looks_until.take() else { return Continue(()) };
        // What another process of this library has, it leaves by itself.
        if *state == LockState::Empty || found.and_then(value::classic_time).is_some() {
            self.asks_until = Some(io.now().uptime.after(window::ASKS));
            io.note(Note::PollerMet);
        } else if io.now().uptime < end && !self.is_last(io.now()) {
            return self.look_later(end, io).map_continue(|_| ());
        }
        Continue(())
    }

    fn is_last(&self, now: Now) -> bool {
        self.params.deadline.is_some_and(|deadline| now.uptime >= deadline)
    }

    /// Whether it asks without a pause.
    pub(super) fn asks(&self, now: Uptime) -> bool {
        self.asks_until.is_some_and(|until| now < until)
    }
}

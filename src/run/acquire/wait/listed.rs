//! A wait with notifications: how this process enters the key's waiting list, along with its looks at the key.

use super::Wait;
use crate::rules::waiting_list::Waiting;
use crate::rules::{Command, Reply, Trip};
use crate::run::engine::Engine;
use crate::run::held::Delivery;
use crate::run::session::Session;
use crate::values::clock::{self, Now, Uptime};
use crate::wait::Ticket;

impl Wait<'_> {
    /// Until when this thread leaves the lock to a process that was just notified.
    pub(super) fn head_start(&self) -> Option<Uptime> {
        if self.notifies() { self.call.engine.notifications.of(self.key).head_start(self.key) } else { None }
    }

    /// Returns what enters this process in the key's waiting list, if it is to be entered: a thread of it waits, and none has the lock, whose
    /// release would wake this one.
    fn entering(&self, ticket: Option<&Ticket<Delivery>>) -> Option<Waiting> {
        if !self.notifies() || ticket.is_none() {
            return None;
        }
        let Engine { notifications, queue, observer, .. } = &**self.call.engine;
        let notifications = notifications.of(self.key);
        notifications.want(self.key, observer);
        if queue.is_held(self.key) { None } else { notifications.enter(self.key) }
    }

    /// Looks at the key, as a process that waits for notifications, if something is to be done with the waiting list.
    pub(super) fn look_listed(
        &self,
        session: &mut Session<'_>,
        ticket: Option<&Ticket<Delivery>>,
        mut now: Now,
    ) -> Option<Reply> {
        let Engine { notifications, observer, .. } = &**self.call.engine;
        let mut waiting = self.entering(ticket)?;
        loop {
            let behind = Some(Box::new(Command::Get));
            let trip = Trip { behind, ..Trip::of(Command::Waiting(waiting.clone())) };
            let found = session.send(&trip, now).behind.unwrap_or(Reply::Unsent);
            let notifications = notifications.of(self.key);
            if !notifications.entered(self.key, &waiting, session.take_listed(), observer) {
                return Some(found);
            }
            let Some(again) = notifications.enter(self.key) else { return Some(found) };
            (waiting, now) = (again, clock::now());
        }
    }
}

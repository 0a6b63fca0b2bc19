//! A wait with notifications: how this process enters the key's waiting list, along with its looks at the key.

use super::Wait;
use crate::rules::waiting_list::Waiting;
use crate::rules::{Command, Cue, Pause, Reply, Trip};
use crate::run::engine::Engine;
use crate::values::clock::{self, Now, Uptime};

impl Wait<'_> {
    /// Until when this thread leaves the lock to a process that was just notified.
    pub(super) fn head_start(&self) -> Option<Uptime> {
        let key = self.want.name();
        if self.notifies { self.call.engine.notifications.of(key).head_start(key) } else { None }
    }

    /// Returns what enters this process in the key's waiting list, if it is to be entered: a thread of it waits, and none has the lock, whose
    /// release would wake this one.
    fn entering(&self) -> Option<Waiting> {
        if !self.notifies || self.ticket.is_none() {
            return None;
        }
        let (Engine { notifications, queue, observer, .. }, key) = (&**self.call.engine, self.want.name());
        let notifications = notifications.of(key);
        notifications.want(key, observer);
        if queue.is_held(key) { None } else { notifications.enter(key) }
    }

    /// Looks at the key, as a process that waits for notifications, if something is to be done with the waiting list.
    pub(super) fn look_listed(&mut self, mut now: Now) -> Option<Reply> {
        let (Engine { notifications, observer, .. }, key) = (&**self.call.engine, self.want.name());
        let mut waiting = self.entering()?;
        loop {
            let behind = Some(Box::new(Command::Get));
            let trip = Trip { behind, ..Trip::of(Command::Waiting(waiting.clone())) };
            let found = self.session.send(&trip, now).behind.unwrap_or(Reply::Unsent);
            let notifications = notifications.of(key);
            if !notifications.entered(key, &waiting, self.session.take_listed(), observer) {
                return Some(found);
            }
            let Some(again) = notifications.enter(key) else { return Some(found) };
            (waiting, now) = (again, clock::now());
        }
    }

    /// The same before a pause. Returns how the rules go on if they are to know what the key holds; if not, takes the time of the look off the
    /// pause.
    pub(super) fn look_before(&mut self, pause: &mut Pause) -> Option<Cue> {
        let ends = self.now.uptime.after(pause.time);
        let reply = self.look_listed(self.now)?;
        self.heard(Some(&reply));
        match reply {
            Reply::Bulk(found) if found.is_some() || !pause.leaves => Some(Cue::Saw(found)),
            _ => {
                pause.time = ends.since(self.now.uptime);
                None
            }
        }
    }
}

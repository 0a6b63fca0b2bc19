//! A gem up to 1.4.1 beside the clients of the random search. It
//! acquires the key only when that is absent, and deletes it in time.

use super::{MILLI, Run};
use setnx_lock_proto::values::Wall;

/// A gem's lock.
#[derive(Debug)]
pub(super) struct Visitor {
    value: Vec<u8>,
    /// The end of its lease.
    until: u64,
}

impl Run {
    /// The gem acquires the lock if it is free, or releases it.
    pub(super) fn visit(&mut self, choice: u8) {
        if !self.conditions.outages {
            return;
        }
        let now = self.since_start();
        let is_free = self.server.value(now).is_none();
        match &self.visitor {
            None if is_free && choice % 2 == 1 => {
                let until = self.time + self.conditions.expirations[0] * MILLI;
                let Wall(shown) = Wall(until + 1000 * MILLI);
                let value = format!("{}.{:06}", shown / 1_000_000, shown % 1_000_000).into_bytes();
                self.server.set(Some(value.clone()));
                self.note(3, format_args!("a gem acquires the lock"));
                self.visitor = Some(Visitor { value, until });
            }
            Some(visitor) if self.time >= visitor.until || choice % 8 == 5 => {
                if self.server.value(now) == Some(&visitor.value) {
                    self.server.set(None);
                    self.note(3, format_args!("the gem releases it"));
                }
                self.visitor = None;
            }
            _ => {}
        }
    }

    pub(super) fn visitor_was_driven_out(&mut self) -> bool {
        let now = self.since_start();
        let Some(Visitor { value, until }) = &self.visitor else { return false };
        self.time < *until && self.server.value(now) != Some(value)
    }

    /// One in how many commands gets no reply, or replies is lost. `ends`: it may have ended a client's hold.
    pub(super) fn losses(&self, ends: bool) -> u8 {
        if self.conditions.outages && ends { 2 } else { 8 }
    }
}

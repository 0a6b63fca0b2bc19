//! A server that comes back older, or newer, in the random search.

use super::Run;
use crate::simulated::Leg;
use setnx_lock_proto::values::{Protocol, Version};
use setnx_lock_proto::{Reply, WhyRefused};

pub(super) const WITH_TTL: Version = Version::new(7, 0, 0);
pub(super) const WITH_WATCH: Version = Version::new(2, 4, 18);
const WITHOUT_WATCH: Version = Version::new(2, 0, 4);

impl Run {
    /// The server restarts as another version, and has all that it had.
    pub(super) fn ages(&mut self, choice: u8) {
        self.version = [WITH_TTL, WITH_WATCH, WITHOUT_WATCH][usize::from(choice / 16) % 3];
        self.restarts();
        let version = self.version;
        self.note(0, format_args!("sees the server restart as {version}"));
    }

    /// A client whose connection has told the version sends nothing that the server is too old for.
    pub(super) fn refusal_of_an_older_server(&mut self, n: usize, leg: &Leg) -> Option<Reply> {
        if !self.conditions.ages || self.clients[n].protocol != Protocol::Auto {
            return None;
        }
        let has = Protocol::Auto.on(Some(self.version));
        let is_too_old = self.version < leg.trip().needs().min_version();
        self.too_old += u64::from(is_too_old);
        is_too_old.then_some(Reply::Refused(WhyRefused::TooOld(has)))
    }
}

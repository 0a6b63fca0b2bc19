//! The fencing tokens of holders in the random search. Where locks
//! go on by lock tokens, the server forgets their counter at times.

use std::time::Duration;

use super::Run;
use setnx_lock_proto::Step;
use setnx_lock_proto::hold::Counted;

impl Run {
    /// How long the server keeps the counter after its last use: the longest lease. `None` where it is kept for ever.
    pub(super) fn kept_for(&self) -> Option<Duration> {
        let longest = self.conditions.expirations.into_iter().max();
        longest.filter(|_| self.conditions.tokens).map(Duration::from_millis)
    }

    /// How long the counter is to be kept from now on for a hold that is extended, or goes on elsewhere.
    pub(super) fn counter_of(&self, number: u64) -> Option<Duration> {
        self.kept_for().filter(|_| self.tokens.contains_key(&number))
    }

    pub(super) fn act_on_token(&mut self, n: usize, step: Step<Counted>) {
        self.note(n, format_args!("{step:?}"));
        let counted = match step.outcome() {
            Err(trip) => return self.clients[n].doing = self.sent(n, trip),
            Ok(counted) => counted,
        };
        self.clients[n].power = None;
        let Some(held) = self.clients[n].held.take() else { unreachable!("it held the lock") };
        match counted {
            Ok(Counted::Token(token)) => {
                self.tokens.insert(held.number, (self.forgotten, token));
                self.goes_on(n, held);
            }
            Ok(Counted::Unusable(why)) => unreachable!("another sets no counter: {why:?}"),
            Ok(Counted::Lost(reason)) => self.is_told(n, &reason),
            Err(_) => self.goes_on(n, held),
        }
    }

    /// Returns the law that the tokens break, if they do.
    pub(super) fn has_unsafe_token(&self) -> Option<&'static str> {
        if !self.tokens.values().is_sorted_by(|earlier, later| earlier < later) {
            return Some("a later holder has a smaller token");
        }
        let is_forgotten = |n: usize| {
            let held = self.clients[n].held.as_ref();
            held.and_then(|held| self.tokens.get(&held.number)).is_some_and(|(of, _)| *of < self.forgotten)
        };
        self.present()
            .any(is_forgotten)
            .then_some("the next holder may get the token of one that holds the lock")
    }
}

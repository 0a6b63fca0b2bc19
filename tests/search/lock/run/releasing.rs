//! Releases in the random search: by this library's rules, or by a gem's.

use std::time::Duration;

use setnx_lock_proto::hold::{self, HandedOver, Release};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::task::{Rules, Task};
use setnx_lock_proto::values::Now;
use setnx_lock_proto::{Replies, Step};

#[derive(Debug)]
pub(super) enum Releasing {
    Own(Task<HandedOver>),
    Gem(Task<Release>),
}

impl Releasing {
    pub(super) fn resume(&mut self, replies: Replies, now: Now) -> Step<Release> {
        match self {
            Self::Own(ending) => release_of(ending.resume(replies, now)),
            Self::Gem(task) => task.resume(replies, now),
        }
    }
}

/// Begins the end of a hold, by this library's rules.
pub(super) fn ending(
    own: Lease,
    next: Option<Lease>,
    command_timeout: Duration,
    now: Now,
) -> (Task<HandedOver>, Step<HandedOver>) {
    Task::begin(now, async move |io| hold::end(io, &own, next.as_ref(), command_timeout).await)
}

/// A release by this library's rules hands the lock over to nobody.
pub(super) fn release_of(step: Step<HandedOver>) -> Step<Release> {
    match step {
        Step::Send(trip) => Step::Send(trip),
        Step::Sleep(pause) => Step::Sleep(pause),
        Step::Done(HandedOver { release, .. }) => release.map_or_else(Step::GiveUp, Step::Done),
        Step::GiveUp(reason) => Step::GiveUp(reason),
    }
}

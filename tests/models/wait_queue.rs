//! Threads in the wait queue of a key, as the engine has them wait, hold, hand over and give up. The checker is
//! shuttle: it runs random schedules, half of them with few preemptions.

mod lease;
mod notifications;
mod permits;
mod scenario;
#[allow(dead_code, unused_imports, reason = "the engine uses all of it")]
#[path = "../../src/wait/wait_queue.rs"]
mod subject;
mod worker;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use libtest_mimic::Trial;

use crate::sync;
use permits::Releases::{HandingOver, HandingOverInVain, Unheard};
use permits::Wants::{Any, Both, One};
use permits::wants;
use scenario::Ending::{Panics, Polls, TimesOut};
use scenario::Release::{HandsOver, HandsOverInVain, HandsOverUnheard, Notifies, OutlivesItsLease};
use scenario::{Behavior, Scenario};

/// A key that counts its copies.
#[derive(Clone, Debug)]
struct Key {
    name: usize,
    copies: Arc<()>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.name.hash(hasher);
    }
}

/// The same in each run.
type KeyHash = BuildHasherDefault<DefaultHasher>;

/// The models have no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Uptime;

/// That the key was held, and the lock is not released yet.
#[derive(Clone, Debug, Default)]
struct Observation {
    at: Uptime,
}

/// The models leave a key to no other process.
#[derive(Clone, Copy, Debug)]
struct Activity(Uptime);

impl Activity {
    fn since(now: Uptime) -> Self {
        Self(now)
    }

    fn ended(&mut self, now: Uptime) {
        self.0 = now;
    }

    fn met_poller(&mut self, now: Uptime) {
        self.0 = now;
    }
}

#[derive(Clone, Copy, Debug)]
struct WaitMode {
    notified: bool,
    /// Threads of different variants have heads of their own.
    variant: usize,
}

impl WaitMode {
    fn is_notified(self) -> bool {
        self.notified
    }

    fn takes_leases_of(self, other: &Self) -> bool {
        self.waits_as(other)
    }

    fn waits_as(self, other: &Self) -> bool {
        self.variant == other.variant
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let waits = Behavior::waits;
    vec![
        trial("first_come_first_served_but_one_gives_up", move || {
            Scenario::of([waits(), waits().until(TimesOut), waits(), waits()]).in_order()
        }),
        trial("a_lock_is_handed_over", move || {
            let hands_over = waits().then(HandsOver);
            Scenario::of([hands_over, hands_over, hands_over.twice(), waits()])
        }),
        trial("one_that_may_have_the_lock_is_ahead", move || {
            let hands_over = waits().then(HandsOver);
            Scenario::of([hands_over, waits().ahead(), hands_over, waits().until(TimesOut)])
        }),
        trial("the_next_polls", move || {
            Scenario::of([waits().then(HandsOver).twice(), waits().until(Polls).then(HandsOver), waits()])
        }),
        trial("the_next_panics", move || {
            let hands_over = waits().then(HandsOver);
            Scenario::of([hands_over, hands_over.until(Panics), hands_over])
        }),
        trial("the_reply_to_a_hand_over_is_lost", move || {
            let (unheard, vain) = (waits().then(HandsOverUnheard), waits().then(HandsOverInVain));
            Scenario::of([vain, unheard, vain, waits(), Behavior::tries_once().then(HandsOverUnheard)])
        }),
        trial("a_lock_is_not_handed_over_after_all", move || {
            let vain = waits().then(HandsOverInVain);
            Scenario::of([vain, vain.until(TimesOut), vain, waits()])
        }),
        trial("the_next_gives_up", move || {
            let impatient = waits().until(TimesOut).then(HandsOver);
            Scenario::of([waits().then(HandsOver).twice(), impatient, impatient])
        }),
        trial("a_holder_outlives_its_lease", move || {
            Scenario::of([waits().then(OutlivesItsLease), waits().then(OutlivesItsLease), waits()]).in_order()
        }),
        trial("some_are_not_queued", move || {
            let tries = Behavior::tries_once;
            Scenario::of([waits(), waits().then(HandsOver), tries(), tries().then(HandsOver)])
        }),
        trial("the_queue_is_closed", move || {
            let other = waits().of_key(1).twice();
            Scenario::of([waits().twice(), waits().then(HandsOver), waits().until(TimesOut), other]).closed()
        }),
        trial("the_queue_is_closed_and_the_lock_is_never_free", move || {
            Scenario::of([waits(), waits(), waits().of_key(1)]).never_free().closed()
        }),
        trial("notifications_wake_some", move || {
            let notifies = waits().then(Notifies);
            Scenario::of([notifies.until(TimesOut), notifies, waits().then(HandsOver)]).with_notifications()
        }),
        trial("a_lock_is_handed_over_whatever_the_mode", move || {
            let impatient = waits().until(TimesOut).then(HandsOver);
            Scenario::of([waits().then(HandsOver), waits().in_another_mode(), impatient])
        }),
        trial("notifications_come_from_another_process", move || {
            let notifies = waits().then(Notifies);
            Scenario::of([Behavior::in_another_process(), notifies, notifies]).with_notifications()
        }),
    ]
    .into_iter()
    .chain(permit_trials())
    .collect()
}

/// Two locks of which any will do.
fn permit_trials() -> Vec<Trial> {
    vec![
        // The first two holders meet: no permit stays free while threads wait for one.
        shared("all_permits_are_in_use", || permits::run(&[wants(Any); 4], true)),
        shared("permits_are_acquired_repeatedly", || {
            permits::run(&[wants(Any).releases(HandingOver).twice(), wants(Any).twice(), wants(Any)], true);
        }),
        shared("a_permit_is_handed_over_in_vain", || {
            let (vain, unheard) = (wants(Any).releases(HandingOverInVain), wants(Any).releases(Unheard));
            permits::run(&[vain, unheard, vain, wants(Any)], true);
        }),
        shared("some_give_up_on_a_permit", || {
            let asks = wants(Any).releases(HandingOver);
            permits::run(&[asks, asks.times_out(), asks.times_out(), wants(Any)], true);
        }),
        shared("a_lock_of_a_permit_is_not_waited_for_any_more", || {
            let gives_up = |at| wants(One(at)).releases(HandingOver).times_out();
            permits::run(
                &[wants(Any), wants(Any).releases(HandingOver), gives_up(0), wants(Any), gives_up(1)],
                false,
            );
        }),
        shared("writers_among_readers_give_up", || {
            let (reads, writes) = (wants(Any), wants(Both).releases(HandingOver));
            permits::run(&[reads, writes, writes.times_out(), reads.releases(Unheard), reads], false);
        }),
    ]
}

fn shared(name: &'static str, run: impl Fn() + Clone + Send + Sync + 'static) -> Trial {
    crate::searched(format!("wait_queue::{name}"), run)
}

fn trial(name: &'static str, scenario: impl Fn() -> Scenario + Clone + Send + Sync + 'static) -> Trial {
    crate::searched(format!("wait_queue::{name}"), move || scenario().run())
}

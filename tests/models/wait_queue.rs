//! Threads in the wait queue of a key, as the engine has them wait, hold, ask for each other and give up. The checker is shuttle: it runs random
//! schedules, half of them with few preemptions.

mod notifications;
mod permits;
mod scenario;
#[allow(dead_code, unused_imports, reason = "the engine uses all of it")]
#[path = "../../src/queue/wait_queue.rs"]
mod subject;
mod worker;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use libtest_mimic::Trial;

use crate::sync;
use permits::Releases::{Asking, AskingInVain, Unheard};
use permits::Wants::{Any, Both, One};
use permits::wants;
use scenario::Ending::{Panics, Polls, TimesOut};
use scenario::Release::{Asks, AsksButIsTooLate, AsksInVain, Notifies, OutlivesItsLease, ReplyLost};
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
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

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
    /// The thread that waits.
    worker: usize,
}

impl WaitMode {
    fn is_notified(self) -> bool {
        self.notified
    }

    fn waits_as(self, other: &Self) -> bool {
        self.variant == other.variant
    }
}

/// What the server has answered to the command that a holder has sent for the head of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Granted,
    NotGranted,
    /// It may have been carried out.
    Lost,
}

pub(crate) fn trials() -> Vec<Trial> {
    let waits = Behavior::waits;
    vec![
        trial("first_come_first_served_but_one_gives_up", move || {
            Scenario::of([waits(), waits().until(TimesOut), waits(), waits()]).in_order()
        }),
        trial("a_holder_asks_for_the_next_first_come_first_served", move || {
            Scenario::of([waits().then(Asks), waits().then(Asks), waits(), waits()]).in_order()
        }),
        trial("the_successor_polls", move || {
            Scenario::of([waits().then(Asks).twice(), waits().until(Polls).then(Asks), waits()])
        }),
        trial("the_successor_panics", move || {
            let asks = waits().then(Asks);
            Scenario::of([asks, asks.until(Panics), asks])
        }),
        trial("the_reply_to_the_next_is_lost", move || {
            let (lost, vain) = (waits().then(ReplyLost), waits().then(AsksInVain));
            Scenario::of([vain, lost, vain, waits(), Behavior::tries_once().then(ReplyLost)])
        }),
        trial("the_next_is_not_asked_for_after_all", move || {
            let late = waits().then(AsksButIsTooLate);
            Scenario::of([late, late.until(TimesOut), late, waits()])
        }),
        trial("the_next_gives_up_on_its_answer", move || {
            let impatient = waits().until(TimesOut).then(Asks);
            Scenario::of([waits().then(Asks).twice(), impatient, impatient])
        }),
        trial("a_holder_outlives_its_lease", move || {
            Scenario::of([waits().then(OutlivesItsLease), waits().then(OutlivesItsLease), waits()]).in_order()
        }),
        trial("some_are_not_queued", move || {
            let tries = Behavior::tries_once;
            Scenario::of([waits(), waits().then(Asks), tries(), tries().then(Asks)])
        }),
        trial("the_queue_is_closed", move || {
            let other = waits().of_key(1).twice();
            Scenario::of([waits().twice(), waits().then(Asks), waits().until(TimesOut), other]).closed()
        }),
        trial("the_queue_is_closed_and_the_lock_is_never_free", move || {
            Scenario::of([waits(), waits(), waits().of_key(1)]).never_free().closed()
        }),
        trial("notifications_wake_some", move || {
            let notifies = waits().then(Notifies);
            Scenario::of([notifies.until(TimesOut), notifies, waits().then(Asks)]).with_notifications()
        }),
        trial("a_holder_asks_for_the_next_whatever_the_mode", move || {
            let impatient = waits().until(TimesOut).then(Asks);
            Scenario::of([waits().then(Asks), waits().in_another_mode(), impatient])
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
            permits::run(&[wants(Any).releases(Asking).twice(), wants(Any).twice(), wants(Any)], true);
        }),
        shared("a_permit_is_asked_for_in_vain", || {
            let (vain, unheard) = (wants(Any).releases(AskingInVain), wants(Any).releases(Unheard));
            permits::run(&[vain, unheard, vain, wants(Any)], true);
        }),
        shared("some_give_up_on_a_permit", || {
            let asks = wants(Any).releases(Asking);
            permits::run(&[asks, asks.times_out(), asks.times_out(), wants(Any)], true);
        }),
        shared("a_lock_of_a_permit_is_not_waited_for_any_more", || {
            let gives_up = |at| wants(One(at)).releases(Asking).times_out();
            permits::run(
                &[wants(Any), wants(Any).releases(Asking), gives_up(0), wants(Any), gives_up(1)],
                false,
            );
        }),
        shared("writers_among_readers_give_up", || {
            let (reads, writes) = (wants(Any), wants(Both).releases(Asking));
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

//! A few small scenarios in every schedule with few preemptions, with every value that a weakly ordered load may see.

#[allow(clippy::duplicate_mod, reason = "compiled with the primitives of another checker")]
#[path = "scenario.rs"]
mod scenario;
#[allow(clippy::duplicate_mod, dead_code, reason = "compiled with the primitives of another checker")]
#[path = "../../../src/net/lanes.rs"]
mod subject;

use libtest_mimic::Trial;
use loom::thread;

use crate::weak_sync as sync;
use scenario::Behavior::{Alone, Borrows, Fails, Fine, GivesUp, Of, OpensNone, OwnTimeIsUp};
use scenario::run;

pub(super) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 10] = [
        ("three_on_one_lane", || run([Fine; 3], 1, 1)),
        ("three_on_two_lanes", || run([Fine; 3], 2, 1)),
        ("two_give_up", || run([Fine, GivesUp, GivesUp], 1, 1)),
        ("a_connection_fails_and_one_gives_up", || run([Fails, GivesUp, Fine], 1, 1)),
        ("one_goes_by_itself", || run([Fine, Alone, GivesUp], 1, 1)),
        ("two_borrow", || run([Borrows, Borrows, GivesUp], 1, 1)),
        ("two_groups", || run([Of(1), Of(2), Of(1)], 1, 1)),
        ("two_groups_and_one_gives_up", || run([Of(1), Of(2), GivesUp], 1, 1)),
        ("none_can_be_opened_at_first", || run([OpensNone, Fine, GivesUp], 2, 1)),
        ("a_leader_has_less_time", || run([OwnTimeIsUp, Fine, GivesUp], 1, 1)),
    ];
    let trial = |(name, scenario)| crate::exhausted(format!("lanes::every_schedule::{name}"), scenario);
    scenarios.into_iter().map(trial).collect()
}

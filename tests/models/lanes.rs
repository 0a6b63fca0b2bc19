//! Threads that have jobs carried by lanes, as the backend does: they lead, follow,
//! give up, and their connections fail. The checkers are shuttle, for random
//! schedules, half of them with few preemptions, and loom, for a few small scenarios.

mod every_schedule;
mod scenario;
#[allow(dead_code, reason = "the backend uses all of it")]
#[path = "../../src/net/lanes.rs"]
mod subject;

use libtest_mimic::Trial;
use shuttle::thread;

use crate::sync;
use scenario::Behavior::{Alone, Borrows, Fails, Fine, GivesUp, Of, OpensNone, OwnTimeIsUp};
use scenario::run;

pub(crate) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 13] = [
        ("one_lane_for_all", || run([Fine; 5], 1, 2)),
        ("two_lanes", || run([Fine; 5], 2, 2)),
        ("some_give_up", || run([Fine, GivesUp, Fine, GivesUp, GivesUp], 1, 2)),
        ("all_give_up", || run([GivesUp; 4], 2, 2)),
        ("connections_fail", || run([Fails, Fine, GivesUp, Fails, Fine], 2, 2)),
        ("none_can_be_opened_at_first", || run([OpensNone, Fine, OpensNone, GivesUp, OpensNone], 2, 2)),
        ("all_borrow", || run([Borrows, Borrows, Borrows, Borrows, GivesUp], 2, 2)),
        ("some_borrow", || run([Borrows, Fine, Alone, Borrows, Fails], 2, 2)),
        ("some_go_by_themselves", || run([Alone, Fine, Alone, Fine, Fine], 2, 2)),
        ("groups", || run([Of(1), Of(2), Fine, Of(1), Of(3)], 1, 2)),
        ("groups_on_two_lanes", || run([Of(1), Of(2), Of(1), Alone, GivesUp], 2, 2)),
        ("all_together", || run([Alone, OpensNone, GivesUp, Fails, OwnTimeIsUp], 1, 2)),
        ("leaders_have_less_time", || run([OwnTimeIsUp, OwnTimeIsUp, Fine, GivesUp, Fails], 1, 2)),
    ];
    let trial = |(name, scenario)| crate::searched(format!("lanes::{name}"), scenario);
    let mut trials: Vec<_> = scenarios.into_iter().map(trial).collect();
    trials.extend(every_schedule::trials());
    trials
}

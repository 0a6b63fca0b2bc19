//! Threads that combine jobs as the pooled backend does: they lead batches, wait, give up and fail. The checkers are shuttle, for random
//! schedules, half of them with few preemptions, and loom, for a few small scenarios.

mod every_schedule;
mod results;
mod scenario;
#[allow(dead_code, reason = "the pooled backend uses all of it")]
#[path = "../../src/backend/pipelining/combiner.rs"]
mod subject;
mod worker;

use libtest_mimic::Trial;

use crate::sync;
use scenario::GivesUp::{Anywhere, First, InFlight, Queued};
use scenario::Lead::{
    Alone, LosesTheLastResult, PanicsAfterExecution, PanicsBeforeExecution, PanicsOnAnAbandonedResult,
    TooManyClients,
};
use scenario::{Behavior, Scenario};

pub(crate) fn trials() -> Vec<Trial> {
    let one = Behavior::new;
    let mut trials = vec![
        trial("first_come_first_served_in_batches_of_two", move || {
            Scenario::of([one(); 5]).with_max_batch(2).in_order()
        }),
        trial("first_come_first_served_but_one_gives_up", move || {
            let impatient = one().gives_up(Queued).leads(Alone);
            Scenario::of([one(), one(), impatient, one(), one()]).with_max_batch(2).in_order()
        }),
        trial("the_first_is_overdue_and_leads_when_a_batch_ends", move || {
            Scenario::of([one().gives_up(First).leads(Alone); 4]).with_max_in_progress(1).in_order()
        }),
        trial("all_give_up", move || Scenario::of([one().gives_up(Anywhere); 4]).with_max_batch(3)),
        trial("a_leader_panics_and_others_give_up", move || {
            let impatient = one().gives_up(Anywhere);
            let panics = one().leads(PanicsBeforeExecution);
            Scenario::of([panics, impatient, impatient.leads(PanicsAfterExecution)])
        }),
        trial("a_leader_panics_on_an_abandoned_result", move || {
            let leader = one().leads(PanicsOnAnAbandonedResult);
            Scenario::of([leader, leader.gives_up(InFlight), leader, leader.gives_up(InFlight)])
        }),
        trial("results_are_missing_and_some_give_up", move || {
            let loses = one().leads(LosesTheLastResult);
            Scenario::of([loses, loses.gives_up(InFlight), one().gives_up(Anywhere), one()])
        }),
        trial("the_server_has_too_many_clients_and_some_give_up", move || {
            let refused = one().leads(TooManyClients);
            Scenario::of([refused, refused.gives_up(Anywhere), one(), one()])
        }),
        trial("anything", Scenario::any),
    ];
    trials.extend(every_schedule::trials());
    trials
}

fn trial(name: &'static str, scenario: impl Fn() -> Scenario + Clone + Send + Sync + 'static) -> Trial {
    crate::searched(format!("combiner::{name}"), move || scenario().run())
}

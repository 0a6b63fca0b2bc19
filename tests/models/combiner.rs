//! Threads that combine jobs as the pooled backend does: they lead batches, wait, give up and fail. The checkers are shuttle, for random
//! schedules, half of them with few preemptions, and loom, for a few small scenarios.

mod every_schedule;
mod results;
mod scenario;
#[path = "../../src/backend/pipelining/combiner.rs"]
mod subject;
mod worker;

use libtest_mimic::Trial;

use crate::sync;
use scenario::GivesUp::{Anywhere, First, InFlight, Queued};
use scenario::Lead::{
    Alone, FillsTwice, LosesTheLastResult, PanicsAfterExecution, PanicsBeforeExecution,
    PanicsOnAnAbandonedResult, TooManyClients,
};
use scenario::{Behavior, Scenario};

pub(crate) fn trials() -> Vec<Trial> {
    let one = Behavior::new;
    let mut trials = vec![
        trial("all_share", move || Scenario::of([one(); 4])),
        trial("repeatedly", move || Scenario::of([one().times(3); 2])),
        trial("repeatedly_in_small_batches", move || Scenario::of([one().times(2); 3]).with_max_batch(2)),
        trial("batches_are_small", move || Scenario::of([one(); 5]).with_max_batch(2)),
        trial("a_batch_has_room_for_its_leader_only", move || Scenario::of([one(); 4]).with_max_batch(1)),
        trial("no_contention", move || Scenario::of([one().times(2); 3]).contended_above(usize::MAX)),
        trial("too_few_for_contention", move || Scenario::of([one().times(2); 3]).contended_above(3)),
        trial("contention_now_and_then", move || Scenario::of([one().times(2); 3]).contended_above(2)),
        trial("first_come_first_served", move || Scenario::of([one(); 5]).with_max_batch(3).in_order()),
        trial("first_come_first_served_in_batches_of_two", move || {
            Scenario::of([one(); 5]).with_max_batch(2).in_order()
        }),
        trial("first_come_first_served_alone", move || Scenario::of([one().leads(Alone); 4]).in_order()),
        trial("first_come_first_served_but_one_gives_up", move || {
            let impatient = one().gives_up(Queued).leads(Alone);
            Scenario::of([one(), one(), impatient, one(), one()]).with_max_batch(2).in_order()
        }),
        trial("the_first_leads_alone", move || Scenario::of([one().leads(Alone), one(), one(), one()])),
        trial("a_batch_is_filled_twice", move || {
            Scenario::of([one().leads(FillsTwice); 4]).with_max_batch(3)
        }),
        trial("one_gives_up_in_the_queue", move || {
            Scenario::of([one(), one().gives_up(Queued), one(), one()]).with_max_batch(2)
        }),
        trial("the_first_leads_beside_the_batch_in_progress", move || {
            Scenario::of([one().gives_up(First); 4]).with_max_batch(2)
        }),
        trial("the_first_is_overdue_and_leads_when_a_batch_ends", move || {
            Scenario::of([one().gives_up(First).leads(Alone); 4]).with_max_in_progress(1).in_order()
        }),
        trial("two_batches_may_be_in_progress", move || {
            Scenario::of([one().gives_up(First).times(2); 4]).with_max_batch(2).with_max_in_progress(2)
        }),
        trial("an_overdue_request_reaches_its_time_limit", move || {
            Scenario::of([one(), one().gives_up(Queued), one().gives_up(First)]).with_max_in_progress(1)
        }),
        trial("all_give_up_in_the_queue", move || Scenario::of([one().gives_up(Queued).times(2); 3])),
        trial("one_gives_up_in_flight", move || Scenario::of([one(), one().gives_up(InFlight), one()])),
        trial("all_give_up_in_flight", move || Scenario::of([one().gives_up(InFlight).times(2); 3])),
        trial("all_give_up", move || Scenario::of([one().gives_up(Anywhere); 4]).with_max_batch(3)),
        trial("leaders_panic_before_execution", move || {
            let panics = one().leads(PanicsBeforeExecution);
            Scenario::of([panics, one(), one(), panics]).with_max_batch(3)
        }),
        trial("all_leaders_panic_after_execution", move || {
            Scenario::of([one().leads(PanicsAfterExecution); 4]).with_max_batch(2)
        }),
        trial("a_leader_panics_and_others_give_up", move || {
            let impatient = one().gives_up(Anywhere);
            let panics = one().leads(PanicsBeforeExecution);
            Scenario::of([panics, impatient, impatient.leads(PanicsAfterExecution)])
        }),
        trial("a_leader_panics_on_an_abandoned_result", move || {
            let leader = one().leads(PanicsOnAnAbandonedResult);
            Scenario::of([leader, leader.gives_up(InFlight), leader, leader.gives_up(InFlight)])
        }),
        trial("results_are_missing", move || Scenario::of([one().leads(LosesTheLastResult); 4])),
        trial("results_are_missing_and_some_give_up", move || {
            let loses = one().leads(LosesTheLastResult);
            Scenario::of([loses, loses.gives_up(InFlight), one().gives_up(Anywhere), one()])
        }),
        trial("the_server_has_too_many_clients", move || {
            let refused = one().leads(TooManyClients);
            Scenario::of([refused, one(), refused])
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

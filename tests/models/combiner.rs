//! Threads that want something carried, as the window has them lead, wait, have enough of it and fail. The checkers are shuttle, which
//! tries schedules at random, and such with few preemptions; and loom for a few that are small.

mod actor;
#[path = "../../src/server/combining.rs"]
mod combining;
mod every_schedule;
mod ledger;
mod scenario;

use libtest_mimic::Trial;

use crate::sync;
use scenario::Enough::{InFlight, Anywhere, Queued};
use scenario::Lead::{Alone, Crowded, DiesOfAnOrphan, DiesOnTheWay, DiesWithTheAnswers, InTwoGoes, TellsFew};
use scenario::{Encoded, Scene};

pub(crate) fn trials() -> Vec<Trial> {
    let part = Encoded::new;
    let mut trials = vec![
        trial("all_share", move || Scene::of([part(); 4])),
        trial("again_and_again", move || Scene::of([part().times(3); 2])),
        trial("again_and_again_among_others", move || Scene::of([part().times(2); 3]).with_seats(2)),
        trial("there_are_few_seats", move || Scene::of([part(); 5]).with_seats(2)),
        trial("there_are_no_seats_for_others", move || Scene::of([part(); 4]).with_seats(1)),
        trial("no_crowd", move || Scene::of([part().times(2); 3]).with_crowds_above(usize::MAX)),
        trial("too_few_for_a_crowd", move || Scene::of([part().times(2); 3]).with_crowds_above(3)),
        trial("now_and_then_a_crowd", move || Scene::of([part().times(2); 3]).with_crowds_above(2)),
        trial("first_come_first_served", move || Scene::of([part(); 5]).with_seats(3).in_order()),
        trial("first_come_first_served_by_twos", move || Scene::of([part(); 5]).with_seats(2).in_order()),
        trial("first_come_first_served_alone", move || Scene::of([part().by(Alone); 4]).in_order()),
        trial("first_come_first_served_but_one_has_enough", move || {
            let impatient = part().until(Queued).by(Alone);
            Scene::of([part(), part(), impatient, part(), part()]).with_seats(2).in_order()
        }),
        trial("the_first_takes_nobody_along", move || Scene::of([part().by(Alone), part(), part(), part()])),
        trial("one_goes_twice_for_others", move || Scene::of([part().by(InTwoGoes); 4]).with_seats(3)),
        trial("one_has_enough_in_the_queue", move || {
            Scene::of([part(), part().until(Queued), part(), part()]).with_seats(2)
        }),
        trial("all_have_enough_in_the_queue", move || Scene::of([part().until(Queued).times(2); 3])),
        trial("one_has_enough_aboard", move || Scene::of([part(), part().until(InFlight), part()])),
        trial("all_have_enough_aboard", move || Scene::of([part().until(InFlight).times(2); 3])),
        trial("all_have_enough", move || Scene::of([part().until(Anywhere); 4]).with_seats(3)),
        trial("a_leader_dies_on_the_way", move || {
            Scene::of([part().by(DiesOnTheWay), part(), part(), part().by(DiesOnTheWay)]).with_seats(3)
        }),
        trial("all_leaders_die_with_the_answers", move || {
            Scene::of([part().by(DiesWithTheAnswers); 4]).with_seats(2)
        }),
        trial("a_leader_dies_and_others_have_enough", move || {
            let impatient = part().until(Anywhere);
            Scene::of([part().by(DiesOnTheWay), impatient, impatient.by(DiesWithTheAnswers)])
        }),
        trial("a_leader_dies_of_an_answer_that_is_nobodys", move || {
            let leader = part().by(DiesOfAnOrphan);
            Scene::of([leader, leader.until(InFlight), leader, leader.until(InFlight)])
        }),
        trial("there_are_fewer_answers", move || Scene::of([part().by(TellsFew); 4])),
        trial("there_are_fewer_answers_and_some_have_enough", move || {
            Scene::of([
                part().by(TellsFew),
                part().until(InFlight).by(TellsFew),
                part().until(Anywhere),
                part(),
            ])
        }),
        trial("the_server_is_crowded", move || Scene::of([part().by(Crowded), part(), part().by(Crowded)])),
        trial("the_server_is_crowded_and_some_have_enough", move || {
            Scene::of([part().by(Crowded), part().until(Anywhere).by(Crowded), part(), part()])
        }),
        trial("anything", Scene::any),
    ];
    trials.extend(every_schedule::trials());
    trials
}

fn trial(name: &'static str, scenario: impl Fn() -> Scene + Clone + Send + Sync + 'static) -> Trial {
    crate::searched(format!("trips::{name}"), move || scenario().play())
}

//! Threads in the line before a key, as the engine has them wait, hold, pass on and give up. The checker is shuttle: it tries
//! schedules at random, and such with few preemptions.

#[allow(dead_code, reason = "whether a line is closed is for the engine")]
#[path = "../../src/waiting/line.rs"]
mod line;
mod scenario;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use libtest_mimic::Trial;

use crate::sync;
use line::{HolderTicket, WaitQueue, Hint, Ticket, Turn, Woken};
use scenario::Ending::{Dies, Late, Polls};
use scenario::Release::{LeavesAToken, Overruns, PassesOn, Unsure};
use scenario::{Encoded, Scene};

/// A key, and how many there are of it.
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

/// That the key was held, and the lock not yet given back.
#[derive(Clone, Debug)]
struct Observation;

#[derive(Clone, Copy, Debug)]
struct WaitMode {
    tokens: bool,
    /// In which way it waits.
    variant: usize,
    /// Whose it is.
    of: usize,
}

impl WaitMode {
    fn takes_tokens(self) -> bool {
        self.tokens
    }

    fn waits_as(self, other: &Self) -> bool {
        self.variant == other.variant
    }
}

#[derive(Clone, Debug)]
struct Handoff {
    observation: Observation,
    /// What it was renewed for.
    mode: WaitMode,
}

pub(crate) fn trials() -> Vec<Trial> {
    let waits = Encoded::waits;
    vec![
        trial("all_wait", move || Scene::of([waits(), waits(), waits()])),
        trial("again_and_again", move || Scene::of([waits().twice(), waits().twice()])),
        trial("first_come_first_served", move || Scene::of([waits(), waits(), waits(), waits()]).in_order()),
        trial("first_come_first_served_but_one_gives_up", move || {
            Scene::of([waits(), waits().until(Late), waits(), waits()]).in_order()
        }),
        trial("the_lock_passes_on", move || {
            Scene::of([waits().then(PassesOn), waits().then(PassesOn), waits().then(PassesOn)])
        }),
        trial("the_lock_passes_on_first_come_first_served", move || {
            Scene::of([waits().then(PassesOn), waits().then(PassesOn), waits(), waits()]).in_order()
        }),
        trial("the_heir_gives_up", move || {
            Scene::of([waits().then(PassesOn), waits().until(Late).then(PassesOn), waits()])
        }),
        trial("the_heir_polls", move || {
            Scene::of([waits().then(PassesOn).twice(), waits().until(Polls).then(PassesOn), waits()])
        }),
        trial("the_heir_dies", move || {
            Scene::of([waits().then(PassesOn), waits().until(Dies).then(PassesOn), waits().then(PassesOn)])
        }),
        trial("a_holder_overruns", move || {
            Scene::of([waits().then(Overruns), waits().then(Overruns), waits()]).in_order()
        }),
        trial("one_who_was_given_the_lock_overruns", move || {
            Scene::of([waits().then(PassesOn), waits().then(Overruns), waits()]).in_order()
        }),
        trial("news_is_left_to_the_next", move || {
            Scene::of([waits(), waits().until(Late), waits()]).in_order()
        }),
        trial("all_give_up_but_one", move || {
            Scene::of([waits().until(Late), waits(), waits().until(Late), waits().until(Dies)])
        }),
        trial("two_give_up_one_after_the_other", move || {
            Scene::of([waits().then(PassesOn), waits().until(Late), waits().until(Late), waits()]).in_order()
        }),
        trial("some_do_not_stand_in_line", move || {
            Scene::of([waits(), waits().then(PassesOn), Encoded::tries(), Encoded::tries().then(PassesOn)])
        }),
        trial("the_answer_to_a_release_is_lost", move || {
            Scene::of([waits().then(Unsure), waits().then(Unsure), waits(), Encoded::tries().then(Unsure)])
        }),
        trial("two_keys", move || {
            let other = |part: Encoded| part.of_key(1);
            Scene::of([waits(), waits().then(PassesOn), other(waits()), other(waits().until(Late))])
        }),
        trial("all_waiting_ends", move || {
            let other = waits().of_key(1).twice();
            Scene::of([waits().twice(), waits().then(PassesOn), waits().until(Late), other]).closed()
        }),
        trial("all_waiting_for_what_never_comes_ends", move || {
            Scene::of([waits(), waits(), waits().of_key(1)]).taken().closed()
        }),
        trial("unparked_for_no_reason", move || {
            Scene::of([waits().then(PassesOn), waits().until(Polls), waits()]).with_unparks([0, 1, 2, 1])
        }),
        trial("tokens_wake", move || {
            let part = waits().then(LeavesAToken);
            Scene::of([part, part, part.until(Late)]).with_tokens()
        }),
        trial("tokens_wake_some", move || {
            let part = waits().then(LeavesAToken);
            Scene::of([part.until(Late), part, waits().then(PassesOn)]).with_tokens()
        }),
        trial("each_way_of_waiting_has_a_head", move || {
            Scene::of([waits(), waits().another_way(), waits(), waits().another_way()])
        }),
        trial("a_lock_passes_on_whatever_the_way", move || {
            Scene::of([waits().then(PassesOn), waits().another_way(), waits().until(Late).then(PassesOn)])
        }),
        trial("tokens_come_from_another_process", move || {
            Scene::of([Encoded::elsewhere(), waits().then(LeavesAToken), waits().then(LeavesAToken)])
                .with_tokens()
        }),
    ]
}

fn trial(name: &'static str, scenario: impl Fn() -> Scene + Clone + Send + Sync + 'static) -> Trial {
    crate::searched(format!("lines::{name}"), move || scenario().play())
}

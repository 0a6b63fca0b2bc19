//! The random search: three clients on one key, with random interleavings, crashes, lost requests and replies, and clocks that differ. It
//! looks for an overlap: two clients that hold the lock at the same time, each within its lease; and for a later holder with a smaller
//! fencing token. With equal expirations, and clock
//! differences and delays that together stay within the guard, there must be none. Otherwise the search must find some, or it proves
//! nothing.

mod run;

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::Searches;
use crate::values::options::Protocol;
use run::{Conditions, Run};

const WITHIN_THE_GUARD: Conditions = Conditions {
    protocols: [Protocol::Classic; 3],
    expirations: [1500; 3],
    skew: 300,
    clears: false,
    delay: 300,
    waits: false,
    gems: false,
    touches: false,
    outages: false,
};

/// What happened in all runs of a search.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    grants: u64,
    extensions: u64,
    certified: u64,
    tokens: usize,
    handed_over: u64,
    again: u64,
}

/// Searches `runs` runs. Returns how much happened, or an error with the fewest steps to an overlap.
fn search(conditions: Conditions, runs: u32) -> Result<Totals, String> {
    let totals = Cell::new(Totals::default());
    let config =
        Config { cases: runs, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    // Mostly no time between two steps, sometimes a little, sometimes as long as a lease.
    let (at_once, most) = if conditions.outages { (60, 400) } else { (6, 200) };
    let pause = prop_oneof![at_once => Just(0_u64), 3 => 0..300_u64, 1 => 1000..3000_u64];
    let steps = prop::collection::vec((0..3_usize, any::<u8>(), pause), 1..most);
    TestRunner::new(config)
        .run(&steps, |steps| {
            let (run, broken) = Run::perform(conditions, &steps);
            prop_assert!(
                broken.is_none(),
                "{}:\n{}",
                broken.unwrap_or_default(),
                Run::log(conditions, &steps)
            );
            let Totals { grants, extensions, certified, tokens, handed_over, again } = totals.get();
            totals.set(Totals {
                grants: grants + run.grants,
                extensions: extensions + run.extensions,
                certified: certified + run.certified,
                tokens: tokens + run.tokens.len(),
                handed_over: handed_over + run.handed_over,
                again: again + run.again,
            });
            Ok(())
        })
        .map(|()| totals.get())
        .map_err(|error| error.to_string())
}

/// Panics if there is an overlap, or if so little happened that the search proves nothing.
fn assert_no_overlap(conditions: Conditions, runs: u32, grants: u64) {
    let totals =
        search(conditions, crate::runs(runs)).unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
    let Totals { extensions, certified, tokens, .. } = totals;
    let happened = extensions > grants / 50 && certified > grants / 80 && tokens as u64 > grants / 4;
    assert!(totals.grants > grants && happened, "little happened: {totals:?}");
}

fn there_is_no_overlap_within_the_guard() {
    assert_no_overlap(WITHIN_THE_GUARD, 4000, 8_000);
}

fn watched_needs_neither_equal_expirations_nor_quick_commands() {
    let conditions =
        Conditions { expirations: [6000, 200, 1500], skew: 900, delay: 3000, ..WITHIN_THE_GUARD };
    for protocols in
        [[Protocol::Watched; 3], [Protocol::Ttl; 3], [Protocol::Watched, Protocol::Ttl, Protocol::Watched]]
    {
        assert_no_overlap(Conditions { protocols, ..conditions }, 2000, 2_000);
    }
}

fn ttl_needs_no_clocks_that_agree() {
    let hours = 4 * 3_600_000;
    for expirations in [[1500; 3], [6000, 200, 1500]] {
        let conditions = Conditions {
            protocols: [Protocol::Ttl; 3],
            expirations,
            skew: hours,
            delay: 3000,
            ..WITHIN_THE_GUARD
        };
        assert_no_overlap(conditions, 2000, 3_000);
    }
}

fn all_protocols_mix_within_the_guard() {
    for protocols in [
        [Protocol::Classic, Protocol::Watched, Protocol::Ttl],
        [Protocol::Classic, Protocol::Classic, Protocol::Watched],
        [Protocol::Classic, Protocol::Ttl, Protocol::Ttl],
        [Protocol::Auto; 3],
    ] {
        assert_no_overlap(Conditions { protocols, ..WITHIN_THE_GUARD }, 2000, 3_000);
    }
}

fn a_wait_for_a_connection_does_not_use_up_the_guard() {
    for protocols in [[Protocol::Classic; 3], [Protocol::Classic, Protocol::Watched, Protocol::Ttl]] {
        // The delay is shorter by the time that a takeover may wait.
        let conditions = Conditions { protocols, delay: 150, waits: true, ..WITHIN_THE_GUARD };
        assert_no_overlap(conditions, 2000, 1_000);
    }
}

fn a_lock_that_is_handed_over_has_one_holder() {
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto] {
        for clears in [false, true] {
            let conditions = Conditions {
                expirations: [6000; 3],
                protocols: [protocol; 3],
                clears,
                delay: 150,
                waits: true,
                ..WITHIN_THE_GUARD
            };
            let totals = search(conditions, crate::runs(6000))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.handed_over > 10, "little happened: {totals:?}");
        }
    }
}

/// Releases often get no reply, and are tried again, while a gem and other clients acquire the lock.
fn a_release_that_is_tried_again_ends_no_other_holders_lock() {
    for protocols in [[Protocol::Watched; 3], [Protocol::Ttl; 3]] {
        let conditions = Conditions { protocols, outages: true, ..WITHIN_THE_GUARD };
        let totals =
            search(conditions, crate::runs(6000)).unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
        assert!(totals.again > 200 && totals.grants > 3_000, "little happened: {totals:?}");
    }
}

/// One that holds by Ttl crashes, or is late, and two gems from 1.4.3 on wait: their clocks are ahead, or the server is late.
fn beside_newer_gems_ttl_lets_in_one_at_a_time() {
    for (skew, delay, waits) in [(5000, 300, false), (300, 4000, false), (4500, 300, true), (0, 2500, true)] {
        let protocols = [Protocol::Ttl; 3];
        let conditions = Conditions { protocols, skew, delay, waits, gems: true, ..WITHIN_THE_GUARD };
        for expirations in [[1500; 3], [6000, 1500, 1500]] {
            let conditions = Conditions { expirations, ..conditions };
            let totals = search(conditions, crate::runs(2000))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.grants > 2_000, "little happened: {totals:?}");
        }
    }
}

fn beside_newer_gems_there_are_overlaps_after_a_crash_of_watched() {
    let conditions = Conditions { protocols: [Protocol::Watched; 3], gems: true, ..WITHIN_THE_GUARD };
    assert!(search(conditions, 20_000).is_err());
}

/// Another client touches the key all the time, as by EXPIRE: most transactions are not carried out, and no holder is told that its lock is lost.
fn a_touched_key_is_not_lost() {
    for protocol in [Protocol::Watched, Protocol::Ttl, Protocol::Classic] {
        let conditions = Conditions {
            protocols: [protocol; 3],
            touches: true,
            expirations: [6000; 3],
            ..WITHIN_THE_GUARD
        };
        assert_no_overlap(conditions, 3000, 3_000);
    }
}

fn there_are_overlaps_when_commands_take_longer_than_the_guard() {
    assert!(search(Conditions { delay: 3000, ..WITHIN_THE_GUARD }, 20_000).is_err());
}

fn there_are_overlaps_when_expirations_differ() {
    assert!(search(Conditions { expirations: [6000, 200, 6000], ..WITHIN_THE_GUARD }, 20_000).is_err());
}

fn there_are_overlaps_when_clocks_are_further_apart_than_the_guard() {
    assert!(search(Conditions { skew: 2000, ..WITHIN_THE_GUARD }, 20_000).is_err());
}

fn a_certificate_is_true_whatever_happens_to_the_key_and_the_clocks() {
    for protocols in [
        [Protocol::Classic; 3],
        [Protocol::Watched; 3],
        [Protocol::Classic, Protocol::Watched, Protocol::Ttl],
    ] {
        let conditions = Conditions { protocols, clears: true, ..WITHIN_THE_GUARD };
        assert_no_overlap(conditions, 5000, 3_000);
        let conditions = Conditions { expirations: [6000, 200, 1500], skew: 2000, delay: 3000, ..conditions };
        assert_no_overlap(conditions, 4000, 3_000);
    }
}

pub(crate) const SEARCHES: &Searches = &[
    ("a_touched_key_is_not_lost", a_touched_key_is_not_lost),
    (
        "a_release_that_is_tried_again_ends_no_other_holders_lock",
        a_release_that_is_tried_again_ends_no_other_holders_lock,
    ),
    ("there_is_no_overlap_within_the_guard", there_is_no_overlap_within_the_guard),
    (
        "watched_needs_neither_equal_expirations_nor_quick_commands",
        watched_needs_neither_equal_expirations_nor_quick_commands,
    ),
    ("ttl_needs_no_clocks_that_agree", ttl_needs_no_clocks_that_agree),
    ("all_protocols_mix_within_the_guard", all_protocols_mix_within_the_guard),
    ("a_wait_for_a_connection_does_not_use_up_the_guard", a_wait_for_a_connection_does_not_use_up_the_guard),
    ("a_lock_that_is_handed_over_has_one_holder", a_lock_that_is_handed_over_has_one_holder),
    ("beside_newer_gems_ttl_lets_in_one_at_a_time", beside_newer_gems_ttl_lets_in_one_at_a_time),
    (
        "beside_newer_gems_there_are_overlaps_after_a_crash_of_watched",
        beside_newer_gems_there_are_overlaps_after_a_crash_of_watched,
    ),
    (
        "there_are_overlaps_when_commands_take_longer_than_the_guard",
        there_are_overlaps_when_commands_take_longer_than_the_guard,
    ),
    ("there_are_overlaps_when_expirations_differ", there_are_overlaps_when_expirations_differ),
    (
        "there_are_overlaps_when_clocks_are_further_apart_than_the_guard",
        there_are_overlaps_when_clocks_are_further_apart_than_the_guard,
    ),
    (
        "a_certificate_is_true_whatever_happens_to_the_key_and_the_clocks",
        a_certificate_is_true_whatever_happens_to_the_key_and_the_clocks,
    ),
];

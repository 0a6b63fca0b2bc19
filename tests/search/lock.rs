//! The random search: three clients on one key, with random interleavings, crashes, lost requests and replies, and clocks that differ. It
//! looks for an overlap: two clients that hold the lock at the same time, each within its lease; and for a later holder with a smaller
//! fencing token. With equal expirations, and clock
//! differences and delays that together stay within the guard, there must be none. Otherwise the search must find some, or it proves
//! nothing.

mod run;

use std::cell::Cell;

use proptest::prelude::*;

use crate::Searches;
use run::{Conditions, Gems, Run};
use setnx_lock_proto::values::Protocol;

const WITHIN_THE_GUARD: Conditions = Conditions {
    protocols: [Protocol::Classic; 3],
    expirations: [1500; 3],
    skew: 300,
    clears: false,
    delay: 300,
    waits: false,
    gems: Gems::None,
    suspends: false,
    reliable: false,
    late: 0,
    touches: false,
    outages: false,
    doubts: false,
    tokens: false,
    fails_over: false,
    fills: false,
    ages: false,
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
    paid: u64,
    resumed: u64,
    overwritten: u64,
    priced: u64,
    lost: u64,
    alone: u64,
    too_old: u64,
}

/// Searches `runs` runs. Returns how much happened, or an error with the fewest steps to an overlap.
fn search(conditions: Conditions, runs: u32) -> Result<Totals, String> {
    let totals = Cell::new(Totals::default());
    let (at_once, most) = match conditions {
        Conditions { outages: true, .. } => (60, 400),
        Conditions { late: 1.., .. } => (6, 400),
        _ => (6, 200),
    };
    let step = (0..3_usize, any::<u8>(), crate::pause(at_once, 300));
    let run = |steps: &[_]| {
        let (run, broken) = Run::perform(conditions, steps);
        let Totals { grants, extensions, certified, tokens, .. } = totals.get();
        let Totals { handed_over, again, paid, resumed, overwritten, priced, lost, alone, too_old, .. } =
            totals.get();
        totals.set(Totals {
            grants: grants + run.grants,
            extensions: extensions + run.extensions,
            certified: certified + run.certified,
            tokens: tokens + run.tokens.len(),
            handed_over: handed_over + run.handed_over,
            again: again + run.again,
            paid: paid + run.paid(),
            resumed: resumed + run.resumed,
            overwritten: overwritten + run.overwritten,
            priced: priced + run.priced,
            lost: lost + run.lost(),
            alone: alone + run.deleted_alone,
            too_old: too_old + run.too_old,
        });
        broken.map_or(Ok(()), Err)
    };
    crate::search(step, most, runs, run, |steps| Run::log(conditions, steps))?;
    Ok(totals.get())
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
    assert_no_overlap(WITHIN_THE_GUARD, 2000, 4000);
}

fn watched_needs_neither_equal_expirations_nor_quick_commands() {
    let conditions =
        Conditions { expirations: [6000, 200, 1500], skew: 900, delay: 3000, ..WITHIN_THE_GUARD };
    for protocols in
        [[Protocol::Watched; 3], [Protocol::Ttl; 3], [Protocol::Watched, Protocol::Ttl, Protocol::Watched]]
    {
        assert_no_overlap(Conditions { protocols, ..conditions }, 1000, 1000);
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
        assert_no_overlap(conditions, 1000, 1500);
    }
}

fn all_protocols_mix_within_the_guard() {
    for protocols in [
        [Protocol::Classic, Protocol::Watched, Protocol::Ttl],
        [Protocol::Classic, Protocol::Classic, Protocol::Watched],
        [Protocol::Classic, Protocol::Ttl, Protocol::Ttl],
        [Protocol::Auto; 3],
    ] {
        assert_no_overlap(Conditions { protocols, ..WITHIN_THE_GUARD }, 1000, 1500);
    }
}

fn a_wait_for_a_connection_does_not_use_up_the_guard() {
    for protocols in [[Protocol::Classic; 3], [Protocol::Classic, Protocol::Watched, Protocol::Ttl]] {
        // The delay is shorter by the time that a takeover may wait.
        let conditions = Conditions { protocols, delay: 150, waits: true, ..WITHIN_THE_GUARD };
        assert_no_overlap(conditions, 1000, 500);
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
            let totals = search(conditions, crate::runs(3000))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.handed_over > 5, "little happened: {totals:?}");
        }
    }
}

/// A lock goes on by tokens, and each may come to several clients: of the giver and all of them one at most holds it, once.
fn a_lock_that_goes_on_by_tokens_has_one_holder() {
    let tokens = Conditions { tokens: true, expirations: [6000; 3], ..WITHIN_THE_GUARD };
    // A takeover may wait for its connection.
    let (waits, clears) = (
        Conditions { expirations: [1500; 3], delay: 150, waits: true, ..tokens },
        Conditions { clears: true, ..tokens },
    );
    let late = Conditions { expirations: [6000, 200, 1500], skew: 900, delay: 3000, ..tokens };
    let mixed = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];
    let all = mixed.map(|protocol| [protocol; 3]).into_iter().chain([[Protocol::Auto; 3], mixed]);
    for protocols in all {
        let compares = !matches!(protocols[0], Protocol::Classic | Protocol::Auto);
        for conditions in [tokens, waits, clears, late] {
            if conditions.delay > 1000 && !compares {
                continue;
            }
            let conditions = Conditions { protocols, ..conditions };
            // With short leases few tokens come in time.
            let runs = crate::runs(if conditions.waits { 4000 } else { 1000 });
            let totals = search(conditions, runs).unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.resumed > 10, "{conditions:?}: little happened: {totals:?}");
        }
    }
}

/// Failovers lose the last writes, and an old master goes on for a second. No holder is told that its lock is lost while the key has a value that
/// it wrote and its lease lasts; no two have the lock of one master; what is certified within a lease is true.
fn over_failovers_a_holder_knows_its_earlier_values() {
    for protocols in [[Protocol::Classic; 3], [Protocol::Watched; 3], [Protocol::Ttl; 3], [Protocol::Auto; 3]]
    {
        for tokens in [false, true] {
            let conditions = Conditions {
                protocols,
                expirations: [6000; 3],
                fails_over: true,
                tokens,
                ..WITHIN_THE_GUARD
            };
            let totals = search(conditions, crate::runs(2000))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.lost > 2000, "{conditions:?}: little happened: {totals:?}");
        }
    }
}

/// What a call has left in doubt is released when its key shows it, and nobody else's lock is.
fn a_debt_is_paid_or_expires() {
    for protocols in [
        [Protocol::Classic; 3],
        [Protocol::Watched; 3],
        [Protocol::Ttl; 3],
        [Protocol::Classic, Protocol::Watched, Protocol::Ttl],
    ] {
        let mut paid = 0;
        for (expirations, suspends, fills) in
            [([12_000; 3], false, false), ([6000; 3], true, false), ([12_000; 3], false, true)]
        {
            let conditions =
                Conditions { protocols, expirations, suspends, fills, doubts: true, ..WITHIN_THE_GUARD };
            let totals = search(conditions, crate::runs(4000))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.grants > 1000, "little happened: {totals:?}");
            paid += totals.paid;
        }
        // In Classic about fifty: often a GETSET is lost, which is not owed.
        assert!(paid > 15, "little happened: {protocols:?}: {paid}");
    }
}

/// Releases often get no reply, and are tried again, while a gem and other clients acquire the lock.
fn a_release_that_is_tried_again_ends_no_other_holders_lock() {
    for protocols in [[Protocol::Watched; 3], [Protocol::Ttl; 3]] {
        let conditions = Conditions { protocols, outages: true, ..WITHIN_THE_GUARD };
        let totals =
            search(conditions, crate::runs(3000)).unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
        assert!(totals.again > 100 && totals.grants > 1500, "little happened: {totals:?}");
    }
}

/// A full server queues nothing, so that keys are deleted by a command alone. However late that is carried out whose caller still waits for it, no
/// other holder's key goes.
fn a_full_server_gives_up_a_lock_to_its_holder_alone() {
    let early = Conditions { expirations: [6000; 3], ..WITHIN_THE_GUARD };
    let late = Conditions { expirations: [12_000; 3], skew: 900, delay: 3000, ..WITHIN_THE_GUARD };
    for protocols in [[Protocol::Watched; 3], [Protocol::Ttl; 3]] {
        for conditions in [early, late] {
            let conditions = Conditions { protocols, fills: true, ..conditions };
            let totals = search(conditions, crate::runs(2000))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.alone > 10 && totals.grants > 1000, "{conditions:?}: little happened: {totals:?}");
        }
    }
}

/// The server comes back older, or newer, with all data, while holders hold and clients ask.
fn on_a_server_that_comes_back_older_auto_goes_on() {
    let ages = Conditions { protocols: [Protocol::Auto; 3], ages: true, ..WITHIN_THE_GUARD };
    for conditions in
        [ages, Conditions { tokens: true, ..ages }, Conditions { expirations: [6000; 3], ..ages }]
    {
        let totals =
            search(conditions, crate::runs(4000)).unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
        assert!(totals.too_old > 1000 && totals.grants > 1500, "little happened: {totals:?}");
    }
}

/// One that holds by Ttl crashes, or is late, and two gems from 1.4.3 on wait: their clocks are ahead, or the server is
/// late. A value names a time ten seconds after its lease. Until a gem that has read it replaces it there are three ways:
/// the two steps of the change that writes it, and the reply to the gem. With the clocks they are within that.
fn beside_newer_gems_ttl_lets_in_one_at_a_time() {
    for (skew, delay, waits) in [(5000, 300, false), (300, 3200, false), (4500, 300, true), (0, 2500, true)] {
        let protocols = [Protocol::Ttl; 3];
        let conditions = Conditions { protocols, skew, delay, waits, gems: Gems::Newer, ..WITHIN_THE_GUARD };
        for expirations in [[1500; 3], [6000, 1500, 1500]] {
            let conditions = Conditions { expirations, ..conditions };
            let totals = search(conditions, crate::runs(1000))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.grants > 1000, "little happened: {totals:?}");
        }
    }
}

fn beside_newer_gems_there_are_overlaps_where_three_ways_take_longer_than_ttl_shows() {
    let (protocols, expirations) = ([Protocol::Ttl; 3], [6000, 1500, 1500]);
    let conditions =
        Conditions { protocols, expirations, skew: 4500, delay: 9000, gems: Gems::Newer, ..WITHIN_THE_GUARD };
    assert!(search(conditions, 100_000).is_err());
}

fn beside_newer_gems_there_are_overlaps_after_a_crash_of_watched() {
    let conditions = Conditions { protocols: [Protocol::Watched; 3], gems: Gems::Newer, ..WITHIN_THE_GUARD };
    assert!(search(conditions, 20_000).is_err());
}

/// Beside gems up to 1.4.1 with another expiration: they take up to 0.3 s from GET to GETSET.
const BESIDE_GEMS: Conditions = Conditions {
    expirations: [6000, 6000, 100],
    skew: 50,
    delay: 25,
    gems: Gems::Classic { count: 1, looks: true },
    reliable: true,
    ..WITHIN_THE_GUARD
};

/// No holder whose lease lasts is told that its lock is lost, nobody else has it, and no gem's lock is ended: in Watched and Ttl whatever the
/// gems' expirations. In Classic a client that loses a takeover cuts a gem's longer lease short.
fn a_gem_that_overwrites_a_value_harms_nobody() {
    let shorter = [([6000, 6000, 100], 1), ([6000; 3], 1), ([6000, 100, 100], 2), ([6000; 3], 2)];
    let longer = [([6000, 6000, 20_000], 1), ([3000, 4000, 4000], 2)];
    for protocol in [Protocol::Watched, Protocol::Ttl, Protocol::Classic] {
        let longer = if protocol == Protocol::Classic { &[][..] } else { &longer };
        for (expirations, count) in shorter.iter().chain(longer) {
            let gems = Gems::Classic { count: *count, looks: true };
            let protocols = [protocol; 3];
            let conditions = Conditions { protocols, expirations: *expirations, gems, ..BESIDE_GEMS };
            let totals = search(conditions, crate::runs(500))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            let happened = totals.overwritten > 8 && totals.grants > 300;
            assert!(happened, "{conditions:?}: little happened: {totals:?}");
        }
    }
}

/// Requests and replies are lost, and take up to two seconds: a holder may be told so then, but no gem's lock is ended.
fn no_gems_lock_is_ended_however_late_replies_are() {
    for protocol in [Protocol::Watched, Protocol::Ttl] {
        for (expirations, count) in [([6000, 6000, 100], 1), ([6000, 500, 500], 2), ([3000, 4000, 4000], 2)] {
            let gems = Gems::Classic { count, looks: true };
            let protocols = [protocol; 3];
            let conditions =
                Conditions { protocols, expirations, gems, late: 2000, reliable: false, ..BESIDE_GEMS };
            let totals = search(conditions, crate::runs(1250))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            let happened = totals.overwritten > 3 && totals.grants > 300;
            assert!(happened, "{conditions:?}: little happened: {totals:?}");
        }
    }
}

fn a_gem_with_a_shorter_expiration_harms_those_that_do_not_look() {
    for protocol in [Protocol::Watched, Protocol::Ttl, Protocol::Classic] {
        let gems = Gems::Classic { count: 1, looks: false };
        assert!(search(Conditions { protocols: [protocol; 3], gems, ..BESIDE_GEMS }, 20_000).is_err());
    }
}

/// The key is cleared at times: that may harm a gem, but only just after a grant.
fn a_gems_lock_is_ended_if_the_key_is_cleared_just_after_a_grant() {
    for protocol in [Protocol::Watched, Protocol::Ttl] {
        let protocols = [protocol; 3];
        let conditions = Conditions { protocols, expirations: [6000; 3], clears: true, ..BESIDE_GEMS };
        let totals =
            search(conditions, crate::runs(3000)).unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
        assert!(totals.priced > 5, "it is the price: {totals:?}");
    }
}

/// While a machine is suspended its monotonic clock stands still, and gems take over from losers.
fn no_gems_lock_is_ended_by_a_machine_that_was_suspended() {
    for protocol in [Protocol::Watched, Protocol::Ttl] {
        for (expirations, count) in [([60_000, 60_000, 1500], 1), ([60_000, 1500, 1500], 2)] {
            let gems = Gems::Classic { count, looks: true };
            let protocols = [protocol; 3];
            let conditions = Conditions { protocols, expirations, gems, suspends: true, ..BESIDE_GEMS };
            let totals = search(conditions, crate::runs(2000))
                .unwrap_or_else(|steps| panic!("{conditions:?}: {steps}"));
            assert!(totals.overwritten > 10, "{conditions:?}: little happened: {totals:?}");
        }
    }
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
        assert_no_overlap(conditions, 1500, 1500);
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
        assert_no_overlap(conditions, 2500, 1500);
        let conditions = Conditions { expirations: [6000, 200, 1500], skew: 2000, delay: 3000, ..conditions };
        assert_no_overlap(conditions, 2000, 1500);
    }
}

pub(crate) const SEARCHES: &Searches = &[
    ("over_failovers_a_holder_knows_its_earlier_values", over_failovers_a_holder_knows_its_earlier_values),
    ("a_gem_that_overwrites_a_value_harms_nobody", a_gem_that_overwrites_a_value_harms_nobody),
    ("no_gems_lock_is_ended_however_late_replies_are", no_gems_lock_is_ended_however_late_replies_are),
    (
        "a_gem_with_a_shorter_expiration_harms_those_that_do_not_look",
        a_gem_with_a_shorter_expiration_harms_those_that_do_not_look,
    ),
    (
        "a_gems_lock_is_ended_if_the_key_is_cleared_just_after_a_grant",
        a_gems_lock_is_ended_if_the_key_is_cleared_just_after_a_grant,
    ),
    (
        "no_gems_lock_is_ended_by_a_machine_that_was_suspended",
        no_gems_lock_is_ended_by_a_machine_that_was_suspended,
    ),
    ("a_touched_key_is_not_lost", a_touched_key_is_not_lost),
    ("a_debt_is_paid_or_expires", a_debt_is_paid_or_expires),
    (
        "a_release_that_is_tried_again_ends_no_other_holders_lock",
        a_release_that_is_tried_again_ends_no_other_holders_lock,
    ),
    ("a_full_server_gives_up_a_lock_to_its_holder_alone", a_full_server_gives_up_a_lock_to_its_holder_alone),
    ("on_a_server_that_comes_back_older_auto_goes_on", on_a_server_that_comes_back_older_auto_goes_on),
    ("there_is_no_overlap_within_the_guard", there_is_no_overlap_within_the_guard),
    (
        "watched_needs_neither_equal_expirations_nor_quick_commands",
        watched_needs_neither_equal_expirations_nor_quick_commands,
    ),
    ("ttl_needs_no_clocks_that_agree", ttl_needs_no_clocks_that_agree),
    ("all_protocols_mix_within_the_guard", all_protocols_mix_within_the_guard),
    ("a_wait_for_a_connection_does_not_use_up_the_guard", a_wait_for_a_connection_does_not_use_up_the_guard),
    ("a_lock_that_is_handed_over_has_one_holder", a_lock_that_is_handed_over_has_one_holder),
    ("a_lock_that_goes_on_by_tokens_has_one_holder", a_lock_that_goes_on_by_tokens_has_one_holder),
    ("beside_newer_gems_ttl_lets_in_one_at_a_time", beside_newer_gems_ttl_lets_in_one_at_a_time),
    (
        "beside_newer_gems_there_are_overlaps_where_three_ways_take_longer_than_ttl_shows",
        beside_newer_gems_there_are_overlaps_where_three_ways_take_longer_than_ttl_shows,
    ),
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

//! Three clients at random on one key: any interleaving, crashes, lost requests and answers, clocks that differ. Looks for two
//! that are inside at the same time, each within a lease that it may rely on. With equal expirations, and clocks and delays
//! that together stay within the guard, there must be none; outside of that there must be some, or the search proves nothing.

mod world;

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::options::Protocol;
use world::{Laws, World};

const WITHIN_THE_GUARD: Laws = Laws {
    protocols: [Protocol::Classic; 3],
    expirations: [1500; 3],
    skew: 300,
    margin: 0,
    delay: 300,
    waits: false,
};

/// What happened in all worlds of a search.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    entries: u64,
    renewals: u64,
}

/// Runs `worlds` worlds. Returns how much happened, or an error with the shortest steps to two clients inside.
fn search(laws: Laws, worlds: u32) -> Result<Figures, String> {
    let figures = Cell::new(Figures::default());
    let config =
        Config { cases: worlds, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    // Mostly no time at all between two steps, sometimes a little, sometimes a lease.
    let pause = prop_oneof![6 => Just(0_u64), 3 => 0..300_u64, 1 => 1000..3000_u64];
    let steps = prop::collection::vec((0..3_usize, any::<u8>(), pause), 1..200);
    TestRunner::new(config)
        .run(&steps, |steps| {
            let (world, overlap) = World::play(laws, &steps);
            prop_assert!(!overlap, "two are inside:\n{}", World::log(laws, &steps));
            let Figures { entries, renewals } = figures.get();
            figures.set(Figures { entries: entries + world.entries, renewals: renewals + world.renewals });
            Ok(())
        })
        .map(|()| figures.get())
        .map_err(|error| error.to_string())
}

/// Panics if two are inside, or if so little happened that it proves nothing.
fn assert_none_inside_together(laws: Laws, worlds: u32, entries: u64) {
    let figures = search(laws, worlds).unwrap_or_else(|steps| panic!("{laws:?}: {steps}"));
    assert!(figures.entries > entries && figures.renewals > entries / 20, "little happened: {figures:?}");
}

#[test]
fn two_are_never_inside_within_the_guard() {
    assert_none_inside_together(WITHIN_THE_GUARD, 3000, 10_000);
}

#[test]
fn watched_needs_neither_equal_expirations_nor_quick_commands() {
    let laws = Laws { expirations: [6000, 200, 1500], skew: 900, delay: 3000, ..WITHIN_THE_GUARD };
    for protocols in
        [[Protocol::Watched; 3], [Protocol::Ttl; 3], [Protocol::Watched, Protocol::Ttl, Protocol::Watched]]
    {
        assert_none_inside_together(Laws { protocols, ..laws }, 2000, 3_000);
    }
}

#[test]
fn all_protocols_mix_within_the_guard() {
    for protocols in [
        [Protocol::Classic, Protocol::Watched, Protocol::Ttl],
        [Protocol::Classic, Protocol::Classic, Protocol::Watched],
        [Protocol::Classic, Protocol::Ttl, Protocol::Ttl],
        [Protocol::Auto; 3],
    ] {
        assert_none_inside_together(Laws { protocols, ..WITHIN_THE_GUARD }, 2000, 3_000);
    }
}

#[test]
fn a_wait_for_a_connection_does_not_use_up_the_guard() {
    for protocols in [[Protocol::Classic; 3], [Protocol::Classic, Protocol::Watched, Protocol::Ttl]] {
        // A takeover may wait for the rest of what is otherwise its delay.
        let laws = Laws { protocols, delay: 150, waits: true, ..WITHIN_THE_GUARD };
        assert_none_inside_together(laws, 1000, 1_000);
    }
}

#[test]
fn two_get_inside_when_commands_take_longer_than_the_guard() {
    assert!(search(Laws { delay: 3000, ..WITHIN_THE_GUARD }, 20_000).is_err());
}

#[test]
fn two_get_inside_when_expirations_differ() {
    assert!(search(Laws { expirations: [6000, 200, 6000], ..WITHIN_THE_GUARD }, 20_000).is_err());
}

#[test]
fn two_get_inside_when_clocks_are_further_apart_than_the_guard() {
    assert!(search(Laws { skew: 2000, ..WITHIN_THE_GUARD }, 20_000).is_err());
}

#[test]
fn a_takeover_margin_makes_up_for_clocks_that_are_further_apart() {
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let laws = Laws { protocols: [protocol; 3], skew: 2400, margin: 2000, ..WITHIN_THE_GUARD };
        assert_none_inside_together(laws, 2000, 2_000);
    }
}

//! What a lock does, by every protocol on every server.

mod handing_over;
mod locking;
mod losses;
mod permits;
mod powers;
mod rw_locks;
mod several;
mod several_waiting;
mod waiting;

use libtest_mimic::Trial;

use crate::support::record::recorded;
use crate::support::{Outcome, Target};

type Test = fn(&Target) -> Outcome;
type Tests = &'static [(&'static str, Test)];

const TESTS: [Tests; 9] = [
    locking::TESTS,
    losses::TESTS,
    waiting::TESTS,
    powers::TESTS,
    handing_over::TESTS,
    several::TESTS,
    several_waiting::TESTS,
    permits::TESTS,
    rw_locks::TESTS,
];

pub(crate) fn trials(target: &Target) -> Vec<Trial> {
    target
        .in_every_variant()
        .flat_map(|target| {
            let tests = TESTS.into_iter().flatten();
            let suited = tests.filter(move |(name, _)| target.variant.load.suits("contract", name));
            suited.map(move |(name, test)| {
                let works = target.supports_its_protocol();
                recorded("contract", &target, name, works, *test, |target| target.refuses_its_protocol(name))
            })
        })
        .collect()
}

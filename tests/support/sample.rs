//! The sample: which tests a run has unless it asks for all. The name of a test says what it is about:
//! `contract::emulated_2.4::watched::notifications_under_load::a_free_lock_is_acquired_and_released` has a place, which is the part, the server
//! and the protocol; a variant, which is the mode of waiting and the load; and a scenario. Tests whose names differ in the variant only
//! are a group, and the sample has one of each group.
//!
//! The one is chosen pairwise: one group after the other, the variant with the most pairs (waiting and load, place and waiting, place and
//! load, scenario and waiting, scenario and load) that the sample does not have yet; a pair counts the more the fewer groups can still
//! add it. So the sample is the same in each run, and a fault that needs two of these shows in it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use libtest_mimic::{Arguments, Trial};

use super::{Load, Variant};

/// Two parts of a name.
type Pair = (String, String);

/// The value of a pair that one group alone can add.
const PRECISION: u64 = 1 << 32;

/// The name of a test, taken apart.
#[derive(Clone, Debug)]
struct Name {
    place: String,
    waiting: String,
    load: Load,
    scenario: String,
}

impl Name {
    fn of(trial: &Trial) -> Self {
        let mut words: Vec<&str> = trial.name().split("::").collect();
        let scenario = words.pop().unwrap_or_default().to_owned();
        let variant = words.iter().position(|word| variant_named(word).is_some());
        let variant = variant.and_then(|place| variant_named(words.remove(place)));
        let (waiting, load) = variant.unwrap_or_default();
        Self { place: words.join("::"), waiting, load, scenario }
    }

    fn group(&self) -> (String, String) {
        (self.place.clone(), self.scenario.clone())
    }

    fn pairs(&self) -> [Pair; 5] {
        let load = format!("{:?}", self.load);
        let pair = |one: &String, other: &String| (one.clone(), other.clone());
        [
            pair(&self.waiting, &load),
            pair(&self.place, &self.waiting),
            pair(&self.place, &load),
            pair(&self.scenario, &self.waiting),
            pair(&self.scenario, &load),
        ]
    }
}

/// Returns the mode of waiting and the load that a word names. The word may be the name of a load alone.
fn variant_named(word: &str) -> Option<(String, Load)> {
    let load = Load::ALL.into_iter().find(|load| load.name() == Some(word));
    let waiting_and_load = |variant: Variant| (Variant { load: Load::Any, ..variant }.name(), variant.load);
    load.map(|load| (String::new(), load)).or_else(|| Variant::named(word).ok().map(waiting_and_load))
}

/// Marks all tests that are not in the sample as ignored.
pub(crate) fn mark(trials: Vec<Trial>) -> Vec<Trial> {
    let names: Vec<Name> = trials.iter().map(Name::of).collect();
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, name) in names.iter().enumerate() {
        groups.entry(name.group()).or_default().push(place);
    }
    let pairs_of = |group: &[usize]| -> BTreeSet<Pair> {
        group.iter().flat_map(|place| names[*place].pairs()).collect()
    };
    // For each pair that the sample does not have yet: how many groups can still add it.
    let mut missing: BTreeMap<Pair, u64> = BTreeMap::new();
    for pair in groups.values().flat_map(|group| pairs_of(group)) {
        *missing.entry(pair).or_default() += 1;
    }
    let mut ignored = vec![true; trials.len()];
    for group in groups.values() {
        let value = |place: &&usize| {
            let pairs = names[**place].pairs();
            let groups_left = pairs.iter().filter_map(|pair| missing.get(pair));
            (groups_left.map(|left| PRECISION / left).sum::<u64>(), Reverse(**place))
        };
        let best = *group.iter().max_by_key(value).expect("no group is empty");
        ignored[best] = false;
        for pair in pairs_of(group) {
            missing.entry(pair).and_modify(|left| *left -= 1);
        }
        for pair in names[best].pairs() {
            missing.remove(&pair);
        }
    }
    trials.into_iter().zip(ignored).map(|(trial, ignored)| trial.with_ignored_flag(ignored)).collect()
}

/// Returns the tests to run: the sample, unless all are asked for, and of these the part that [`super::part`] names.
pub(crate) fn selected(arguments: &Arguments, mut trials: Vec<Trial>) -> Result<Vec<Trial>, String> {
    if arguments.list {
        return Ok(trials);
    }
    if !arguments.include_ignored && !arguments.ignored {
        let all = trials.len();
        trials.retain(|trial| !trial.has_ignored_flag());
        println!("\n{} of {all} tests; all of them with `-- --include-ignored`", trials.len());
    }
    super::part::of(mixed(trials))
}

/// Mixes the parts of the suite: some of them compute all the time and others wait, and together they take less time.
fn mixed(trials: Vec<Trial>) -> Vec<Trial> {
    const STRIDE: usize = 37;
    let mut dealt: Vec<(usize, Trial)> = trials.into_iter().enumerate().collect();
    dealt.sort_by_key(|(place, _)| place % STRIDE);
    dealt.into_iter().map(|(_, trial)| trial).collect()
}

/// Makes the tests of the sample. In `parts` it has each pair; with the tests of a scenario in one place only, it cannot.
pub(crate) fn trials(marked: &[Trial], parts: &[&str]) -> Vec<Trial> {
    let of = |part: &&str| {
        let of_part = || marked.iter().filter(|trial| trial.name().starts_with(&format!("{part}::")));
        let pairs = |trial: &Trial| Name::of(trial).pairs();
        let sampled: BTreeSet<_> =
            of_part().filter(|trial| !trial.has_ignored_flag()).flat_map(pairs).collect();
        let left_out: BTreeSet<_> =
            of_part().flat_map(pairs).filter(|pair| !sampled.contains(pair)).collect();
        Trial::test(format!("sample::{part}_has_each_pair"), move || {
            assert!(!sampled.is_empty() && left_out.is_empty(), "{left_out:#?}");
            Ok(())
        })
    };
    parts.iter().map(of).collect()
}

//! The sample: which tests a run has unless it asks for all. The name of a test says where it runs:
//! on which server, by which protocol, and in which variant (the mode of waiting and the load), as in
//! `contract::emulated_2.4::watched::notifications_under_load::a_free_lock_is_acquired_and_released`.
//! What remains of the name is its statement. The sample has each statement once; one of the contract
//! once by each protocol on the current server and once on an emulated old one. From statement to
//! statement the other places and variants take turns.

use std::collections::{BTreeMap, BTreeSet};

use libtest_mimic::{Arguments, Trial};

use super::{Load, Variant};

/// 2³² divided by the golden ratio: its multiples spread over any number of places.
const GOLDEN: u64 = 0x9e37_79b9;

/// The parts that run only where all tests do: they need a program that is not wanted elsewhere.
const ALL_ONLY: [&str; 1] = ["clocks"];

/// The name of a test, taken apart.
#[derive(Clone, Debug, Default)]
struct Name {
    part: String,
    server: String,
    protocol: String,
    variant: String,
    statement: String,
}

impl Name {
    fn of(trial: &Trial) -> Self {
        let mut name = Self::default();
        let mut statement = Vec::new();
        for (place, word) in trial.name().split("::").enumerate() {
            let is_server = word == "current" || word.starts_with("emulated_") || word.starts_with("url");
            match word {
                _ if place == 0 => word.clone_into(&mut name.part),
                "classic" | "watched" | "ttl" | "auto" => word.clone_into(&mut name.protocol),
                _ if is_server => word.clone_into(&mut name.server),
                _ if is_variant(word) => word.clone_into(&mut name.variant),
                _ => statement.push(word),
            }
        }
        Self { statement: statement.join("::"), ..name }
    }

    /// Tests of one group are alternatives: the sample has one of them.
    fn group(&self) -> [String; 3] {
        let Self { part, server, protocol, statement, .. } = self;
        let kind = match part.as_str() {
            "contract" if server != "current" || protocol == "auto" => "elsewhere",
            "contract" => protocol,
            _ => "",
        };
        [part.clone(), kind.to_owned(), statement.clone()]
    }
}

fn is_variant(word: &str) -> bool {
    Load::ALL.iter().any(|load| load.name() == Some(word)) || Variant::named(word).is_ok()
}

/// Marks all tests that are not in the sample as ignored.
pub(crate) fn mark(trials: Vec<Trial>) -> Vec<Trial> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for (place, trial) in trials.iter().enumerate() {
        groups.entry(Name::of(trial).group()).or_default().push(place);
    }
    groups.retain(|[part, ..], _| !ALL_ONLY.contains(&part.as_str()));
    let (mut sample, mut turns) = (BTreeSet::new(), BTreeMap::new());
    for ([part, ..], group) in &groups {
        // Counted in each part by itself: a test that is added elsewhere changes nothing.
        let turn: &mut u64 = turns.entry(part).or_default();
        let share = turn.wrapping_mul(GOLDEN) % (1 << 32);
        *turn += 1;
        sample.insert(group[usize::try_from((share * group.len() as u64) >> 32).unwrap_or(0)]);
    }
    let marked = |(place, trial): (usize, Trial)| trial.with_ignored_flag(!sample.contains(&place));
    trials.into_iter().enumerate().map(marked).collect()
}

/// Returns the tests to run: the sample, unless all are asked for, and of these the part that [`super::part`] names.
pub(crate) fn selected(arguments: &Arguments, mut trials: Vec<Trial>) -> Result<Vec<Trial>, String> {
    if arguments.list {
        return Ok(trials);
    }
    if !arguments.include_ignored && !arguments.ignored {
        let all = trials.len();
        trials.retain(|trial| !trial.has_ignored_flag());
        println!("\n{} of {all} tests; `make test-all` runs all of them", trials.len());
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

/// Makes the test of the sample: each server occurs in the contract's.
pub(crate) fn trial(marked: &[Trial]) -> Trial {
    let names = |in_sample: bool| -> BTreeSet<String> {
        let trials = marked.iter().filter(|trial| !in_sample || !trial.has_ignored_flag());
        let of_contract = trials.map(Name::of).filter(|name| name.part == "contract");
        of_contract.map(|name| name.server).collect()
    };
    let (all, sample) = (names(false), names(true));
    Trial::test("sample::contract_has_each_server", move || {
        assert_eq!(sample, all);
        Ok(())
    })
}

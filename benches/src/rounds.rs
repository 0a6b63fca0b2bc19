//! Rounds: in each, every candidate is measured once, and each round begins with another one. So other load on this
//! machine affects all alike.

use indicatif::{ProgressBar, ProgressStyle};

use crate::Failure;
use crate::options::Plan;
use crate::stats::Results;
use testkit::shield::Parent;

/// What all workloads of a run have in common.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) parent: Parent,
}

/// A candidate and its state for a workload, mostly its worker processes; none once it has failed.
#[derive(Debug)]
pub(crate) struct Contender<C> {
    pub(crate) name: &'static str,
    pub(crate) state: Option<C>,
}

impl Run {
    /// Measures each candidate in every round. One that fails is left out from there on, and its failure is printed.
    pub(crate) fn rounds<C, S>(
        &self,
        what: &str,
        rounds: u32,
        contenders: Vec<Contender<C>>,
        mut measure: impl FnMut(&'static str, &mut C, u32) -> Result<S, Failure>,
    ) -> Result<Results<S>, Failure> {
        let count = contenders.len();
        let bar = ProgressBar::new(u64::from(rounds) * u64::try_from(count)?);
        bar.set_style(ProgressStyle::with_template("{prefix:24} {bar:30.green} {pos}/{len} {msg}")?);
        bar.set_prefix(what.to_owned());
        let mut contenders = contenders;
        let mut results =
            Results { candidates: contenders.iter().map(|one| (one.name, Vec::new())).collect() };
        for round in 0..rounds {
            for place in 0..count {
                if self.parent.is_gone() {
                    return Err("interrupted; the servers and the workers are gone".into());
                }
                let at = (place + usize::try_from(round)?) % count;
                let Contender { name, state } = &mut contenders[at];
                bar.set_message(*name);
                let done = match state.as_mut().map(|state| measure(name, state, round)) {
                    Some(Ok(done)) => Some(done),
                    Some(Err(failure)) => {
                        bar.suspend(|| println!("{what}: without {name}: {failure}"));
                        *state = None;
                        None
                    }
                    None => None,
                };
                results.candidates[at].1.push(done);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(results)
    }
}

impl<C> Contender<C> {
    /// Takes the state of a candidate, or prints why there is none.
    pub(crate) fn ready(what: &str, name: &'static str, state: Result<C, Failure>) -> Self {
        let state = state.map_err(|failure| println!("{what}: without {name}: {failure}")).ok();
        Self { name, state }
    }
}

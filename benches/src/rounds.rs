//! Rounds: in each, every candidate takes its turn, and another one begins. Whatever else this machine is doing meets all alike.

use indicatif::{ProgressBar, ProgressStyle};

use crate::Failure;
use crate::options::Plan;
use crate::shield::Parent;
use crate::stats::Results;

/// What every workload is given.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) plan: Plan,
    pub(crate) parent: Parent,
}

/// A candidate with what it has for a workload, its worker processes mostly; nothing once something went wrong with it.
#[derive(Debug)]
pub(crate) struct Contender<C> {
    pub(crate) name: &'static str,
    pub(crate) state: Option<C>,
}

impl Stage {
    /// Gets each candidate ready, and has them take turns. One that fails is left out from there on, and is told of.
    pub(crate) fn rounds<C, S>(
        &self,
        what: &str,
        rounds: u32,
        contenders: Vec<Contender<C>>,
        mut turn: impl FnMut(&'static str, &mut C, u32) -> Result<S, Failure>,
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
                let done = match state.as_mut().map(|state| turn(name, state, round)) {
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
    /// Gets a candidate ready; tells of it where that fails.
    pub(crate) fn ready(what: &str, name: &'static str, state: Result<C, Failure>) -> Self {
        let state = state.map_err(|failure| println!("{what}: without {name}: {failure}")).ok();
        Self { name, state }
    }
}

//! The holds of a run, put together from the workers' logs.

use std::collections::HashMap;

use super::hold::{End, Hold};
use super::moment::Moment;
use super::record::Line;

/// The holds so far.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) holds: Vec<Hold>,
    /// The places of those whose end is still to come, by worker and number.
    open: HashMap<(u32, u64), usize>,
}

impl Results {
    pub(crate) fn add(&mut self, worker: u32, line: &Line) {
        match *line {
            Line::Enter { number, key, at, valid_until, taken_over } => {
                self.open.insert((worker, number), self.holds.len());
                let end = End::Open;
                self.holds.push(Hold { worker, number, key, enter: at, valid_until, taken_over, end });
            }
            Line::Leave { number, at } => {
                if let Some(&place) = self.open.get(&(worker, number)) {
                    self.holds[place].end = End::Left(at, None);
                }
            }
            Line::End { number, outcome } => {
                if let Some(place) = self.open.remove(&(worker, number))
                    && let End::Left(_, reported) = &mut self.holds[place].end
                {
                    *reported = Some(outcome);
                }
            }
            Line::Note { .. } => {}
        }
    }

    /// Notes that a worker was killed by then.
    pub(crate) fn killed(&mut self, worker: u32, at: Moment) {
        self.open.retain(|(owner, _), place| {
            let hold = &mut self.holds[*place];
            if *owner == worker && hold.end == End::Open {
                hold.end = End::Killed(at);
            }
            *owner != worker
        });
    }
}

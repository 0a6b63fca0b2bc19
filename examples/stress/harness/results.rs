//! Puts holds together from the workers' lines.

use std::collections::HashMap;

use super::hold::{End, Hold};
use super::moment::Moment;
use super::record::Line;

#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) holds: Vec<Hold>,
    /// Where those are whose last word is still to come, by worker and number.
    open: HashMap<(u32, u64), usize>,
}

impl Results {
    pub(crate) fn add(&mut self, worker: u32, line: &Line) {
        match *line {
            Line::Enter { number, key, at, valid_until, took_over } => {
                self.open.insert((worker, number), self.holds.len());
                let end = End::Open;
                self.holds.push(Hold { worker, number, key, enter: at, valid_until, took_over, end });
            }
            Line::Leave { number, at } => {
                if let Some(&place) = self.open.get(&(worker, number)) {
                    self.holds[place].end = End::Left(at, None);
                }
            }
            Line::End { number, outcome } => {
                if let Some(place) = self.open.remove(&(worker, number))
                    && let End::Left(_, told) = &mut self.holds[place].end
                {
                    *told = Some(outcome);
                }
            }
            Line::Note { .. } => {}
        }
    }

    /// Takes note that a worker was dead by then.
    pub(crate) fn died(&mut self, worker: u32, at: Moment) {
        self.open.retain(|(owner, _), place| {
            let hold = &mut self.holds[*place];
            if *owner == worker && hold.end == End::Open {
                hold.end = End::Killed(at);
            }
            *owner != worker
        });
    }
}

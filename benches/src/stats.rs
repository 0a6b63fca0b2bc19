//! Figures of several rounds: their median, smallest and largest, absolute and as a ratio to another candidate's in the
//! same round. And percentiles within one round.

use hdrhistogram::Histogram;

use crate::Failure;
use crate::moment::as_f64;

/// The median of some figures, the smallest and the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` of no figures.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        figures.sort_by(f64::total_cmp);
        let middle = figures.len() / 2;
        let upper = *figures.get(middle)?;
        let lower = if figures.len().is_multiple_of(2) { figures[middle - 1] } else { upper };
        Some(Self { median: f64::midpoint(lower, upper), min: figures[0], max: *figures.last()? })
    }
}

/// A sample of each candidate and each round; none of those that it did not finish.
#[derive(Debug)]
pub(crate) struct Results<S> {
    pub(crate) candidates: Vec<(&'static str, Vec<Option<S>>)>,
}

impl<S> Results<S> {
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.candidates.iter().map(|(name, _)| *name)
    }

    /// Returns a figure of a candidate over all rounds.
    pub(crate) fn spread(&self, name: &str, figure: impl Fn(&S) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.rounds(name)?.iter().flatten().filter_map(figure))
    }

    /// Returns the same as a ratio to the figure of `other` in the same round.
    pub(crate) fn ratio(
        &self,
        name: &str,
        other: &str,
        figure: impl Fn(&S) -> Option<f64>,
    ) -> Option<Spread> {
        let pairs = self.rounds(name)?.iter().zip(self.rounds(other)?);
        Spread::of(pairs.filter_map(|(one, other)| {
            let (one, other) = (figure(one.as_ref()?)?, figure(other.as_ref()?)?);
            (other != 0.0).then(|| one / other)
        }))
    }

    fn rounds(&self, name: &str) -> Option<&Vec<Option<S>>> {
        self.candidates.iter().find_map(|(of, rounds)| (*of == name).then_some(rounds))
    }
}

/// Times of one round, in milliseconds, to a thousandth of their value.
#[derive(Debug)]
pub(crate) struct Times(Histogram<u64>);

impl Times {
    /// `None` of no times.
    pub(crate) fn of(nanos: impl IntoIterator<Item = u64>) -> Result<Option<Self>, Failure> {
        let mut times = Histogram::new(3)?;
        for nanos in nanos {
            times.record(nanos)?;
        }
        Ok((!times.is_empty()).then_some(Self(times)))
    }

    pub(crate) fn millis_at(&self, quantile: f64) -> f64 {
        as_f64(self.nanos_at(quantile)) / 1e6
    }

    pub(crate) fn nanos_at(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of([7.0]), Some(Spread { median: 7.0, min: 7.0, max: 7.0 }));
    }

    #[test]
    fn of_no_figures_there_is_no_median() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn ratios_are_those_of_the_same_round() {
        // The machine was busy in the second round, and both were slow.
        let results = Results {
            candidates: vec![
                ("raw", vec![Some(100.0), Some(10.0), Some(100.0), None]),
                ("ours", vec![Some(90.0), Some(9.0), None, Some(1.0)]),
            ],
        };
        let ratio = results.ratio("ours", "raw", |figure| Some(*figure));
        assert_eq!(ratio, Some(Spread { median: 0.9, min: 0.9, max: 0.9 }));
        assert_eq!(results.ratio("ours", "unknown", |figure| Some(*figure)), None);
        assert_eq!(results.spread("ours", |figure| Some(*figure)).map(|spread| spread.max), Some(90.0));
    }

    #[test]
    fn percentiles_are_of_one_round() -> Result<(), Failure> {
        let times = Times::of((1..=100).map(|millis| millis * 1_000_000))?.ok_or("there are times")?;
        assert!((times.millis_at(0.5) - 50.0).abs() < 0.1);
        assert!((times.millis_at(0.99) - 99.0).abs() < 0.1);
        assert!(Times::of([])?.is_none());
        Ok(())
    }
}

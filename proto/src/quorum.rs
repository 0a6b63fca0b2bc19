//! The rules of a quorum: a lock that its holder has while a majority of independent servers has granted it. Each
//! server is asked at the same time, by the rules of one lock. Two majorities have a server in common, so two holders
//! would have to hold one lock there.
//!
//! Where the rules come from: the algorithm Redlock in the Redis documentation of distributed locks, with the leases of
//! this library: each begins before its own server is asked. A late grant, and one whose reply is lost, is given back.

use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;
use core::time::Duration;

/// What the decisions of a quorum depend on.
#[derive(Clone, Copy, Debug)]
pub struct QuorumTerms {
    /// How many servers have to agree.
    pub majority: usize,
    /// How much of the hold has to be left when it begins.
    pub(crate) least: Duration,
}

/// What to do with the answers that have come so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A majority agrees.
    Agreed,
    /// Wait for another answer, for at most this time: a lease is too old then.
    Open(Duration),
    /// No majority can agree any more. What was granted is to be given back.
    Failed,
}

/// What the servers have answered to one call, and what becomes of each grant `G`.
#[derive(Debug)]
pub struct Answers<G, E> {
    terms: QuorumTerms,
    /// How many servers answer.
    asked: usize,
    /// The grants, each with the number of its server.
    pub granted: Vec<(usize, G)>,
    /// Why the other servers have not granted the lock, each with its number.
    pub refused: Vec<(usize, E)>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Asks,
    /// A majority has agreed: a hold has begun.
    Agreed,
    Ended,
}

/// Returns the size of a majority.
pub const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

impl QuorumTerms {
    /// The terms of this many servers for leases of this time: at least half of it has to be left.
    pub fn of(servers: usize, lease: Duration) -> Self {
        Self { majority: majority(servers), least: lease / 2 }
    }

    /// Returns for how long a majority still holds the lock, given what is left of each lease.
    fn remaining(&self, leases: impl IntoIterator<Item = Duration>) -> Duration {
        let mut leases: Vec<Duration> = leases.into_iter().collect();
        leases.sort_unstable_by_key(|time_left| Reverse(*time_left));
        leases.get(self.majority - 1).copied().unwrap_or_default()
    }

    /// Returns how much more is left of a lease than a hold needs that begins now; `None` if it is too old.
    pub fn spare(&self, time_left: Duration) -> Option<Duration> {
        time_left.checked_sub(self.least)
    }

    /// Decides by what is left of each lease that was granted, while `open` servers have not answered.
    fn judge(&self, leases: impl IntoIterator<Item = Duration>, open: usize) -> Verdict {
        let spare: Vec<Duration> = leases.into_iter().filter_map(|time_left| self.spare(time_left)).collect();
        if spare.len() >= self.majority {
            Verdict::Agreed
        } else if spare.len() + open < self.majority {
            Verdict::Failed
        } else {
            Verdict::Open(spare.into_iter().min().unwrap_or(Duration::MAX))
        }
    }
}

impl<G, E> Answers<G, E> {
    /// Those to a call that asks so many servers.
    pub fn of(asked: usize, terms: QuorumTerms) -> Self {
        Self { terms, asked, granted: Vec::new(), refused: Vec::new(), stage: Stage::Asks }
    }

    /// Adds the answer of a server. A grant must be [wanted](Self::wants).
    pub fn add(&mut self, server: usize, answer: Result<G, E>) {
        match answer {
            Ok(granted) => self.granted.push((server, granted)),
            Err(refused) => self.refused.push((server, refused)),
        }
    }

    /// Returns how many servers have not answered yet.
    pub fn open(&self) -> usize {
        // More may answer than were waited for.
        self.asked.saturating_sub(self.granted.len() + self.refused.len())
    }

    /// Notes that the others do not answer.
    pub fn close(&mut self) {
        self.asked -= self.open();
    }

    /// Decides what becomes of the call. `left`: of the lease of a grant.
    pub fn judge(&mut self, time_left: impl Fn(&G) -> Duration) -> Verdict {
        let verdict = self.terms.judge(self.granted.iter().map(|(_, grant)| time_left(grant)), self.open());
        if verdict == Verdict::Agreed {
            self.stage = Stage::Agreed;
        }
        verdict
    }

    /// Returns true if a grant counts that comes now: while the call asks, and while its hold lasts. It would not make
    /// a hold whole again that has ended. Any other is to be given back.
    pub fn wants(&self, time_left: impl Fn(&G) -> Duration) -> bool {
        match self.stage {
            Stage::Asks => true,
            Stage::Agreed => !self.remaining(time_left).is_zero(),
            Stage::Ended => false,
        }
    }

    /// Returns for how long a majority still holds the lock.
    pub fn remaining(&self, time_left: impl Fn(&G) -> Duration) -> Duration {
        self.terms.remaining(self.granted.iter().map(|(_, grant)| time_left(grant)))
    }

    /// Returns true while the hold is not given back.
    pub fn is_held(&self) -> bool {
        self.stage == Stage::Agreed
    }

    /// Ends the call, or its hold. Returns what is to be given back: also what was granted too late to count.
    pub fn take_grants(&mut self) -> Vec<(usize, G)> {
        self.stage = Stage::Ended;
        mem::take(&mut self.granted)
    }
}

/// Returns a pause before the next try, by random bits: half of the poll interval to one and a half, so that contenders
/// which have split the servers do not meet again.
pub fn pause(poll_interval: Duration, random: u64) -> Duration {
    let part = u32::try_from(random % 1024).unwrap_or_default();
    poll_interval / 2 + (poll_interval / 1024).saturating_mul(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_majority_agrees_while_half_of_its_leases_is_left() {
        let terms = QuorumTerms::of(3, seconds(10));
        assert_eq!((terms.majority, terms.least), (2, seconds(5)));
        for (leases, open, verdict) in [
            (&[][..], 3, Verdict::Open(Duration::MAX)),
            (&[10][..], 2, Verdict::Open(seconds(5))),
            (&[10, 6], 1, Verdict::Agreed),
            (&[10, 5], 0, Verdict::Agreed),
            (&[10, 4], 1, Verdict::Open(seconds(5))),
            (&[10, 4], 0, Verdict::Failed),
            (&[4, 4], 1, Verdict::Failed),
            (&[10], 0, Verdict::Failed),
            (&[], 1, Verdict::Failed),
        ] {
            let judged = terms.judge(leases.iter().copied().map(seconds), open);
            assert_eq!(judged, verdict, "{leases:?}, {open}");
        }
    }

    #[test]
    fn what_remains_is_the_lease_up_to_which_a_majority_holds() {
        let terms = QuorumTerms::of(5, seconds(18));
        let remaining = |leases: &[u64]| terms.remaining(leases.iter().copied().map(seconds));
        assert_eq!(remaining(&[7, 18, 13, 1]), seconds(7));
        assert_eq!(remaining(&[7, 18, 13, 8, 9]), seconds(9));
        assert_eq!(remaining(&[18, 18]), Duration::ZERO);
        assert_eq!(remaining(&[18, 18, 0]), Duration::ZERO);
    }

    #[test]
    fn pauses_differ_by_up_to_a_poll_interval() {
        let pause = |random| pause(Duration::from_millis(100), random);
        assert_eq!(pause(0), Duration::from_millis(50));
        assert!(pause(1023) > Duration::from_millis(149) && pause(1023) < Duration::from_millis(150));
    }
}

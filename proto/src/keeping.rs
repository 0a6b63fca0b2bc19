//! When the keeper does something for a held lock, and what: extends its lease, looks whether it is still held, or
//! notes that the lease has passed.

use core::time::Duration;

use super::lease::LOSER_WITHIN;
use crate::values::{Terms, Uptime};

/// Which part of the expiration passes before a lease is extended:
/// a third. So two more attempts fit in, and each has time.
const EXTENDED_AFTER: u32 = 3;

/// What is pending may be done by this part of a lease early, so that commands for many locks go together.
const TOGETHER_WITHIN: u32 = 60;

/// How long after its first value was made a lock is looked at whose key a loser of the classic takeover may have
/// overwritten: later than most losers come, and early enough for the reply to come while what is found is a loser's.
const LOOKED_AFTER: Duration = Duration::from_millis(400);
const LOOKED_TOGETHER_WITHIN: Duration = Duration::from_millis(20);
const LOOKED_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// A failed command is repeated after a 30th of the lease, but no sooner than 10 ms and no later than 1 s.
const RETRIED_AFTER: u32 = 30;
const RETRY: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// What the keeper does for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Extends the lease, by [`lease`].
    Extend,
    /// Asks whether the lock is still held, and writes our value again where a loser has overwritten it.
    Verify,
    /// Notes that the lease has passed.
    Expire,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextLook {
    /// When it is due.
    pub at: Uptime,
    /// What is due.
    pub duty: Duty,
    /// How much earlier it may be done.
    pub slack: Duration,
}

/// What is known of a held lock.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// True if the lease is to be extended, or the program wants to learn of a loss.
    pub is_kept: bool,
    /// When the lock was acquired.
    pub acquired: Uptime,
    /// When others may last have seen that it can be acquired.
    pub since: Uptime,
    /// When the lease began.
    pub began: Uptime,
    /// When the lease ends; `None` without an expiration.
    pub end: Option<Uptime>,
    /// When the server last said that the lock is held.
    pub asked: Uptime,
    /// When the server last failed to answer, if it has not answered since.
    pub failed: Option<Uptime>,
    /// The present.
    pub now: Uptime,
}

/// Returns what is to be done next, and when.
///
/// | options | | next |
/// |---|---|---|
/// | `auto_extend` | the lease ends before the limit | extend, when two thirds of the lease are left, or of the expiration if that is shorter |
/// | | a full lease no longer fits in after the next extension | extend at the last moment when it does, so that the lease ends at the limit |
/// | | the lease ends at the limit or later | no more extensions |
/// | any | the key was not looked at yet | verify, 0.4 s after the acquisition, or after an extension that came after the lease; nothing else if the lock is not kept |
/// | | no extension is due | verify, a third of the expiration after the server last said that the lock is held |
/// | any | the server could not be asked | the same after a pause; an extension at the end of the lease at the latest |
/// | | nothing is due before the lease ends | note that it has passed |
pub fn next(terms: &Terms, progress: Progress) -> Option<NextLook> {
    let Progress { is_kept, acquired, since, began, end, .. } = progress;
    let Progress { asked, failed, now, .. } = progress;
    let length = end.map_or(Duration::MAX, |end| end.since(began));
    let pause = (length / RETRIED_AFTER).clamp(RETRY[0], RETRY[1]);
    let not_before = failed.map(|failed| failed.after(pause));
    let due = |at: Uptime| {
        let at = not_before.map_or(at, |not_before| at.max(not_before));
        end.map_or(at, |end| at.min(end))
    };
    let slack = terms.expiration.unwrap_or_default() / TOGETHER_WITHIN;
    let look_at = since.after(LOOKED_AFTER);
    let again = failed.map_or(now, |failed| now.max(failed.after(LOOKED_AGAIN_AFTER)));
    let look =
        NextLook { at: look_at.max(again), duty: Duty::Verify, slack: slack.min(LOOKED_TOGETHER_WITHIN) };
    // Later nothing that is found is a loser's.
    let counts = look.at < since.after(LOSER_WITHIN) && end.is_some_and(|end| look.at < end);
    let was_looked_at = asked >= look_at.before(LOOKED_TOGETHER_WITHIN);
    let look = (counts && !was_looked_at).then_some(look);
    if !is_kept {
        return look;
    }
    let extension = extend_at(terms, acquired, began, end);
    let extension = extension.map(|at| NextLook { at: due(at), duty: Duty::Extend, slack });
    let third = terms.expiration.map(|expiration| expiration / EXTENDED_AFTER);
    let verification = third.map(|time| NextLook { at: due(asked.after(time)), duty: Duty::Verify, slack });
    let verification = verification.filter(|next| Some(next.at) != end);
    let expiry = end.map(|at| NextLook { at, duty: Duty::Expire, slack });
    [extension, look, verification, expiry].into_iter().flatten().min_by_key(|next| next.at)
}

fn extend_at(terms: &Terms, acquired: Uptime, began: Uptime, end: Option<Uptime>) -> Option<Uptime> {
    let (at_most, expiration, end) = (terms.auto_extend?, terms.expiration?, end?);
    let limit = acquired.after(at_most);
    // The ends of leases are not exact to the microsecond.
    if end.after(expiration / TOGETHER_WITHIN) >= limit {
        return None;
    }
    // A longer lease, of a call, is not cut short.
    let left = end.since(began).min(expiration) / EXTENDED_AFTER * (EXTENDED_AFTER - 1);
    let third = end.before(left);
    let last = limit.before(expiration);
    Some(if last > began { third.min(last) } else { third })
}

/// Returns how long an extension lasts that is made now: the expiration, or the time until the limit if that is
/// shorter. `None` without `auto_extend`, or at the limit.
pub fn lease(terms: &Terms, acquired: Uptime, now: Uptime) -> Option<Duration> {
    let left = acquired.after(terms.auto_extend?).since(now);
    Some(terms.expiration?.min(left)).filter(|lease| !lease.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;

    const fn at(millis: u64) -> Uptime {
        Uptime::of(Duration::from_millis(millis))
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn held(began: u64, end: u64) -> Progress {
        Progress {
            is_kept: true,
            acquired: at(1000),
            since: at(1000),
            began: at(began),
            end: Some(at(end)),
            asked: at(began),
            failed: None,
            // Later than losers come.
            now: at(1700),
        }
    }

    /// What is next, and when.
    fn next(terms: &Terms, progress: Progress) -> Option<(Uptime, Duty)> {
        super::next(terms, progress).map(|next| (next.at, next.duty))
    }

    const THREE: Terms = Terms::expiring_after(Duration::from_secs(3));

    #[test]
    fn a_lease_is_extended_at_a_third_until_it_ends_at_the_limit() {
        let terms = Terms { auto_extend: Some(ms(10_000)), ..THREE };
        // The limit is at 11000, and a full lease fits in until 8000.
        assert_eq!(next(&terms, held(1000, 4000)), Some((at(2000), Duty::Extend)));
        assert_eq!(next(&terms, held(7000, 10_000)), Some((at(8000), Duty::Extend)));
        assert_eq!(next(&terms, held(7500, 10_500)), Some((at(8000), Duty::Extend)));
        // No more extensions: only looks.
        assert_eq!(next(&terms, held(8000, 11_000)), Some((at(9000), Duty::Verify)));
        let asked = Progress { asked: at(10_500), ..held(8000, 11_000) };
        assert_eq!(next(&terms, asked), Some((at(11_000), Duty::Expire)));
        let nearly = next(&terms, held(8000, 10_999));
        assert_eq!(nearly, Some((at(9000), Duty::Verify)), "not again and again for what is left");
        // Late: what is left.
        assert_eq!(next(&terms, held(8500, 10_900)), Some((at(9300), Duty::Extend)));
        // A lease that a call has made longer, or shorter.
        let asked = Progress { asked: at(5500), ..held(1000, 8000) };
        assert_eq!(next(&terms, asked), Some((at(6000), Duty::Extend)));
        assert_eq!(next(&terms, held(1000, 1300)), Some((at(1100), Duty::Extend)));
        let exact = Terms { auto_extend: Some(ms(3000)), ..THREE };
        assert_eq!(next(&exact, held(1000, 4000)), Some((at(2000), Duty::Verify)));
    }

    #[test]
    fn a_lease_is_extended_by_the_expiration_or_by_what_is_left() {
        let terms = Terms { auto_extend: Some(ms(10_000)), ..THREE };
        assert_eq!(lease(&terms, at(1000), at(8000)), Some(ms(3000)));
        assert_eq!(lease(&terms, at(1000), at(9300)), Some(ms(1700)));
        assert_eq!(lease(&terms, at(1000), at(11_000)), None);
        assert_eq!(lease(&THREE, at(1000), at(2000)), None);
    }

    #[test]
    fn what_failed_is_tried_again_while_the_lease_lasts_and_once_at_its_end() {
        let terms = Terms { auto_extend: Some(ms(10_000)), ..THREE };
        let failed = |failed| Progress { failed: Some(at(failed)), ..held(1000, 4000) };
        assert_eq!(next(&terms, failed(2000)), Some((at(2100), Duty::Extend)));
        assert_eq!(next(&terms, failed(3950)), Some((at(4000), Duty::Extend)));
        let brief = Terms { auto_extend: Some(ms(10_000)), ..Terms::expiring_after(ms(30)) };
        let progress = Progress { failed: Some(at(1010)), ..held(1000, 1030) };
        assert_eq!(next(&brief, progress), Some((at(1020), Duty::Extend)), "not all the time");
    }

    #[test]
    fn a_look_comes_a_third_of_the_expiration_after_the_server_was_asked() {
        assert_eq!(next(&THREE, held(1000, 4000)), Some((at(2000), Duty::Verify)));
        let asked = Progress { asked: at(3200), ..held(1000, 4000) };
        assert_eq!(next(&THREE, asked), Some((at(4000), Duty::Expire)));
        let terms = Terms { auto_extend: Some(ms(10_000)), ..THREE };
        assert_eq!(next(&terms, Progress { asked: at(1900), ..held(1000, 4000) }).unwrap().0, at(2000));
        let progress = Progress { end: None, ..held(1000, 0) };
        assert_eq!(next(&Terms::without_expiration(), progress), None);
    }

    #[test]
    fn a_lock_is_looked_at_once_soon_after_its_acquisition() {
        let new = Progress { now: at(1000), ..held(1000, 61_000) };
        let terms = Terms::expiring_after(ms(60_000));
        let look = NextLook { at: at(1400), duty: Duty::Verify, slack: ms(20) };
        assert_eq!(super::next(&terms, new), Some(look), "not as early as other work of a long lease");
        assert_eq!(super::next(&Terms { auto_extend: Some(ms(90_000)), ..terms }, new), Some(look));
        let only = Progress { is_kept: false, ..new };
        assert_eq!(super::next(&terms, only), Some(look));
        let failed = |millis| next(&terms, Progress { failed: Some(at(millis)), ..only });
        assert_eq!(failed(1410), Some((at(1430), Duty::Verify)), "soon again");
        assert_eq!(failed(1680), None, "too late");
        let mut lease = Lease::default();
        lease.since = at(1000);
        assert_eq!([at(1699), at(1700)].map(|granted| lease.first_asked(granted)), [at(1000), at(1700)]);
        let brief = Progress { end: Some(at(1400)), ..only };
        assert_eq!(next(&Terms::expiring_after(ms(400)), brief), None, "its lease has passed by then");
        for (asked, now, due) in [
            (1000, 1399, Some(1400)),
            (1379, 1699, Some(1699)),
            (1000, 1700, None),
            (1380, 1400, None),
            (1400, 1400, None),
        ] {
            let progress = Progress { asked: at(asked), now: at(now), ..only };
            assert_eq!(next(&terms, progress).map(|next| next.0), due.map(at), "{asked} {now}");
        }
    }
}

//! The life of a hold, from its grant to its end. No I/O and no clock: a hold tells what happens, and until when its
//! lease lasts.

use std::time::Duration;

use proto::hold::Release;
use proto::lease::End;
use proto::ownership::Loss;
use proto::values::Now;

/// Where a hold is in its life.
///
/// | | given up | its lease has ended | the server shows a loss | ended with a loss | ended without one |
/// |---|---|---|---|---|---|
/// | `Held` | `GivenUp` | `Lost` | `Lost` | `Lost` | `Over` |
/// | `GivenUp` | – | `Lost` if it had before | `Lost` | `Lost` | `Over` |
/// | `Lost` | – | – | – | – | – |
/// | `Over` | – | – | – | – | – |
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// The program has the lock, and the keeper may work on it.
    Held,
    /// The program gave the lock up then. It is released now, released later, or left to expire. A lease that ends
    /// meanwhile concerns no work.
    GivenUp(Now),
    /// A loss was noticed. The first counts.
    Lost(Loss),
    /// Released, left to expire or handed on before a loss was noticed.
    Over,
}

/// What came of the commands of a hold's end; `None` if the key is left to expire.
pub(super) type Released = Option<Release>;

/// How a hold has ended without a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// How long the lock was held.
    pub(crate) held: Duration,
    /// True if the server has proven that no other client had the lock.
    pub(crate) certified: bool,
    pub(crate) left_to_expire: bool,
    /// True if the lease had ended before.
    pub(crate) outlived_lease: bool,
}

/// What the end of a hold has shown.
pub(super) struct Ending {
    /// Why the lock was lost, if it was.
    pub(super) outcome: Result<Ended, Loss>,
    /// The next state, unless a loss was noticed before.
    pub(super) next: Option<Life>,
}

impl Life {
    /// Returns why the lock is lost, if that was noticed.
    pub(super) fn loss(&self) -> Option<&Loss> {
        if let Self::Lost(reason) = self { Some(reason) } else { None }
    }

    /// The program gives the lock up.
    pub(super) fn given_up(&self, now: Now) -> Option<Self> {
        self.is_held().then_some(Self::GivenUp(now))
    }

    /// The clocks show this time, and the lease lasts until `end`.
    pub(super) fn at(&self, now: Now, end: Option<End>) -> Option<Self> {
        let now = self.since_given_up().unwrap_or(now);
        if !self.goes_on() || !has_passed(end, now) {
            return None;
        }
        Some(Self::Lost(if now.is_plausible() { Loss::Expired } else { Loss::ClockUnset }))
    }

    /// A call has found out that the lock is lost.
    pub(super) fn lost(&self, reason: &Loss, end: Option<End>) -> Option<Self> {
        let is_by_clock = *reason == Loss::Expired;
        let is_lost = match self.since_given_up() {
            Some(at) => !is_by_clock || has_passed(end, at),
            None => self.goes_on(),
        };
        is_lost.then(|| Self::Lost(reason.clone()))
    }

    /// A hold that was `acquired` then has ended, now: its commands have come to this, or failed with `None`. It was
    /// lost if that was noticed before, or they show it; or if its lease had ended before the program gave it up, and
    /// the server has not proven that it was held all the time.
    pub(super) fn ended(
        &self,
        released: Option<&Released>,
        acquired: Now,
        end: Option<End>,
        now: Now,
    ) -> Ending {
        if let Self::Lost(reason) = self {
            return Ending { outcome: Err(reason.clone()), next: None };
        }
        let began = self.since_given_up().unwrap_or(now);
        let outlived_lease = has_passed(end, began);
        let certified = matches!(released, Some(Some(Release::Released { certified: true })));
        let loss = match released {
            // After it was given up.
            Some(Some(Release::Lost(Loss::Expired))) if !outlived_lease => None,
            Some(Some(Release::Lost(reason))) => Some(reason.clone()),
            Some(None) => None,
            Some(Some(Release::Released { .. })) | None => {
                (outlived_lease && !certified).then_some(Loss::Expired)
            }
        };
        let next = self.goes_on().then(|| loss.clone().map_or(Self::Over, Self::Lost));
        let left_to_expire = !matches!(released, Some(Some(Release::Released { .. })));
        let held = began.uptime.since(acquired.uptime);
        let outcome = loss.map_or(Ok(Ended { held, certified, left_to_expire, outlived_lease }), Err);
        Ending { outcome, next }
    }

    /// Returns when the program gave the lock up, if the hold has not ended since.
    pub(super) fn since_given_up(&self) -> Option<Now> {
        if let Self::GivenUp(at) = self { Some(*at) } else { None }
    }

    /// Returns true if the program has the lock, as far as was noticed.
    pub(super) fn is_held(&self) -> bool {
        matches!(self, Self::Held)
    }

    fn goes_on(&self) -> bool {
        matches!(self, Self::Held | Self::GivenUp(_))
    }
}

fn has_passed(end: Option<End>, now: Now) -> bool {
    end.is_some_and(|end| end.has_passed(now))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proto::values::{Uptime, Wall};

    use super::*;

    fn at(seconds: u64) -> Now {
        let (wall, uptime) = (1_700_000_000_000_000 + seconds * 1_000_000, Duration::from_secs(seconds));
        Now { wall: Wall(wall), uptime: Uptime::of(uptime) }
    }

    fn shown(next: Option<&Life>) -> &'static str {
        match next {
            None => "–",
            Some(Life::Held) => "Held",
            Some(Life::GivenUp(_)) => "GivenUp",
            Some(Life::Lost(_)) => "Lost",
            Some(Life::Over) => "Over",
        }
    }

    /// Each state, and what follows: the lease lasts from 0 to 10.
    #[test]
    fn the_table_of_transitions() {
        let end = Some(End { wall: at(10).wall, uptime: at(10).uptime });
        let states = [
            ("Held", Life::Held),
            ("GivenUp in time", Life::GivenUp(at(5))),
            ("GivenUp late", Life::GivenUp(at(11))),
            ("Lost", Life::Lost(Loss::Gone)),
            ("Over", Life::Over),
        ];
        let released = |certified| Some(Some(Release::Released { certified }));
        let ended =
            |life: &Life, released: Option<Released>| life.ended(released.as_ref(), at(0), end, at(12)).next;
        let mut table = "
                given   lease   found           ended:
                up      passed  gone    passed  certif. uncert. passed  gone    failed
"
        .to_owned();
        for (name, life) in states {
            let next = [
                life.given_up(at(5)),
                life.at(at(12), end),
                life.lost(&Loss::Gone, end),
                life.lost(&Loss::Expired, end),
                ended(&life, released(true)),
                ended(&life, released(false)),
                ended(&life, Some(Some(Release::Lost(Loss::Expired)))),
                ended(&life, Some(Some(Release::Lost(Loss::Gone)))),
                ended(&life, None),
            ];
            let row = format!("{name:16}{}", next.map(|next| format!("{:8}", shown(next.as_ref()))).concat());
            table = table + row.trim_end() + "\n";
        }
        let expected = "
                given   lease   found           ended:
                up      passed  gone    passed  certif. uncert. passed  gone    failed
Held            GivenUp Lost    Lost    Lost    Over    Lost    Lost    Lost    Lost
GivenUp in time –       –       Lost    –       Over    Over    Over    Lost    Over
GivenUp late    –       Lost    Lost    Lost    Over    Lost    Lost    Lost    Lost
Lost            –       –       –       –       –       –       –       –       –
Over            –       –       –       –       –       –       –       –       –
";
        assert_eq!(table, expected, "{table}");
        assert_eq!(Life::Held.at(at(9), end), None, "its lease lasts");
        assert_eq!(Life::Held.at(Now { wall: Wall(0), ..at(9) }, end), Some(Life::Lost(Loss::ClockUnset)));
    }
}

//! What a lock's state and its holder say of the present time, in calls and in words: values and rules read no clock.

use std::fmt;
use std::time::Duration;

use crate::rules::ownership::LossReason;
use crate::system::clock;
use crate::values::key::Cut;
use crate::values::value::{Expiry, Holder, LockState};

impl LockState {
    /// Returns true if the lock is held, according to the value and this machine's wall clock. An expired lock is
    /// not held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            LockState::Absent => false,
            LockState::Until { expiry: Expiry(until), .. } => *until >= clock::now().wall,
            LockState::Unexpiring | LockState::Empty | LockState::Unreadable(_) => true,
        }
    }
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockState::Absent => f.write_str("free"),
            LockState::Until { expiry, holder } if self.is_held() => {
                f.write_str("held")?;
                holder.iter().try_for_each(|holder| write!(f, " by {holder},"))?;
                write!(f, " until {expiry} at the latest")
            }
            LockState::Until { expiry, holder } => {
                write!(f, "expired at {expiry}")?;
                holder.iter().try_for_each(|holder| write!(f, ", last held by {}", holder.name()))
            }
            LockState::Unexpiring => f.write_str("held without an expiration"),
            LockState::Empty => {
                f.write_str("held with an empty value, as redis-objects from 1.4.2 on writes it")
            }
            LockState::Unreadable(bytes) => {
                write!(f, "held with a value that no lock writes: \"{}\"", Cut(bytes))?;
                if self.is_long() {
                    f.write_str(" or more")?;
                }
                self.looks_like().map_or(Ok(()), |form| write!(f, ", which looks like {form}"))
            }
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Expired => f.write_str("its lease has ended"),
            LossReason::ClockUnset => {
                f.write_str("the clock of this machine shows a time that cannot be right, such as 1970")
            }
            LossReason::Gone => {
                f.write_str("its key is missing (cleared, evicted, or lost in a failover or restart)")
            }
            LossReason::Taken(state) => write!(f, "its key holds another client's value ({state})"),
        }
    }
}

impl Holder {
    /// Returns for how long it has held the lock, by this machine's clock; zero if the holder's is ahead.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        clock::now().wall.since(self.since)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.held_for().as_secs();
        write!(f, "{} for ", self.name())?;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3600 => write!(f, "{} min", seconds / 60),
            3600..86_400 => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_displayed_with_how_long_it_has_held_the_lock() {
        let shown = |seconds: u64| {
            let since = clock::now().wall.before(Duration::from_secs(seconds));
            Holder { name: "worker:7".into(), since }.to_string()
        };
        assert!(["worker:7 for 5 s", "worker:7 for 6 s"].contains(&shown(5).as_str()), "{}", shown(5));
        assert_eq!(shown(750), "worker:7 for 12 min");
        assert_eq!(shown(7510), "worker:7 for 2 h 5 min");
        assert_eq!(shown(2 * 86_400 + 3 * 3600 + 10), "worker:7 for 2 d 3 h");
        let ahead = Holder { name: "w".into(), since: clock::now().wall.after(Duration::from_secs(60)) };
        assert_eq!(ahead.to_string(), "w for 0 s", "its clock is ahead");
    }
}

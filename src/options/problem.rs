//! Options that make no sense, in words for the user.

use std::time::Duration;

use super::{LONGEST_EXPIRATION, LockOptions, Protocol};

/// The longest name of a holder, in bytes.
const LONGEST_NAME: usize = 256;

impl LockOptions {
    /// Returns what is wrong with the options, in words for the user.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        match self.expiration {
            Some(Duration::ZERO) => Some(
                "the expiration is zero, so the lease would be over before it began; give the longest time the work can take",
            ),
            Some(brief) if brief < Duration::from_millis(1) => Some(
                "the expiration is below a millisecond, so the lease would be over before the reply came; give the longest time the work can take",
            ),
            Some(long) if long > LONGEST_EXPIRATION => Some(
                "the expiration is over ten years; for a lock that never expires, use `held_until_released`",
            ),
            _ if self.takeover_margin > LONGEST_EXPIRATION => {
                Some("the takeover margin is over ten years; some seconds make up for clocks")
            }
            None if !self.takeover_margin.is_zero() => Some(
                "a takeover margin does nothing without an expiration, since such a lock takes nothing over; leave it out",
            ),
            None if self.protocol == Protocol::Ttl => Some(
                "the protocol Ttl needs an expiration, since the server is to free the lock; use `expiring_after`, with 1 s for what a gem from 1.4.2 on does without one, or another protocol",
            ),
            _ => self.polling.problem().or_else(|| self.holding_problem()),
        }
    }

    /// Returns what is wrong with what the holder is to do.
    fn holding_problem(&self) -> Option<&'static str> {
        let expiration = self.expiration;
        match self.auto_extend {
            Some(_) if expiration.is_none() => {
                return Some(
                    "`auto_extend` does nothing without an expiration, since such a lock never expires; use `expiring_after`",
                );
            }
            Some(at_most) if expiration.is_some_and(|expiration| at_most < expiration) => {
                return Some(
                    "`auto_extend` allows less time in all than the expiration; give the longest time that the work may ever take",
                );
            }
            Some(at_most) if at_most > LONGEST_EXPIRATION => {
                return Some(
                    "`auto_extend` allows over ten years, so a worker that hangs would hold the lock for ever; give the longest time that the work may ever take",
                );
            }
            _ => {}
        }
        if !self.hold_at_least.is_zero()
            && expiration.is_none_or(|expiration| self.hold_at_least > expiration)
        {
            return Some(match expiration {
                None => {
                    "`hold_at_least` needs an expiration, since the key is left to expire; use `expiring_after`"
                }
                Some(_) => {
                    "`hold_at_least` is longer than the expiration, after which the lock is not held anyway; give less, or a longer expiration"
                }
            });
        }
        if self.verify_every.is_some_and(|time| time < Duration::from_millis(1)) {
            return Some(
                "`verify_every` is below a millisecond; give some seconds, or a third of the expiration",
            );
        }
        if self.max_attempts == Some(0) {
            return Some("`max_attempts` is 0, so the lock would never be acquired; give at least 1");
        }
        match self.holder_name {
            Some(_) if expiration.is_none() => Some(
                "`holder_name` needs an expiration, since the name is kept for as long as the lease; use `expiring_after`",
            ),
            Some("") => Some(
                "the holder's name is empty; give what tells people who it is, such as the host and the process id",
            ),
            Some(name) if name.len() > LONGEST_NAME => {
                Some("the holder's name is longer than 256 bytes; give a shorter one")
            }
            _ => None,
        }
    }
}

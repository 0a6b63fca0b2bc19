//! Options that are invalid, in words for the user.

use std::time::Duration;

use proto::values::{Protocol, Terms};

use super::LockOptions;

impl LockOptions {
    /// Returns what is wrong with the options, in words for the user.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let Self { terms: Terms { expiration, poll_interval, .. }, protocol, .. } = *self;
        match expiration {
            Some(Duration::ZERO) => Some(
                "the expiration is zero, so the lease would be over before it began; give the longest time the work can take",
            ),
            Some(brief) if brief < Duration::from_millis(1) => Some(
                "the expiration is below a millisecond, so the lease would be over before the reply came; give the longest time the work can take",
            ),
            Some(long) if long > Self::MAX_EXPIRATION => Some(
                "the expiration is over ten years; for a lock that never expires, use `without_expiration`",
            ),
            None if protocol == Protocol::Ttl => Some(
                "the protocol Ttl needs an expiration, after which the server frees the lock; use `expiring_after`, or another protocol",
            ),
            _ if poll_interval < Duration::from_millis(1) => Some(
                "the poll interval is below a millisecond, which would keep the server busy; the gem's is 100 ms",
            ),
            _ if poll_interval > Self::MAX_EXPIRATION => {
                Some("the poll interval is over ten years; give some seconds at most")
            }
            _ => self.holding_problem(),
        }
    }

    /// Returns what is wrong with the options for the time while the lock is held.
    fn holding_problem(&self) -> Option<&'static str> {
        let Terms { expiration, auto_extend, hold_at_least, forget_tokens_after, max_attempts, .. } =
            self.terms;
        match auto_extend {
            Some(_) if expiration.is_none() => {
                return Some(
                    "`auto_extend` does nothing without an expiration, since such a lock never expires; use `expiring_after`",
                );
            }
            Some(at_most) if expiration.is_some_and(|expiration| at_most < expiration) => {
                return Some(
                    "`auto_extend` allows less time in total than the expiration; give the longest time that the work may ever take",
                );
            }
            Some(at_most) if at_most > Self::MAX_EXPIRATION => {
                return Some(
                    "`auto_extend` allows over ten years, so a worker that hangs would hold the lock forever; give the longest time that the work may ever take",
                );
            }
            _ => {}
        }
        if !hold_at_least.is_zero() && expiration.is_none_or(|expiration| hold_at_least > expiration) {
            return Some(match expiration {
                None => {
                    "`hold_at_least` needs an expiration, since the key is left to expire; use `expiring_after`"
                }
                Some(_) => {
                    "`hold_at_least` is longer than the expiration; shorten it, or lengthen the expiration"
                }
            });
        }
        if let Some(time) = forget_tokens_after {
            let Some(lease) = expiration else {
                return Some(
                    "`forget_tokens_after` needs an expiration: a counter could be forgotten while the lock is held; use `expiring_after`",
                );
            };
            if time < lease {
                return Some(
                    "`forget_tokens_after` is less than the expiration, so that a counter could be forgotten while the lock is held; give a multiple of it",
                );
            }
            if time > Self::MAX_EXPIRATION {
                return Some("`forget_tokens_after` is over ten years; leave it out");
            }
        }
        if max_attempts == Some(0) {
            return Some("`max_attempts` is 0, so the lock would never be acquired; give at least 1");
        }
        None
    }
}

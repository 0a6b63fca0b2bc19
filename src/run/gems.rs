//! Whether gems up to 1.4.1 lock keys of a locker's server, as far as was seen. If they do, the keeper looks at each
//! lock that has just been acquired: a gem that found its key missing, just before, overwrites the new holder's value.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::values::clock::{self, Uptime};
use crate::values::value;

/// For how long a gem's value is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The longest value of a gem has ten digits, a point and seven more. Ours are longer.
const LONGEST: usize = 18;

/// When a gem's value was last read, in microseconds of uptime; 0 is never.
#[derive(Default)]
pub(super) struct Gems(AtomicU64);

impl Gems {
    /// Notes what a key holds.
    pub(super) fn note(&self, found: &[u8]) {
        if found.len() <= LONGEST && value::classic_time(found).is_some() {
            self.0.store(clock::uptime().micros(), Ordering::Relaxed);
        }
    }

    pub(super) fn were_seen(&self, now: Uptime) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        seen > 0 && now.since(Uptime::of(Duration::from_micros(seen))) < REMEMBERED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gems_value_is_remembered_for_ten_minutes() {
        let gems = Gems::default();
        for of_others in ["", "1", "1795153464.2949650000000007", "1795153464", "job 7", "179.5153464.5"] {
            gems.note(of_others.as_bytes());
            assert!(!gems.were_seen(clock::uptime()), "{of_others}");
        }
        gems.note(b"1795153464.2949657");
        let now = clock::uptime();
        assert!(gems.were_seen(now));
        assert!(gems.were_seen(now.after(Duration::from_secs(590))));
        assert!(!gems.were_seen(now.after(Duration::from_secs(600))));
    }
}

//! Which warnings are written: one that repeats is written at once, and then once a minute for each key, with how many were left out.

use std::collections::HashMap;
use std::time::Duration;

use crate::values::clock::Uptime;
use crate::values::key::Key;
use crate::values::sync::Mutex;

const EVERY: Duration = Duration::from_secs(60);
/// How many warnings are remembered. Beyond that the oldest are forgotten, and written again.
const MOST: usize = 1024;

/// The warnings that were written last.
#[derive(Default)]
pub(super) struct Repeats(Mutex<HashMap<(Key, &'static str), Written>>);

#[derive(Debug)]
struct Written {
    at: Uptime,
    left_out: u32,
}

impl Repeats {
    /// Returns how many warnings of this kind were left out since the last that was written; `None` if this one is left out as well.
    pub(super) fn is_due(&self, key: &Key, kind: &'static str, now: Uptime) -> Option<u32> {
        let mut written = self.0.lock();
        if let Some(Written { at, left_out }) = written.get_mut(&(key.clone(), kind)) {
            if now < at.after(EVERY) {
                *left_out += 1;
                return None;
            }
            *at = now;
            return Some(std::mem::take(left_out));
        }
        if written.len() >= MOST {
            written.retain(|_, written| now < written.at.after(EVERY));
            if written.len() >= MOST {
                written.clear();
            }
        }
        written.insert((key.clone(), kind), Written { at: now, left_out: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_written_once_a_minute_for_each_key_and_kind() {
        let (repeats, keys) = (Repeats::default(), ["a", "b"].map(Key::from));
        let at = |seconds| Uptime::of(Duration::from_secs(seconds));
        for key in &keys {
            assert_eq!(repeats.is_due(key, "not extended", at(0)), Some(0));
        }
        assert_eq!(repeats.is_due(&keys[0], "not released", at(1)), Some(0));
        for seconds in [1, 30, 59] {
            assert_eq!(repeats.is_due(&keys[0], "not extended", at(seconds)), None);
        }
        assert_eq!(repeats.is_due(&keys[0], "not extended", at(60)), Some(3));
        assert_eq!(repeats.is_due(&keys[0], "not extended", at(61)), None);
        assert_eq!(repeats.is_due(&keys[1], "not extended", at(61)), Some(0));
    }

    #[test]
    fn a_few_are_remembered() {
        let repeats = Repeats::default();
        for n in 0..10 * MOST {
            assert_eq!(
                repeats.is_due(&Key::from(format!("k{n}")), "not extended", Uptime::default()),
                Some(0)
            );
        }
        assert!(repeats.0.lock().len() <= MOST);
    }
}

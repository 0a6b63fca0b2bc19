//! What happened in a run: counted and hashed, so that two runs can be compared, and printed on request.

use std::hash::{DefaultHasher, Hasher as _};

use crate::scheduler::Nanos;

/// The trace of a run.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: DefaultHasher,
    pub(crate) lines: u64,
    /// Lines are printed from this time on.
    printed_from: Option<Nanos>,
}

impl Trace {
    pub(crate) fn new(printed_from: Option<Nanos>) -> Self {
        Self { hash: DefaultHasher::new(), lines: 0, printed_from }
    }

    /// Notes who did what.
    pub(crate) fn note(&mut self, now: Nanos, who: &str, what: &str) {
        self.lines += 1;
        self.hash.write_u64(now);
        self.hash.write(who.as_bytes());
        self.hash.write(what.as_bytes());
        if self.printed_from.is_some_and(|from| now >= from) {
            let (seconds, micros) = (now / 1_000_000_000, now / 1000 % 1_000_000);
            println!("{seconds:4}.{micros:06} {who:24} {what}");
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.finish()
    }
}

//! The lock of the gem redis-objects 0.2.3 to 1.4.1, by plain commands, from the description in `docs/from-ruby.md`. What it does
//! wrong is meant to be wrong.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use setnx_lock::redis::{self, Commands as _};

use super::Failure;
use super::hold::Outcome;
use super::contender::{Hand, Held};

const POLL_INTERVAL: Duration = Duration::from_millis(100);
pub(crate) struct Gem(redis::Connection);

impl Gem {
    pub(crate) fn connect(url: &str) -> Result<Self, Failure> {
        // No time-out: that of Ruby's client is longer than any delay, and its reads go on when a stopped process does, which a
        // read with a time-out does not on Linux.
        Ok(Self(redis::Client::open(url)?.get_connection()?))
    }

    /// One try. Returns the time that was written, and whether it was a takeover.
    fn attempt(&mut self, key: &str, expiration: Duration) -> redis::RedisResult<Option<(f64, bool)>> {
        let mut until = now() + expiration.as_secs_f64() + 1.0;
        if self.0.set_nx(key, text(until))? {
            return Ok(Some((until, false)));
        }
        let old: Option<String> = self.0.get(key)?;
        if number(old) >= now() {
            return Ok(None);
        }
        until = now() + expiration.as_secs_f64() + 1.0;
        let old: Option<String> = self.0.getset(key, text(until))?;
        // By the clock after the answer, and whatever that took: the lease may be over already.
        Ok((number(old) < now()).then_some((until, true)))
    }
}

impl Hand for Gem {
    fn take(
        &mut self,
        key: &str,
        expiration: Duration,
        patience: Duration,
    ) -> Result<Option<Box<dyn Held + '_>>, Failure> {
        let start = Instant::now();
        while start.elapsed() < patience {
            if let Some((until, took_over)) = self.attempt(key, expiration)? {
                return Ok(Some(Box::new(Hold { gem: self, key: key.to_owned(), until, took_over })));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(None)
    }
}

struct Hold<'a> {
    gem: &'a mut Gem,
    key: String,
    /// The time in the value, with the second more: until then the gem believes in its lock.
    until: f64,
    took_over: bool,
}

impl Held for Hold<'_> {
    fn remaining(&self) -> Duration {
        Duration::try_from_secs_f64(self.until - now()).unwrap_or_default()
    }

    fn took_over(&self) -> bool {
        self.took_over
    }

    fn release(self: Box<Self>) -> (Outcome, Option<String>) {
        if self.until > now()
            && let Err(error) = self.gem.0.del::<_, ()>(&self.key)
        {
            return (Outcome::Failed, Some(error.to_string()));
        }
        (Outcome::Silent, None)
    }
}

/// The wall clock as Ruby tells it.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A number as Ruby writes it.
fn text(time: f64) -> String {
    format!("{time:?}")
}

/// A number as Ruby reads it, where nobody writes but the gem: nothing is zero.
fn number(text: Option<String>) -> f64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

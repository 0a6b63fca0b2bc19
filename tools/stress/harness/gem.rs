//! The lock of the gem redis-objects 0.2.3 to 1.4.1, by plain commands, from the description in `docs/from-ruby.md`.
//! Its mistakes are kept on purpose.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use setnx_lock::redis::{self, Commands as _};

use super::Failure;
use super::client::{HeldLock, ThreadClient};
use super::hold::Outcome;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) struct Gem(redis::Connection);

impl Gem {
    pub(crate) fn connect(url: &str) -> Result<Self, Failure> {
        // No timeout. That of Ruby's client is longer than any delay, and its reads continue after a stopped process
        // does; a read with a timeout fails then on Linux.
        Ok(Self(redis::Client::open(url)?.get_connection()?))
    }

    /// One attempt. Returns the time that was written, and whether it was a takeover.
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
        // By the clock after the reply, however late that came: the lease may have ended already.
        Ok((number(old) < now()).then_some((until, true)))
    }
}

impl ThreadClient for Gem {
    fn acquire(
        &mut self,
        key: &str,
        expiration: Duration,
        timeout: Duration,
    ) -> Result<Option<Box<dyn HeldLock + '_>>, Failure> {
        let start = Instant::now();
        while start.elapsed() < timeout {
            if let Some((until, taken_over)) = self.attempt(key, expiration)? {
                return Ok(Some(Box::new(Hold { gem: self, key: key.to_owned(), until, taken_over })));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(None)
    }
}

struct Hold<'a> {
    gem: &'a mut Gem,
    key: String,
    /// The time in the value, with the extra second: until then the gem relies on its lock.
    until: f64,
    taken_over: bool,
}

impl HeldLock for Hold<'_> {
    fn remaining(&self) -> Duration {
        Duration::try_from_secs_f64(self.until - now()).unwrap_or_default()
    }

    fn taken_over(&self) -> bool {
        self.taken_over
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

/// The wall clock as Ruby reads it.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A number as Ruby writes it.
fn text(time: f64) -> String {
    format!("{time:?}")
}

/// A number as Ruby reads it. Only the gem writes here, so no value is the only case of text that is no number: 0.
fn number(text: Option<String>) -> f64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

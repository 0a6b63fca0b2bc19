//! The lock of redis-objects, in both forms that it has had.

use std::time::Duration;

use super::OtherLock;
use super::wire::{Broken, Wire, now, time_in};

/// Reads a number as Ruby's `to_f` does, as far as locks have any.
fn to_f(text: Option<&str>) -> f64 {
    text.and_then(time_in).unwrap_or_default()
}

/// Up to 1.4.1: a time in the key, which is taken over by GETSET.
#[derive(Debug)]
pub(super) struct OldGem {
    key: String,
    expiration: Duration,
    /// The time in the key.
    until: f64,
}

impl OldGem {
    pub(super) fn new(key: &str, expiration: Duration) -> Self {
        Self { key: key.to_owned(), expiration, until: 0.0 }
    }

    fn generate(&mut self) -> String {
        self.until = now() + self.expiration.as_secs_f64() + 1.0;
        format!("{:?}", self.until)
    }
}

impl OtherLock for OldGem {
    fn attempt(&mut self, wire: &mut Wire) -> Result<bool, Broken> {
        let value = self.generate();
        if wire.say(&["SETNX", &self.key, &value])?.as_deref() == Some("1") {
            return Ok(true);
        }
        let before = wire.say(&["GET", &self.key])?;
        if to_f(before.as_deref()) >= now() {
            return Ok(false);
        }
        let value = self.generate();
        let before = wire.say(&["GETSET", &self.key, &value])?;
        Ok(to_f(before.as_deref()) < now())
    }

    fn left(&self) -> Duration {
        Duration::try_from_secs_f64(self.until - 1.0 - now()).unwrap_or_default()
    }

    fn release(&mut self, wire: &mut Wire) -> Result<(), Broken> {
        if self.until > now() {
            wire.say(&["DEL", &self.key])?;
        }
        Ok(())
    }
}

/// From 1.4.3 on: an empty value with a time to live.
#[derive(Debug)]
pub(super) struct NewGem {
    key: String,
    expiration: Duration,
    sent: f64,
    /// When it deletes the key no more: counted from a whole second.
    until: f64,
}

impl NewGem {
    pub(super) fn new(key: &str, expiration: Duration) -> Self {
        Self { key: key.to_owned(), expiration, sent: 0.0, until: 0.0 }
    }

    fn begin(&mut self) -> String {
        self.sent = now();
        self.until = self.sent.trunc() + self.expiration.as_secs_f64();
        self.expiration.as_millis().to_string()
    }
}

impl OtherLock for NewGem {
    fn attempt(&mut self, wire: &mut Wire) -> Result<bool, Broken> {
        let millis = self.begin();
        if wire.say(&["SET", &self.key, "", "PX", &millis, "NX"])?.is_some() {
            return Ok(true);
        }
        let before = to_f(wire.say(&["GET", &self.key])?.as_deref());
        if before == 0.0 || before >= now() {
            return Ok(false);
        }
        let millis = self.begin();
        Ok(wire.say(&["SET", &self.key, "", "PX", &millis])?.is_some())
    }

    fn left(&self) -> Duration {
        Duration::try_from_secs_f64(self.sent + self.expiration.as_secs_f64() - now()).unwrap_or_default()
    }

    fn release(&mut self, wire: &mut Wire) -> Result<(), Broken> {
        if self.until > now() {
            wire.say(&["DEL", &self.key])?;
        }
        Ok(())
    }
}

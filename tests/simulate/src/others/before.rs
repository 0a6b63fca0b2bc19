//! An earlier version of this library in Ttl: the time in the key
//! is a second after the lease, and every change is a transaction.

use std::time::Duration;

use super::OtherLock;
use super::wire::{Broken, Wire, now, time_in};
use world::run::random;

#[derive(Debug)]
pub(super) struct Before {
    key: String,
    expiration: Duration,
    began: f64,
    value: String,
}

impl Before {
    pub(super) fn new(key: &str, expiration: Duration) -> Self {
        Self { key: key.to_owned(), expiration, began: 0.0, value: String::new() }
    }

    fn begin(&mut self) -> String {
        self.began = now();
        let time = self.began + self.expiration.as_secs_f64() + 1.0;
        self.value = format!("{time:.6}{:010}", random(0..10_000_000_000));
        (self.expiration.as_millis() + 500).to_string()
    }

    /// Changes the key if it holds what was expected.
    fn change(&self, wire: &mut Wire, expected: &str, change: &[&str]) -> Result<bool, Broken> {
        wire.say(&["WATCH", &self.key])?;
        if wire.say(&["GET", &self.key])?.as_deref() != Some(expected) {
            wire.say(&["UNWATCH"])?;
            return Ok(false);
        }
        wire.say(&["MULTI"])?;
        wire.say(change)?;
        Ok(wire.say(&["EXEC"])?.is_some())
    }
}

impl OtherLock for Before {
    fn attempt(&mut self, wire: &mut Wire) -> Result<bool, Broken> {
        let millis = self.begin();
        let (key, value) = (self.key.clone(), self.value.clone());
        if wire.say(&["SET", &key, &value, "PX", &millis, "NX"])?.is_some() {
            return Ok(true);
        }
        let Some(found) = wire.say(&["GET", &self.key])? else { return Ok(false) };
        let time = time_in(&found).unwrap_or(f64::MAX);
        if time >= now() || wire.say(&["PTTL", &self.key])?.as_deref() != Some("-1") {
            return Ok(false);
        }
        let millis = self.begin();
        let value = self.value.clone();
        self.change(wire, &found, &["SET", &key, &value, "PX", &millis])
    }

    fn left(&self) -> Duration {
        Duration::try_from_secs_f64(self.began + self.expiration.as_secs_f64() - now()).unwrap_or_default()
    }

    fn release(&mut self, wire: &mut Wire) -> Result<(), Broken> {
        let value = self.value.clone();
        self.change(wire, &value, &["DEL", &self.key])?;
        Ok(())
    }
}

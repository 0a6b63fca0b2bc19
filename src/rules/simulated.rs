//! The simulated server of the scenarios and of the random search: one key, what commands do to it, and which connections watch it.

use std::time::Duration;

use crate::rules::{Change, Command, NewValue, Reply};

/// One key, as every server since 2.2 has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    value: Option<Vec<u8>>,
    /// When the server removes the key by itself, by its own clock.
    expires: Option<Duration>,
    /// Counts the writes.
    version: u64,
    /// The counter of fencing tokens, another key.
    counter: i64,
}

/// The version of the key that a connection watches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watching(Option<u64>);

impl Server {
    /// Writes or clears the key, as any client may.
    pub(crate) fn set(&mut self, value: Option<Vec<u8>>) {
        self.write(value, None);
    }

    /// Counts as a write of the key, and leaves its value: EXPIRE.
    pub(crate) fn touch(&mut self) {
        self.version += 1;
    }

    /// Returns what the key holds.
    pub(crate) fn value(&mut self, now: Duration) -> Option<&[u8]> {
        // Up to Redis 6.0 expiry does not count as a write: a transaction that watches the key is carried out.
        if self.expires.is_some_and(|expires| expires <= now) {
            (self.value, self.expires) = (None, None);
        }
        self.value.as_deref()
    }

    /// Returns after how long the server removes the key by itself, if it does.
    pub(crate) fn time_to_live(&self, now: Duration) -> Option<Duration> {
        Some(self.expires?.saturating_sub(now))
    }

    pub(crate) fn carry_out(&mut self, now: Duration, watching: &mut Watching, command: &Command) -> Reply {
        let found = self.value(now).map(<[u8]>::to_vec);
        let watched = std::mem::take(watching).0;
        match command {
            Command::SetNx(entry) => {
                if found.is_none() {
                    self.put(entry, now);
                }
                Reply::Integer(i64::from(found.is_none()))
            }
            Command::Get => Reply::Bulk(found),
            Command::GetSet(value) => {
                self.write(Some(value.to_vec()), None);
                Reply::Bulk(found)
            }
            Command::Del => self.delete(),
            Command::WatchGet => {
                *watching = Watching(Some(self.version));
                Reply::Bulk(found)
            }
            Command::WatchGetTtl => {
                *watching = Watching(Some(self.version));
                match found.clone().zip(self.time_to_live(now)) {
                    Some((value, left)) => Reply::Expiring(value, left),
                    None => Reply::Bulk(found),
                }
            }
            Command::Exec(_) if watched != Some(self.version) => Reply::Executed(None),
            Command::Exec(Change::Set(entry)) => {
                self.put(entry, now);
                Reply::Executed(Some(1))
            }
            Command::Exec(Change::Del) => match self.delete() {
                Reply::Integer(n) => Reply::Executed(Some(n)),
                _ => unreachable!("the reply to DEL is a count"),
            },
            Command::Exec(Change::Count) => Reply::Executed(Some(self.count())),
            Command::Count => Reply::Integer(self.count()),
            Command::GetAll(_) => unreachable!("it is on several keys"),
            Command::TimeToLive => unreachable!("no rules send it"),
            Command::HolderName(_) | Command::Waiting(_) => unreachable!("no rules of the lock send it"),
        }
    }

    fn count(&mut self) -> i64 {
        self.counter += 1;
        self.counter
    }

    pub(crate) fn put(&mut self, entry: &NewValue, now: Duration) {
        self.write(Some(entry.value.to_vec()), entry.ttl.map(|ttl| now + ttl));
    }

    fn delete(&mut self) -> Reply {
        let found = self.value.is_some();
        if found {
            self.write(None, None);
        }
        Reply::Integer(i64::from(found))
    }

    fn write(&mut self, value: Option<Vec<u8>>, expires: Option<Duration>) {
        (self.value, self.expires) = (value, expires);
        self.version += 1;
    }
}

//! Which commands a trip of the rules is, as they go over the wire, and which of their replies count.

use std::time::Duration;

use proto::fencing::Epoch;
use proto::values::{Key, SideKey};
use proto::waiting_list::{self, LIST_TTL, Waiting};
use proto::{Command, NewValue, Trip};

use crate::net::{Compares, KeyTrip, Packed, Request};

/// Returns a trip of the rules as one for a key.
#[inline]
pub(crate) fn key_trip<'a>(key: &'a Key, trip: &'a Trip) -> KeyTrip<'a> {
    let mut of_key = KeyTrip::of(key, &trip.command);
    of_key.before = trip.before.as_ref();
    of_key.if_holds = trip.if_holds.as_ref();
    of_key.behind = trip.behind.as_deref().map(|behind| behind as &dyn Request);
    of_key
}

impl Request for Command {
    fn name(&self) -> &'static str {
        Self::name(self)
    }

    fn pack(&self, key: &Key, packed: &mut Packed) {
        let bytes = key.as_bytes();
        match self {
            Self::SetNx(NewValue { value, ttl: None }) => {
                packed.integer().begun(b"*3\r\n$5\r\nSETNX\r\n", &[bytes, value]);
            }
            Self::SetNx(entry) => set(packed, bytes, entry, &[b"NX"]),
            Self::Get => {
                packed.bulk().begun(b"*2\r\n$3\r\nGET\r\n", &[bytes]);
            }
            Self::TimeToLive => {
                packed.integer().words(&[b"PTTL", bytes]);
            }
            Self::GetAll(keys) => {
                let words = packed.list(Some(keys.len())).begin(1 + keys.len());
                words.word(b"MGET");
                for key in keys.iter() {
                    words.word(key.as_bytes());
                }
            }
            Self::GetSet(value) => {
                packed.bulk().words(&[b"GETSET", bytes, value]);
            }
            Self::Set(entry) => set(packed, bytes, entry, &[]),
            Self::Renew(renewed) => {
                let (entry, time) = &**renewed;
                set(packed, bytes, entry, &[]);
                packed.must_succeed();
                expire_counter(packed, bytes, *time);
            }
            Self::Del => {
                packed.integer().begun(b"*2\r\n$3\r\nDEL\r\n", &[bytes]);
            }
            Self::GetDel => {
                packed.bulk().words(&[b"GETDEL", bytes]);
            }
            Self::Count { forget_after } => {
                packed.integer().words(&[b"INCR", &SideKey::Fence.of(bytes)]);
                if let Some(time) = forget_after {
                    expire_counter(packed, bytes, *time);
                    packed.must_succeed();
                }
            }
            Self::Raise { by, .. } => {
                let counter = SideKey::Fence.of(bytes);
                packed.integer().words(&[b"INCRBY", &counter, by.to_string().as_bytes()]);
            }
            Self::ForgetAfter(time) => expire_counter(packed, bytes, *time),
            Self::Waiting(waiting) => pack_waiting(packed, bytes, waiting),
            Self::Take(lists) => {
                for (key, next) in lists {
                    pack_waiting(packed, key.as_bytes(), next);
                }
            }
        }
    }

    fn only_in(&self) -> Option<Epoch> {
        Self::only_in(self)
    }

    fn watched(&self, key: &Key) -> Key {
        match self {
            Self::Raise { .. } => Key::from(SideKey::Fence.of(key.as_bytes())),
            _ => key.clone(),
        }
    }

    fn comparing(&self, compares: Compares) -> Option<&'static str> {
        match (self, compares) {
            (Self::Set(_), _) => Some("SET"),
            (Self::Del, Compares::DelEx) => Some("DELEX"),
            (Self::Del, Compares::DelIfEq) => Some("DELIFEQ"),
            _ => None,
        }
    }

    fn pack_comparing(&self, compares: Compares, key: &Key, held: &[u8], packed: &mut Packed) {
        let key = key.as_bytes();
        match (self, compares) {
            (Self::Set(entry), _) => set(packed, key, entry, &[b"IFEQ", held]),
            (_, Compares::DelEx) => {
                packed.integer().begun(b"*4\r\n$5\r\nDELEX\r\n", &[key, b"IFEQ", held]);
            }
            (_, Compares::DelIfEq) => {
                packed.integer().begun(b"*3\r\n$7\r\nDELIFEQ\r\n", &[key, held]);
            }
        }
    }

    fn keys(&self) -> Option<&[Key]> {
        if let Self::GetAll(keys) = self { Some(keys) } else { None }
    }

    fn changes_counter(&self) -> bool {
        matches!(self, Self::Count { .. } | Self::Renew(_))
    }

    fn waits_for_slot(&self) -> bool {
        // The rules keep a counter by itself then.
        !matches!(self, Self::Renew(_))
    }
}

fn pack_waiting(packed: &mut Packed, key: &[u8], waiting: &Waiting) {
    let list: &[u8] = &SideKey::Waiters.of(key);
    let expire = |packed: &mut Packed| {
        packed.integer().words(&[b"EXPIRE", list, LIST_TTL.to_string().as_bytes()]);
    };
    match waiting {
        Waiting::Enter { channel, expires } => {
            packed.push().words(&[b"RPUSH", list, channel]);
            if *expires {
                // The process is listed also where its list gets no time to live.
                expire(packed);
                packed.ignored();
            }
        }
        Waiting::Check { expires, .. } => {
            packed.list(None).words(&[b"LRANGE", list, b"0", b"-1"]);
            if *expires {
                expire(packed);
                packed.must_succeed();
            }
        }
        Waiting::Next => {
            packed.bulk().words(&[b"LPOP", list]);
        }
        Waiting::NextAfter { channel, expires } => {
            // What was taken is to be notified, also where the entry of this process was refused.
            packed.push().words(&[b"RPUSH", list, channel]).ignored();
            if *expires {
                expire(packed);
                packed.ignored();
            }
            packed.bulk().words(&[b"LPOP", list]);
        }
        Waiting::Leave(channel) => {
            packed.integer().words(&[b"LREM", list, b"1", channel]);
        }
        Waiting::Wake { channel, polled } => {
            packed.integer().words(&[b"PUBLISH", channel, &waiting_list::message(key, *polled)]);
        }
    }
}

fn expire_counter(packed: &mut Packed, key: &[u8], time: Duration) {
    // Rounded up.
    let seconds = time.as_millis().div_ceil(1000).to_string();
    packed.integer().words(&[b"EXPIRE", &SideKey::Fence.of(key), seconds.as_bytes()]);
}

/// Packs a SET, which may be carried out on a condition.
fn set(packed: &mut Packed, key: &[u8], entry: &NewValue, condition: &[&[u8]]) {
    let ttl_words = if entry.ttl.is_some() { 2 } else { 0 };
    let command = if condition.is_empty() { packed.okay() } else { packed.okay_or_nil() };
    let packed = command.begin(3 + ttl_words + condition.len());
    for word in [b"SET", key, &entry.value] {
        packed.word(word);
    }
    if let Some(ttl) = entry.ttl {
        packed.word(b"PX");
        // Rounded up: the server must not free the lock before the time in the value.
        packed.number(u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX));
    }
    for word in condition {
        packed.word(word);
    }
}

#[cfg(test)]
mod tests;

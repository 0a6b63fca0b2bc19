//! One command while it is executed, and what commands do with keys.

use super::client::{Client, ClientId};
use super::keyspace::{Database, Entry, Value, as_integer};
use super::reply::Refusal;
use super::version::ServerVersion;
use super::{Server, reply::Reply};

/// A command that is executed.
#[derive(Debug)]
pub(crate) struct Call<'s> {
    pub(crate) server: &'s mut Server,
    pub(crate) id: ClientId,
    pub(crate) words: &'s [Vec<u8>],
    /// It is part of a transaction, where nothing waits.
    pub(crate) in_exec: bool,
}

const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

impl<'s> Call<'s> {
    pub(crate) fn word(&self, n: usize) -> &'s [u8] {
        &self.words[n]
    }

    /// Everything after the name.
    pub(crate) fn arguments(&self) -> &'s [Vec<u8>] {
        &self.words[1..]
    }

    /// An argument in upper case.
    pub(crate) fn upper(&self, n: usize) -> String {
        upper(self.word(n))
    }

    pub(crate) fn integer(&self, n: usize) -> Result<i64, Refusal> {
        as_integer(self.word(n)).ok_or(Refusal::new(NOT_AN_INTEGER))
    }

    pub(crate) fn client(&mut self) -> &mut Client {
        self.server.client(self.id)
    }

    /// The version that the client talks to.
    pub(crate) fn version(&mut self) -> ServerVersion {
        self.client().version
    }

    pub(crate) fn database(&mut self) -> &mut Database {
        let number = self.client().database;
        &mut self.server.databases[number]
    }

    /// Milliseconds since 1970, by the server's clock.
    pub(crate) fn now(&self) -> u64 {
        self.server.now_in_millis()
    }

    /// The key as a command finds it that only reads.
    pub(crate) fn look_up(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let database = self.client().database;
        self.server.expire_if_due(database, key);
        self.server.databases[database].get_mut(key)
    }

    /// The key as a command finds it that changes it. Before 2.2 a key with a time to live is deleted first: measured
    /// for SETNX and INCR; for the rest read in the source of 1.0, where all of them look their key up in the same way,
    /// and in the reference of EXPIRE.
    pub(crate) fn look_up_to_change(&mut self, key: &[u8]) -> Option<&mut Entry> {
        if self.version() < ServerVersion::V2_2
            && self.look_up(key).is_some_and(|entry| entry.expires.is_some())
        {
            self.remove(key);
        }
        self.look_up(key)
    }

    pub(crate) fn exists(&mut self, key: &[u8]) -> bool {
        self.look_up(key).is_some()
    }

    /// Sets the key. It expires at that time, in milliseconds since 1970.
    pub(crate) fn put(&mut self, key: &[u8], value: Value, expires: Option<u64>) {
        self.database().insert(key, Entry { value, expires });
        self.changed(key);
    }

    pub(crate) fn put_string(&mut self, key: &[u8], bytes: &[u8]) {
        self.put(key, Value::String(bytes.to_vec()), None);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> bool {
        let was_there = self.exists(key) && self.database().remove(key).is_some();
        if was_there {
            self.changed(key);
        }
        was_there
    }

    /// To be called after a change in place: those who watch the key notice, and an empty list, set or hash is removed.
    pub(crate) fn changed(&mut self, key: &[u8]) {
        if self.database().get(key).is_some_and(|entry| entry.value.is_empty()) {
            self.database().remove(key);
        }
        let database = self.client().database;
        self.server.touch(database, key);
    }

    /// The string at the key.
    pub(crate) fn string(&mut self, key: &[u8]) -> Result<Option<&mut Vec<u8>>, Refusal> {
        self.look_up(key).map(|entry| entry.value.string()).transpose()
    }

    /// The set or hash at the key, or a new one, to be changed.
    pub(crate) fn value_or(&mut self, key: &[u8], new: Value) -> &mut Value {
        if self.look_up_to_change(key).is_none() {
            self.database().insert(key, Entry { value: new, expires: None });
        }
        let entry = self.database().get_mut(key);
        &mut entry.unwrap_or_else(|| unreachable!("it was just inserted")).value
    }
}

pub(crate) fn upper(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_uppercase()
}

pub(crate) fn not_an_integer() -> Refusal {
    Refusal::new(NOT_AN_INTEGER)
}

pub(crate) fn syntax_error() -> Refusal {
    Refusal::new("ERR syntax error")
}

pub(crate) fn wrong_number(name: &str) -> Refusal {
    Refusal::new(format!("ERR wrong number of arguments for '{}' command", name.to_lowercase()))
}

/// A list of byte strings as a reply.
pub(crate) fn reply_of<'a>(all: impl IntoIterator<Item = &'a Vec<u8>>) -> Reply {
    Reply::bulks(all.into_iter().cloned())
}

//! The keys of one database, with their values and the times at which they expire.

use std::collections::{BTreeMap, VecDeque};

use super::reply::Refusal;

/// The fields of a hash, with their values.
pub(crate) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// What a key holds. Hashes and sets keep the order in which their members were added, as small ones do on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    String(Vec<u8>),
    List(VecDeque<Vec<u8>>),
    Set(Vec<Vec<u8>>),
    Hash(Fields),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// In milliseconds since 1970.
    pub(crate) expires: Option<u64>,
}

/// The keys of a database, in the order of their hashes: a cursor of SCAN is a hash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Database(BTreeMap<(u64, Vec<u8>), Entry>);

impl Database {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Entry> {
        self.0.get(&placed(key))
    }

    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Entry> {
        self.0.get_mut(&placed(key))
    }

    pub(crate) fn insert(&mut self, key: &[u8], entry: Entry) {
        self.0.insert(placed(key), entry);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        self.0.remove(&placed(key))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = (&[u8], &Entry)> {
        self.0.iter().map(|((_, key), entry)| (key.as_slice(), entry))
    }

    /// Returns at least `count` keys after the cursor, if there are so many, and the next cursor: 0 at the end.
    pub(crate) fn scan(&self, cursor: u64, count: usize) -> (u64, Vec<Vec<u8>>) {
        let mut found = Vec::new();
        let mut last = cursor;
        for (hash, key) in self.0.range((cursor, Vec::new())..).map(|(placed, _)| placed) {
            // Keys of one hash come together: the next cursor leads behind all of them.
            if found.len() >= count && *hash != last {
                return (last + 1, found);
            }
            found.push(key.clone());
            last = *hash;
        }
        (0, found)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// How many keys expire.
    pub(crate) fn expiring(&self) -> usize {
        self.0.values().filter(|entry| entry.expires.is_some()).count()
    }

    /// How many bytes keys and values have.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|((_, key), entry)| key.len() + entry.value.bytes()).sum()
    }
}

/// A key after its hash (FNV-1a), of which a part is left for cursors to count on.
fn placed(key: &[u8]) -> (u64, Vec<u8>) {
    let hash = key.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    ((hash >> 16) + 1, key.to_vec())
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

impl Value {
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::String(_) => "string",
            Self::List(_) => "list",
            Self::Set(_) => "set",
            Self::Hash(_) => "hash",
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::String(_) => false,
            Self::List(all) => all.is_empty(),
            Self::Set(all) => all.is_empty(),
            Self::Hash(all) => all.is_empty(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::String(bytes) => bytes.len(),
            Self::List(all) => all.iter().map(Vec::len).sum(),
            Self::Set(all) => all.iter().map(Vec::len).sum(),
            Self::Hash(all) => all.iter().map(|(field, value)| field.len() + value.len()).sum(),
        }
    }

    pub(crate) fn string(&mut self) -> Result<&mut Vec<u8>, Refusal> {
        match self {
            Self::String(bytes) => Ok(bytes),
            _ => Err(wrong_type()),
        }
    }

    pub(crate) fn list(&mut self) -> Result<&mut VecDeque<Vec<u8>>, Refusal> {
        match self {
            Self::List(all) => Ok(all),
            _ => Err(wrong_type()),
        }
    }

    pub(crate) fn set(&mut self) -> Result<&mut Vec<Vec<u8>>, Refusal> {
        match self {
            Self::Set(all) => Ok(all),
            _ => Err(wrong_type()),
        }
    }

    pub(crate) fn hash(&mut self) -> Result<&mut Fields, Refusal> {
        match self {
            Self::Hash(all) => Ok(all),
            _ => Err(wrong_type()),
        }
    }
}

pub(crate) fn wrong_type() -> Refusal {
    Refusal::new(WRONG_TYPE)
}

/// The number that a text is, written without a plus sign, blanks or leading zeros.
pub(crate) fn as_integer(text: &[u8]) -> Option<i64> {
    let number = str::from_utf8(text).ok()?.parse::<i64>().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

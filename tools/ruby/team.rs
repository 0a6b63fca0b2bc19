//! The class `Team` of `compat/ruby/team.rb`, in Rust.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use setnx_lock::{DeclaredLock, Error, LockOptions, Locker};

use crate::Failure;
use crate::turn::{Language, Trade, Turn, micros_now};

/// `lock :trade_players, expiration: 15, timeout: 10`
const TRADE_PLAYERS: DeclaredLock = DeclaredLock::in_class(
    "Team",
    "trade_players",
    LockOptions::expiring_after(Duration::from_secs(15)).timeout(Duration::from_secs(10)),
);

/// `lock :reorder, global: true, expiration: 60`
const REORDER: DeclaredLock =
    DeclaredLock::in_class("Team", "reorder", LockOptions::expiring_after(Duration::from_secs(60)));

/// `lock :draft, key: 'season:2026:draft:#{id}', expiration: 15`
const DRAFT: DeclaredLock =
    DeclaredLock::in_class("Team", "draft", LockOptions::expiring_after(Duration::from_secs(15)))
        .key_template("season:2026:draft:#{id}");

/// Returns the keys of the three locks.
pub(crate) fn keys(id: u32) -> Result<Vec<String>, Error> {
    let keys = [TRADE_PLAYERS.key(id)?, REORDER.global_key(), DRAFT.key(id)?];
    Ok(keys.iter().map(ToString::to_string).collect())
}

/// Reads the number, takes some time, and writes it back: without the lock, updates would get lost.
pub(crate) fn trade(locker: &Locker, id: u32, file: &Path) -> Result<Turn, Failure> {
    let asked = micros_now();
    let trade = TRADE_PLAYERS.of(locker, id)?.with_result(|held| {
        let acquired = micros_now();
        let number: u32 = fs::read_to_string(file)?.trim().parse()?;
        thread::sleep(Duration::from_millis(20 + chance(40)));
        held.ensure_held()?;
        fs::write(file, (number + 1).to_string())?;
        Ok::<Trade, Failure>(Trade { acquired, released: micros_now() })
    });
    let trade = match trade {
        Ok(trade) => Some(trade),
        Err(failure) if failure.downcast_ref().is_some_and(Error::is_contention) => None,
        Err(failure) => return Err(failure),
    };
    Ok(Turn { language: Language::Rust, asked, trade })
}

/// Leaves the lock alone for a moment.
pub(crate) fn rest() {
    thread::sleep(Duration::from_millis(chance(50)));
}

fn chance(below: u64) -> u64 {
    RandomState::new().hash_one(()) % below
}

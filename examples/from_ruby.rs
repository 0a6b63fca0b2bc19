//! A Ruby class with locks of redis-objects, in Rust. Both exclude each other.
//! `cargo run --example from_ruby -- redis://127.0.0.1/`
//!
//! ```ruby
//! class Team
//!   include Redis::Objects
//!   lock :draft, expiration: 15, timeout: 10
//!   lock :reorder, global: true, expiration: 60
//! end
//!
//! Team.obtain_lock(:draft, 7) { draft(7) }
//! Team.reorder_lock.lock { reorder }
//! ```

use std::env;
use std::time::Duration;

use setnx_lock::{DeclaredLock, Error, LockOptions, Locker, Protocol};

const fn expiring(seconds: u64) -> LockOptions {
    LockOptions::expiring_after(Duration::from_secs(seconds)).protocol(Protocol::Auto)
}

const DRAFT: DeclaredLock =
    DeclaredLock::in_class("Team", "draft", expiring(15).timeout(Duration::from_secs(10)));
const REORDER: DeclaredLock = DeclaredLock::in_class("Team", "reorder", expiring(60));

fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let locker = Locker::open(&url)?;

    // Compare with `Team.new(7).draft_lock.key` in Ruby before the program goes live.
    println!("key: {}", DRAFT.key(7)?);
    DRAFT.of(&locker, 7)?.with(|held| println!("{} is held", held.key()))?;
    REORDER.global(&locker)?.with(|held| println!("{} is held", held.key()))?;
    println!("{}: {}", DRAFT.key(7)?, DRAFT.of(&locker, 7)?.state()?);
    Ok(())
}

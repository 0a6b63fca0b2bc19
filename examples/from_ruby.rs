//! A worker that shares a lock with Ruby programs: it works in steps, extends the lease, stops if the lock is lost, and tells the outcomes
//! apart. `cargo run --example from_ruby -- redis://127.0.0.1/`
//!
//! ```ruby
//! class Team
//!   include Redis::Objects
//!   lock :draft, expiration: 15, timeout: 10
//! end
//!
//! Team.obtain_lock(:draft, 7) { draft(7) }
//! ```
//!
//! To see it wait, hold the lock the way redis-objects 1.4.2 and later do: `redis-cli set team:7:draft_lock "" NX PX 15000`

use std::error::Error as _;
use std::time::Duration;
use std::{env, thread};

use setnx_lock::{DeclaredLock, Error, LockGuard, LockOptions, Locker, Protocol};

const OPTIONS: LockOptions = LockOptions::expiring_after(Duration::from_secs(15))
    .timeout(Duration::from_secs(10))
    .protocol(Protocol::Auto);
const DRAFT: DeclaredLock = DeclaredLock::in_class("Team", "draft", OPTIONS);

fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let locker = Locker::open(&url)?;
    // What `Team.new(7).draft_lock.key` prints in Ruby.
    assert_eq!(DRAFT.key(7)?, "team:7:draft_lock");

    let held = match DRAFT.of(&locker, 7)?.lock() {
        Ok(held) => held,
        Err(error @ Error::Contended { .. }) => {
            println!("another worker has the lock: {error}");
            return Ok(());
        }
        Err(error @ Error::Unavailable { .. }) => {
            println!("no server: {error}: {:?}", error.source());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    match draft(&held).and_then(|()| held.release()) {
        Err(error) if error.is_lost() => {
            println!("check the draft, another worker may have drafted too: {error}");
        }
        Err(error) => println!("drafted, but not released; the lock frees itself: {error}"),
        Ok(()) => println!("drafted"),
    }
    Ok(())
}

fn draft(held: &LockGuard) -> Result<(), Error> {
    for round in 1..=3 {
        // The steps are short: ask the server whether the key was cleared. If it does not reply, the lease counts.
        held.verify().or_else(|error| if error.is_lost() { Err(error) } else { held.ensure_held() })?;
        if held.remaining().is_some_and(|left| left < Duration::from_secs(10)) {
            // If it fails for another reason than a loss, the old lease continues.
            held.extend().or_else(|error| if error.is_lost() { Err(error) } else { Ok(()) })?;
        }
        println!("round {round}");
        thread::sleep(Duration::from_millis(10));
    }
    held.ensure_held()
}

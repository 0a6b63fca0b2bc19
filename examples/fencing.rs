//! A storage that refuses writes of a former holder by fencing tokens.
//! `cargo run --example fencing -- redis://127.0.0.1/`

use std::env;
use std::time::Duration;

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Protocol};

/// In a database: a column `token`, and `UPDATE … WHERE token <= ?`.
#[derive(Default)]
struct Storage {
    greatest: u64,
    total: u64,
}

impl Storage {
    /// Checks the token and writes in one step.
    fn write(&mut self, token: u64, total: u64) -> Result<(), String> {
        if token < self.greatest {
            return Err(format!("token {token} is outdated, {} was seen", self.greatest));
        }
        self.greatest = token;
        self.total = total;
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let locker = Locker::open(&url)?;
    let options = LockOptions::expiring_after(Duration::from_secs(15)).protocol(Protocol::Auto);
    let lock = Lock::new(&locker, "example:total", options)?;
    let mut storage = Storage::default();

    // A holder that is paused after it has taken its token, and whose key an operator clears.
    let paused = lock.lock()?;
    let old = paused.fencing_token()?;
    lock.clear()?;

    let new = lock.with_result(LockGuard::fencing_token)?;
    println!("token {new}: {:?}", storage.write(new, 42));
    println!("token {old}: {:?}", storage.write(old, 7));
    println!("the total is {}", storage.total);
    Ok(())
}

//! A worker that holds a lock with a guard, stops if the lock is lost, and handles each outcome.
//! `cargo run --example guard -- redis://127.0.0.1/`

use std::time::Duration;
use std::{env, thread};

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Protocol};

fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let locker = Locker::open(&url)?; // one for the program; clones share its connections
    let options = LockOptions::expiring_after(Duration::from_secs(15)) // how long a crash keeps others out
        .auto_extend(Duration::from_secs(600)) // how long the work may take
        .timeout(Duration::from_secs(2))
        .protocol(Protocol::Auto);
    let lock = Lock::new(&locker, "example:import", options)?;

    match lock.lock().and_then(|held| import(&held).and_then(|()| held.release())) {
        Ok(()) => println!("imported"),
        Err(error) if error.is_contention() => println!("another worker imports: {error}"),
        Err(error) if error.is_lost() => println!("check what was imported: {error}"),
        Err(error @ Error::Unavailable { .. }) => println!("try again later: {error}"),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn import(held: &LockGuard) -> Result<(), Error> {
    for file in ["a.csv", "b.csv", "c.csv"] {
        held.ensure_held()?; // ends the import if the lock is lost
        println!("importing {file}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

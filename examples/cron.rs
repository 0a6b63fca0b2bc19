//! A job that several machines start at the same time, and that one of them runs.
//! `cargo run --example cron -- redis://127.0.0.1/`

use std::env;
use std::time::Duration;

use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};

fn main() -> Result<(), Error> {
    let url = env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let locker = Locker::open(&url)?;
    let options = LockOptions::expiring_after(Duration::from_secs(120))
        // Longer than the starts can be apart: a machine that starts late finds the lock held, although the job is done.
        .hold_at_least(Duration::from_secs(60))
        // Longer than the job can take: then the next start may run it.
        .auto_extend(Duration::from_secs(50 * 60))
        .protocol(Protocol::Auto);
    let lock = Lock::new(&locker, "example:hourly_report", options)?;

    // One attempt: `lock()` would wait, and then run the job a second time.
    match lock.try_lock()? {
        Some(held) => {
            println!("writing the report");
            held.release()
        }
        None => {
            println!("another machine runs the job");
            Ok(())
        }
    }
}

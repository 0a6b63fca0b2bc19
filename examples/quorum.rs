//! A lock on a majority of three independent servers.
//! `cargo run --example quorum -- redis://127.0.0.1:7001/ redis://127.0.0.1:7002/ redis://127.0.0.1:7003/`

use std::time::Duration;
use std::{env, process};

use setnx_lock::{Error, LockOptions, Locker, Protocol, Quorum};

/// The longest expiration of any lock on these servers.
const LEASE: Duration = Duration::from_secs(2);

fn open(url: &str) -> Result<Locker, Error> {
    Locker::builder(url)?
        // A server that hangs holds a call up for this long.
        .command_timeout(Duration::from_millis(500))
        // A server that restarts may have lost locks, so it is left alone until they would have expired.
        .settle_after_restart(LEASE)
        .build()
}

fn main() -> Result<(), Error> {
    let urls: Vec<_> = env::args().skip(1).collect();
    if urls.len() < 3 {
        eprintln!(
            "give the addresses of three servers or more: quorum redis://10.0.0.1/ redis://10.0.0.2/ redis://10.0.0.3/"
        );
        process::exit(64);
    }
    let lockers = urls.iter().map(|url| open(url)).collect::<Result<Vec<_>, _>>()?;
    let options = LockOptions::expiring_after(LEASE).protocol(Protocol::Auto);
    let lock = Quorum::new(&lockers, "example:nightly_report", options)?;
    match lock.with_result(|held| {
        held.ensure_held()?; // before the step that must not happen twice
        println!("held on a majority for {:?} more", held.remaining());
        Ok(())
    }) {
        Err(error @ Error::NoMajority { .. }) => println!("too few servers: {error}"),
        done => return done,
    }
    Ok(())
}

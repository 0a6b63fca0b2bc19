//! One of several processes leads: start this program several times, and end the leader with Ctrl-C or `kill`.
//! `cargo run --example leader -- redis://127.0.0.1/`

use std::process::{self, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, thread};

use setnx_lock::{CancelToken, Lock, LockGuard, LockOptions, Locker, Protocol};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A crashed leader is followed at most 1.1 s after its lease, whose length is the first argument behind the URL, in milliseconds.
const LEASE: Duration = Duration::from_secs(6);

fn micros() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros())
}

/// The leader's work, in small steps. It ends when this process leads no more, or is told to end.
fn work(held: &LockGuard, stop: &CancelToken, pause: Duration) {
    let lost = held.loss_signal();
    println!("leads {}", micros());
    while !lost.is_lost() && !stop.is_cancelled() {
        let at = micros();
        // Before a step that must not be done by two.
        if held.ensure_held().is_err() {
            break;
        }
        println!("step {at}");
        thread::sleep(pause);
    }
    println!("leads no more {}", micros());
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "redis://127.0.0.1/".to_owned());
    let lease = arguments.next().map_or(Ok(LEASE), |millis| millis.parse().map(Duration::from_millis))?;
    let stop = CancelToken::new();
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn({
        let stop = stop.clone();
        move || {
            signals.forever().next();
            stop.cancel();
        }
    });
    let builder = Locker::builder(&url)?.holder_name(format!("leader:{}", process::id()));
    let locker = builder.command_timeout(Duration::from_secs(2).min(lease / 3)).build()?;
    let lock = Lock::new(
        &locker,
        "setnx-lock:leader-example",
        LockOptions::expiring_after(lease).protocol(Protocol::Auto),
    )?;
    println!("ready {}", process::id());
    lock.lead(&stop, |held| work(held, &stop, lease / 50))?;
    Ok(())
}

//! The program that is counted: pairs on one thread, without contention. Nothing spins, since how often a thread looks
//! for its reply depends on the server.

use std::env;
use std::time::Duration;

use redis::cmd;
use setnx_lock::{Lock, LockOptions, Locker, MultiLock, Protocol, Semaphore};

use crate::Failure;

/// Longer than a run, which is slow while it is counted.
const LEASE: Duration = Duration::from_secs(3600);
const KEY: &str = "gate";
const VALUE: &str = "1795157376.4923038374650192";
pub(crate) const RAW: &str = "raw";

/// Acquires and releases once.
type Pair = Box<dyn FnMut() -> Result<(), Failure>>;

#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    open: fn(&str) -> Result<Pair, Failure>,
}

pub(crate) const CASES: &[Case] = &[
    Case { name: RAW, open: raw },
    Case { name: "Classic", open: |url| one(url, |options| options) },
    Case { name: "Watched", open: |url| one(url, |options| options.protocol(Protocol::Watched)) },
    Case { name: "Auto", open: |url| one(url, |options| options.protocol(Protocol::Auto)) },
    Case { name: "Watched, compared", open: |url| one(url, |options| options.protocol(Protocol::Watched)) },
    Case { name: "Auto, compared", open: |url| one(url, |options| options.protocol(Protocol::Auto)) },
    Case { name: "notifications", open: |url| one(url, |options| options.notify_waiters(true)) },
    Case { name: "auto_extend", open: |url| one(url, |options| options.auto_extend(LEASE)) },
    Case { name: "two keys", open: two_keys },
    Case { name: "permit", open: permit },
];

impl Case {
    /// Returns true if it is counted on a server that compares and changes a key in one command.
    pub(crate) fn is_compared(&self) -> bool {
        self.name.ends_with("compared")
    }
}

/// Does so many pairs of the case on the server that `REDIS_URL` names, and prints their allocations.
pub(crate) fn run(case: &str, pairs: u32) -> Result<(), Failure> {
    let case = CASES.iter().find(|one| one.name == case).ok_or_else(|| format!("no case {case}"))?;
    let mut pair = (case.open)(&env::var("REDIS_URL")?)?;
    let mut outcome = Ok(());
    let counted = allocation_counter::measure(|| outcome = (0..pairs).try_for_each(|_| pair()));
    println!("{}", counted.count_total);
    outcome
}

/// The commands that any lock takes at least.
fn raw(url: &str) -> Result<Pair, Failure> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    Ok(Box::new(move || {
        cmd("SETNX").arg(KEY).arg(VALUE).exec(&mut connection)?;
        Ok(cmd("DEL").arg(KEY).exec(&mut connection)?)
    }))
}

fn locker(url: &str) -> Result<Locker, Failure> {
    Ok(Locker::builder(url)?.spin(false).build()?)
}

fn options() -> LockOptions {
    LockOptions::expiring_after(LEASE)
}

fn one(url: &str, change: fn(LockOptions) -> LockOptions) -> Result<Pair, Failure> {
    let lock = Lock::new(&locker(url)?, KEY, change(options()))?;
    Ok(Box::new(move || {
        lock.lock()?.release()?;
        Ok(())
    }))
}

fn two_keys(url: &str) -> Result<Pair, Failure> {
    let locks = MultiLock::new(&locker(url)?, ["gate:0", "gate:1"], options())?;
    Ok(Box::new(move || {
        locks.lock()?.release()?;
        Ok(())
    }))
}

fn permit(url: &str) -> Result<Pair, Failure> {
    let semaphore = Semaphore::new(&locker(url)?, KEY, 8, options())?;
    Ok(Box::new(move || {
        semaphore.acquire()?.release()?;
        Ok(())
    }))
}

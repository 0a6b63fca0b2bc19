//! Other programs on the same keys, by the commands that they send: the
//! gems, an earlier version of this library, people with redis-cli.

mod before;
mod gems;
mod wire;

use std::time::Duration;

use setnx_lock::Protocol;
use setnx_lock_testing::ServerVersion;
use world::process::{Clocks, Process};
use world::run::{self, chance, random};
use world::thread;

use crate::calls::{one_of, up_to};
use crate::laws;
use crate::plan::{Conditions, Plan};
use crate::servers::{Servers, Topology};
pub(crate) use wire::time_in;
use wire::{Broken, Wire};

/// Who uses the same keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// The gem up to 1.4.1.
    OldGems,
    /// The same with another expiration.
    OldGemsThatDiffer,
    /// The gem from 1.4.3 on.
    NewGems,
    /// This library as it was before it wrote a later time in Ttl, with transactions on every version.
    Before,
}

/// A lock as another program takes it.
trait OtherLock {
    /// Asks once. Returns true if it is acquired.
    fn attempt(&mut self, wire: &mut Wire) -> Result<bool, Broken>;

    /// Returns how much of its lease is left, by its clock.
    fn left(&self) -> Duration;

    fn release(&mut self, wire: &mut Wire) -> Result<(), Broken>;
}

/// Returns who may be there: limits.md, The guarantee, says beside whom a protocol is exclusive.
pub(crate) fn choose(
    topology: Topology,
    conditions: Conditions,
    protocol: Protocol,
    version: ServerVersion,
) -> Option<Others> {
    let breaks_at_most = matches!(conditions, Conditions::NoFaults | Conditions::BrokenConnections);
    if !matches!(topology, Topology::One | Topology::Named) || !breaks_at_most || !chance(2) {
        return None;
    }
    let has_ttl = version >= ServerVersion::V2_6;
    let is_ttl = has_ttl && matches!(protocol, Protocol::Ttl | Protocol::Auto);
    let choices = [
        Some(Others::OldGems),
        Some(Others::OldGemsThatDiffer),
        is_ttl.then_some(Others::NewGems),
        (has_ttl && protocol != Protocol::Classic).then_some(Others::Before),
    ];
    one_of(&choices.into_iter().flatten().map(Some).collect::<Vec<_>>())
}

/// Starts some of them.
pub(crate) fn start(plan: &Plan, servers: &Servers, others: Others) {
    for number in 0..random(1..4) {
        let (plan, servers) = (plan.clone(), servers.clone());
        let ahead = i64::try_from(random(0..400_000)).unwrap_or_default();
        Process::start(&format!("other {number}"), Clocks { ahead, faster: 0 }, move || {
            let mut wire = Wire::to(&servers, plan.command_timeout);
            let pause = Duration::from_millis(one_of(&[1, 20, 500]));
            while run::now() < plan.length {
                thread::sleep(up_to(pause));
                let key = random(0..plan.keys);
                let expiration = plan.expirations[usize::try_from(key).unwrap_or_default()];
                if use_lock(others, &format!("key {key}"), expiration, &mut wire).is_err() {
                    run::note("an error");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        });
    }
}

/// Takes a lock again and again until the run's time is this.
pub(crate) fn loop_on(servers: &Servers, others: Others, key: &str, expiration: Duration, until: Duration) {
    let mut wire = Wire::to(servers, Duration::from_secs(5));
    while run::now() < until {
        thread::sleep(up_to(Duration::from_millis(20)));
        if use_lock(others, key, expiration, &mut wire).is_err() {
            run::note("an error");
        }
    }
}

/// Waits for a lock as long as it takes, and has it for a moment.
pub(crate) fn have_once(servers: &Servers, others: Others, key: &str, expiration: Duration, work: Duration) {
    let mut wire = Wire::to(servers, Duration::from_secs(600));
    let mut lock = lock_of(others, key, expiration);
    while !matches!(lock.attempt(&mut wire), Ok(true)) {
        thread::sleep(Duration::from_millis(100));
    }
    thread::sleep(work);
    let _released = lock.release(&mut wire);
}

fn lock_of(others: Others, key: &str, expiration: Duration) -> Box<dyn OtherLock> {
    match others {
        Others::OldGems => Box::new(gems::OldGem::new(key, expiration)),
        Others::OldGemsThatDiffer => {
            Box::new(gems::OldGem::new(key, expiration + Duration::from_millis(random(1..4000))))
        }
        Others::NewGems => Box::new(gems::NewGem::new(key, expiration)),
        Others::Before => Box::new(before::Before::new(key, expiration)),
    }
}

/// Takes a lock as a program does that catches all errors, and works a while.
fn use_lock(others: Others, key: &str, expiration: Duration, wire: &mut Wire) -> Result<(), Broken> {
    let mut lock = lock_of(others, key, expiration);
    let timeout = Duration::from_millis(one_of(&[0, 1000, 5000]));
    let began = run::now();
    run::note(&format!("wants {key}"));
    while !lock.attempt(wire)? {
        if run::now().saturating_sub(began) >= timeout {
            run::note("LockTimeout");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(100));
    }
    let id = laws::acquired(key, lock.left(), None);
    // A release that comes at the last moment may come too late.
    thread::sleep(up_to(lock.left() / one_of(&[2, 10, 100])));
    laws::leaves(id);
    laws::forget(id);
    lock.release(wire)
}

/// Where a key is moved to, which no program of ours uses.
pub(crate) const ELSEWHERE: &str = "elsewhere";

/// What a person does to a key, which takes it from its holder.
pub(crate) fn type_something(servers: &Servers, key: &str) {
    let lines: [&[&str]; 6] = [
        &["DEL", key],
        &["EXPIRE", key, "1"],
        &["PERSIST", key],
        &["RENAME", key, ELSEWHERE],
        &["SET", key, "1"],
        &["SET", key, "something else"],
    ];
    let line = one_of(&lines);
    run::note(&format!("redis-cli {}", line.join(" ")));
    let _reply = servers.of(key).look(line);
    if line[0] == "SET" {
        // Which has to be cleared.
        let (servers, key) = (servers.clone(), key.to_owned());
        run::after(Duration::from_secs(3), move || {
            let _reply = servers.of(&key).look(&["DEL", &key]);
        });
    }
}

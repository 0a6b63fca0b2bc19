//! What the documents promise, looked at while a fleet runs. The first law that is broken ends the run.
//!
//! | law | where it stands |
//! |---|---|
//! | no two valid leases on a key | limits.md, The guarantee |
//! | a key's fencing tokens grow, or after failovers differ | limits.md, Fencing tokens |
//! | a lock is lost for a documented reason only | limits.md, A lease ends; One server |
//! | each call ends in its time | limits.md, How long a call takes |
//! | a free lock is acquired by one that waits for it | limits.md, Which waiter is next; guide.md, Waiting and fairness |
//! | nothing is left: keys, connections, threads | operations.md |
//! | a call fails only if something was wrong | error.rs, Error |
//! | no panic but the program's own | |

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use setnx_lock::{Error, LossReason};
use world::process::Process;
use world::run;

use crate::servers::Servers;

/// How soon (limits.md, Different expirations), less the time of a command.
const KNOWN_WITHIN: Duration = Duration::from_millis(400);

static LAWS: Mutex<Laws> = Mutex::new(Laws::new());

/// Names a hold: its number in the run.
pub(crate) type HoldId = u64;

#[derive(Debug)]
struct Laws {
    holds: BTreeMap<HoldId, Held>,
    count: HoldId,
    /// The last fencing token of each key.
    tokens: BTreeMap<String, Taken>,
    /// Holds that go on with one that another process has begun.
    resumed: BTreeMap<HoldId, HoldId>,
    /// When each key became free, if it is free.
    free_since: BTreeMap<String, Duration>,
    /// All fencing tokens of each key, and whose they are, where they do not grow.
    given: BTreeMap<(String, u64), HoldId>,
    servers: Option<Servers>,
    rules: Rules,
}

/// Those that lose a takeover and overwrite the winner's value (limits.md, Different expirations).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Losers {
    /// There are none.
    None,
    /// A holder may take them for another holder.
    Some,
    /// A holder knows them that looks soon after its acquisition: Watched and Ttl.
    Known,
}

/// What is promised of the fencing tokens of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tokens {
    /// Each is greater than those before.
    Grow,
    /// None is given to two holds (limits.md, Fencing tokens).
    Differ,
    /// Nothing is.
    May,
}

/// Which laws hold in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Two valid leases cannot be.
    pub(crate) is_exclusive: bool,
    pub(crate) losers: Losers,
    /// What a key's fencing tokens do.
    pub(crate) tokens: Tokens,
    /// The server forgets nothing, so a lock is lost by its end alone.
    pub(crate) keeps_keys: bool,
    /// How long a lock may be free while somebody waits for it.
    pub(crate) free_at_most: Option<Duration>,
}

/// A lock that somebody relies on.
#[derive(Clone, Debug)]
struct Held {
    key: String,
    who: String,
    process: Process,
    since: Duration,
    /// The end of its lease in true time, as its holder knows it.
    until: Duration,
    is_extended: bool,
    is_left: bool,
}

/// A fencing token.
#[derive(Clone, Copy, Debug)]
struct Taken {
    holder: HoldId,
    token: u64,
    /// Until when its counter is kept.
    kept_until: Duration,
}

impl Laws {
    const fn new() -> Self {
        let rules = Rules {
            is_exclusive: false,
            losers: Losers::None,
            tokens: Tokens::May,
            keeps_keys: false,
            free_at_most: None,
        };
        Self {
            holds: BTreeMap::new(),
            count: 0,
            tokens: BTreeMap::new(),
            resumed: BTreeMap::new(),
            free_since: BTreeMap::new(),
            given: BTreeMap::new(),
            servers: None,
            rules,
        }
    }
}

fn laws() -> MutexGuard<'static, Laws> {
    LAWS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn set_rules(servers: &Servers, rules: Rules) {
    let mut laws = laws();
    (laws.servers, laws.rules) = (Some(servers.clone()), rules);
}

/// Returns how often a lock was acquired.
pub(crate) fn holds() -> u64 {
    laws().count
}

/// Ends the run.
pub(crate) fn broken(law: &str) -> ! {
    let text = format!("broken law at {:.6} s by {}: {law}", run::now().as_secs_f64(), run::who());
    println!("{text}");
    run::fail()
}

/// Counts a panic as a broken law. One that a program means unwinds without the hook.
pub(crate) fn watch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        println!("broken law: {panic}\n{}", std::backtrace::Backtrace::capture());
        run::fail()
    }));
}

/// Notes that a lock was acquired, whose lease lasts for this time by the clock of its holder. `waited_since`: since
/// when its holder has waited for it.
pub(crate) fn acquired(key: &str, left: Duration, waited_since: Option<Duration>) -> HoldId {
    let mut laws = laws();
    laws.count += 1;
    let id = laws.count;
    let held = Held {
        key: key.to_owned(),
        who: run::who(),
        process: Process::current(),
        since: run::now(),
        until: run::later(left),
        is_extended: false,
        is_left: false,
    };
    let free = laws.free_since.remove(key);
    let at_most = laws.rules.free_at_most;
    laws.holds.insert(id, held);
    drop(laws);
    run::note(&format!("holds {key} for {left:?}"));
    check(id);
    if let (Some(free), Some(waited), Some(at_most)) = (free, waited_since, at_most) {
        let idle = run::now().saturating_sub(free.max(waited));
        if idle > at_most {
            broken(&format!("{key} was free for {idle:?} while it was waited for"));
        }
    }
    id
}

/// Notes what is left of a lease that its holder has looked at.
pub(crate) fn still_held(id: HoldId, left: Duration) {
    let until = run::later(left);
    if let Some(held) = laws().holds.get_mut(&id) {
        held.until = until;
        held.is_extended = false;
    }
    check(id);
}

/// Looks for another valid lease on the key of one that is valid now.
fn check(id: HoldId) {
    let laws = laws();
    let now = run::now();
    let Some(own) = laws.holds.get(&id).filter(|own| own.until > now && !own.is_left) else { return };
    // One that was killed relies on nothing, and one that extends its lease on what ends first, which it does not say.
    let is_valid =
        |held: &Held| held.until > now && !held.is_extended && !held.is_left && !held.process.is_dead();
    let is_other = |(other, held): &(&HoldId, &Held)| **other != id && held.key == own.key && is_valid(held);
    if let Some((_, other)) = laws.holds.iter().find(is_other)
        && laws.rules.is_exclusive
    {
        let text =
            format!("{} holds {} too, for {:?} more", other.who, own.key, other.until.saturating_sub(now));
        drop(laws);
        broken(&text);
    }
}

/// Notes that a holder relies on its lock no more. What it is told of it still counts, until it is [forgotten](forget).
pub(crate) fn leaves(id: HoldId) {
    if let Some(held) = laws().holds.get_mut(&id) {
        held.is_left = true;
    }
}

/// Nothing more is told of a hold.
pub(crate) fn forget(id: HoldId) {
    laws().holds.remove(&id);
}

/// Notes that a release has ended. The lock is free unless that
/// has failed, it is left to expire, or another has it already.
pub(crate) fn released(key: &str) {
    let servers = laws().servers.clone();
    let is_free = servers.is_some_and(|servers| servers.of(key).look(&["EXISTS", key]) == "0");
    let now = run::now();
    let mut laws = laws();
    if is_free {
        laws.free_since.entry(key.to_owned()).or_insert(now);
    } else {
        laws.free_since.remove(key);
    }
}

/// A hold goes on with another process's.
pub(crate) fn same_hold(id: HoldId, before: HoldId) {
    let mut laws = laws();
    let first = laws.resumed.get(&before).copied().unwrap_or(before);
    laws.resumed.insert(id, first);
}

/// A call has waited for a lock since a time, and was told that another had it.
pub(crate) fn waited_in_vain(key: &str, since: Duration) {
    let (free, at_most) = {
        let laws = laws();
        (laws.free_since.get(key).copied(), laws.rules.free_at_most)
    };
    if let (Some(free), Some(at_most)) = (free, at_most) {
        let idle = run::now().saturating_sub(free.max(since));
        if idle > at_most {
            broken(&format!("{key} was free for {idle:?} before a call gave up that waited for it"));
        }
    }
}

/// A call has failed, which ended just now.
pub(crate) fn failed(error: &Error) {
    match error {
        // Each server of a quorum has an answer of its own.
        Error::Contended { .. }
        | Error::Cancelled { .. }
        | Error::ShutDown { .. }
        | Error::Lost { .. }
        | Error::NoMajority { .. } => {}
        Error::Unavailable { .. } | Error::InDoubt { .. } | Error::Refused { .. } => {
            if world::network::was_well() {
                broken(&format!("a call fails although nothing was wrong: {}", error.chain()));
            }
        }
        Error::Several { cause, others, .. } => {
            failed(cause);
            others.iter().for_each(failed);
        }
        _ => broken(&format!("no program here makes this mistake: {}", error.chain())),
    }
}

/// Notes a fencing token of a hold, whose counter is kept for this time.
pub(crate) fn token(id: HoldId, token: u64, kept_for: Option<Duration>) {
    let mut laws = laws();
    let now = run::now();
    let Some(held) = laws.holds.get(&id).filter(|held| held.until > now).cloned() else { return };
    let holder = laws.resumed.get(&id).copied().unwrap_or(id);
    if laws.rules.tokens == Tokens::Differ && kept_for.is_none() {
        let before = laws.given.insert((held.key.clone(), token), holder);
        if let Some(before) = before.filter(|before| *before != holder) {
            drop(laws);
            broken(&format!("hold {before} of {} had the token {token}, too", held.key));
        }
        return;
    }
    let kept_until = kept_for.map_or(Duration::MAX, |time| now + time);
    let Some(before) = laws.tokens.insert(held.key.clone(), Taken { holder, token, kept_until }) else {
        return;
    };
    // Asked again it is the same.
    let grows = if before.holder == holder { before.token == token } else { before.token < token };
    if !grows && now < before.kept_until && laws.rules.tokens == Tokens::Grow {
        drop(laws);
        broken(&format!("the token of {} is {token} after {}", held.key, before.token));
    }
}

/// A holder extends its lease. Until that has ended the lease counts that ends first (guide.md, Extend the lease).
pub(crate) fn extends(id: HoldId) {
    if let Some(held) = laws().holds.get_mut(&id) {
        held.is_extended = true;
    }
}

/// A holder was told that its lock is lost.
pub(crate) fn lost(id: HoldId, reason: Option<&LossReason>, why: &dyn std::fmt::Display) {
    let now = run::now();
    let (held, rules) = {
        let laws = laws();
        (laws.holds.get(&id).filter(|held| held.until > now).cloned(), laws.rules)
    };
    // A clock that is set forward ends leases (limits.md, Clocks).
    let held = held.filter(|held| run::clock_set() < held.since);
    let is_allowed = |held: &Held| match reason {
        Some(LossReason::Expired) => held.is_extended,
        // In Classic it may be a loser's value that the holder has not looked for (limits.md, Different expirations).
        Some(LossReason::Taken(_)) => {
            rules.losers == Losers::Some
                || rules.losers == Losers::Known && now.saturating_sub(held.since) > KNOWN_WITHIN
        }
        _ => false,
    };
    if let Some(held) = held.filter(|held| rules.keeps_keys && !is_allowed(held)) {
        let left = held.until.saturating_sub(now);
        broken(&format!("{} is lost {left:?} before the end of its lease: {why}", held.key));
    }
}

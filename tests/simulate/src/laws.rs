//! What the documents promise, looked at while a fleet runs. The first law that is broken ends the run.
//!
//! | law | where it stands |
//! |---|---|
//! | no two valid leases on a key | limits.md, The guarantee |
//! | a key's fencing tokens grow | limits.md, Fencing tokens |
//! | a lock is lost for a documented reason only | limits.md, A lease ends; One server |
//! | each call ends in its time | limits.md, How long a call takes |
//! | a free lock is acquired by one that waits for it | limits.md, Which waiter is next; guide.md, Waiting and fairness |
//! | nothing is left: keys, connections, threads | operations.md |
//! | no panic but the program's own | |

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use world::run;

static LAWS: Mutex<Laws> = Mutex::new(Laws::new());

/// A hold of this many is meant.
pub(crate) type HoldId = u64;

#[derive(Debug)]
struct Laws {
    holds: BTreeMap<HoldId, Held>,
    count: HoldId,
    /// The last fencing token of each key, and whose it is.
    tokens: BTreeMap<String, (HoldId, u64)>,
    /// When each key became free, if it is free.
    free_since: BTreeMap<String, Duration>,
    rules: Rules,
}

/// Which laws hold in this run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Two valid leases cannot be.
    pub(crate) is_exclusive: bool,
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
    /// The end of its lease in true time, as its holder knows it.
    until: Duration,
}

impl Laws {
    const fn new() -> Self {
        let rules = Rules { is_exclusive: false, keeps_keys: false, free_at_most: None };
        Self { holds: BTreeMap::new(), count: 0, tokens: BTreeMap::new(), free_since: BTreeMap::new(), rules }
    }
}

fn laws() -> MutexGuard<'static, Laws> {
    LAWS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn set_rules(rules: Rules) {
    laws().rules = rules;
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

/// Notes that a lock was acquired, whose lease lasts for this time by the clock of its holder. `waited_since`: since when its holder has waited
/// for it.
pub(crate) fn acquired(key: &str, left: Duration, waited_since: Option<Duration>) -> HoldId {
    let mut laws = laws();
    laws.count += 1;
    let id = laws.count;
    let held = Held { key: key.to_owned(), who: run::who(), until: run::later(left) };
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
    }
    check(id);
}

/// Looks for another valid lease on the key of one that is valid now.
fn check(id: HoldId) {
    let laws = laws();
    let now = run::now();
    let Some(own) = laws.holds.get(&id).filter(|own| own.until > now) else { return };
    let is_other =
        |(other, held): &(&HoldId, &Held)| **other != id && held.key == own.key && held.until > now;
    if let Some((_, other)) = laws.holds.iter().find(is_other)
        && laws.rules.is_exclusive
    {
        let text =
            format!("{} holds {} too, for {:?} more", other.who, own.key, other.until.saturating_sub(now));
        drop(laws);
        broken(&text);
    }
}

/// Notes that a holder relies on its lock no more.
pub(crate) fn leaves(id: HoldId) {
    laws().holds.remove(&id);
}

/// Notes that a lock is free now, by a release that has succeeded.
pub(crate) fn freed(key: &str) {
    let now = run::now();
    laws().free_since.insert(key.to_owned(), now);
}

/// Notes that whether a key is free is not known.
pub(crate) fn unknown(key: &str) {
    laws().free_since.remove(key);
}

/// Notes a fencing token of a hold.
pub(crate) fn token(id: HoldId, token: u64) {
    let mut laws = laws();
    let now = run::now();
    let Some(held) = laws.holds.get(&id).filter(|held| held.until > now).cloned() else { return };
    let Some((holder, before)) = laws.tokens.insert(held.key.clone(), (id, token)) else { return };
    // Asked again it is the same.
    let grows = if holder == id { before == token } else { before < token };
    if !grows && laws.rules.keeps_keys {
        drop(laws);
        broken(&format!("the token of {} is {token} after {before}", held.key));
    }
}

/// A holder was told that its lock is lost.
pub(crate) fn lost(id: HoldId, why: &dyn std::fmt::Display) {
    let now = run::now();
    let (held, rules) = {
        let laws = laws();
        (laws.holds.get(&id).filter(|held| held.until > now).cloned(), laws.rules)
    };
    if let Some(held) = held.filter(|_| rules.keeps_keys && rules.is_exclusive) {
        let left = held.until.saturating_sub(now);
        broken(&format!("{} is lost {left:?} before the end of its lease: {why}", held.key));
    }
}

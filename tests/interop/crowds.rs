//! Eight Ruby processes wait for the lock of a Rust holder that crashes. They poll in step, and so that they meet the
//! moment at which the lock becomes free: which of them get in is up to the gem, unless the server has removed the key
//! before. `SETNX_LOCK_TEST_ROUNDS=300` has more rounds, also for the protocols after which newer gems let in two, and
//! prints what came of them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{env, mem};

use libtest_mimic::Trial;
use setnx_lock::{LockOptions, Protocol, Version, redis};

use crate::support::ruby::{CLASSIC, Gem, RubyCrowd, TTL, TTL_1_4_2};
use crate::support::{LONG, Outcome, RedisServer, Target, millis, trial};

/// How many Ruby processes wait.
const WAITING: usize = 8;
const EXPIRATION: Duration = Duration::from_millis(100);
/// How long before the lock is free they begin to poll, in the first of eight rounds, and
/// how much later in each of the others: after three polls of 0.1 s and some commands
/// they meet the moment at which it becomes free, or just miss it on either side.
const POLLED_BEFORE: Duration = Duration::from_millis(310);
const SPREAD: Duration = Duration::from_micros(1500);

/// What makes it hard to let in one at a time.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    /// How far the clocks of the Ruby processes are ahead.
    ahead: Duration,
    /// How long the server answers nobody when the lock is acquired.
    pause: Duration,
}

const NONE: Trouble = Trouble { ahead: Duration::ZERO, pause: Duration::ZERO };

pub(crate) fn trials() -> Vec<Trial> {
    let rounds = env::var("SETNX_LOCK_TEST_ROUNDS").ok();
    let protocols: &[Protocol] = match rounds {
        None => &[Protocol::Ttl],
        Some(_) => &[Protocol::Ttl, Protocol::Watched, Protocol::Classic],
    };
    let rounds = rounds.map_or(3, |rounds| rounds.parse().expect("SETNX_LOCK_TEST_ROUNDS is a number"));
    // That a real gem is missing is told by the tests of `interop`.
    let gems = Gem::available().unwrap_or_default();
    let crash = |gem: Gem, protocol: Protocol, trouble: Trouble, name: &str| {
        let name =
            format!("crowds::{protocol:?}::gem_{gem}: a_crash_lets_in_one_ruby_process_at_a_time{name}");
        trial(name.to_lowercase(), move || a_crash_lets_in_one_at_a_time(gem, protocol, trouble, rounds))
    };
    let troubles = [
        ("_whose_clocks_are_ahead_by_0.7_s", Trouble { ahead: millis(700), ..NONE }),
        ("_whose_clocks_are_ahead_by_5_s", Trouble { ahead: millis(5000), ..NONE }),
        ("_of_a_server_that_was_late", Trouble { pause: millis(700), ..NONE }),
    ];
    let mut trials = Vec::new();
    for gem in gems.into_iter().filter(|gem| [CLASSIC, TTL_1_4_2, TTL].contains(gem)) {
        trials.extend(protocols.iter().map(|protocol| crash(gem, *protocol, NONE, "")));
        if gem == TTL {
            trials.extend(troubles.map(|(name, trouble)| crash(gem, Protocol::Ttl, trouble, name)));
        }
    }
    trials
}

fn a_crash_lets_in_one_at_a_time(gem: Gem, protocol: Protocol, trouble: Trouble, rounds: usize) -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let target = Target::of(&server).with(protocol);
    if target.version < Version::new(2, 6, 12) && gem != CLASSIC {
        return Ok(());
    }
    let key = target.key("crowd");
    let Trouble { ahead, pause } = trouble;
    let mut crowd = RubyCrowd::start(gem, &target.url, WAITING, &key.key.to_string(), LONG, ahead)?;
    let lock = target.lock(&key, LockOptions::expiring_after(EXPIRATION + pause).timeout(LONG));
    let mut raw = redis::Client::open(target.url.as_str())?.get_connection()?;
    let (mut contended, mut overlaps) = (0, 0);
    let mut crashes = 0;
    // A round without contention shows nothing.
    while contended < rounds {
        assert!(crashes < 50 + 10 * rounds, "{contended} of {crashes} rounds were contended");
        if !pause.is_zero() {
            redis::cmd("CLIENT").arg("PAUSE").arg(pause.as_millis().to_string()).exec(&mut raw)?;
        }
        let held = lock.lock()?;
        // Where the server removes the key, it knows when.
        let left: i64 = redis::cmd("PTTL").arg(key.key.as_bytes()).query(&mut raw)?;
        let free = match u64::try_from(left) {
            Ok(left) => SystemTime::now() + millis(left),
            Err(_) => held.expires_at().map(SystemTime::from).ok_or("it expires")? + target.extra_time(),
        };
        mem::forget(held);
        let begin = free - POLLED_BEFORE + SPREAD * u32::try_from(crashes % 8)?;
        let round = crowd.round(begin.max(SystemTime::now()))?;
        crashes += 1;
        contended += usize::from(round.contended > 1);
        overlaps += usize::from(round.inside > 1);
    }
    println!(
        "{protocol:?}, gem {gem}, {trouble:?}: {crashes} crashes, {contended} contended, {overlaps} with two Ruby processes inside"
    );
    let lets_in_one = protocol == Protocol::Ttl || gem == CLASSIC;
    assert!(overlaps == 0 || !lets_in_one, "{overlaps} of {crashes} rounds had two holders");
    Ok(())
}

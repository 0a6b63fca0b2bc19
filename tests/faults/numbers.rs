//! Fencing tokens over failovers: no number comes twice, those of a master are in the order of its grants, and each of
//! a later epoch is greater.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use setnx_lock::redis::cmd;
use setnx_lock::{Error, Lock, LockOptions, Locker, LockerBuilder, Protocol};
use testkit::Failure;
use testkit::cluster::Cluster;
use testkit::failover::{Failover, MASTER, ask, follows};

use crate::support::notified::until;
use crate::support::{LONG, Outcome, millis, trial};

pub(crate) fn trials() -> Vec<Trial> {
    use Disturbance::{Killed, Planned};
    const FEW: &[Disturbance] = &[Planned, Killed, Planned];
    vec![
        trial("failover::no_number_comes_twice_behind_sentinels", || behind_sentinels(FEW)),
        trial("failover::no_number_comes_twice_in_a_cluster", || in_a_cluster(FEW)),
    ]
}

/// What is done to a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Asked for: the old master goes on granting until it is told.
    Planned,
    Killed,
}

pub(super) const DOWN_AFTER: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(4);
const PROGRAMS: usize = 4;
const THREADS: usize = 4;
const KEYS: usize = 4;
/// How long the locks are used between two failovers.
const USED_FOR: Duration = millis(700);

/// A token that a holder has got.
#[derive(Clone, Copy, Debug)]
struct Taken {
    key: usize,
    token: u64,
    /// When, by the clock of this machine.
    at: Instant,
    is_ordered: bool,
}

/// The tokens of a run.
#[derive(Debug, Default)]
struct Tokens(Mutex<Vec<Taken>>);

impl Tokens {
    fn push(&self, taken: Taken) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(taken);
    }

    /// Waits until a token of each key was taken since then, and for a while.
    fn until_taken(&self, since: Instant) {
        until("tokens of all keys are taken", || {
            let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let late = taken.iter().rev().take_while(|taken| taken.at >= since);
            late.map(|taken| taken.key).collect::<BTreeSet<_>>().len() == KEYS
        });
        thread::sleep(USED_FOR);
    }
}

/// What is wrong with the tokens of a run.
struct Verdict {
    count: usize,
    twice: usize,
    /// Greater ones that came before smaller ones of the same epoch.
    disordered: usize,
    epochs: BTreeSet<u64>,
    /// Of holders that an old master had granted the lock after
    /// the new one had given a token: the storage refuses them.
    refused: usize,
}

impl Verdict {
    fn of(tokens: Tokens) -> Self {
        let mut taken = tokens.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        taken.sort_by_key(|taken| taken.at);
        let (mut seen, mut greatest) = (BTreeSet::new(), BTreeMap::new());
        let mut verdict =
            Self { count: taken.len(), twice: 0, disordered: 0, epochs: BTreeSet::new(), refused: 0 };
        for Taken { key, token, is_ordered, .. } in taken {
            let epoch = token >> 32;
            verdict.epochs.insert(epoch);
            verdict.twice += usize::from(!seen.insert((key, token)));
            if is_ordered {
                let last = greatest.entry((key, epoch)).or_insert(0);
                verdict.disordered += usize::from(token < *last);
                *last = token.max(*last);
            }
            let stored = greatest.entry((key, u64::MAX)).or_insert(0);
            verdict.refused += usize::from(token < *stored);
            *stored = token.max(*stored);
        }
        verdict
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, twice, disordered, epochs, refused } = self;
        write!(
            f,
            "{count} tokens of epochs {epochs:?}: {twice} came twice, {disordered} out of order; the storage refuses {refused}"
        )
    }
}

/// Takes tokens in several programs of several threads while `disturb` runs.
fn take_tokens(
    open: impl Fn(usize) -> Result<Locker, Error>,
    disturb: impl FnOnce(&Tokens) -> Result<(), Failure>,
) -> Result<Verdict, Failure> {
    let (tokens, is_over) = (Tokens::default(), AtomicBool::new(false));
    let lockers = (0..PROGRAMS).map(open).collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| -> Result<(), Failure> {
        let (tokens, is_over) = (&tokens, &is_over);
        let work = |n: usize| {
            let locker = &lockers[n % PROGRAMS];
            scope.spawn(move || work(n, locker, tokens, is_over))
        };
        let workers: Vec<_> = (0..PROGRAMS * THREADS).map(work).collect();
        let ends = Ends(is_over);
        let disturbed = disturb(tokens);
        drop(ends);
        workers.into_iter().try_for_each(|worker| worker.join().unwrap())?;
        disturbed
    })?;
    Ok(Verdict::of(tokens))
}

/// Has the workers end, also if the trial fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn work(n: usize, locker: &Locker, tokens: &Tokens, is_over: &AtomicBool) -> Result<(), Error> {
    // One of four polls and deletes without a look.
    let protocol = if n / PROGRAMS == 0 { Protocol::Classic } else { Protocol::Auto };
    let options = LockOptions::expiring_after(LEASE).protocol(protocol).poll_interval(millis(5));
    let mut key = n % KEYS;
    while !is_over.load(Ordering::Relaxed) {
        key = (key + 1) % KEYS;
        let outcome = Lock::new(locker, format!("fenced:{key}"), options)?
            .with_result(|held| Ok((held.fencing_token()?, Instant::now())));
        match outcome {
            Ok((token, at)) => {
                let is_ordered = protocol == Protocol::Auto;
                tokens.push(Taken { key, token, at, is_ordered });
            }
            Err(error) if error.is_transient() || error.is_lost() => {}
            Err(Error::InDoubt { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) fn quick(builder: LockerBuilder) -> LockerBuilder {
    builder.retry_for(LONG).connect_timeout(millis(300)).command_timeout(millis(500))
}

/// What a master's configuration has in our own advice.
pub(super) const ADVISED: &str = "min-replicas-to-write 1";

fn behind_sentinels(disturbances: &[Disturbance]) -> Outcome {
    let mut failover = Failover::start_with(DOWN_AFTER, ADVISED, "")?;
    let addresses: Vec<String> =
        failover.addresses().iter().map(|address| format!("redis://{address}")).collect();
    let verdict = take_tokens(
        |_| quick(Locker::sentinel_builder(&addresses, MASTER)?).build(),
        |tokens| {
            for disturbance in disturbances {
                tokens.until_taken(Instant::now());
                fail_over(&mut failover, *disturbance)?;
            }
            tokens.until_taken(Instant::now());
            Ok(())
        },
    )?;
    println!("behind Sentinels: {verdict}");
    assert_eq!((verdict.twice, verdict.disordered), (0, 0), "{verdict}");
    assert!(verdict.epochs.len() > disturbances.len(), "each failover has an epoch: {verdict}");
    Ok(())
}

pub(super) fn fail_over(failover: &mut Failover, disturbance: Disturbance) -> Result<(), Failure> {
    let master = failover.master();
    match disturbance {
        Disturbance::Planned => {
            let sentinels = &failover.sentinels;
            let asked = || ask::<String>(&sentinels[0], cmd("SENTINEL").arg("FAILOVER").arg(MASTER)).is_ok();
            until("the Sentinels can fail over", asked);
            let next = failover.until_other_than(master);
            // It is told to follow the next one, and is not restarted.
            let server = &failover.servers[master];
            let port = failover.servers[next].port();
            until("the old master follows", || follows(server, port).unwrap_or(false));
            return Ok(());
        }
        Disturbance::Killed => failover.servers[master].stop(),
    }
    let next = failover.until_other_than(master);
    failover.rejoin(master, next)?;
    let advised: Vec<&str> = ADVISED.split(' ').collect();
    Ok(ask(&failover.servers[master], cmd("CONFIG").arg("SET").arg(&advised))?)
}

fn in_a_cluster(disturbances: &[Disturbance]) -> Outcome {
    let mut cluster = Cluster::start(DOWN_AFTER)?;
    let addresses: Vec<String> = cluster.nodes.iter().map(|node| node.address().to_string()).collect();
    let slot = cluster.slot("fenced:0")?;
    let verdict = take_tokens(
        |_| quick(Locker::cluster_builder(&addresses)?).build(),
        |tokens| {
            for disturbance in disturbances {
                tokens.until_taken(Instant::now());
                cluster.fail_over(slot, |cluster, master, replica| {
                    match disturbance {
                        Disturbance::Planned => {
                            return cluster.ask(replica, cmd("CLUSTER").arg("FAILOVER"));
                        }
                        Disturbance::Killed => cluster.nodes[master].stop(),
                    }
                    Ok(())
                })?;
            }
            tokens.until_taken(Instant::now());
            Ok(())
        },
    )?;
    println!("in a cluster: {verdict}");
    assert_eq!((verdict.twice, verdict.disordered), (0, 0), "{verdict}");
    assert!(verdict.epochs.len() > disturbances.len(), "each failover has an epoch: {verdict}");
    Ok(())
}

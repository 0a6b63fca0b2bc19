//! Threads with keys of their own: nobody else holds one, so that no hold may be reported lost. What the threads share
//! is disturbed: the server refuses, other clients write other threads' keys, the keys have several slots of a cluster.

mod cut;
mod kept;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::redis::{Client, cmd};
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Protocol, r2d2};
use setnx_lock_testing::free_port;
use testkit::RedisServer;
use testkit::cluster::Cluster;
use testkit::relay::Relay;

use super::Failure;

/// What is disturbed, under which name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    Cluster,
    OneNode,
    OneNodeAsServer,
    Full,
    NoReplicas,
    Takeover,
    Writer,
    TextCounter,
    Kept,
    KeptInCluster,
    HungNode,
    KeptWhileCut,
    LateReplies,
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) threads: usize,
    pub(crate) holds: usize,
    /// How long a command and a reply take to arrive.
    pub(crate) delay: Duration,
    pub(crate) protocol: Protocol,
    /// True if a pool of the program's lends the connections to one server.
    pub(crate) on_pool: bool,
}

/// What came of the holds of threads whose keys nobody else wrote.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) holds: usize,
    /// The errors that say that a lock was lost: each is false.
    pub(crate) lost: Vec<String>,
    pub(crate) refused: usize,
    pub(crate) failed: Vec<String>,
    pub(crate) took: Duration,
    /// The least time that any kept lock had left.
    pub(crate) least_left: Option<Duration>,
    /// How long the longest call has taken.
    pub(crate) longest: Option<Duration>,
}

/// How many connections a pool lends.
const LENT: u32 = 8;
/// By when released keys are deleted, also where a machine stalls.
const LEFT_BY: Duration = Duration::from_secs(5);
/// Keys that another client writes all the time.
const WRITTEN: usize = 8;

impl Tally {
    /// Returns true if there were holds, and none was reported lost or failed otherwise than by a refusal.
    pub(crate) fn is_clean(&self) -> bool {
        self.holds > 0 && self.lost.is_empty() && self.failed.is_empty()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holds, lost, refused, failed, took, least_left, longest } = self;
        let rate = u128::try_from(*holds).unwrap_or(0) * 1000 / took.as_millis().max(1);
        let (lost, failed) = (lost.len(), failed.len());
        write!(
            f,
            "{holds} holds, {rate} a second; {lost} reported lost, {refused} refused, {failed} failed"
        )?;
        least_left.map_or(Ok(()), |left| write!(f, "; at least {left:.2?} left"))?;
        longest.map_or(Ok(()), |longest| write!(f, "; the longest call took {longest:.2?}"))
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(_, situation)| situation == self);
        f.write_str(named.map_or("?", |(name, _)| name))
    }
}

impl FromStr for Situation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, situation)| situation).ok_or_else(|| format!("there is no situation {text}"))
    }
}

impl Situation {
    pub(crate) const ALL: [(&'static str, Self); 13] = [
        ("cluster", Self::Cluster),
        ("one-node-cluster", Self::OneNode),
        ("one-node-cluster-as-server", Self::OneNodeAsServer),
        ("full-server", Self::Full),
        ("no-replicas", Self::NoReplicas),
        ("takeovers", Self::Takeover),
        ("writer-of-other-keys", Self::Writer),
        ("text-in-counters", Self::TextCounter),
        ("kept-locks", Self::Kept),
        ("kept-locks-in-cluster", Self::KeptInCluster),
        ("hung-node", Self::HungNode),
        ("kept-locks-and-cuts", Self::KeptWhileCut),
        ("late-replies-and-cuts", Self::LateReplies),
    ];

    /// Has the threads hold their locks until there are enough holds.
    pub(crate) fn run(self, plan: &Plan) -> Result<Tally, Failure> {
        let work = Work { plan: *plan, tally: Mutex::default(), done: AtomicUsize::new(0) };
        match self {
            Self::Cluster => {
                let (_cluster, _relays, locker) = work.cluster(Duration::from_secs(5))?;
                work.hold_and_release(&locker, plan.threads)
            }
            Self::OneNode | Self::OneNodeAsServer => {
                let config = "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-port";
                let server = RedisServer::start_with(&format!("{config} {}", free_port()?))?;
                server.say(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
                let mut redis = Client::open(server.url())?.get_connection()?;
                while !cmd("CLUSTER").arg("INFO").query::<String>(&mut redis)?.contains("cluster_state:ok") {
                    thread::sleep(Duration::from_millis(20));
                }
                let locker = match self {
                    Self::OneNode => Locker::cluster([server.address().to_string()])?,
                    _ => work.open(&server.url())?,
                };
                work.hold_and_release(&locker, plan.threads)
            }
            Self::Full => work.refused(&["CONFIG", "SET", "maxmemory", "1"], true),
            Self::NoReplicas => work.refused(&["CONFIG", "SET", "min-replicas-to-write", "1"], false),
            Self::Takeover => work.take_over(),
            Self::Writer => work.beside_a_writer(),
            Self::TextCounter => work.counted(),
            Self::Kept => work.kept(),
            Self::KeptInCluster => work.kept_in_a_cluster(),
            Self::HungNode => work.kept_beside_a_node_that_hangs(),
            Self::KeptWhileCut => work.kept_while_cut(),
            Self::LateReplies => work.several_with_late_replies(),
        }?;
        Ok(work.tally.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the threads of a situation share.
struct Work {
    plan: Plan,
    tally: Mutex<Tally>,
    done: AtomicUsize,
}

impl Work {
    fn options(&self) -> LockOptions {
        LockOptions::expiring_after(Duration::from_secs(60)).protocol(self.plan.protocol)
    }

    /// Returns a locker on this server.
    fn open(&self, url: &str) -> Result<Locker, Failure> {
        if !self.plan.on_pool {
            return Ok(Locker::builder(url)?.holder_name("stress").build()?);
        }
        let pool = r2d2::Pool::builder().max_size(LENT).test_on_check_out(false);
        Ok(Locker::with_pool(pool.build(Client::open(url)?)?).build()?)
    }

    fn lock(&self, locker: &Locker, key: &str) -> Result<Lock, Error> {
        Lock::new(locker, key, self.options())
    }

    fn note(&self, outcome: Result<(), Error>) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.holds += 1;
        match outcome {
            Ok(()) => {}
            Err(error) if error.is_lost() => tally.lost.push(error.to_string()),
            Err(Error::Refused { .. }) => tally.refused += 1,
            Err(error) => tally.failed.push(error.to_string()),
        }
    }

    /// Has the threads act until there are enough holds.
    fn on_threads(&self, threads: usize, act: impl Fn(usize, usize) -> Result<(), Error> + Sync) {
        let began = Instant::now();
        thread::scope(|scope| {
            for thread in 0..threads {
                let act = &act;
                scope.spawn(move || {
                    for round in 0.. {
                        if self.done.fetch_add(1, Ordering::Relaxed) >= self.plan.holds {
                            break;
                        }
                        self.note(act(thread, round));
                    }
                });
            }
        });
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).took += began.elapsed();
    }

    fn hold_and_release(&self, locker: &Locker, threads: usize) -> Result<(), Failure> {
        let locks: Vec<Lock> =
            (0..threads).map(|n| self.lock(locker, &format!("own:{n}"))).collect::<Result<_, _>>()?;
        self.on_threads(threads, |n, _| locks[n].lock()?.release());
        Ok(())
    }

    /// A cluster, ways to its masters that may be slow, and a locker on it.
    fn cluster(&self, down_after: Duration) -> Result<(Cluster, Vec<Relay>, Locker), Failure> {
        let cluster = Cluster::start(down_after)?;
        let relays = if self.plan.delay.is_zero() { Vec::new() } else { cluster.delayed(self.plan.delay)? };
        let addresses = if relays.is_empty() {
            cluster.addresses()
        } else {
            relays.iter().map(|relay| relay.address().to_string()).collect()
        };
        Ok((cluster, relays, Locker::cluster(addresses)?))
    }

    /// A server, a way to it that may be slow, and a locker on it.
    fn server(&self) -> Result<(RedisServer, Relay, Locker), Failure> {
        let server = RedisServer::start()?;
        let relay = Relay::start(server.address(), self.plan.delay)?;
        let locker = self.open(&if self.plan.delay.is_zero() { server.url() } else { relay.url() })?;
        Ok((server, relay, locker))
    }

    /// Locks that are held are extended on a server that refuses writes
    /// since this command. `deletes`: it deletes what is released.
    fn refused(&self, command: &[&str], deletes: bool) -> Result<(), Failure> {
        let (server, _relay, locker) = self.server()?;
        let held: Vec<LockGuard> = (0..self.plan.threads)
            .map(|n| self.lock(&locker, &format!("own:{n}"))?.lock())
            .collect::<Result<_, _>>()?;
        server.say(command)?;
        self.on_threads(held.len(), |n, _| held[n].extend());
        if deletes {
            drop(held);
            let _ = locker.drain(LEFT_BY);
            let left: usize = cmd("DBSIZE").query(&mut Client::open(server.url())?.get_connection()?)?;
            if left > 0 {
                self.note_failure(&format!("{left} keys are left"));
            }
        }
        Ok(())
    }

    /// Two lockers take over expired keys. Who has a lock releases it, and no key is left.
    fn take_over(&self) -> Result<(), Failure> {
        let (server, _relay, locker) = self.server()?;
        let other = self.open(&server.url())?;
        let mut redis = Client::open(server.url())?.get_connection()?;
        let keys = (self.plan.threads * 50).min(self.plan.holds / 2).max(1);
        let rounds = self.plan.holds.div_ceil(2 * keys);
        for round in 0..rounds {
            let mut pipe = setnx_lock::redis::pipe();
            (0..keys).for_each(|n| {
                pipe.set(format!("{round}:{n}"), "1532000016.500000").ignore();
            });
            let () = pipe.query(&mut redis)?;
            let next = AtomicUsize::new(0);
            let act = |n: usize, _| {
                let at = next.fetch_add(1, Ordering::Relaxed);
                // Each key is tried by both.
                let locker = if n.is_multiple_of(2) { &locker } else { &other };
                match self.lock(locker, &format!("{round}:{}", at / 2 % keys))?.try_lock()? {
                    Some(held) => held.release(),
                    None => Ok(()),
                }
            };
            self.done.store(self.plan.holds.saturating_sub(2 * keys), Ordering::Relaxed);
            self.on_threads(self.plan.threads, act);
        }
        let left: usize = cmd("DBSIZE").query(&mut redis)?;
        if left > 0 {
            self.note_failure(&format!("{left} keys are left"));
        }
        Ok(())
    }

    fn note_failure(&self, text: &str) {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).failed.push(text.to_owned());
    }

    /// Threads hold and release beside others whose keys another client writes all the time.
    fn beside_a_writer(&self) -> Result<(), Failure> {
        let (server, _relay, locker) = self.server()?;
        let (over, threads) = (AtomicBool::new(false), self.plan.threads);
        let written: Vec<Lock> =
            (0..WRITTEN).map(|n| self.lock(&locker, &format!("written:{n}"))).collect::<Result<_, _>>()?;
        thread::scope(|scope| {
            let writer = scope.spawn(|| write(&server, WRITTEN, &SET, &over));
            for lock in &written {
                let over = &over;
                scope.spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        // Lost as a rule.
                        let _ =
                            lock.clear().and_then(|_| lock.try_lock()?.map_or(Ok(()), LockGuard::release));
                    }
                });
            }
            let done = self.hold_and_release(&locker, threads);
            over.store(true, Ordering::Relaxed);
            writer.join().expect("the writer ended")?;
            done
        })
    }

    /// The counters of fencing tokens hold text, so that each token is refused, and none of the locks is lost.
    fn counted(&self) -> Result<(), Failure> {
        let (server, _relay, locker) = self.server()?;
        let held: Vec<LockGuard> = (0..self.plan.threads)
            .map(|n| {
                server.say(&["SET", &format!("own:{n}:setnx-lock:fence:{{own:{n}}}"), "text"])?;
                Ok(self.lock(&locker, &format!("own:{n}"))?.lock()?)
            })
            .collect::<Result<_, Failure>>()?;
        self.on_threads(held.len(), |n, _| held[n].fencing_token().map(drop));
        Ok(())
    }
}

/// What another client does to a key all the time: it writes another
/// value, or leaves the holder's and writes only how long it lives.
const SET: [&str; 2] = ["SET", "1899999999.5"];
const TOUCH: [&str; 2] = ["EXPIRE", "1000"];

/// Writes these keys all the time.
fn write(server: &RedisServer, keys: usize, how: &[&str; 2], over: &AtomicBool) -> Result<(), Failure> {
    let mut redis = Client::open(server.url())?.get_connection()?;
    let [name, value] = how;
    while !over.load(Ordering::Relaxed) {
        for n in 0..keys {
            let () = cmd(name).arg(format!("written:{n}")).arg(value).query(&mut redis)?;
        }
    }
    Ok(())
}

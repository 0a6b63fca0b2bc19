//! The names of side keys in a cluster, and keys that can have none.

use std::thread;

use setnx_lock::{Error, Lock, LockGuard, Locker, Permit, Protocol, Semaphore, redis};
use setnx_lock_proto::values::SideKey;
use testkit::cluster::Cluster;

use super::locker;
use crate::support::asleep::Sleeper;
use crate::support::notified::{NOTIFIED, Waiter};
use crate::support::target::PROTOCOLS;
use crate::support::{Outcome, RedisServer, expiring, millis};

/// No name of a side key has the slot of these.
pub(super) fn keys_without_side_keys(cluster: &Cluster) -> Outcome {
    for key in ["job{7", "a}", "{}{a}"] {
        let locker = locker(cluster)?;
        let error = Lock::new(&locker, key, NOTIFIED).expect_err("its list may be elsewhere");
        assert!(error.to_string().contains("its waiters cannot be notified: it has a brace"), "{error}");
        for protocol in PROTOCOLS.into_iter().chain([Protocol::Auto]) {
            let lock = Lock::new(&locker, key, expiring().protocol(protocol))?;
            let held = lock.lock()?;
            let error = held.fencing_token().expect_err("its counter may be elsewhere");
            assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
            assert!(error.to_string().contains("it has no fencing tokens: it has a brace"), "{error}");
            held.extend()?;
            let waiter = Waiter::of(&lock);
            thread::sleep(millis(50));
            held.release()?;
            waiter.came()?.release()?;
        }
    }
    Ok(())
}

/// However its node is reached, and after keys were copied from a server.
pub(super) fn counters_have_one_name(cluster: &Cluster) -> Outcome {
    let owner = cluster.owner(cluster.slot("shared")?)?;
    let lockers = [locker(cluster)?, Locker::open(&cluster.nodes[owner].url())?];
    let mut tokens = Vec::new();
    for locker in lockers.iter().cycle().take(6) {
        let lock = Lock::new(locker, "shared", expiring().protocol(Protocol::Auto))?;
        tokens.push(lock.with(LockGuard::fencing_token)??);
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    let server = RedisServer::start()?;
    let counter = String::from_utf8(SideKey::Fence.of(b"copied"))?;
    let count = |locker: Locker| -> Result<u64, Error> {
        Lock::new(&locker, "copied", expiring())?.with(LockGuard::fencing_token)?
    };
    assert_eq!([count(Locker::open(&server.url())?)?, count(Locker::open(&server.url())?)?], [1, 2]);
    let owner = cluster.owner(cluster.slot(&counter)?)?;
    let () = cluster.ask(owner, redis::cmd("SET").arg(&counter).arg(2))?;
    assert!(count(locker(cluster)?)? > 2);
    Ok(())
}

/// Those on several nodes have no trip in common with their waiting list.
pub(super) fn permits_of_one_slot_notify(cluster: &Cluster) -> Outcome {
    let (locker, other) = (locker(cluster)?, locker(cluster)?);
    let refused = Semaphore::new(&locker, "permits", 2, NOTIFIED).expect_err("they are on several nodes");
    assert!(refused.to_string().contains("a name with a hash tag, such as {name}"), "{refused}");
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Auto] {
        let permits = |locker| Semaphore::new(locker, "{permits}", 2, NOTIFIED.protocol(protocol));
        let (held, waiting) = (permits(&locker)?, permits(&other)?);
        let held = [held.acquire()?, held.acquire()?];
        let waiter = Sleeper::start(move || waiting.acquire());
        waiter.rests();
        held.into_iter().try_for_each(Permit::release)?;
        waiter.join()?.release()?;
    }
    Ok(())
}

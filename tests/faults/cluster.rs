//! A cluster: keys on their nodes, slots that move, nodes that fail.

mod side_keys;

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::redis;
use setnx_lock::{
    Error, Key, Lock, LockOptions, Locker, MultiLock, Permit, Protocol, RefusalKind, RwLock, Semaphore,
};
use setnx_lock_testing::TestServer;
use testkit::cluster::Cluster;

use crate::support::notified::{NOTIFIED, Waiter, until};
use crate::support::scenario::closed_port;
use crate::support::{LONG, Outcome, Test, chain, expiring, millis, name_of_holder, tests};

pub(crate) fn trials() -> Vec<Trial> {
    let in_a_cluster: &[(&str, Test)] = tests![a_cluster_has_each_key_on_its_node_and_follows_it];
    crate::support::trials("failover", in_a_cluster)
        .into_iter()
        .chain(crate::support::trials("cluster", tests![what_is_no_cluster_is_refused]))
        .collect()
}

/// How long a node gives no sign of life until it is down.
const DOWN_AFTER: Duration = Duration::from_secs(2);
/// How many locks there are, on all nodes.
const KEYS: usize = 12;

fn locker(cluster: &Cluster) -> Result<Locker, Error> {
    let builder = Locker::cluster_builder(cluster.addresses())?.retry_for(LONG).holder_name("worker");
    builder.connect_timeout(millis(500)).command_timeout(Duration::from_secs(1)).build()
}

/// One that writes nothing but the locks, their counters and lists.
fn unnamed(cluster: &Cluster) -> Result<Locker, Error> {
    Locker::cluster_builder(cluster.addresses())?.retry_for(LONG).build()
}

/// One cluster for all, since it takes seconds to start.
fn a_cluster_has_each_key_on_its_node_and_follows_it() -> Outcome {
    let cluster = Cluster::start(DOWN_AFTER)?;
    keys_beside_a_key_are_on_its_node(&cluster)?;
    several_keys_are_held_wherever_they_are(&cluster)?;
    keys_are_granted_together_only_while_all_leases_last(&cluster)?;
    side_keys::permits_of_one_slot_notify(&cluster)?;
    the_process_that_has_waited_longest_is_next(&cluster)?;
    a_waiting_list_is_where_it_is(&cluster)?;
    a_counter_is_where_it_is(&cluster)?;
    nodes_that_disagree_are_asked_again(&cluster)
}

fn keys_beside_a_key_are_on_its_node(cluster: &Cluster) -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto] {
        let (locker, other) = (locker(cluster)?, locker(cluster)?);
        let prefixed = || Locker::cluster_builder(cluster.addresses())?.key_prefix("app1:").build();
        let held = Lock::new(&prefixed()?, "k", NOTIFIED.protocol(protocol))?.lock()?;
        held.fencing_token()?;
        held.release()?;
        for n in 0..KEYS {
            for key in [
                format!("{protocol:?}:{n}"),
                format!("{{tag:{n}}}:{protocol:?}"),
                format!("app1:{protocol:?}:{n}"),
            ] {
                let options = NOTIFIED.protocol(protocol);
                let lock = Lock::new(&locker, key.as_str(), options)?;
                let held = lock.resume(&lock.lock()?.into_token()?)?;
                held.extend()?;
                assert_eq!(name_of_holder(&lock)?.as_deref(), Some("worker"), "{key}");
                if protocol != Protocol::Classic {
                    // Its epoch is that of the node, and it is the first one there.
                    assert_eq!(held.fencing_token()? & 0xffff_ffff, 1, "{key}");
                }
                let waiter = Waiter::of(&Lock::new(&other, key.as_str(), options)?);
                thread::sleep(millis(50));
                held.release()?;
                waiter.came()?.release()?;
            }
        }
    }
    side_keys::keys_without_side_keys(cluster)?;
    side_keys::counters_have_one_name(cluster)
}

fn several_keys_are_held_wherever_they_are(cluster: &Cluster) -> Outcome {
    let locker = locker(cluster)?;
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let options = expiring().protocol(protocol);
        let names: Vec<Key> = (0..KEYS).map(|n| Key::from(format!("several:{}:{n}", n % 5))).collect();
        let all = MultiLock::new(&locker, names.clone(), options)?;
        let held = all.lock()?;
        held.extend()?;
        for name in &names {
            assert!(Lock::new(&locker, name, options)?.state()?.is_held(), "{name}");
        }
        assert!(all.try_lock()?.is_none());
        held.release()?;
        for name in ["permits", "{permits}"] {
            let permits = Semaphore::new(&locker, name, 4, options)?;
            let held = (0..4).map(|_| permits.acquire()).collect::<Result<Vec<_>, _>>()?;
            assert!(permits.try_acquire()?.is_none(), "{protocol:?} {name}");
            held.into_iter().try_for_each(Permit::release)?;
        }
        let readers = RwLock::new(&locker, "readers", 3, options)?;
        let reading = readers.read()?;
        assert!(readers.try_write()?.is_none());
        reading.release()?;
        readers.write()?.release()?;
    }
    Ok(())
}

/// One node answers at once, and the other after the lease of what the first has granted.
fn keys_are_granted_together_only_while_all_leases_last(cluster: &Cluster) -> Outcome {
    let locker = Locker::cluster_builder(cluster.addresses())?.command_timeout(LONG).build()?;
    let owner = |key: &str| cluster.owner(cluster.slot(key)?);
    let first = "lasting:0".to_owned();
    let mut names = (1..).map(|n| format!("lasting:{n}"));
    let at_first = owner(&first)?;
    let other = names.find(|name| owner(name).is_ok_and(|owner| owner != at_first)).unwrap();
    let options = LockOptions::expiring_after(millis(2000)).timeout(LONG);
    let all = MultiLock::new(&locker, [first.as_str(), &other], options)?;
    // Connections to both are there.
    all.lock()?.release()?;
    cluster.ask::<()>(owner(&other)?, redis::cmd("CLIENT").arg("PAUSE").arg(2600))?;
    let held = all.lock()?;
    held.ensure_held()?;
    held.release()?;
    Ok(())
}

/// Each of two nodes says that the other has the slot. A call that waits goes on until they agree.
fn nodes_that_disagree_are_asked_again(cluster: &Cluster) -> Outcome {
    let key = "{disagreed}";
    let slot = cluster.slot(key)?;
    let owner = cluster.owner(slot)?;
    let id = |node: usize| cluster.ask::<String>(node, redis::cmd("CLUSTER").arg("MYID"));
    let says = |id: String| {
        cluster.ask::<()>(owner, redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("NODE").arg(id))
    };
    let locker = locker(cluster)?;
    says(id((owner + 1) % 3)?)?;
    let error = Lock::new(&locker, key, expiring().timeout(Duration::ZERO))?.lock();
    let error = error.expect_err("no node has the slot");
    assert!(is_not_ready(&error), "{error:?}");
    assert!(error.to_string().contains("do not agree which of them has it"), "{error}");
    let waiting = Waiter::of(&Lock::new(&locker, key, expiring().timeout(LONG))?);
    std::thread::sleep(millis(2500));
    says(id(owner)?)?;
    waiting.came()?.release()?;
    Ok(())
}

fn is_not_ready(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::NotReady)
}

/// Waits until the processes in a waiting list listen: one that does not yet loses its turn.
fn until_they_listen(cluster: &Cluster, node: usize, list: &str) {
    let ask = |command: &redis::Cmd| cluster.ask::<Vec<String>>(node, command).unwrap_or_default();
    until("they listen", || {
        let listed = ask(redis::cmd("LRANGE").arg(list).arg(0).arg(-1));
        let heard = ask(redis::cmd("PUBSUB").arg("CHANNELS"));
        !listed.is_empty()
            && listed.iter().all(|channel| channel.ends_with(":gone") || heard.contains(channel))
    });
}

/// Processes are notified in the order in which they have come,
/// whichever node has the key. One that is gone is found out.
fn the_process_that_has_waited_longest_is_next(cluster: &Cluster) -> Outcome {
    let lockers = (0..4).map(|_| locker(cluster)).collect::<Result<Vec<_>, _>>()?;
    for n in 0..KEYS {
        let key = format!("{{ordered:{n}}}");
        let list = format!("{key}:setnx-lock:waiters");
        let owner = cluster.owner(cluster.slot(&key)?)?;
        let listed = |count: usize| {
            let length = || cluster.ask::<usize>(owner, redis::cmd("LLEN").arg(&list));
            until("the waiters are listed", || length().is_ok_and(|length| length == count));
        };
        let locks = lockers.iter().map(|locker| Lock::new(locker, key.as_str(), NOTIFIED));
        let locks = locks.collect::<Result<Vec<_>, _>>()?;
        let mut held = locks[0].lock()?;
        let () = cluster.ask(owner, redis::cmd("RPUSH").arg(&list).arg("setnx-lock:wake-up:gone"))?;
        let mut waiters = Vec::new();
        for lock in &locks[1..] {
            waiters.push(Waiter::of(lock));
            listed(1 + waiters.len());
        }
        until_they_listen(cluster, owner, &list);
        for next in 0..waiters.len() {
            held.release()?;
            held = waiters[next].came()?;
            listed(waiters.len() - 1 - next);
        }
        held.release()?;
    }
    Ok(())
}

/// While a slot moves, the lock's key may have moved, and the list of its waiters not. Each is used where it is.
fn a_waiting_list_is_where_it_is(cluster: &Cluster) -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let key = format!("{{listed:{protocol:?}}}");
        let list = format!("{key}:setnx-lock:waiters");
        let slot = cluster.slot(&key)?;
        let first = cluster.owner(slot)?;
        let path = [first, (first + 1) % 3];
        let lock = || Lock::new(&unnamed(cluster)?, key.as_str(), NOTIFIED.protocol(protocol));
        let listed = |count: usize| {
            let length = || cluster.ask::<usize>(first, redis::cmd("LLEN").arg(&list));
            until("the waiters are listed", || length().is_ok_and(|length| length == count));
        };
        let held = lock()?.lock()?;
        let before = Waiter::of(&lock()?);
        listed(1);
        cluster.begin_to_move(slot, path)?;
        cluster.move_key(&key, path)?;
        let meanwhile = Waiter::of(&lock()?);
        listed(2);
        until_they_listen(cluster, first, &list);
        held.release()?;
        let held = before.came()?;
        listed(1);
        cluster.move_key(&list, path)?;
        held.release()?;
        meanwhile.came()?.release()?;
        cluster.end_move(slot, path)?;
    }
    Ok(())
}

/// While a slot moves, a lock's key and its counter are on two nodes. Neither is taken for what the other is.
fn a_counter_is_where_it_is(cluster: &Cluster) -> Outcome {
    let locker = unnamed(cluster)?;
    for protocol in [Protocol::Watched, Protocol::Ttl, Protocol::Auto] {
        for moves_first in ["the counter", "the key"] {
            let key = format!("{{counted:{protocol:?}}}");
            let counter = format!("{key}:setnx-lock:fence");
            let slot = cluster.slot(&key)?;
            let first = cluster.owner(slot)?;
            let path = [first, (first + 1) % 3];
            let lock = Lock::new(&locker, key.as_str(), expiring().protocol(protocol))?;
            let held = lock.lock()?;
            let before = held.fencing_token()?;
            held.release()?;
            let held = lock.lock()?;
            let token_is_refused = || -> Outcome {
                let error = held.fencing_token().expect_err("the slot moves");
                assert!(is_not_ready(&error), "{moves_first} first: {error:?}");
                held.extend()?;
                Ok(held.verify()?)
            };
            cluster.begin_to_move(slot, path)?;
            let order = if moves_first == "the key" { [&key, &counter] } else { [&counter, &key] };
            cluster.move_key(order[0], path)?;
            token_is_refused()?;
            cluster.move_key(order[1], path)?;
            token_is_refused()?;
            cluster.end_move(slot, path)?;
            assert!(held.fencing_token()? > before, "{moves_first} first");
            held.release()?;
        }
    }
    Ok(())
}

fn what_is_no_cluster_is_refused() -> Outcome {
    let server = TestServer::start();
    let lock = |locker: Locker| Lock::new(&locker, "report", expiring());
    let error = lock(Locker::cluster([server.url()])?)?.lock().expect_err("it is no node");
    let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
    assert_eq!(refusal.kind(), RefusalKind::NoCluster);
    let text = chain(&error);
    assert!(text.contains(&format!("{} is no node of a cluster", server.address())), "{text}");
    let gone = format!("127.0.0.1:{}", closed_port()?);
    let locker = Locker::cluster_builder([&gone])?.retry_for(Duration::ZERO).build()?;
    let error = lock(locker)?.lock().expect_err("nothing answers");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(chain(&error).contains(&gone), "{}", chain(&error));
    for result in [
        Locker::cluster(Vec::<&str>::new()),
        Locker::open("redis+cluster://"),
        Locker::open("redis+cluster://a:b:c"),
        Locker::open("redis+cluster://127.0.0.1:1?password=x"),
    ] {
        assert!(matches!(result, Err(Error::Invalid { .. })), "{result:?}");
    }
    Ok(())
}

//! All commands on a cluster: each goes to the node of its key, or to all.

use setnx_lock::{Lock, Locker, Protocol, redis};
use testkit::cluster::Cluster;

use super::program::{Running, ran};
use super::schema::{WATCH_LINE, read, reports, reports_by_key};
use crate::support::{LONG, Outcome, PAST, RedisServer, Test, expiring, millis, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![commands_go_to_the_node_of_the_key_or_to_all];

/// How many locks there are: some on each node.
const KEYS: usize = 9;

/// One cluster for all, since it takes seconds to start.
fn commands_go_to_the_node_of_the_key_or_to_all() -> Outcome {
    let mut cluster = Cluster::start(LONG)?;
    let locker = Locker::cluster_builder(cluster.addresses())?.holder_name("web:7").build()?;
    let keys: Vec<String> = (0..KEYS).map(|n| format!("on:{n}")).collect();
    let owner = |cluster: &Cluster, key: &str| cluster.owner(cluster.slot(key)?);
    let held = keys.iter().map(|key| {
        let held = Lock::new(&locker, key.as_str(), expiring().protocol(Protocol::Ttl))?.lock()?;
        let token = held.fencing_token()?;
        Ok((held, token))
    });
    let held: Vec<_> = held.collect::<Result<_, setnx_lock::Error>>()?;

    // The first node may be another than the key's.
    let url = cluster.url();
    for (key, (_, token)) in keys.iter().zip(&held) {
        let shown = ran(&url, ["status", key]).exits(0);
        let words =
            [&format!("{key}: held for "), "holder: web:7", &format!("last fencing token: {token}\n")];
        assert!(words.iter().all(|words| shown.out.contains(*words)), "{shown}");
    }
    let all: Vec<&str> = ["status", "--json"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let found = reports(&ran(&url, all).exits(0).out);
    let order: Vec<_> = found.iter().map(|report| report["key"].as_str().unwrap_or_default()).collect();
    assert_eq!(order, keys, "in the order of the arguments");

    let listed = reports_by_key(&ran(&url, ["list", "--json"]).exits(0).out);
    assert_eq!(listed.keys().map(String::as_str).collect::<Vec<_>>(), keys);
    assert!(listed.values().all(|report| report["holder"] == "web:7"), "{listed:?}");
    let one_node = ran(&format!("redis://{}", cluster.addresses()[0]), ["list"]).exits(0);
    assert!(one_node.err.contains("only the keys on this node are listed"), "{one_node}");

    let watched = Running::start(&url, &["watch", &keys[0], "--json", "--interval", "20ms"])?;
    let seen = read(WATCH_LINE, &watched.line());
    assert_eq!(seen["holder"], "web:7", "{seen}");
    ran(&url, ["clear", "--yes", &keys[0]]).exits(0);
    let seen = read(WATCH_LINE, &watched.line());
    assert!(seen["until"].is_null(), "{seen}");
    drop(watched);

    // While a slot moves, its keys are on either node.
    let from = owner(&cluster, &keys[1])?;
    let (slot, path) = (cluster.slot(&keys[1])?, [from, (from + 1) % 3]);
    cluster.begin_to_move(slot, path)?;
    cluster.move_key(&keys[1], path)?;
    let listed = reports_by_key(&ran(&url, ["list", "--json"]).exits(0).out);
    assert_eq!(listed.len(), KEYS - 2, "{listed:?}");
    ran(&url, ["status", &keys[1]]).exits(77).says(&["try again if its slot moves"]);
    cluster.move_slot(slot, path, millis(0))?;
    ran(&url, ["status", &keys[1]]).exits(0).shows(&["holder: web:7"]);
    let none = RedisServer::start_with("user default on nopass ~* +@all -cluster")?;
    ran(&format!("redis+cluster://{}", none.address()), ["list"]).exits(77).says_only(&["NOPERM"]);
    let none = RedisServer::start()?;
    ran(&format!("redis+cluster://{}", none.address()), ["list"])
        .exits(77)
        .says_only(&["the server is no node of a cluster"]);

    for key in &keys[1..4] {
        let () = cluster.ask(owner(&cluster, key)?, redis::cmd("SET").arg(key).arg(PAST))?;
    }
    let cleared = ran(&url, ["clear", "--expired", "on:*", "--yes"]).exits(0);
    assert!(cleared.out.ends_with("removed 3 of 3\n"), "{cleared}");
    drop(held);

    // A node that is gone costs its own keys alone, wherever it is in the address.
    let gone = owner(&cluster, &keys[0])?;
    let elsewhere = keys.iter().find(|key| owner(&cluster, key).is_ok_and(|node| node != gone));
    let elsewhere = elsewhere.expect("some are on each node");
    cluster.nodes[gone].stop();
    let shown = ran(&url, ["status", &keys[0], elsewhere]).exits(69);
    assert!(shown.out.contains(&format!("{elsewhere}: ")), "{shown}");
    assert!(shown.err.contains(&format!("lock {}: no connection", keys[0])), "{shown}");
    Ok(())
}

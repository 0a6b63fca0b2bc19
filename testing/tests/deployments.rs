//! Nodes of clusters and Sentinels: the core alone, since a `TestServer` is neither.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use setnx_lock_testing::{ClusterNode, Output, Server, ServerVersion, WatchedMaster};

fn say(server: &mut Server, line: &str) -> String {
    let words: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
    let outputs = server.handle(1, &words, Duration::from_secs(1_795_000_000));
    let text = |output: &Output| match output {
        Output::Send(_, bytes) => String::from_utf8_lossy(bytes).replace("\r\n", " ").trim_end().to_owned(),
        Output::Close(_) => "closed".to_owned(),
    };
    outputs.iter().map(text).collect::<Vec<_>>().join(" ")
}

fn address(port: u16) -> (String, u16) {
    ("10.0.0.1".to_owned(), port)
}

#[test]
fn a_slot_is_that_of_the_hash_tag() {
    // The check value of the CRC, and words that the documentation of clusters gives.
    assert_eq!(ClusterNode::slot_of(b"123456789"), 0x31C3);
    assert_eq!(ClusterNode::slot_of(b"foo"), 12182);
    assert_eq!(ClusterNode::slot_of(b"{foo}bar"), 12182);
    for whole in ["foo{}{bar}", "foo{bar", "}{"] {
        assert_ne!(ClusterNode::slot_of(whole.as_bytes()), ClusterNode::slot_of(b"bar"), "{whole}");
    }
}

#[test]
fn a_node_sends_away_what_it_has_not() {
    // foo is in slot 12182, bar in 5061.
    let slots = vec![(0, 8191, address(1)), (8192, 16383, address(2))];
    let node = ClusterNode { address: address(1), epoch: 7, slots, ..ClusterNode::default() };
    let mut server = Server::new(ServerVersion::V7);
    server.set_cluster(Some(node.clone()));
    assert_eq!(say(&mut server, "SET bar 1"), "+OK");
    assert_eq!(say(&mut server, "GET foo"), "-MOVED 12182 10.0.0.1:2");
    assert_eq!(say(&mut server, "MGET bar foo"), "-CROSSSLOT Keys in request don't hash to the same slot");
    assert!(say(&mut server, "CLUSTER INFO").contains("cluster_my_epoch:7"));
    assert!(say(&mut server, "INFO cluster").contains("cluster_enabled:1"));
    assert!(say(&mut server, "CLUSTER SLOTS").ends_with("*3 :8192 :16383 *2 $8 10.0.0.1 :2"));
    // One that is refused spoils the transaction.
    assert_eq!(say(&mut server, "MULTI"), "+OK");
    assert_eq!(say(&mut server, "GET foo"), "-MOVED 12182 10.0.0.1:2");
    assert!(say(&mut server, "EXEC").starts_with("-EXECABORT "));
    // A slot leaves: what is not here any more is there.
    let migrating = BTreeMap::from([(5061, address(2))]);
    server.set_cluster(Some(ClusterNode { migrating, ..node.clone() }));
    assert_eq!(say(&mut server, "GET bar"), "$1 1");
    assert_eq!(
        say(&mut server, "MGET bar {bar}2"),
        "-TRYAGAIN Multiple keys request during rehashing of slot"
    );
    assert_eq!(say(&mut server, "MULTI"), "+OK");
    assert_eq!(say(&mut server, "DEL bar"), "+QUEUED");
    assert_eq!(say(&mut server, "EXEC"), "*1 :1");
    assert_eq!(say(&mut server, "SETNX bar 2"), "-ASK 5061 10.0.0.1:2");
    // A transaction whose slot has left is answered so by EXEC itself.
    server.set_cluster(Some(node.clone()));
    assert_eq!(say(&mut server, "MULTI"), "+OK");
    assert_eq!(say(&mut server, "SET bar 3"), "+QUEUED");
    server.set_cluster(Some(ClusterNode { slots: vec![(0, 16383, address(2))], ..node }));
    assert_eq!(say(&mut server, "EXEC"), "-MOVED 5061 10.0.0.1:2");
    assert_eq!(say(&mut server, "DISCARD"), "-ERR DISCARD without MULTI");
}

#[test]
fn a_node_takes_over_a_slot_from_those_who_ask() {
    let slots = vec![(0, 16383, address(1))];
    let importing = BTreeSet::from([5061]);
    let node = ClusterNode { address: address(2), epoch: 8, slots, importing, ..ClusterNode::default() };
    let mut server = Server::new(ServerVersion::V7);
    server.set_cluster(Some(node));
    assert_eq!(say(&mut server, "SETNX bar 1"), "-MOVED 5061 10.0.0.1:1");
    assert_eq!(say(&mut server, "ASKING"), "+OK");
    assert_eq!(say(&mut server, "SETNX bar 1"), ":1");
    assert_eq!(say(&mut server, "GET bar"), "-MOVED 5061 10.0.0.1:1", "ASKING counts once");
}

#[test]
fn a_sentinel_tells_an_address_and_an_epoch() {
    let mut server = Server::new(ServerVersion::V7);
    assert!(say(&mut server, "SENTINEL MASTER m").starts_with("-ERR unknown command"));
    let watched = WatchedMaster {
        name: "m".to_owned(),
        address: address(2),
        described: address(1),
        epoch: 5,
        since: Duration::from_secs(1_794_999_990),
    };
    server.set_sentinel(Some(vec![watched]));
    assert_eq!(say(&mut server, "SENTINEL GET-MASTER-ADDR-BY-NAME m"), "*2 $8 10.0.0.1 $1 2");
    let told = say(&mut server, "SENTINEL MASTER m");
    for field in ["$4 port $1 1", "$12 config-epoch $1 5", "$18 role-reported-time $5 10000"] {
        assert!(told.contains(field), "{told}");
    }
    assert_eq!(say(&mut server, "SENTINEL GET-MASTER-ADDR-BY-NAME other"), "*-1");
    assert!(say(&mut server, "SETNX k 1").starts_with("-ERR unknown command"));
    assert!(say(&mut server, "INFO server").contains("redis_mode:sentinel"));
}

#[test]
fn a_snapshot_is_loaded_by_another_server() {
    let (mut master, mut replica) = (Server::new(ServerVersion::V7), Server::new(ServerVersion::V7));
    assert_eq!(say(&mut master, "SET k 1"), "+OK");
    let snapshot = master.snapshot();
    assert_eq!(say(&mut master, "SET k 2"), "+OK");
    replica.load(&snapshot);
    assert_eq!(say(&mut replica, "GET k"), "$1 1");
}

//! `fence`: shows the counter of fencing tokens, and raises it.

use std::{iter, thread};

use setnx_lock::{Lock, LockGuard, Locker, Protocol};
use setnx_lock_proto::values::SideKey;
use setnx_lock_testing::{Fault, ServerVersion, TestServer};
use testkit::cluster::Cluster;

use super::program::ran;
use super::values::set;
use crate::support::{LONG, Outcome, RedisServer, Test, expiring, server_of, tests};

pub(super) const TESTS: &[(&str, Test)] = tests![
    a_counter_is_shown_and_raised_and_never_lowered,
    what_is_no_counter_is_left_as_it_is,
    two_that_raise_it_do_not_add_up,
    a_lost_reply_says_that_it_can_be_repeated,
    a_key_in_a_cluster,
];

fn a_counter_is_shown_and_raised_and_never_lowered() -> Outcome {
    for version in ServerVersion::ALL {
        let server = server_of(version);
        let lock = Lock::new(&Locker::open(&server.url())?, "app:k", expiring())?;
        let fence = |arguments: &[&str]| {
            ran(&server.url(), ["fence", "--prefix", "app:"].iter().chain(arguments)).exits(0)
        };
        fence(&["k"]).prints("0\n");
        assert_eq!(lock.with_result(LockGuard::fencing_token)?, 1);
        fence(&["k"]).prints("1\n");
        fence(&["--at-least", "41", "k"]).prints("41\n");
        assert_eq!(lock.with_result(LockGuard::fencing_token)?, 42);
        fence(&["--at-least", "41", "k"]).prints("42\n");
        ran(&server.url(), ["fence", "--at-least", "7", "new"]).exits(0).prints("7\n");
    }
    let server = TestServer::start();
    for wrong in ["0", "-5", "9007199254740992", "many"] {
        ran(&server.url(), ["fence", &format!("--at-least={wrong}"), "k"]).exits(64).says(&["--at-least"]);
    }
    Ok(())
}

fn what_is_no_counter_is_left_as_it_is() -> Outcome {
    let server = RedisServer::start()?;
    let counter = String::from_utf8(SideKey::Fence.of(b"k"))?;
    for arguments in [&["fence", "k"][..], &["fence", "--at-least", "7", "k"]] {
        server.say(&["SET", &counter, "text"])?;
        ran(&server.url(), arguments)
            .exits(65)
            .says_only(&["lock k: its fencing counter", "holds no number"]);
        assert_eq!(server.say(&["STRLEN", &counter])?, ":4");
        server.say(&["DEL", &counter])?;
        server.say(&["RPUSH", &counter, "element"])?;
        ran(&server.url(), arguments).exits(77).says_only(&["lock k: ", "WRONGTYPE"]);
        server.say(&["DEL", &counter])?;
    }
    // One that another program has lowered below 0.
    server.say(&["SET", &counter, "-5"])?;
    ran(&server.url(), ["fence", "--at-least", "7", "k"]).exits(0).prints("7\n");
    server.say(&["EXPIRE", &counter, "1000"])?;
    ran(&server.url(), ["fence", "--at-least", "9", "k"]).exits(0).prints("9\n");
    assert_ne!(server.say(&["TTL", &counter])?, ":-1", "it is forgotten when it would have been");
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", server.port()))?;
    ran(&replica.url(), ["fence", "--at-least", "10", "k"]).exits(77).says_only(&["is a replica"]);
    Ok(())
}

fn two_that_raise_it_do_not_add_up() -> Outcome {
    let server = RedisServer::start()?;
    let lock = Lock::new(&Locker::open(&server.url())?, "k", expiring())?;
    thread::scope(|scope| -> Outcome {
        let raise = || {
            scope.spawn(|| ran(&server.url(), ["fence", "--at-least", "1000", "k"]).exits(0).prints("1000\n"))
        };
        let raising: Vec<_> = iter::repeat_with(raise).take(8).collect();
        raising.into_iter().try_for_each(|raised| raised.join().map(drop)).expect("each prints it");
        Ok(())
    })?;
    let token = lock.with_result(LockGuard::fencing_token)?;
    assert_eq!(token, 1001);
    Ok(())
}

fn a_lost_reply_says_that_it_can_be_repeated() -> Outcome {
    let server = TestServer::start();
    set(&server, &String::from_utf8(SideKey::Fence.of(b"k"))?, "3");
    server.next("EXEC", Fault::CutAfter);
    ran(&server.url(), ["fence", "--at-least", "7", "k"]).exits(74).says_only(&["lock k: ", "run it again"]);
    ran(&server.url(), ["fence", "--at-least", "7", "k"]).exits(0).prints("7\n");
    Ok(())
}

fn a_key_in_a_cluster() -> Outcome {
    let cluster = Cluster::start(LONG)?;
    let locker = Locker::cluster(cluster.addresses())?;
    for key in ["a", "b", "c", "{tag}:d"] {
        let least = (9_u64 << 32) + 5;
        ran(&cluster.url(), ["fence", "--at-least", &least.to_string(), key])
            .exits(0)
            .prints(&format!("{least}\n"));
        let lock = Lock::new(&locker, key, expiring().protocol(Protocol::Auto))?;
        assert_eq!(lock.with_result(LockGuard::fencing_token)?, least + 1, "{key}");
    }
    ran(&cluster.url(), ["fence", "job{7"]).exits(64).says_only(&["no fencing tokens: it has a brace"]);
    Ok(())
}

//! What a test can do with the server, beside faults of single commands.

use std::time::{Duration, Instant};

use setnx_lock_testing::{Paused, ServerVersion, TestServer};
use testkit::LONG;
use testkit::raw::Wire;

const LEASE: Duration = Duration::from_secs(60);

fn until_blocked(server: &TestServer, count: usize) {
    let end = Instant::now() + LONG;
    while !server.run(&["INFO", "clients"]).contains(&format!("blocked_clients:{count}\r")) {
        assert!(Instant::now() < end, "there are never {count}");
    }
}

#[test]
fn restarts_keep_or_lose_the_keys_and_close_connections() {
    let server = TestServer::builder().version("2.4").start();
    let (address, mut aside) = (server.address(), Wire::to(&server.url_to_look()));
    server.run(&["SET", "key", "1"]);
    let mut wire = Wire::to(&server.url());
    server.restart();
    assert_eq!(wire.rest(), "");
    assert_eq!(Wire::to(&server.url()).ask("GET key"), "1");
    server.restart_as("7");
    assert_eq!((server.version(), server.address()), (ServerVersion::V7, address));
    assert!(Wire::to(&server.url()).ask("INFO").contains("redis_version:7.0.15"));
    assert_eq!(aside.ask("PTTL key"), ":-1", "who looks stays connected");
    server.restart_empty();
    assert_eq!((server.version(), server.get("key")), (ServerVersion::V7, None));
    assert_eq!(format!("{server:?}"), format!("TestServer {{ address: {address}, version: V7, .. }}"));
    drop(server);
    assert_eq!(aside.rest(), "");
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn what_came_before_a_stop_is_not_executed_after_it() {
    let server = TestServer::start();
    let paused = server.pause("SET", 1);
    let mut wire = Wire::to(&server.url());
    wire.send("SET key 1");
    paused.reached();
    server.restart();
    paused.go_on();
    assert_eq!(wire.rest(), "");
    server.delay(Duration::from_millis(100));
    wire = Wire::to(&server.url());
    wire.send("SET key 2");
    server.wait_for("SET", 2);
    server.restart();
    server.clear_faults();
    assert_eq!(wire.rest(), "");
    server.hang();
    wire = Wire::to(&server.url());
    wire.send("SET key 3");
    server.restart();
    assert_eq!((wire.rest(), server.get("key")), (String::new(), None));
    server.stop();
    server.resume();
    assert!(std::net::TcpStream::connect(server.address()).is_err(), "it is off, and does not hang");
}

#[test]
fn keys_as_other_processes_write_them() {
    let server = TestServer::start();
    server.hold("lock", LEASE);
    let held: f64 = server.get("lock").expect("it is held").parse().expect("a time");
    let end = server.now().duration_since(std::time::UNIX_EPOCH).expect("after 1970") + LEASE;
    assert!((held - end.as_secs_f64() - 10.0).abs() < 30.0, "{held}");
    server.advance(LEASE + Duration::from_secs(1));
    assert_eq!(server.get("lock"), None, "from 2.6 on it expires");
    server.hold("lock", LEASE);
    let held = server.get("lock");
    server.take_over("lock", LEASE);
    assert_ne!(server.get("lock"), held);
    server.delete("lock");
    server.hold("lock", Duration::MAX);
    let twice = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.hold("lock", LEASE)));
    assert!(twice.is_err(), "it exists");
    server.run(&["RPUSH", "list", "a"]);
    let text = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.get("list")));
    assert!(text.is_err(), "it is no text");
    assert_eq!(
        server.run(&["GET", "list"]),
        "WRONGTYPE Operation against a key holding the wrong kind of value"
    );
}

#[test]
fn messages_arrive_in_order_and_after_the_confirmation() {
    let server = TestServer::start();
    let (mut listener, mut sender) = (Wire::to(&server.url()), Wire::to(&server.url()));
    server.delay_reply("SUBSCRIBE", Duration::from_millis(200));
    listener.send("SUBSCRIBE channel");
    server.wait_for("SUBSCRIBE", 1);
    while sender.ask("PUBLISH channel 0") == ":0" {}
    for n in 1..100 {
        assert_eq!(sender.ask(&format!("PUBLISH channel {n}")), ":1");
    }
    assert_eq!(listener.answer(), "[subscribe channel :1]");
    for n in 0..100 {
        assert_eq!(listener.answer(), format!("[message channel {n}]"));
    }
}

#[test]
fn faults_of_commands_that_wait() {
    let server = TestServer::start();
    let (mut waits, mut other) = (Wire::to(&server.url()), Wire::to(&server.url()));
    server.lose_reply("BLPOP");
    waits.send("BLPOP list 0");
    until_blocked(&server, 1);
    assert_eq!(other.ask("RPUSH list a"), ":1");
    waits.is_silent();
    assert_eq!(server.run(&["LLEN", "list"]), "0", "the element is lost");
    waits = Wire::to(&server.url());
    // A server that hangs sends nothing, and goes on afterwards.
    waits.send("BLPOP list 0.1");
    until_blocked(&server, 1);
    server.hang();
    waits.is_silent();
    server.resume();
    assert_eq!(waits.answer(), "*-1");
    // A failover ends the wait.
    waits.send("BLPOP list 0");
    until_blocked(&server, 1);
    server.become_replica();
    assert!(waits.answer().starts_with("-UNBLOCKED "));
    assert_eq!(waits.rest(), "");
    assert!(other.ask("RPUSH list a").starts_with("-READONLY "));
    let (paused, fault) = Paused::new();
    server.at(1, fault);
    other.send("ECHO 1");
    paused.reached();
    drop(paused);
    assert_eq!(other.answer(), "1");
}

#[test]
fn clients_that_are_refused_leave_or_are_killed() {
    let server = TestServer::builder().config("maxclients 2").start();
    let (mut first, mut second) = (Wire::to(&server.url()), Wire::to(&server.url()));
    assert_eq!((first.ask("PING"), second.ask("PING")), ("+PONG".into(), "+PONG".into()));
    let mut third = Wire::to(&server.url());
    assert_eq!(third.rest(), "-ERR max number of clients reached\r\n");
    second.send_all(&["QUIT", "SET key 1"]);
    assert_eq!(second.rest(), "+OK\r\n");
    assert_eq!(server.get("key"), None, "nothing is executed after QUIT");
    first.send("BLPOP list 0");
    until_blocked(&server, 1);
    assert_eq!(server.run(&["CLIENT", "KILL", "TYPE", "normal"]), "1");
    assert_eq!(first.rest(), "");
    server.run(&["RPUSH", "list", "a"]);
    assert_eq!(server.run(&["LLEN", "list"]), "1", "one that was killed gets none");
}

#[test]
fn users_may_do_what_their_rules_say() {
    let rules = "user weak on >pw ~locks:* &wake:* +@all -@blocking -multi\nuser gone on nopass +@all";
    let server = TestServer::builder().config(rules).start();
    let (mut wire, mut gone) = (Wire::to(&server.url()), Wire::to(&server.url()));
    assert_eq!((wire.ask("AUTH weak pw"), gone.ask("AUTH gone x")), ("+OK".into(), "+OK".into()));
    let no = "-NOPERM this user has no permissions to ";
    for (command, refusal) in [
        ("SET locks:a 1", ""),
        ("SET other 1", "access one of the keys used as arguments"),
        ("BLPOP locks:l 0", "run the 'blpop' command"),
        ("MULTI", "run the 'multi' command"),
        ("PUBLISH wake:a 1", ""),
        ("PUBLISH other 1", "access one of the channels used as arguments"),
    ] {
        let reply = wire.ask(command);
        assert_eq!(reply.strip_prefix(no).unwrap_or_default(), refusal, "{command}: {reply}");
    }
    assert_eq!(server.run(&["ACL", "DELUSER", "gone"]), "1");
    assert_eq!(gone.rest(), "");
    let unknown = TestServer::builder().config("user weak +@slow").try_start();
    assert!(unknown.is_err_and(|error| error.to_string().contains("Unknown command or category")));
}

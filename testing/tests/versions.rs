//! The old versions do what is known of them.

use std::time::Duration;

use ServerVersion::{V1_2, V2_0, V2_2, V2_4, V2_6};
use setnx_lock_testing::{Output, Server, ServerVersion, TestServer};
use testkit::raw::Wire;

fn server_of(version: ServerVersion) -> TestServer {
    TestServer::builder().version(version.name()).start()
}

/// Runs a test for every old version.
fn every_version(test: impl Fn(ServerVersion, &mut Wire, &TestServer)) {
    for version in ServerVersion::OLD {
        let server = server_of(version);
        test(version, &mut Wire::to(&server.url()), &server);
    }
}

#[test]
fn commands_appear_with_their_versions() {
    let since: [(ServerVersion, &[&str]); 6] = [
        (V1_2, &["SETNX key 1", "GETSET key 1", "EXPIREAT key 1", "RPOPLPUSH a b", "LPUSH list a"]),
        (V1_2, &["LLEN list", "LRANGE list 0 -1", "LTRIM list 0 9", "LPOP list", "TYPE list", "DEL list"]),
        (V2_0, &["MULTI", "EXEC", "PUBLISH channel text", "SETEX key 1 1", "CONFIG GET maxmemory"]),
        (V2_2, &["WATCH key", "PERSIST key"]),
        (V2_4, &["CLIENT LIST", "RPUSH list a b"]),
        (V2_6, &["PTTL key", "TIME", "INFO server", "SET key 1 NX PX 1000"]),
    ];
    let never =
        ["SCAN 0", "ROLE", "WAIT 0 0", "HELLO 3", "UNLINK key", "CLIENT SETINFO LIB-NAME x", "NONSENSE"];
    every_version(|version, wire, _| {
        for (since, command) in
            since.iter().flat_map(|(since, all)| all.iter().map(move |one| (*since, *one)))
        {
            let reply = wire.ask(command);
            // A known command may be refused for another reason, with another text.
            let refused = ["unknown", "wrong number", "yntax"].iter().any(|words| reply.contains(words));
            assert_eq!(refused, version < since, "{command} in {}: {reply}", version.number());
        }
        for command in never {
            assert!(wire.ask(command).starts_with("-ERR "), "{command} in {}", version.number());
        }
        assert_eq!(wire.ask("PING"), "+PONG", "the connection stays usable");
    });
}

#[test]
fn refusals_are_in_the_words_of_the_version() {
    every_version(|version, wire, _| {
        assert_eq!(wire.ask("Scan 0"), "-ERR unknown command 'Scan'", "{version:?}");
        let wrong = "-ERR wrong number of arguments for 'get' command";
        assert_eq!(wire.ask("GET a b"), wrong, "{version:?}");
        wire.ask("LPUSH list a");
        let type_error = "-ERR Operation against a key holding the wrong kind of value";
        assert_eq!(wire.ask("GET list"), type_error, "{version:?}");
        assert_eq!(wire.ask("SELECT 99"), "-ERR invalid DB index", "{version:?}");
        if version >= V2_0 {
            assert_eq!((wire.ask("MULTI"), wire.ask("GET list")), ("+OK".into(), "+QUEUED".into()));
            assert_eq!(wire.ask("EXEC"), format!("[{type_error}]"), "{version:?}");
        }
    });
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

#[test]
fn info_is_written_as_the_version_wrote_it() {
    // The field, and the first and the last version that has it.
    let fields = [
        ("role", V1_2, V2_6),
        ("changes_since_last_save", V1_2, V2_4),
        ("expired_keys", V2_0, V2_6),
        ("vm_enabled", V2_0, V2_4),
        ("aof_enabled", V2_2, V2_6),
        ("use_tcmalloc", V2_2, V2_2),
        ("mem_allocator", V2_4, V2_6),
        ("rdb_last_save_time", V2_6, V2_6),
    ];
    every_version(|version, wire, _| {
        wire.ask("SET key 1");
        let info = wire.ask("INFO");
        assert_eq!(field(&info, "redis_version"), Some(version.number()));
        assert!(version.number().starts_with(version.name()));
        for (name, first, last) in fields {
            let has = field(&info, name).is_some();
            assert_eq!(has, (first..=last).contains(&version), "{name} in {version:?}: {info}");
        }
        for later in ["maxmemory", "maxmemory_policy", "mem_not_counted_for_evict", "server_time_usec"] {
            assert_eq!(field(&info, later), None, "{later} in {version:?}");
        }
        assert_eq!(field(&info, "db0"), Some("keys=1,expires=0"), "{version:?}");
        assert_eq!(info.contains("# Server"), version >= V2_6, "{version:?}");
        assert_ne!(field(&info, "total_commands_processed"), Some("0"), "the real server's value");
    });
}

#[test]
fn a_key_with_a_time_to_live_is_deleted_by_setnx_before_2_2() {
    every_version(|version, wire, server| {
        let deletes = version < V2_2;
        wire.ask("SET key old");
        assert_eq!(wire.ask("SETNX key new"), ":0", "{version:?}: without a time to live");
        wire.ask("EXPIRE key 100");
        assert_eq!(wire.ask("SETNX key new"), if deletes { ":1" } else { ":0" }, "{version:?}");
        assert_eq!(wire.ask("GET key"), if deletes { "new" } else { "old" }, "{version:?}");
        assert_eq!(server.run(&["PTTL", "key"]) == "-1", deletes, "{version:?}");
        wire.ask("SET count 5");
        wire.ask("EXPIRE count 100");
        assert_eq!(wire.ask("INCR count"), if deletes { ":1" } else { ":6" }, "{version:?}");
    });
}

#[test]
fn a_list_with_a_time_to_live_is_gone_before_2_2() {
    every_version(|version, wire, _| {
        let deletes = version < V2_2;
        for (command, before, since, left) in [
            ("RPUSH list new", ":1", ":2", "[old new]"),
            ("LPUSH list new", ":1", ":2", "[new old]"),
            ("LPOP list", "$-1", "old", "[]"),
            ("RPOP list", "$-1", "old", "[]"),
        ] {
            wire.ask("DEL list");
            wire.ask("RPUSH list old");
            assert_eq!(wire.ask("EXPIRE list 100"), ":1");
            assert_eq!(wire.ask("LLEN list"), ":1", "{version:?}: reading does not delete it");
            let is_push = command.contains("PUSH");
            let reply = match version {
                V1_2 if is_push => "+OK",
                _ if deletes => before,
                _ => since,
            };
            assert_eq!(wire.ask(command), reply, "{version:?}: {command}");
            let left = if deletes && is_push { "[new]" } else { left };
            assert_eq!(wire.ask("LRANGE list 0 -1"), left, "{version:?}: {command}");
            assert_eq!(wire.ask("TTL list") == ":-1", deletes || !is_push, "{version:?}: {command}");
        }
    });
}

/// Measured on a real server, as what follows.
#[test]
fn what_1_2_does_and_no_later_version() {
    every_version(|version, wire, _| {
        let old = version < V2_0;
        let wrong_type = "-ERR Operation against a key holding the wrong kind of value";
        // It answers no length.
        assert_eq!(wire.ask("RPUSH list a"), if old { "+OK" } else { ":1" }, "{version:?}");
        assert_eq!(wire.ask("LPUSH list b"), if old { "+OK" } else { ":2" }, "{version:?}");
        // It overwrites what it refuses.
        assert_eq!(wire.ask("GETSET list new"), wrong_type, "{version:?}");
        assert_eq!(wire.ask("TYPE list") == "+string", old, "{version:?}");
        wire.ask("DEL list");
        // It counts a text from zero.
        wire.ask("SET text oops");
        let counted = if old { ":5" } else { "-ERR value is not an integer or out of range" };
        assert_eq!(wire.ask("INCRBY text 5"), counted, "{version:?}");
        assert!(wire.ask("RPUSH text a").starts_with(wrong_type), "{version:?}");
        // A random key comes in a status line.
        assert_eq!(wire.ask("RANDOMKEY"), if old { "+text" } else { "text" }, "{version:?}");
        // A time to live of zero does not delete a key that has one.
        wire.ask("EXPIRE text 100");
        assert_eq!(wire.ask("EXPIRE text 0"), if old { ":0" } else { ":1" }, "{version:?}");
        assert_eq!(wire.ask("EXISTS text"), if old { ":1" } else { ":0" }, "{version:?}");
    });
}

#[test]
fn a_second_expire_changes_nothing_before_2_2() {
    every_version(|version, wire, server| {
        let kept = version < V2_2;
        for (expire, again) in
            [("EXPIRE key 100", "EXPIRE key 5000"), ("EXPIREAT key 4000000000", "EXPIREAT key 4100000000")]
        {
            wire.ask("SET key 1");
            assert_eq!(wire.ask(expire), ":1", "{version:?}");
            let before = server.run(&["EXPIRETIME", "key"]);
            assert_eq!(wire.ask(again), if kept { ":0" } else { ":1" }, "{version:?}: {again}");
            let after = server.run(&["EXPIRETIME", "key"]);
            assert_eq!(after == before, kept, "{version:?}: {again}");
        }
        assert_eq!(wire.ask("GETSET key new"), "1", "{version:?}");
        assert_eq!(wire.ask("TTL key"), ":-1", "{version:?}: GETSET clears it");
    });
}

const OVER: &str = "-ERR command not allowed when used memory > 'maxmemory'";

#[test]
fn exec_over_maxmemory_leaves_the_transaction_open() {
    every_version(|version, wire, server| {
        wire.ask("SET key 1");
        if version >= V2_0 {
            assert_eq!((wire.ask("MULTI"), wire.ask("DEL key")), ("+OK".into(), "+QUEUED".into()));
        }
        server.fill_up();
        if version >= V2_6 {
            assert_eq!(wire.ask("EXEC"), "[:1]");
            assert!(wire.ask("SETNX key 1").starts_with("-OOM"));
            return;
        }
        if version >= V2_0 {
            assert_eq!(wire.ask("EXEC"), OVER, "{version:?}");
            assert_eq!(wire.ask("DISCARD"), "+OK", "{version:?}: it was still open");
            assert_eq!(wire.ask("GET key"), "1", "{version:?}: nothing was executed");
            assert_eq!((wire.ask("MULTI"), wire.ask("DEL key")), ("+OK".into(), "+QUEUED".into()));
            assert_eq!((wire.ask("SET key 1"), wire.ask("DISCARD")), (OVER.into(), "+OK".into()));
        }
        if version >= V2_2 {
            assert_eq!((wire.ask("WATCH key"), wire.ask("UNWATCH")), ("+OK".into(), "+OK".into()));
        }
        for command in ["SET key 1", "SETNX key 1", "GETSET key 1", "LPUSH list 1"] {
            assert_eq!(wire.ask(command), OVER, "{version:?}: {command}");
        }
        assert_eq!(wire.ask("DEL key"), ":1", "{version:?}");
        server.free_memory();
        assert_eq!(wire.ask("SETNX key 1"), ":1", "{version:?}");
    });
}

/// As measured on servers of 1.1.94 to 2.6.17.
#[test]
fn what_was_measured_on_real_servers() {
    every_version(|version, wire, _| {
        let deletes = version < V2_2;
        wire.ask("SETNX a 1");
        assert_eq!(wire.ask("MSETNX b 1 a 2"), ":0", "{version:?}: all or nothing");
        assert_eq!(wire.ask("EXISTS b"), ":0");
        wire.ask("EXPIRE a 100");
        assert_eq!(wire.ask("MSETNX a 2 c 2"), if deletes { ":1" } else { ":0" }, "{version:?}");
        wire.ask("SET count 5");
        wire.ask("EXPIRE count 100");
        assert_eq!(wire.ask("INCR count"), if deletes { ":1" } else { ":6" }, "{version:?}");
        assert_eq!(wire.ask("TTL count") == ":-1", deletes, "{version:?}");
        let keys = wire.ask("KEYS *");
        assert_eq!(keys.starts_with('['), version >= V2_0, "{version:?}: one text before 2.0: {keys}");
        assert_eq!(wire.ask("MGET a missing"), format!("[{} $-1]", if deletes { "2" } else { "1" }));
    });
}

#[test]
fn clocks_had_whole_seconds_before_2_6() {
    for version in ServerVersion::OLD {
        let mut server = Server::new(version);
        let mut ask = |command: &str, millis: u64| {
            let words: Vec<Vec<u8>> = command.split(' ').map(Into::into).collect();
            let Some(Output::Send(_, reply)) = server.handle(1, &words, Duration::from_millis(millis)).pop()
            else {
                panic!("no reply to {command}")
            };
            String::from_utf8(reply).expect("it is text")
        };
        ask("SET key 1", 10_900);
        ask("EXPIRE key 2", 10_900);
        assert_eq!(ask("TTL key", 11_000), if version < V2_6 { ":1\r\n" } else { ":2\r\n" }, "{version:?}");
        assert_eq!(ask("EXISTS key", 12_900), ":1\r\n", "{version:?}");
        assert_eq!(
            ask("EXISTS key", 12_950),
            if version < V2_6 { ":1\r\n" } else { ":0\r\n" },
            "{version:?}"
        );
        assert_eq!(ask("EXISTS key", 13_000), ":0\r\n", "{version:?}");
    }
}

#[test]
fn transactions_of_old_versions() {
    for version in [V2_0, V2_2, V2_4, V2_6] {
        let server = server_of(version);
        let (mut wire, mut other) = (Wire::to(&server.url()), Wire::to(&server.url()));
        assert_eq!(wire.ask("EXEC"), "-ERR EXEC without MULTI");
        wire.ask("MULTI");
        let nested = if version == V2_0 { "+QUEUED" } else { "-ERR MULTI calls can not be nested" };
        assert_eq!(wire.ask("MULTI"), nested, "{version:?}");
        wire.ask("SETNX key 1");
        let executed = if version == V2_0 { "[+OK :1]" } else { "[:1]" };
        assert_eq!(wire.ask("EXEC"), executed, "{version:?}");
        // What was refused spoils the transaction from 2.6.5 on.
        wire.ask("MULTI");
        assert!(wire.ask("NONSENSE").starts_with("-ERR unknown command"));
        wire.ask("INCR count");
        let spoiled = "-EXECABORT Transaction discarded because of previous errors.";
        assert_eq!(wire.ask("EXEC"), if version >= V2_6 { spoiled } else { "[:1]" }, "{version:?}");
        if version >= V2_2 {
            wire.ask("SET watched 1");
            assert_eq!(wire.ask("WATCH watched"), "+OK");
            other.ask("SET watched 2");
            assert_eq!((wire.ask("MULTI"), wire.ask("DEL watched")), ("+OK".into(), "+QUEUED".into()));
            assert_eq!(wire.ask("EXEC"), "*-1", "{version:?}");
            // The end of a key's time counts as a change from 6.0.9 on.
            wire.ask("EXPIRE watched 10");
            wire.ask("WATCH watched");
            server.advance(Duration::from_secs(20));
            assert_eq!((wire.ask("MULTI"), wire.ask("PING")), ("+OK".into(), "+QUEUED".into()));
            assert_eq!(wire.ask("EXEC"), "[+PONG]", "{version:?}");
        }
    }
}

#[test]
fn passwords_of_old_versions() {
    every_version(|version, wire, _| {
        let none_set = "-ERR Client sent AUTH, but no password is set";
        assert_eq!(wire.ask("AUTH any"), if version <= V2_2 { "+OK" } else { none_set }, "{version:?}");
        let server = TestServer::builder().version(version.name()).password("secret").start();
        let mut wire = Wire::to(&server.url());
        assert_eq!(wire.ask("GET key"), "-ERR operation not permitted", "{version:?}");
        assert_eq!(wire.ask("AUTH wrong"), "-ERR invalid password", "{version:?}");
        assert_eq!((wire.ask("AUTH secret"), wire.ask("GET key")), ("+OK".into(), "$-1".into()));
        // A wrong one takes the right away.
        wire.ask("AUTH wrong");
        assert_eq!(wire.ask("GET key"), "-ERR operation not permitted", "{version:?}");
    });
}

#[test]
fn replicas_of_old_versions_can_be_written_to() {
    every_version(|version, wire, server| {
        server.become_replica();
        assert_eq!(field(&wire.ask("INFO"), "role"), Some("slave"), "{version:?}");
        let reply = wire.ask("SETNX key 1");
        assert_eq!(reply.starts_with("-READONLY"), version >= V2_6, "{version:?}: {reply}");
        server.become_master();
        assert!(wire.ask("SETNX key 1").starts_with(':'), "{version:?}");
    });
}

#[test]
fn commands_that_compare_came_with_redis_8_4_and_valkey_9() {
    for version in ServerVersion::ALL {
        let server = server_of(version);
        let mut wire = Wire::to(&server.url());
        wire.ask("SET key 1");
        let compares = matches!(version, ServerVersion::V8_4 | ServerVersion::Valkey9);
        for (command, there, reply) in [
            ("SET key 2 IFEQ 0", compares, "$-1"),
            ("SET key 2 IFEQ 1 PX 100000", compares, "+OK"),
            ("DELIFEQ key 1", version == ServerVersion::Valkey9, ":0"),
            ("DELEX key IFEQ 1", version == ServerVersion::V8_4, ":0"),
        ] {
            let got = wire.ask(command);
            assert_eq!(got == reply, there, "{command} in {version:?}: {got}");
        }
        let info = wire.ask("INFO");
        let valkey = (version == ServerVersion::Valkey9).then_some("9.0.0");
        assert_eq!(field(&info, "valkey_version"), valkey);
    }
}

//! Old versions of Redis as the proxy emulates them: it does what is known of them.

pub(crate) mod process;

use libtest_mimic::Trial;

use crate::servers::{Emulated, Proxy};
use crate::support::raw::Wire;
use crate::support::{Outcome, RedisServer, tests};

pub(crate) fn trials() -> Vec<Trial> {
    let trials = crate::support::trials(
        "proxy_versions",
        tests![
            commands_appear_with_their_versions,
            refusals_are_in_the_words_of_the_version,
            info_is_written_as_the_version_wrote_it,
            a_key_with_a_time_to_live_is_deleted_by_setnx_before_2_2,
            a_list_with_a_time_to_live_is_gone_before_2_2,
            what_1_2_does_and_no_later_version,
            a_second_expire_changes_nothing_before_2_2,
            exec_over_maxmemory_leaves_the_transaction_open,
            a_limit_set_through_the_proxy_counts,
        ],
    );
    trials.into_iter().chain(process::trials()).collect()
}

/// Runs a test for every version: a connection through a new proxy, on one server with an empty database.
fn every_version(test: impl Fn(Emulated, &mut Wire, &RedisServer)) -> Outcome {
    let server = RedisServer::start()?;
    for version in Emulated::ALL {
        let proxy = Proxy::emulating(version, server.address())?;
        server.say(&["FLUSHALL"])?;
        test(version, &mut Wire::to(&proxy.url()), &server);
    }
    Ok(())
}

fn commands_appear_with_their_versions() -> Outcome {
    use Emulated::{V1_2, V2_0, V2_2, V2_4, V2_6};
    let since: [(Emulated, &[&str]); 6] = [
        (V1_2, &["SETNX key 1", "GETSET key 1", "EXPIREAT key 1", "RPOPLPUSH a b", "LPUSH list a"]),
        (V1_2, &["LLEN list", "LRANGE list 0 -1", "LTRIM list 0 9", "LPOP list", "TYPE list", "DEL list"]),
        (V2_0, &["MULTI", "EXEC", "PUBLISH channel text", "SETEX key 1 1", "CONFIG GET maxmemory"]),
        (V2_2, &["WATCH key", "PERSIST key"]),
        (V2_4, &["CLIENT LIST", "RPUSH list a b"]),
        (V2_6, &["PTTL key", "TIME", "EVAL return{1} 0", "INFO server", "SET key 1 NX PX 1000"]),
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
    })
}

fn refusals_are_in_the_words_of_the_version() -> Outcome {
    every_version(|version, wire, _| {
        assert_eq!(wire.ask("Scan 0"), "-ERR unknown command 'Scan'", "{version:?}");
        let wrong = "-ERR wrong number of arguments for 'get' command";
        assert_eq!(wire.ask("GET a b"), wrong, "{version:?}");
        wire.ask("LPUSH list a");
        let type_error = "-ERR Operation against a key holding the wrong kind of value";
        assert_eq!(wire.ask("GET list"), type_error, "{version:?}");
        assert_eq!(wire.ask("SELECT 99"), "-ERR invalid DB index", "{version:?}");
        if version >= Emulated::V2_0 {
            assert_eq!((wire.ask("MULTI"), wire.ask("GET list")), ("+OK".into(), "+QUEUED".into()));
            assert_eq!(wire.ask("EXEC"), format!("[{type_error}]"), "{version:?}");
        }
    })
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn info_is_written_as_the_version_wrote_it() -> Outcome {
    use Emulated::{V1_2, V2_0, V2_2, V2_4, V2_6};
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
    })
}

fn a_key_with_a_time_to_live_is_deleted_by_setnx_before_2_2() -> Outcome {
    every_version(|version, wire, server| {
        let deletes = version < Emulated::V2_2;
        wire.ask("SET key old");
        assert_eq!(wire.ask("SETNX key new"), ":0", "{version:?}: without a time to live");
        wire.ask("EXPIRE key 100");
        assert_eq!(wire.ask("SETNX key new"), if deletes { ":1" } else { ":0" }, "{version:?}");
        assert_eq!(wire.ask("GET key"), if deletes { "new" } else { "old" }, "{version:?}");
        assert_eq!(server.say(&["PTTL", "key"]).unwrap() == ":-1", deletes, "{version:?}");
        wire.ask("SET count 5");
        wire.ask("EXPIRE count 100");
        assert_eq!(wire.ask("INCR count"), if deletes { ":1" } else { ":6" }, "{version:?}");
    })
}

fn a_list_with_a_time_to_live_is_gone_before_2_2() -> Outcome {
    every_version(|version, wire, _| {
        let deletes = version < Emulated::V2_2;
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
                Emulated::V1_2 if is_push => "+OK",
                _ if deletes => before,
                _ => since,
            };
            assert_eq!(wire.ask(command), reply, "{version:?}: {command}");
            let left = if deletes && is_push { "[new]" } else { left };
            assert_eq!(wire.ask("LRANGE list 0 -1"), left, "{version:?}: {command}");
            assert_eq!(wire.ask("TTL list") == ":-1", deletes || !is_push, "{version:?}: {command}");
        }
    })
}

/// Measured on a real server, as what follows.
fn what_1_2_does_and_no_later_version() -> Outcome {
    every_version(|version, wire, _| {
        let old = version < Emulated::V2_0;
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
    })
}

fn a_second_expire_changes_nothing_before_2_2() -> Outcome {
    every_version(|version, wire, server| {
        let kept = version < Emulated::V2_2;
        for (expire, again) in
            [("EXPIRE key 100", "EXPIRE key 5000"), ("EXPIREAT key 4000000000", "EXPIREAT key 4100000000")]
        {
            wire.ask("SET key 1");
            assert_eq!(wire.ask(expire), ":1", "{version:?}");
            let before = server.say(&["EXPIRETIME", "key"]).unwrap();
            assert_eq!(wire.ask(again), if kept { ":0" } else { ":1" }, "{version:?}: {again}");
            let after = server.say(&["EXPIRETIME", "key"]).unwrap();
            assert_eq!(after == before, kept, "{version:?}: {again}");
        }
        assert_eq!(wire.ask("GETSET key new"), "1", "{version:?}");
        assert_eq!(wire.ask("TTL key"), ":-1", "{version:?}: GETSET clears it");
    })
}

const OVER: &str = "-ERR command not allowed when used memory > 'maxmemory'";

fn exec_over_maxmemory_leaves_the_transaction_open() -> Outcome {
    for version in Emulated::ALL {
        let server = RedisServer::start_with("maxmemory 100mb")?;
        let proxy = Proxy::emulating(version, server.address())?;
        let mut wire = Wire::to(&proxy.url());
        wire.ask("SET key 1");
        if version >= Emulated::V2_0 {
            assert_eq!((wire.ask("MULTI"), wire.ask("DEL key")), ("+OK".into(), "+QUEUED".into()));
        }
        server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
        if version >= Emulated::V2_6 {
            assert_eq!(wire.ask("EXEC"), "[:1]");
            assert!(wire.ask("SETNX key 1").starts_with("-OOM"));
            continue;
        }
        if version >= Emulated::V2_0 {
            assert_eq!(wire.ask("EXEC"), OVER, "{version:?}");
            assert_eq!(wire.ask("DISCARD"), "+OK", "{version:?}: it was still open");
            assert_eq!(wire.ask("GET key"), "1", "{version:?}: nothing was executed");
        }
        if version >= Emulated::V2_2 {
            assert_eq!((wire.ask("WATCH key"), wire.ask("UNWATCH")), ("+OK".into(), "+OK".into()));
        }
        for command in ["SET key 1", "SETNX key 1", "GETSET key 1", "LPUSH list 1"] {
            assert_eq!(wire.ask(command), OVER, "{version:?}: {command}");
        }
        assert_eq!(wire.ask("DEL key"), ":1", "{version:?}");
        server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
        assert_eq!(wire.ask("SETNX key 1"), ":1", "{version:?}");
    }
    Ok(())
}

fn a_limit_set_through_the_proxy_counts() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::emulating(Emulated::V2_4, server.address())?;
    let mut wire = Wire::to(&proxy.url());
    assert_eq!((wire.ask("CONFIG SET maxmemory 1"), wire.ask("MULTI")), ("+OK".into(), "+OK".into()));
    assert_eq!(wire.ask("EXEC"), OVER);
    assert_eq!(wire.ask("DISCARD"), "+OK");
    Ok(())
}

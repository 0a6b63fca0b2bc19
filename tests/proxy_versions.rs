//! Old versions of Redis as the proxy emulates them: it does what is known of them.

mod measured;
mod over_memory;
pub(crate) mod process;

use std::thread;
use std::time::Instant;

use libtest_mimic::Trial;

use crate::servers::{Emulated, Proxy};
use crate::support::raw::Wire;
use crate::support::{LONG, Outcome, RedisServer, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    let trials = crate::support::trials(
        "proxy_versions",
        tests![
            commands_appear_with_their_versions,
            refusals_are_in_the_words_of_the_version,
            set_takes_options_from_2_6_12,
            info_is_written_as_the_version_wrote_it,
            info_has_sections_from_2_6,
            info_follows_the_role_of_the_real_server,
            a_key_with_a_time_to_live_is_deleted_by_setnx_before_2_2,
            a_second_expire_is_refused_before_2_2,
            a_time_to_live_is_in_whole_seconds_before_2_6,
            getset_clears_a_time_to_live,
            a_refused_command_spoils_a_transaction_from_2_6,
            a_quirk_in_a_transaction_is_queued,
            a_proxy_without_a_version_changes_nothing,
            published_messages_reach_a_subscriber,
        ],
    );
    trials
        .into_iter()
        .chain(measured::trials())
        .chain(over_memory::trials())
        .chain(process::trials())
        .collect()
}

/// Runs a test for every version: a connection through a new proxy, on one server with an empty database.
pub(crate) fn every_version(test: impl Fn(Emulated, &mut Wire, &RedisServer)) -> Outcome {
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
    let since = [
        ("SETNX key 1", V1_2),
        ("GETSET key 1", V1_2),
        ("EXPIREAT key 1", V1_2),
        ("RPOPLPUSH a b", V1_2),
        ("LPUSH list a", V1_2),
        ("RPUSH list a", V1_2),
        ("LLEN list", V1_2),
        ("LRANGE list 0 -1", V1_2),
        ("LTRIM list 0 9", V1_2),
        ("LPOP list", V1_2),
        ("RPOP list", V1_2),
        ("TYPE list", V1_2),
        ("EXPIRE list 1", V1_2),
        ("DEL list", V1_2),
        ("MULTI", V2_0),
        ("EXEC", V2_0),
        ("DISCARD", V2_0),
        ("PUBLISH channel text", V2_0),
        ("SETEX key 1 1", V2_0),
        ("CONFIG GET maxmemory", V2_0),
        ("WATCH key", V2_2),
        ("PERSIST key", V2_2),
        ("CLIENT LIST", V2_4),
        ("RPUSH list a b", V2_4),
        ("PTTL key", V2_6),
        ("TIME", V2_6),
        ("EVAL return{1} 0", V2_6),
        ("INFO server", V2_6),
        ("CLIENT GETNAME", V2_6),
        ("SET key 1 NX PX 1000", V2_6),
    ];
    let never =
        ["SCAN 0", "ROLE", "WAIT 0 0", "HELLO 3", "UNLINK key", "CLIENT SETINFO LIB-NAME x", "NONSENSE"];
    every_version(|version, wire, _| {
        for (command, since) in since {
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

fn set_takes_options_from_2_6_12() -> Outcome {
    every_version(|version, wire, _| {
        let wrong_number = "-ERR wrong number of arguments for 'set' command";
        let (taken, unknown) = if version < Emulated::V2_6 {
            (wrong_number, wrong_number)
        } else {
            ("+OK", "-ERR syntax error")
        };
        assert_eq!(wire.ask("SET key 1 NX PX 5000"), taken, "{version:?}");
        assert_eq!(wire.ask("SET key 1 KEEPTTL"), unknown, "{version:?}");
        assert_eq!(wire.ask("SET key 1"), "+OK", "{version:?}");
    })
}

pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn info_is_written_as_the_version_wrote_it() -> Outcome {
    use Emulated::{V1_2, V2_0, V2_2, V2_4, V2_6};
    // The field, and the first and the last version that has it.
    let fields = [
        ("role", V1_2, V2_6),
        ("used_memory", V1_2, V2_6),
        ("changes_since_last_save", V1_2, V2_4),
        ("bgsave_in_progress", V1_2, V2_4),
        ("last_save_time", V1_2, V2_4),
        ("bgrewriteaof_in_progress", V1_2, V2_4),
        ("expired_keys", V2_0, V2_6),
        ("vm_enabled", V2_0, V2_4),
        ("aof_enabled", V2_2, V2_6),
        ("evicted_keys", V2_2, V2_6),
        ("use_tcmalloc", V2_2, V2_2),
        ("mem_allocator", V2_4, V2_6),
        ("rdb_last_save_time", V2_6, V2_6),
        ("run_id", V2_6, V2_6),
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

fn info_has_sections_from_2_6() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::emulating(Emulated::V2_6, server.address())?;
    let info = Wire::to(&proxy.url()).ask("INFO replication");
    assert_eq!(info, "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n");
    Ok(())
}

fn info_follows_the_role_of_the_real_server() -> Outcome {
    let master = RedisServer::start()?;
    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {}", master.port()))?;
    for version in Emulated::ALL {
        let (to_master, to_replica) =
            (Proxy::emulating(version, master.address())?, Proxy::emulating(version, replica.address())?);
        let ends = Instant::now() + LONG;
        let mut wire = Wire::to(&to_replica.url());
        let info = loop {
            let info = wire.ask("INFO");
            if field(&info, "master_link_status") == Some("up") {
                break info;
            }
            assert!(Instant::now() < ends, "{info}");
            thread::sleep(millis(20));
        };
        assert_eq!(field(&info, "role"), Some("slave"));
        assert_eq!(field(&info, "master_port"), Some(master.port().to_string().as_str()));
        let info = Wire::to(&to_master.url()).ask("INFO");
        assert_eq!((field(&info, "role"), field(&info, "connected_slaves")), (Some("master"), Some("1")));
        // The state is left out: the master learns of the end of a synchronisation later than the replica.
        let listed = field(&info, "slave0").map(|replica| {
            let reported: Vec<&str> = replica.split(',').collect();
            (reported.len(), reported[..2].join(","))
        });
        let expected = (3, format!("127.0.0.1,{}", replica.port()));
        assert_eq!(listed, (version >= Emulated::V2_4).then_some(expected), "{version:?}");
    }
    Ok(())
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

fn a_second_expire_is_refused_before_2_2() -> Outcome {
    every_version(|version, wire, server| {
        let taken = if version < Emulated::V2_2 { ":0" } else { ":1" };
        for (expire, again) in
            [("EXPIRE key 100", "EXPIRE key 5000"), ("EXPIREAT key 4000000000", "EXPIREAT key 4100000000")]
        {
            wire.ask("SET key 1");
            assert_eq!(wire.ask(expire), ":1", "{version:?}");
            let before = server.say(&["EXPIRETIME", "key"]).unwrap();
            assert_eq!(wire.ask(again), taken, "{version:?}: {again}");
            let kept = server.say(&["EXPIRETIME", "key"]).unwrap() == before;
            assert_eq!(kept, version < Emulated::V2_2, "{version:?}: {again}");
        }
        assert_eq!(wire.ask("EXPIREAT key 1"), ":1", "{version:?}: a time in the past deletes the key");
        assert_eq!(wire.ask("EXISTS key"), ":0");
        assert_eq!(wire.ask("EXPIRE key 100"), ":0", "{version:?}: there is no key");
    })
}

fn a_time_to_live_is_in_whole_seconds_before_2_6() -> Outcome {
    every_version(|version, wire, server| {
        assert_eq!(wire.ask("TTL key"), ":-1", "{version:?}: -2 came with 2.8");
        wire.ask("SET key 1");
        assert_eq!(wire.ask("TTL key"), ":-1", "{version:?}");
        let expected = if version < Emulated::V2_6 { ":101" } else { ":100" };
        loop {
            server.say(&["PEXPIRE", "key", "100400"]).unwrap();
            let left = wire.ask("TTL key");
            // Unless so long has passed meanwhile that both are the same.
            let exactly = server.say(&["PTTL", "key"]).unwrap();
            if exactly.trim().trim_start_matches(':').parse::<u32>().unwrap() > 100_000 {
                return assert_eq!(left, expected, "{version:?}");
            }
        }
    })
}

fn getset_clears_a_time_to_live() -> Outcome {
    every_version(|version, wire, _| {
        wire.ask("SET key old");
        wire.ask("EXPIRE key 100");
        assert_eq!(wire.ask("GETSET key new"), "old", "{version:?}");
        assert_eq!(wire.ask("TTL key"), ":-1", "{version:?}");
    })
}

fn a_refused_command_spoils_a_transaction_from_2_6() -> Outcome {
    every_version(|version, wire, _| {
        if version < Emulated::V2_0 {
            return assert_eq!(wire.ask("MULTI"), "-ERR unknown command 'MULTI'");
        }
        for wrong in ["NONSENSE", "GET a b"] {
            wire.ask("DEL key");
            assert_eq!((wire.ask("MULTI"), wire.ask("SET key 1")), ("+OK".into(), "+QUEUED".into()));
            assert!(wire.ask(wrong).starts_with("-ERR"));
            let (done, value) = match version {
                Emulated::V2_6 => ("-EXECABORT Transaction discarded because of previous errors.", "$-1"),
                _ => ("[+OK]", "1"),
            };
            assert_eq!(wire.ask("EXEC"), done, "{version:?} after {wrong}");
            assert_eq!(wire.ask("GET key"), value, "{version:?} after {wrong}");
        }
        assert_eq!((wire.ask("MULTI"), wire.ask("SET key 2")), ("+OK".into(), "+QUEUED".into()));
        assert_eq!(wire.ask("EXEC"), "[+OK]", "{version:?}: the next is not spoiled");
    })
}

fn a_quirk_in_a_transaction_is_queued() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::emulating(Emulated::V2_0, server.address())?;
    let mut wire = Wire::to(&proxy.url());
    wire.ask("SET key old");
    wire.ask("EXPIRE key 100");
    for command in ["SETNX key new", "TTL key"] {
        assert_eq!((wire.ask("MULTI"), wire.ask(command)), ("+OK".into(), "+QUEUED".into()));
        assert_eq!(server.say(&["PTTL", "key"])? == ":-1", command == "TTL key", "not before EXEC");
        assert_eq!(wire.ask("EXEC"), if command == "TTL key" { "[:-1]" } else { "[:1]" });
    }
    Ok(())
}

fn a_proxy_without_a_version_changes_nothing() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let mut wire = Wire::to(&proxy.url());
    assert!(wire.ask("SET key 1 NX PX 5000") == "+OK" && wire.ask("TTL none") == ":-2");
    assert_eq!(wire.ask("SETNX key 2"), ":0");
    assert!(wire.ask("INFO memory").contains("maxmemory_policy"));
    assert!(wire.ask("NONSENSE").starts_with("-ERR unknown command 'NONSENSE', with args"));
    assert!(wire.ask("HELLO 3").starts_with('%'));
    Ok(())
}

fn published_messages_reach_a_subscriber() -> Outcome {
    let server = RedisServer::start()?;
    let old = Proxy::emulating(Emulated::V1_2, server.address())?;
    assert_eq!(Wire::to(&old.url()).ask("SUBSCRIBE news"), "-ERR unknown command 'SUBSCRIBE'");
    let proxy = Proxy::emulating(Emulated::V2_0, server.address())?;
    let mut wire = Wire::to(&proxy.url());
    wire.send("SUBSCRIBE news more");
    assert_eq!((wire.answer(), wire.answer()), ("[subscribe news :1]".into(), "[subscribe more :2]".into()));
    assert_eq!(Wire::to(&proxy.url()).ask("PUBLISH news item"), ":1");
    assert_eq!(wire.answer(), "[message news item]");
    assert_eq!(wire.ask("UNSUBSCRIBE news"), "[unsubscribe news :1]");
    drop(proxy);
    assert_eq!(wire.rest(), "");
    Ok(())
}

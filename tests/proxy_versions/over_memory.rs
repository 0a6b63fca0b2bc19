//! Memory limits in old versions as the proxy emulates them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use libtest_mimic::Trial;

use crate::servers::{Emulated, Proxy};
use crate::support::raw::Wire;
use crate::support::{Outcome, RedisServer, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "proxy_versions",
        tests![
            exec_over_maxmemory_leaves_the_transaction_open,
            a_transaction_is_queued_over_maxmemory,
            the_limit_counts_for_others_while_a_transaction_is_queued,
            a_limit_set_through_the_proxy_counts,
        ],
    )
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

/// What adds no data is queued. EXEC itself is refused up to 2.4.
fn a_transaction_is_queued_over_maxmemory() -> Outcome {
    for version in Emulated::ALL.into_iter().filter(|version| *version >= Emulated::V2_0) {
        let server = RedisServer::start_with("maxmemory 100mb")?;
        let proxy = Proxy::emulating(version, server.address())?;
        let mut wire = Wire::to(&proxy.url());
        let executes = version >= Emulated::V2_6;
        wire.ask("SET key 1");
        wire.ask("SET other 1");
        wire.ask("RPUSH list a");
        for early in [false, true] {
            if early {
                assert_eq!(wire.ask("MULTI"), "+OK");
                assert_eq!(wire.ask("SET early 1"), "+QUEUED");
            }
            server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
            if !early {
                assert_eq!(wire.ask("MULTI"), "+OK");
            }
            for command in ["DEL key", "LTRIM list 0 0", "EXPIRE other 100", "GET other"] {
                assert_eq!(wire.ask(command), "+QUEUED", "{version:?}: {command}");
            }
            assert_eq!(server.say(&["EXISTS", "other"])?, ":1", "{version:?}: not executed before EXEC");
            let done = match (executes, early) {
                (false, _) => OVER,
                (true, false) => "[:1 +OK :1 1]",
                (true, true) => "[+OK :0 +OK :1 1]",
            };
            assert_eq!(wire.ask("EXEC"), done, "{version:?}");
            if !executes {
                assert_eq!(wire.ask("DISCARD"), "+OK", "{version:?}: it was still open");
            }
            assert_eq!(server.say(&["EXISTS", "key"])? == ":0", executes, "{version:?}");
            let limit = Wire::to(&server.url()).ask("CONFIG GET maxmemory");
            assert_eq!(limit, "[maxmemory 1]", "{version:?}: the real server's limit is what it was");
            // What adds data is not queued, and from 2.6 on spoils the transaction.
            assert_eq!(wire.ask("MULTI"), "+OK");
            assert!(wire.ask("SETNX key 1").contains("command not allowed when used memory"), "{version:?}");
            assert_eq!(wire.ask("DEL key"), "+QUEUED", "{version:?}");
            let done = if executes { "-EXECABORT" } else { OVER };
            assert!(wire.ask("EXEC").starts_with(done), "{version:?}");
            wire.ask("DISCARD");
            server.say(&["CONFIG", "SET", "maxmemory", "100mb"])?;
        }
    }
    Ok(())
}

/// Over the limit no command that adds data passes on another connection, however the transactions on the first one fall.
fn the_limit_counts_for_others_while_a_transaction_is_queued() -> Outcome {
    const TRANSACTIONS: usize = 100;
    let server = RedisServer::start_with("maxmemory 100mb")?;
    let proxy = Proxy::emulating(Emulated::V2_6, server.address())?;
    server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let adding = scope.spawn(|| {
            let mut wire = Wire::to(&proxy.url());
            let mut refused = 0;
            while !over.load(Ordering::Relaxed) || refused == 0 {
                assert!(wire.ask("SETNX key 1").starts_with("-OOM"));
                refused += 1;
            }
        });
        let mut wire = Wire::to(&proxy.url());
        for _ in 0..TRANSACTIONS {
            let commands = ["MULTI", "DEL key", "EXPIRE key 100", "EXEC"];
            assert_eq!(commands.map(|command| wire.ask(command)), ["+OK", "+QUEUED", "+QUEUED", "[:0 :0]"]);
        }
        over.store(true, Ordering::Relaxed);
        adding.join().unwrap();
    });
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

//! Lists, and clients that block on them, in old versions as the proxy emulates them.

use std::thread;
use std::time::Instant;

use libtest_mimic::Trial;

use crate::proxy_versions::{every_version, field};
use crate::servers::{Emulated, Proxy};
use crate::support::raw::Wire;
use crate::support::{LONG, Outcome, RedisServer, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "proxy_lists",
        tests![
            a_list_with_a_time_to_live_is_deleted_by_a_push_before_2_2,
            a_list_with_a_time_to_live_is_not_popped_before_2_2,
            a_list_with_a_time_to_live_is_deleted_by_blocking_before_2_2,
            a_push_and_its_expire_in_one_transaction,
            a_blocked_client_is_served_by_a_push,
            a_blocked_client_is_served_within_the_transaction_before_2_6,
            a_notification_as_the_library_sends_it,
            a_list_that_the_transaction_itself_removes,
            a_transaction_that_is_not_executed,
            a_timeout_is_in_whole_seconds,
            a_timeout_passes,
        ],
    )
}

/// Runs a test for every version with BLPOP: two connections through a new proxy, on one server with an empty database.
pub(crate) fn every_blocking_version(test: impl Fn(Emulated, &mut Wire, &mut Wire, &RedisServer)) -> Outcome {
    let server = RedisServer::start()?;
    for version in Emulated::ALL.into_iter().filter(|version| *version >= Emulated::V2_0) {
        let proxy = Proxy::emulating(version, server.address())?;
        server.say(&["FLUSHALL"])?;
        test(version, &mut Wire::to(&proxy.url()), &mut Wire::to(&proxy.url()), &server);
    }
    Ok(())
}

/// Waits until this many clients are blocked in the server.
#[track_caller]
pub(crate) fn until_blocked(server: &RedisServer, count: usize) {
    until(server, "blocked_clients", count);
}

/// Waits until the section Clients of INFO has this value.
#[track_caller]
pub(crate) fn until(server: &RedisServer, name: &str, value: usize) {
    let ends = Instant::now() + LONG;
    let mut wire = Wire::to(&server.url());
    loop {
        let info = wire.ask("INFO clients");
        if field(&info, name) == Some(value.to_string().as_str()) {
            return;
        }
        assert!(Instant::now() < ends, "{name} is not {value}: {info}");
        thread::sleep(millis(5));
    }
}

fn a_list_with_a_time_to_live_is_deleted_by_a_push_before_2_2() -> Outcome {
    every_version(|version, wire, server| {
        let deletes = version < Emulated::V2_2;
        for (push, kept) in [("RPUSH list new", "[old new]"), ("LPUSH list new", "[new old]")] {
            for queued in [false, true] {
                if queued && version < Emulated::V2_0 {
                    continue;
                }
                wire.ask("DEL list");
                // 1.2 answers no length.
                let length =
                    |length: &str| if version < Emulated::V2_0 { "+OK".into() } else { format!(":{length}") };
                assert_eq!(wire.ask("RPUSH list old"), length("1"));
                assert_eq!(wire.ask("EXPIRE list 100"), ":1");
                let length = length(if deletes { "1" } else { "2" });
                if queued {
                    assert_eq!((wire.ask("MULTI"), wire.ask(push)), ("+OK".into(), "+QUEUED".into()));
                    assert_eq!(server.say(&["LLEN", "list"]).unwrap(), ":1", "not before EXEC");
                    assert_eq!(wire.ask("EXEC"), format!("[{length}]"), "{version:?}: {push}");
                } else {
                    assert_eq!(wire.ask(push), length, "{version:?}: {push}");
                }
                assert_eq!(wire.ask("LRANGE list 0 -1"), if deletes { "[new]" } else { kept }, "{version:?}");
                assert_eq!(wire.ask("TTL list") == ":-1", deletes, "{version:?}: {push}");
                let again = wire.ask("EXPIRE list 100");
                assert_eq!(
                    again, ":1",
                    "{version:?}: a new list has no time to live, and from 2.2 on a second EXPIRE is accepted"
                );
            }
        }
    })
}

fn a_list_with_a_time_to_live_is_not_popped_before_2_2() -> Outcome {
    every_version(|version, wire, _| {
        for pop in ["LPOP list", "RPOP list"] {
            wire.ask("DEL list");
            wire.ask("RPUSH list item");
            wire.ask("EXPIRE list 100");
            assert_eq!(wire.ask("LLEN list"), ":1", "{version:?}: reading does not delete it");
            assert_eq!(wire.ask("TYPE list"), "+list", "{version:?}");
            let popped = if version < Emulated::V2_2 { "$-1" } else { "item" };
            assert_eq!(wire.ask(pop), popped, "{version:?}: {pop}");
            assert_eq!(wire.ask("EXISTS list"), ":0", "{version:?}: {pop}");
        }
    })
}

fn a_list_with_a_time_to_live_is_deleted_by_blocking_before_2_2() -> Outcome {
    every_blocking_version(|version, wire, other, server| {
        let deletes = version < Emulated::V2_2;
        for command in ["BLPOP a b 30", "BRPOP a b 30"] {
            for words in ["FLUSHALL", "RPUSH a short", "EXPIRE a 100", "RPUSH b lasting"] {
                other.ask(words);
            }
            assert_eq!(wire.ask(command), if deletes { "[b lasting]" } else { "[a short]" }, "{version:?}");
            assert_eq!(other.ask("EXISTS a"), ":0", "{version:?}: {command}");
            for words in ["FLUSHALL", "RPUSH a lasting", "RPUSH b short", "EXPIRE b 100"] {
                other.ask(words);
            }
            assert_eq!(wire.ask(command), "[a lasting]", "{version:?}");
            assert_eq!(other.ask("LLEN b"), ":1", "{version:?}: {command} leaves it alone");
            // Only a list with a time to live.
            wire.send(command);
            if deletes {
                until_blocked(server, 1);
                assert_eq!(other.ask("EXISTS b"), ":0", "{version:?}: {command}");
                assert_eq!(other.ask("RPUSH b next"), ":1", "{version:?}");
            }
            assert_eq!(wire.answer(), if deletes { "[b next]" } else { "[b short]" }, "{version:?}");
        }
    })
}

fn a_push_and_its_expire_in_one_transaction() -> Outcome {
    every_blocking_version(|version, wire, _, server| {
        wire.ask("SET lock 1");
        for (count, deleted) in [(1, ":1"), (2, ":0")] {
            for command in ["DEL lock", "MULTI", "RPUSH list item", "EXPIRE list 100", "EXEC"] {
                wire.send(command);
            }
            let replies: Vec<String> = (0..5).map(|_| wire.answer()).collect();
            assert_eq!(replies[..4], [deleted, "+OK", "+QUEUED", "+QUEUED"], "{version:?}");
            // Before 2.2 the second push deletes the item of the first.
            let length = if version < Emulated::V2_2 { 1 } else { count };
            assert_eq!(replies[4], format!("[:{length} :1]"), "{version:?}");
            assert_eq!(wire.ask("LLEN list"), format!(":{length}"), "{version:?}");
            assert_ne!(server.say(&["PTTL", "list"]).unwrap(), ":-1", "{version:?}: it has a time to live");
        }
    })
}

fn a_blocked_client_is_served_by_a_push() -> Outcome {
    every_blocking_version(|version, wire, other, server| {
        for (wait, push, served) in [
            ("BLPOP one control 60", "RPUSH control item", "[control item]"),
            ("BRPOP one control 0", "LPUSH one item", "[one item]"),
        ] {
            wire.send(wait);
            until_blocked(server, 1);
            assert_eq!(other.ask(push), ":1", "{version:?}");
            assert_eq!(wire.answer(), served, "{version:?}");
            let list = push.split(' ').nth(1).unwrap();
            assert_eq!(other.ask(&format!("EXPIRE {list} 100")), ":0", "{version:?}: there is no list");
        }
        wire.send("BLPOP list 60");
        until_blocked(server, 1);
        server.say(&["RPUSH", "list", "direct"]).unwrap();
        assert_eq!(wire.answer(), "[list direct]", "{version:?}: a push past the proxy");
        assert_eq!(wire.ask("PING"), "+PONG");
    })
}

fn a_blocked_client_is_served_within_the_transaction_before_2_6() -> Outcome {
    every_blocking_version(|version, wire, other, server| {
        let mut execute = |commands: &[&str]| {
            assert_eq!(other.ask("MULTI"), "+OK");
            for command in commands {
                assert_eq!(other.ask(command), "+QUEUED");
            }
            other.ask("EXEC")
        };
        let expired = if version < Emulated::V2_6 { ":0" } else { ":1" };
        wire.send("BLPOP first list 60");
        until_blocked(server, 1);
        let done = execute(&["SET other 1", "RPUSH list item", "EXPIRE list 100", "GET other"]);
        assert_eq!(done, format!("[+OK :1 {expired} 1]"), "{version:?}");
        assert_eq!(wire.answer(), "[list item]", "{version:?}");
        assert_eq!(wire.ask("EXISTS list"), ":0", "{version:?}");

        // The same without a blocked client: the list remains.
        assert_eq!(execute(&["RPUSH list item", "EXPIRE list 100"]), "[:1 :1]", "{version:?}");
        // More items than blocked clients: the rest remains as a list, which can expire.
        wire.ask("DEL list");
        wire.send("BLPOP first list 60");
        until_blocked(server, 1);
        let done = execute(&["RPUSH list item", "RPUSH list more", "EXPIRE list 100"]);
        assert!(done.ends_with(":1]"), "{version:?}: {done}");
        assert!(wire.answer().starts_with("[list "), "{version:?}");
        assert_eq!(wire.ask("LLEN list"), ":1", "{version:?}");
    })
}

/// The five commands of a release notification, with a waiting client and without one.
fn a_notification_as_the_library_sends_it() -> Outcome {
    every_blocking_version(|version, wire, other, server| {
        let mut notify = |stop: &str| {
            let trim = format!("LTRIM list 0 {stop}");
            for command in ["MULTI", "RPUSH list 1", &trim, "EXPIRE list 2", "EXEC"] {
                other.send(command);
            }
            (0..5).map(|_| other.answer()).last().unwrap()
        };
        for stop in ["0", "-1"] {
            wire.send("BLPOP interrupt list 60");
            until_blocked(server, 1);
            let expired = if version < Emulated::V2_6 { ":0" } else { ":1" };
            assert_eq!(notify(stop), format!("[:1 +OK {expired}]"), "{version:?}");
            assert_eq!(wire.answer(), "[list 1]", "{version:?}");
        }
        assert_eq!(notify("0"), "[:1 +OK :1]", "{version:?}: nothing waits");
        server.say(&["DEL", "list"]).unwrap();
        // The list is removed by the transaction itself, after EXPIRE.
        for command in ["MULTI", "RPUSH list 1", "EXPIRE list 2", "LTRIM list 1 0", "EXEC"] {
            wire.send(command);
        }
        assert_eq!((0..5).map(|_| wire.answer()).last().unwrap(), "[:1 :1 +OK]", "{version:?}");
    })
}

fn a_list_that_the_transaction_itself_removes() -> Outcome {
    every_blocking_version(|version, wire, _, _| {
        for (last, reply) in [("DEL list", ":1"), ("EXPIRE list -1", ":1"), ("RENAME list more", "+OK")] {
            wire.ask("MULTI");
            let queued = ["RPUSH list item", "EXPIRE list 100", last];
            assert_eq!(queued.map(|command| wire.ask(command)), ["+QUEUED"; 3]);
            assert_eq!(wire.ask("EXEC"), format!("[:1 :1 {reply}]"), "{version:?}: {last}");
        }
    })
}

fn a_transaction_that_is_not_executed() -> Outcome {
    every_blocking_version(|version, wire, other, server| {
        let begin = |wire: &mut Wire| {
            wire.ask("MULTI");
            assert_eq!(
                ["RPUSH list item", "EXPIRE list 100"].map(|command| wire.ask(command)),
                ["+QUEUED"; 2]
            );
        };
        if version >= Emulated::V2_2 {
            wire.ask("WATCH key");
            other.ask("SET key 1");
            begin(wire);
            assert_eq!(wire.ask("EXEC"), "*-1", "{version:?}");
        }
        begin(wire);
        assert_eq!(wire.ask("DISCARD"), "+OK");
        assert_eq!((wire.ask("MULTI"), wire.ask("EXEC")), ("+OK".into(), "[]".into()), "{version:?}");
        assert!(wire.ask("EXEC").starts_with("-ERR EXEC without MULTI"), "{version:?}");
        assert_eq!(server.say(&["EXISTS", "list"]).unwrap(), ":0", "{version:?}");
    })
}

fn a_timeout_is_in_whole_seconds() -> Outcome {
    every_blocking_version(|version, wire, other, _| {
        let words = match version {
            Emulated::V2_0 => "-ERR timeout is not an integer",
            _ => "-ERR timeout is not an integer or out of range",
        };
        for timeout in ["1.5", "x"] {
            for command in ["BLPOP", "BRPOP"] {
                assert_eq!(wire.ask(&format!("{command} list {timeout}")), words, "{version:?}: {timeout}");
            }
        }
        assert_eq!(wire.ask("BRPOP list -1"), "-ERR timeout is negative", "{version:?}");
        other.ask("SET text 1");
        let refused = "-ERR Operation against a key holding the wrong kind of value";
        assert_eq!(wire.ask("BLPOP text 1"), refused, "{version:?}");
    })
}

fn a_timeout_passes() -> Outcome {
    every_blocking_version(|version, wire, other, server| {
        for _ in 0..2 {
            let began = Instant::now();
            assert_eq!(wire.ask("BLPOP one two 1"), "*-1", "{version:?}");
            assert!(began.elapsed() >= millis(900), "{version:?}: {:?}", began.elapsed());
        }
        until_blocked(server, 0);
        assert_eq!((other.ask("RPUSH two item"), other.ask("LLEN two")), (":1".into(), ":1".into()));
    })
}

//! Replies that were measured on real old servers: the proxy gives the same.

use libtest_mimic::Trial;

use super::every_version;
use crate::servers::{Emulated, Proxy};
use crate::support::raw::Wire;
use crate::support::{Outcome, RedisServer, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "proxy_versions",
        tests![
            a_push_says_ok_in_1_2,
            a_random_key_comes_in_a_status_line_in_1_2,
            getset_overwrites_what_it_refuses_in_1_2,
            a_text_is_counted_from_zero_in_1_2,
            a_second_expire_of_zero,
            a_nested_multi,
            a_wrong_password_takes_the_permission_away,
            a_password_where_none_is_set,
        ],
    )
}

fn a_push_says_ok_in_1_2() -> Outcome {
    every_version(|version, wire, _| {
        for (push, length) in [("RPUSH list a", ":1"), ("LPUSH list b", ":2")] {
            let pushed = if version < Emulated::V2_0 { "+OK" } else { length };
            assert_eq!(wire.ask(push), pushed, "{version:?}: {push}");
        }
        assert_eq!(wire.ask("LLEN list"), ":2", "{version:?}");
        wire.ask("SET text 1");
        assert!(wire.ask("RPUSH text a").starts_with("-ERR Operation against a key"), "{version:?}");
    })
}

fn a_random_key_comes_in_a_status_line_in_1_2() -> Outcome {
    every_version(|version, wire, _| {
        wire.ask("SET key 1");
        let key = if version < Emulated::V2_0 { "+key" } else { "key" };
        assert_eq!(wire.ask("RANDOMKEY"), key, "{version:?}");
        assert_eq!(wire.ask("PING"), "+PONG", "{version:?}");
    })
}

fn getset_overwrites_what_it_refuses_in_1_2() -> Outcome {
    every_version(|version, wire, _| {
        for fill in ["RPUSH key item", "SADD key member"] {
            wire.ask("DEL key");
            wire.ask(fill);
            let refused = "-ERR Operation against a key holding the wrong kind of value";
            assert_eq!(wire.ask("GETSET key new"), refused, "{version:?}: {fill}");
            let kind = wire.ask("TYPE key");
            assert_eq!(kind == "+string", version < Emulated::V2_0, "{version:?}: {fill}: {kind}");
        }
        wire.ask("DEL key");
        assert_eq!((wire.ask("GETSET key 1"), wire.ask("GETSET key 2")), ("$-1".into(), "1".into()));
        assert_eq!(wire.ask("GET key"), "2", "{version:?}");
    })
}

fn a_text_is_counted_from_zero_in_1_2() -> Outcome {
    every_version(|version, wire, _| {
        let refused = "-ERR value is not an integer or out of range";
        for (count, counted) in [("INCR text", ":1"), ("INCRBY text 5", ":5"), ("DECR text", ":-1")] {
            wire.ask("SET text oops");
            let reply = if version < Emulated::V2_0 { counted } else { refused };
            assert_eq!(wire.ask(count), reply, "{version:?}: {count}");
        }
        wire.ask("SET number 41");
        assert_eq!((wire.ask("INCR number"), wire.ask("INCR missing")), (":42".into(), ":1".into()));
    })
}

fn a_second_expire_of_zero() -> Outcome {
    every_version(|version, wire, _| {
        wire.ask("SET key 1");
        assert_eq!(wire.ask("EXPIRE key 100"), ":1", "{version:?}");
        let stays = version < Emulated::V2_0;
        assert_eq!(wire.ask("EXPIRE key 0"), if stays { ":0" } else { ":1" }, "{version:?}");
        assert_eq!(wire.ask("EXISTS key"), if stays { ":1" } else { ":0" }, "{version:?}");
        wire.ask("SET key 1");
        assert_eq!((wire.ask("EXPIRE key 0"), wire.ask("EXISTS key")), (":1".into(), ":0".into()));
    })
}

fn a_nested_multi() -> Outcome {
    every_version(|version, wire, _| {
        if version < Emulated::V2_0 {
            return;
        }
        assert_eq!((wire.ask("MULTI"), wire.ask("SET key 1")), ("+OK".into(), "+QUEUED".into()));
        if version < Emulated::V2_2 {
            assert_eq!(wire.ask("MULTI"), "+QUEUED", "{version:?}");
            assert_eq!(wire.ask("RPUSH list a"), "+QUEUED", "{version:?}");
            assert_eq!(wire.ask("EXEC"), "[+OK +OK :1]", "{version:?}");
        } else {
            assert_eq!(wire.ask("MULTI"), "-ERR MULTI calls can not be nested", "{version:?}");
            assert_eq!(wire.ask("EXEC"), "[+OK]", "{version:?}");
        }
        assert_eq!(wire.ask("GET key"), "1", "{version:?}: the transaction has ended");
    })
}

fn a_wrong_password_takes_the_permission_away() -> Outcome {
    let server = RedisServer::start_with("requirepass secret")?;
    for version in Emulated::ALL {
        let proxy = Proxy::emulating(version, server.address())?;
        let mut wire = Wire::to(&proxy.url());
        let none = "-ERR operation not permitted";
        assert_eq!(wire.ask("GET key"), none, "{version:?}: without a password");
        assert_eq!((wire.ask("AUTH secret"), wire.ask("GET key")), ("+OK".into(), "$-1".into()));
        assert_eq!(wire.ask("AUTH wrong"), "-ERR invalid password", "{version:?}");
        for command in ["GET key", "SETNX key 1", "INFO", "PING"] {
            assert_eq!(wire.ask(command), none, "{version:?}: {command} after a wrong password");
        }
        assert_eq!((wire.ask("AUTH secret"), wire.ask("GET key")), ("+OK".into(), "$-1".into()));
    }
    Ok(())
}

fn a_password_where_none_is_set() -> Outcome {
    every_version(|version, wire, _| {
        let reply = match version {
            Emulated::V1_2 | Emulated::V2_0 | Emulated::V2_2 => "+OK",
            _ => "-ERR Client sent AUTH, but no password is set",
        };
        assert_eq!(wire.ask("AUTH any"), reply, "{version:?}");
        assert_eq!(wire.ask("SETNX key 1"), ":1", "{version:?}");
        wire.ask("DEL key");
    })
}

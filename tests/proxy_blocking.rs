//! Clients that block on a list through the proxy leave, and the proxy or the server ends.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use libtest_mimic::Trial;

use crate::proxy_lists::{every_blocking_version, until, until_blocked};
use crate::proxy_versions::field;
use crate::servers::{Emulated, Fault, Proxy};
use crate::support::raw::Wire;
use crate::support::{LONG, Outcome, RedisServer, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "proxy_blocking",
        tests![
            many_clients_block_on_several_lists,
            requests_behind_a_blocking_one_are_answered_after_it,
            a_blocked_client_that_disconnects_is_forgotten_at_once,
            a_client_that_disconnects_before_it_blocks_takes_no_item,
            requests_sent_before_a_disconnect_are_executed,
            a_proxy_ends_while_a_client_is_blocked,
            a_proxy_restarts_while_a_client_is_blocked,
            a_server_ends_while_clients_are_blocked,
            an_item_whose_delivery_is_lost,
        ],
    )
}

fn many_clients_block_on_several_lists() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::emulating(Emulated::V2_0, server.address())?;
    let mut other = Wire::to(&proxy.url());
    let mut waiting: Vec<Wire> = (0..20).map(|_| Wire::to(&proxy.url())).collect();
    for (n, wire) in waiting.iter_mut().enumerate() {
        wire.send(&format!("BLPOP own{n} common 60"));
        until_blocked(&server, n + 1);
        assert_eq!(other.ask("PING"), "+PONG", "other connections are served");
    }
    assert_eq!(other.ask("RPUSH own7 item"), ":1");
    assert_eq!(waiting[7].answer(), "[own7 item]");
    assert_eq!(other.ask("RPUSH common item"), ":1");
    assert_eq!(waiting[0].answer(), "[common item]", "the client that blocked first");
    until_blocked(&server, 18);
    Ok(())
}

fn requests_behind_a_blocking_one_are_answered_after_it() -> Outcome {
    every_blocking_version(|version, wire, other, server| {
        for command in ["BLPOP list 60", "ECHO next", "BLPOP list 60", "ECHO last"] {
            wire.send(command);
        }
        for (item, next) in [("one", "next"), ("two", "last")] {
            until_blocked(server, 1);
            wire.is_silent();
            other.ask(&format!("RPUSH list {item}"));
            assert_eq!(
                (wire.answer(), wire.answer()),
                (format!("[list {item}]"), next.into()),
                "{version:?}"
            );
        }
    })
}

/// A proxy for each version with BLPOP, and one that emulates no version.
fn proxies(server: &RedisServer) -> Result<Vec<Proxy>, std::io::Error> {
    let versions = Emulated::ALL.into_iter().filter(|version| *version >= Emulated::V2_0);
    let emulating = versions.map(|version| Proxy::emulating(version, server.address()));
    emulating.chain([Proxy::before(server.address())]).collect()
}

fn a_blocked_client_that_disconnects_is_forgotten_at_once() -> Outcome {
    let server = RedisServer::start()?;
    for proxy in proxies(&server)? {
        for behind in [None, Some("SET key 1")] {
            let mut wire = Wire::to(&proxy.url());
            // Without a timeout: it ends with the connection.
            wire.send("BLPOP list other 0");
            if let Some(command) = behind {
                wire.send(command);
            }
            until_blocked(&server, 1);
            let mut next = Wire::to(&proxy.url());
            next.send("BLPOP list 0");
            until_blocked(&server, 2);
            drop(wire);
            until_blocked(&server, 1);
            let mut pushing = Wire::to(&proxy.url());
            assert_eq!(pushing.ask("RPUSH list item"), ":1");
            assert_eq!(next.answer(), "[list item]", "{proxy:?}: the next client gets it");
            drop(next);
            assert_eq!(
                (pushing.ask("RPUSH other item"), pushing.ask("LPOP other")),
                (":1".into(), "item".into())
            );
            assert_eq!(pushing.ask("EXISTS key"), ":0", "{proxy:?}: the request behind is not executed");
        }
    }
    Ok(())
}

fn a_client_that_disconnects_before_it_blocks_takes_no_item() -> Outcome {
    let server = RedisServer::start()?;
    for proxy in proxies(&server)? {
        let hold = proxy.hold("BLPOP", 1);
        let mut wire = Wire::to(&proxy.url());
        wire.send("BLPOP list 0");
        hold.reached();
        drop(wire);
        hold.go_on();
        // Whether or not it reached the server, it has ended when the asking client is the only one.
        until(&server, "connected_clients", 1);
        let mut wire = Wire::to(&proxy.url());
        assert_eq!(wire.ask("RPUSH list item"), ":1");
        assert_eq!(wire.ask("LPOP list"), "item", "{proxy:?}");
    }
    Ok(())
}

fn requests_sent_before_a_disconnect_are_executed() -> Outcome {
    let server = RedisServer::start()?;
    for proxy in proxies(&server)? {
        server.say(&["DEL", "count"])?;
        let address = proxy.url().trim_start_matches("redis://").trim_end_matches('/').to_owned();
        // In one piece: the first reply resets the connection, and requests that were not read by then are lost.
        TcpStream::connect(address)?.write_all(&b"*2\r\n$4\r\nINCR\r\n$5\r\ncount\r\n".repeat(100))?;
        let ends = Instant::now() + LONG;
        while Wire::to(&server.url()).ask("GET count") != "100" {
            assert!(Instant::now() < ends, "{proxy:?}");
            thread::sleep(millis(5));
        }
    }
    Ok(())
}

fn a_proxy_ends_while_a_client_is_blocked() -> Outcome {
    let server = RedisServer::start()?;
    for proxy in proxies(&server)? {
        let mut wire = Wire::to(&proxy.url());
        wire.send("BLPOP list 0");
        until_blocked(&server, 1);
        drop(proxy);
        assert_eq!(wire.rest(), "");
        until_blocked(&server, 0);
    }
    Ok(())
}

fn a_proxy_restarts_while_a_client_is_blocked() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::emulating(Emulated::V2_0, server.address())?;
    for version in [Emulated::V2_4, Emulated::V2_6, Emulated::V2_0, Emulated::V1_2] {
        let mut wire = Wire::to(&proxy.url());
        wire.send("BLPOP list 0");
        until_blocked(&server, 1);
        proxy.restart_as(version);
        assert_eq!(wire.rest(), "");
        until_blocked(&server, 0);
        let mut wire = Wire::to(&proxy.url());
        assert_eq!(field(&wire.ask("INFO"), "redis_version"), Some(version.number()));
        let pushed = if version < Emulated::V2_0 { "+OK" } else { ":1" };
        assert_eq!((wire.ask("RPUSH list item"), wire.ask("LPOP list")), (pushed.into(), "item".into()));
    }
    assert_eq!(Wire::to(&proxy.url()).ask("BLPOP list 0"), "-ERR unknown command 'BLPOP'");
    Ok(())
}

fn a_server_ends_while_clients_are_blocked() -> Outcome {
    let mut server = RedisServer::start()?;
    let proxies = proxies(&server)?;
    let mut wires: Vec<Wire> = proxies.iter().map(|proxy| Wire::to(&proxy.url())).collect();
    for wire in &mut wires {
        wire.send("BLPOP list 0");
    }
    until_blocked(&server, wires.len());
    server.stop();
    for wire in &mut wires {
        assert_eq!(wire.rest(), "");
    }
    Ok(())
}

fn an_item_whose_delivery_is_lost() -> Outcome {
    let server = RedisServer::start()?;
    for proxy in proxies(&server)? {
        proxy.next("BLPOP", Fault::CutAfter);
        let mut wire = Wire::to(&proxy.url());
        wire.send("BLPOP list 0");
        until_blocked(&server, 1);
        let mut other = Wire::to(&proxy.url());
        assert_eq!(other.ask("RPUSH list item"), ":1");
        assert_eq!(wire.rest(), "", "{proxy:?}");
        assert_eq!(other.ask("EXISTS list"), ":0", "{proxy:?}");
    }
    Ok(())
}

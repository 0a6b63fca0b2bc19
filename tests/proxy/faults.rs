//! The proxy injects the faults that a test asks for, and records the commands.

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::servers::{Asked, Fault, Proxy};
use crate::support::raw::Wire;
use crate::support::{Outcome, RedisServer, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "proxy_faults",
        tests![
            pipelined_requests_are_answered_in_order,
            requests_and_replies_that_are_lost_late_or_made_up,
            connections_that_are_cut,
            a_connection_that_is_half_open,
            faults_are_counted_by_name_and_by_position,
            a_batch_is_what_arrives_in_one_piece,
            a_command_is_held_before_it_is_executed,
            a_slow_network_delays_commands,
        ],
    )
}

fn proxy_and_wire() -> Result<(RedisServer, Proxy, Wire), std::io::Error> {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let wire = Wire::to(&proxy.url());
    Ok((server, proxy, wire))
}

fn pipelined_requests_are_answered_in_order() -> Outcome {
    let (_server, proxy, mut wire) = proxy_and_wire()?;
    proxy.next("ECHO", Fault::AnswerLate(millis(50)));
    (0..100).for_each(|n| wire.send(&format!("ECHO {n}")));
    for n in 0..100 {
        assert_eq!(wire.answer(), n.to_string());
    }
    Ok(())
}

fn requests_and_replies_that_are_lost_late_or_made_up() -> Outcome {
    let (server, proxy, mut wire) = proxy_and_wire()?;
    for (fault, executed, reply) in [
        (Fault::SwallowRequest, false, None),
        (Fault::SwallowAnswer, true, None),
        (Fault::AnswerLate(millis(500)), true, Some("+OK")),
    ] {
        server.say(&["DEL", "key"])?;
        proxy.next("SET", fault.clone());
        wire.send("SET key 1");
        wire.is_silent();
        assert_eq!(server.say(&["EXISTS", "key"])? == ":1", executed, "{fault:?}");
        if let Some(reply) = reply {
            assert_eq!(wire.answer(), reply, "{fault:?}");
        }
        assert_eq!(wire.ask("ECHO served"), "served", "{fault:?}");
    }
    server.say(&["DEL", "key"])?;
    proxy.next("SET", Fault::Say("-LOADING in a moment\r\n"));
    assert_eq!(wire.ask("SET key 1"), "-LOADING in a moment");
    assert_eq!(server.say(&["EXISTS", "key"])?, ":0");
    assert_eq!(wire.ask("SET key 1"), "+OK", "once");
    Ok(())
}

fn connections_that_are_cut() -> Outcome {
    let (server, proxy, _) = proxy_and_wire()?;
    for (fault, executed, reply) in
        [(Fault::CutBefore, false, ""), (Fault::CutAfter, true, ""), (Fault::CutWithin, true, "$3\r\n")]
    {
        server.say(&["SET", "key", "old"])?;
        proxy.next("GETSET", fault.clone());
        let mut wire = Wire::to(&proxy.url());
        wire.send("GETSET key new");
        assert_eq!(wire.rest(), reply, "{fault:?}");
        let mut next = Wire::to(&proxy.url());
        assert_eq!(next.ask("GET key"), if executed { "new" } else { "old" }, "{fault:?}");
    }
    Ok(())
}

fn a_connection_that_is_half_open() -> Outcome {
    let (server, proxy, mut wire) = proxy_and_wire()?;
    proxy.next("SET", Fault::HalfOpen);
    wire.send("SET key 1");
    wire.send("SET key 2");
    // The proxy reads it in its own time.
    while proxy.names().is_empty() {
        thread::sleep(millis(1));
    }
    wire.is_silent();
    assert_eq!(server.say(&["EXISTS", "key"])?, ":0");
    assert_eq!(proxy.names(), ["SET"], "later commands are not read");
    assert_eq!(Wire::to(&proxy.url()).ask("PING"), "+PONG", "another connection is served");
    drop(proxy);
    assert_eq!(wire.rest(), "", "it ends with the proxy");
    Ok(())
}

fn faults_are_counted_by_name_and_by_position() -> Outcome {
    let (_server, proxy, mut wire) = proxy_and_wire()?;
    proxy.nth("GET", 2, Fault::Say("+second GET\r\n"));
    proxy.at(5, Fault::Say("+fifth\r\n"));
    proxy.next("PING", Fault::Say("+one\r\n"));
    proxy.next("PING", Fault::Say("+two\r\n"));
    let commands =
        ["GET key", "PING", "INFO", "GET key", "ECHO text", "ECHO more", "PING", "PING", "GET key"];
    let mut replies = commands.map(|command| wire.ask(command));
    assert!(std::mem::take(&mut replies[2]).starts_with("# Server"), "INFO does not count");
    assert_eq!(replies, ["$-1", "+one", "", "+second GET", "text", "+fifth", "+two", "+PONG", "$-1"]);
    proxy.next("INFO", Fault::Say("+of INFO as well\r\n"));
    assert_eq!(wire.ask("INFO"), "+of INFO as well");
    Ok(())
}

fn a_batch_is_what_arrives_in_one_piece() -> Outcome {
    let (_server, proxy, _) = proxy_and_wire()?;
    let mut connection = redis::Client::open(proxy.url())?.get_connection()?;
    proxy.forget();
    proxy.in_batch(2, 3, Fault::Say("+fault\r\n"));
    for (length, faulty) in [(1, false), (2, false), (3, true), (3, false)] {
        let mut pipe = redis::pipe();
        for n in 0..length {
            pipe.cmd("ECHO").arg(n);
        }
        let replies: Vec<String> = pipe.query(&mut connection)?;
        assert_eq!(replies.get(1).is_some_and(|reply| reply == "fault"), faulty);
    }
    let lengths: Vec<usize> = proxy.batches().iter().map(Vec::len).collect();
    assert_eq!(lengths, [1, 2, 3, 3]);
    Ok(())
}

fn a_command_is_held_before_it_is_executed() -> Outcome {
    let (server, proxy, mut wire) = proxy_and_wire()?;
    for by_dropping in [false, true] {
        server.say(&["SET", "count", "0"])?;
        let hold = proxy.hold("INCR", 2);
        assert_eq!(wire.ask("INCR count"), ":1", "the first is not held");
        wire.send("INCR count");
        hold.reached();
        wire.is_silent();
        assert_eq!(
            Wire::to(&proxy.url()).ask("INCR count"),
            ":2",
            "commands on other connections are not held"
        );
        if by_dropping {
            drop(hold);
        } else {
            hold.go_on();
        }
        assert_eq!(wire.answer(), ":3");
    }
    Ok(())
}

fn a_slow_network_delays_commands() -> Outcome {
    let (server, proxy, mut wire) = proxy_and_wire()?;
    proxy.slow_down(|asked: &Asked| if asked.name == "SET" { millis(500) } else { Duration::ZERO });
    wire.send("SET key 1");
    wire.is_silent();
    assert_eq!(server.say(&["EXISTS", "key"])?, ":0", "it has not reached the server");
    assert_eq!(wire.answer(), "+OK");
    Ok(())
}

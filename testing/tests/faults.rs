//! Faults and the log: those of the server in the process, and those in front of a real one.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock_testing::{Fault, Proxy, Received, TestServer};
use testkit::raw::Wire;
use testkit::{LONG, RedisServer};

type Outcome = Result<(), Box<dyn Error>>;

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "it never happens");
    }
}

/// Runs a test with a server in this process, and with a real one. The wire leads past the faults.
fn both(test: impl Fn(&Proxy, &mut Wire) -> Outcome) -> Outcome {
    let inside = TestServer::start();
    test(&inside, &mut Wire::to(&inside.url_to_look()))?;
    let real = RedisServer::start()?;
    test(&Proxy::before(real.address())?, &mut Wire::to(&real.url()))
}

#[test]
fn pipelined_requests_are_answered_in_order() -> Outcome {
    both(|proxy, _| {
        let mut wire = Wire::to(&proxy.url());
        proxy.delay_reply("ECHO", millis(50));
        (0..100).for_each(|n| wire.send(&format!("ECHO {n}")));
        for n in 0..100 {
            assert_eq!(wire.answer(), n.to_string());
        }
        Ok(())
    })
}

#[test]
fn requests_and_replies_that_are_lost_late_or_made_up() -> Outcome {
    both(|proxy, aside| {
        let mut wire = Wire::to(&proxy.url());
        proxy.delay_reply("SET", millis(1000));
        wire.send("SET key 1");
        wire.is_silent();
        assert_eq!(wire.answer(), "+OK");
        assert_eq!(aside.ask("GETDEL key"), "1");
        // What TCP loses takes all that comes behind it along.
        let mut lost = Wire::to(&proxy.url());
        proxy.lose_reply("SET");
        lost.send_all(&["SET key 1", "INCR executed"]);
        lost.is_silent();
        until(|| aside.ask("MGET key executed") == "[1 1]");
        let mut lost = Wire::to(&proxy.url());
        proxy.lose_request("SET");
        lost.send_all(&["SET key 2", "INCR executed"]);
        lost.is_silent();
        until(|| proxy.faults_left() == 0);
        assert_eq!(aside.ask("MGET key executed"), "[1 1]");
        aside.ask("DEL key");
        proxy.refuse("SET", "LOADING in a moment");
        assert_eq!(wire.ask("SET key 1"), "-LOADING in a moment");
        proxy.next("SET", Fault::Say("+what\r\n"));
        assert_eq!(wire.ask("SET key 1"), "+what");
        assert_eq!(aside.ask("EXISTS key"), ":0");
        assert_eq!(wire.ask("SET key 1"), "+OK", "once");
        Ok(())
    })
}

#[test]
fn connections_that_are_cut() -> Outcome {
    both(|proxy, aside| {
        for (fault, executed, reply) in
            [(Fault::CutBefore, false, ""), (Fault::CutAfter, true, ""), (Fault::CutWithin, true, "$3\r\n")]
        {
            aside.ask("SET key old");
            proxy.next("GETSET", fault.clone());
            let mut wire = Wire::to(&proxy.url());
            wire.send("GETSET key new");
            assert_eq!(wire.rest(), reply, "{fault:?}");
            let mut next = Wire::to(&proxy.url());
            assert_eq!(next.ask("GET key"), if executed { "new" } else { "old" }, "{fault:?}");
            proxy.cut();
            assert_eq!(next.rest(), "");
        }
        Ok(())
    })
}

#[test]
fn what_hangs_keeps_its_connections() -> Outcome {
    both(|proxy, aside| {
        let (mut wire, mut other) = (Wire::to(&proxy.url()), Wire::to(&proxy.url()));
        proxy.next("SET", Fault::Hang);
        wire.send("SET key 1");
        wire.send("SET key 2");
        // It is read in its own time.
        while proxy.names().is_empty() {
            thread::sleep(millis(1));
        }
        wire.is_silent();
        assert_eq!(aside.ask("EXISTS key"), ":0");
        assert_eq!(proxy.names(), ["SET"], "later commands are not read");
        assert_eq!(other.ask("PING"), "+PONG", "another connection is served");

        proxy.hang();
        other.send("SET key 3");
        other.is_silent();
        assert_eq!(aside.ask("EXISTS key"), ":0");
        proxy.resume();
        assert_eq!(other.answer(), "+OK");

        proxy.stop();
        assert_eq!((wire.rest(), other.rest()), (String::new(), String::new()));
        Ok(())
    })
}

#[test]
fn a_server_that_stops_and_starts_again() -> Outcome {
    both(|proxy, aside| {
        let address = proxy.address();
        for crashes in [false, true] {
            let mut wire = Wire::to(&proxy.url());
            if crashes {
                proxy.next("INCR", Fault::StopAfter);
                wire.send("INCR count");
            } else {
                proxy.stop();
            }
            assert_eq!(wire.rest(), "");
            assert!(std::net::TcpStream::connect(address).is_err(), "nothing listens");
            proxy.start_again();
            assert_eq!(proxy.address(), address);
            assert_eq!(Wire::to(&proxy.url()).ask("PING"), "+PONG");
        }
        assert_eq!(aside.ask("GET count"), "1", "what was executed counts");
        Ok(())
    })
}

#[test]
fn faults_are_counted_by_name_and_by_position() -> Outcome {
    both(|proxy, _| {
        let mut wire = Wire::to(&proxy.url());
        proxy.nth("get", 2, Fault::Say("+second GET\r\n"));
        proxy.at(5, Fault::Say("+fifth\r\n"));
        proxy.next("PING", Fault::Say("+one\r\n"));
        proxy.next("PING", Fault::Say("+two\r\n"));
        let commands =
            ["GET key", "PING", "INFO", "GET key", "ECHO text", "ECHO more", "PING", "PING", "GET key"];
        let mut replies = commands.map(|command| wire.ask(command));
        assert!(std::mem::take(&mut replies[2]).starts_with("# Server"), "INFO does not count");
        assert_eq!(replies, ["$-1", "+one", "", "+second GET", "text", "+fifth", "+two", "+PONG", "$-1"]);
        assert_eq!(proxy.faults_left(), 0);
        assert_eq!(proxy.names().len(), commands.len() - 1);
        assert_eq!(proxy.whole_log().len(), commands.len());
        proxy.every("ECHO", Fault::Refuse("ERR no".into()));
        assert_eq!([wire.ask("ECHO 1"), wire.ask("ECHO 2")], ["-ERR no", "-ERR no"]);
        proxy.clear_faults();
        assert_eq!(wire.ask("ECHO 3"), "3");
        proxy.clear_log();
        assert!(proxy.whole_log().is_empty());
        Ok(())
    })
}

#[test]
fn a_batch_is_what_arrives_in_one_piece() -> Outcome {
    both(|proxy, _| {
        let mut wire = Wire::to(&proxy.url());
        proxy.in_batch(2, 3, Fault::Say("+fault\r\n"));
        for (length, faulty) in [(1, false), (2, false), (3, true), (3, false)] {
            let commands: Vec<String> = (0..length).map(|n| format!("ECHO {n}")).collect();
            wire.send_all(&commands);
            let replies: Vec<String> = commands.iter().map(|_| wire.answer()).collect();
            assert_eq!(replies.get(1).is_some_and(|reply| reply == "+fault"), faulty);
        }
        let lengths: Vec<usize> = proxy.batches().iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, 2, 3, 3]);
        Ok(())
    })
}

#[test]
fn a_command_is_paused_before_it_is_executed() -> Outcome {
    both(|proxy, aside| {
        let mut wire = Wire::to(&proxy.url());
        for by_dropping in [false, true] {
            aside.ask("SET count 0");
            let paused = proxy.pause("INCR", 2);
            assert_eq!(wire.ask("INCR count"), ":1", "the first is not paused");
            wire.send("INCR count");
            paused.reached();
            wire.is_silent();
            let other = Wire::to(&proxy.url()).ask("INCR count");
            assert_eq!(other, ":2", "commands on other connections are not paused");
            if by_dropping {
                drop(paused);
            } else {
                paused.go_on();
            }
            assert_eq!(wire.answer(), ":3");
        }
        Ok(())
    })
}

#[test]
fn what_a_client_has_sent_before_it_leaves_is_executed_as_it_was_sent() -> Outcome {
    both(|proxy, aside| {
        let mut wire = Wire::to(&proxy.url());
        wire.ask("WATCH key");
        let paused = proxy.pause("MULTI", 1);
        wire.send_all(&["MULTI", "SET key 1", "EXEC", "INCR executed"]);
        paused.reached();
        drop(wire);
        aside.ask("SET key 2");
        thread::sleep(millis(20));
        paused.go_on();
        until(|| aside.ask("EXISTS executed") == ":1");
        assert_eq!(aside.ask("GET key"), "2", "in its transaction");
        Ok(())
    })
}

#[test]
fn clients_that_wait_for_an_element() {
    let server = TestServer::start();
    let (mut wire, mut other) = (Wire::to(&server.url()), Wire::to(&server.url()));
    let until_blocked = |count: usize| {
        let end = Instant::now() + LONG;
        while !server.run(&["INFO", "clients"]).contains(&format!("blocked_clients:{count}")) {
            assert!(Instant::now() < end, "there are never {count}");
        }
    };
    wire.send("BLPOP list 0");
    until_blocked(1);
    drop(wire);
    until_blocked(0);
    assert_eq!(server.run(&["RPUSH", "list", "a"]), "1", "one that has left gets none");
    assert_eq!(server.run(&["LLEN", "list"]), "1");
    assert_eq!(other.ask("BRPOP list 0"), "[list a]");
    assert_eq!(other.ask("BLPOP list 0.2"), "*-1");
    other.send("BLPOP list 1000");
    until_blocked(1);
    server.advance(Duration::from_secs(1001));
    assert_eq!(other.answer(), "*-1");
    other.send("BLPOP list 0");
    until_blocked(1);
    server.run(&["RPUSH", "list", "b"]);
    assert_eq!(other.answer(), "[list b]");
}

#[test]
fn a_slow_network_delays_commands() -> Outcome {
    both(|proxy, aside| {
        let mut wire = Wire::to(&proxy.url());
        proxy.delay_by(
            |received: &Received| if received.name == "SET" { millis(1000) } else { Duration::ZERO },
        );
        wire.send("SET key 1");
        wire.is_silent();
        assert_eq!(aside.ask("EXISTS key"), ":0", "it has not reached the server");
        assert_eq!(wire.answer(), "+OK");
        let sent = Instant::now();
        proxy.delay(millis(20));
        wire.ask("ECHO 1");
        assert!(sent.elapsed() >= millis(20));
        Ok(())
    })
}

#[test]
fn twemproxy_closes_on_what_it_does_not_forward() -> Outcome {
    both(|proxy, _| {
        proxy.forward_little(true);
        let mut wire = Wire::to(&proxy.url());
        assert_eq!(wire.ask("SETNX key 1"), ":1");
        wire.send_all(&["GET key".to_owned(), "INFO".to_owned()]);
        assert_eq!(wire.rest(), "", "the reply to what came before is lost as well");
        proxy.forward_little(false);
        assert!(Wire::to(&proxy.url()).ask("INFO").contains("redis_version"));
        Ok(())
    })
}

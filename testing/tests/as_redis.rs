//! Random sequences of commands, sent to the server of this crate and to a real `redis-server`: the replies are equal, byte for byte.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use setnx_lock_testing::{Output, Server, ServerVersion};
use testkit::RedisServer;

/// Commands in which `K` is a key, `V` a value, `N` a number, `T` a long time, `E` a time that is over or none, `F` a field, `C` a channel and `P` a pattern.
#[rustfmt::skip]
const TEMPLATES: &[&str] = &[
    // What locks send.
    "SETNX K V", "GET K", "GETSET K V", "DEL K", "DEL K K", "SET K V NX PX T", "SET K V XX", "EXISTS K", "EXISTS K K", "INCR K", "MGET K K",
    "SETNX K V", "WATCH K", "MULTI", "EXEC", "MULTI", "EXEC", "GET K", "DEL K", "WATCH K K", "UNWATCH", "DISCARD", "MSETNX K V K V",
    "EXPIRE K T", "PEXPIRE K T", "EXPIREAT K T", "TTL K", "PTTL K", "TYPE K", "STRLEN K", "TIME now",
    // Strings.
    "SET K V", "SET K V GET", "SET K V EX T", "SET K V KEEPTTL", "SET K V NX XX", "SET K V EX 0", "SET K V PX E", "SET K V NX GET", "SET K V WHAT",
    "SET K V EX", "SETEX K T V", "SETEX K E V", "PSETEX K T V", "GETDEL K", "MSET K V K V", "MSET K V K", "MSETNX K V K", "DECR K", "INCRBY K N", "DECRBY K N",
    "APPEND K V", "GETRANGE K N N",
    // Keys.
    "UNLINK K", "TOUCH K K", "PERSIST K", "EXPIRE K E", "EXPIRE K T NX", "EXPIRE K T XX", "EXPIREAT K T GT", "EXPIREAT K T LT", "EXPIRE K T WHAT",
    "PEXPIREAT K E", "EXPIRETIME K", "RENAME K K", "RENAMENX K K", "KEYS P", "SCAN 0 COUNT 1000", "SCAN 0 MATCH P COUNT 1000", "SCAN x", "SCAN 0 COUNT 0",
    "SCAN 0 COUNT 1000 TYPE list", "DBSIZE", "FLUSHDB", "FLUSHALL", "FLUSHALL WHAT", "SELECT 1", "SELECT 0", "SELECT 99", "SELECT x",
    // Lists.
    "LPUSH K V", "RPUSH K V V", "LPOP K", "RPOP K", "LPOP K N", "RPOP K 2", "LLEN K", "LRANGE K N N", "LINDEX K N", "LREM K N V", "LSET K N V", "LTRIM K N N",
    "LPUSHX K V", "RPUSHX K V", "RPOPLPUSH K K", "BLPOP K K 0", "BRPOP K 0", "BRPOPLPUSH K K 0", "BLPOP K x", "BLPOP K -1", "LPUSH K V", "RPUSH K V",
    // Sets and hashes.
    "SADD K V", "SADD K V V", "SREM K V", "SCARD K", "SISMEMBER K V", "SMEMBERS K", "HSET K F V", "HSET K F V F V", "HSET K F", "HSET K F V F", "HGET K F",
    "HGETALL K", "HMGET K F F", "HMSET K F V", "HKEYS K", "HLEN K", "HEXISTS K F", "HDEL K F F", "HINCRBY K F N", "HSETNX K F V",
    // Channels.
    "SUBSCRIBE C", "SUBSCRIBE C C", "UNSUBSCRIBE C", "UNSUBSCRIBE", "PSUBSCRIBE P", "PUNSUBSCRIBE", "PUBLISH C V", "PUBLISH C V", "PUBSUB CHANNELS",
    "PUBSUB NUMSUB C C", "PUBSUB NUMPAT", "PUBSUB WHAT",
    // Connection and server.
    "PING", "PING V", "ECHO V", "ECHO", "Get K", "NONSENSE", "NONSENSE K V", "GET", "GET K K", "CLIENT GETNAME", "CLIENT SETNAME V", "CLIENT WHAT",
    "CLIENT KILL 1.2.3.4:5", "CLIENT LIST WHAT", "CLIENT LIST TYPE WHAT", "CLIENT LIST TYPE replica", "CLIENT LIST ID x", "CLIENT LIST ID", "CLIENT KILL TYPE WHAT",
    "CLIENT KILL WHAT x", "CONFIG GET maxmemory", "CONFIG GET maxmemory-pol*", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "CONFIG SET what 1",
    "CONFIG SET maxmemory x", "CONFIG WHAT", "CONFIG GET", "AUTH V", "AUTH weak pw", "AUTH weak wrong", "ACL WHOAMI", "ACL WHAT", "ACL SETUSER weak on >pw ~a* &x* +@all -del",
    "ACL SETUSER weak +nonsense", "ACL SETUSER weak what", "CLUSTER INFO", "ROLE", "WAIT 0 0", "WAIT 0 x", "HELLO 4", "HELLO x", "COMMAND WHAT",
    "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0", "RESET",
];

const KEYS: &[&str] = &["a", "ab", "b", "c"];
const VALUES: &[&str] = &["1", "-5", "text", "9223372036854775807", "", " 7", "007", "+3", "two"];
const NUMBERS: &[&str] =
    &["0", "1", "-1", "2", "-3", "5", "1000000", "x", "9223372036854775807", "-9223372036854775808", "1.5"];
/// No times.
const NO_TIMES: &[&str] = &["0", "-1", "x", "9223372036854775807", "-9223372036854775808"];
/// Far from each other, and from now, whether in seconds or in milliseconds, from now or from 1970.
const TIMES: &[&str] = &["40000000000", "60000000000", "90000000000"];
const FIELDS: &[&str] = &["f", "g", ""];
const CHANNELS: &[&str] = &["x", "xy", "z"];
const PATTERNS: &[&str] = &["*", "a*", "?", "[ab]", "[^a]", "x*", "\\a", "[a-", "ab"];

/// What has no order, or depends on the time, is not compared as a part of what EXEC replies; and messages come in another place. A user's
/// rights are looked at once more by EXEC, which is not done here.
const IN_NO_TRANSACTION: &[&str] = &[
    "KEYS",
    "SMEMBERS",
    "SCAN",
    "PUBSUB",
    "TTL",
    "PTTL",
    "EXPIRETIME",
    "TIME",
    "SUBSCRIBE",
    "PSUBSCRIBE",
    "UNSUBSCRIBE",
    "PUNSUBSCRIBE",
    "AUTH",
];

/// The first two clients speak RESP2, the third RESP3.
const CLIENTS: usize = 3;

#[derive(Clone, Debug)]
struct Step {
    client: usize,
    words: Vec<String>,
}

fn step() -> impl Strategy<Value = Step> {
    let choices = proptest::collection::vec(any::<u8>(), 8);
    // Most commands come from one client, so that transactions get somewhere.
    let client = prop_oneof![4 => Just(0), 2 => Just(1), 1 => Just(2)];
    (client, 0..TEMPLATES.len(), choices).prop_map(|(client, template, choices)| {
        let mut choices = choices.into_iter();
        let mut pick = |from: &[&str]| from[usize::from(choices.next().unwrap_or(0)) % from.len()].to_owned();
        let words = TEMPLATES[template].split(' ').map(|word| match word {
            "K" => pick(KEYS),
            "V" => pick(VALUES),
            "N" => pick(NUMBERS),
            "T" => pick(TIMES),
            "E" => pick(NO_TIMES),
            "F" => pick(FIELDS),
            "C" => pick(CHANNELS),
            "P" => pick(PATTERNS),
            word => word.to_owned(),
        });
        Step { client, words: words.collect() }
    })
}

/// A connection to the real server.
struct Real(BufReader<TcpStream>);

impl Real {
    fn connect(server: &RedisServer) -> io::Result<Self> {
        let stream = TcpStream::connect(server.address())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self(BufReader::new(stream)))
    }

    fn send(&mut self, words: &[String]) -> io::Result<()> {
        let bulk = |word: &String| format!("${}\r\n{word}\r\n", word.len());
        let request = format!("*{}\r\n{}", words.len(), words.iter().map(bulk).collect::<String>());
        self.0.get_mut().write_all(request.as_bytes())
    }

    fn ask(&mut self, words: &str) -> io::Result<Vec<u8>> {
        self.send(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())?;
        reply(&mut self.0)
    }
}

/// Reads one reply.
fn reply(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    if stream.read_until(b'\n', &mut raw)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let number = String::from_utf8_lossy(&raw[1..]).trim_end().parse::<usize>();
    match (raw[0], number) {
        (b'$' | b'=', Ok(length)) => {
            let mut bulk = vec![0; length + 2];
            stream.read_exact(&mut bulk)?;
            raw.extend(bulk);
        }
        (kind @ (b'*' | b'~' | b'>' | b'%'), Ok(count)) => {
            for _ in 0..count * if kind == b'%' { 2 } else { 1 } {
                raw.extend(reply(stream)?);
            }
        }
        _ => {}
    }
    Ok(raw)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// How replies are compared: a set has no order, and times pass.
fn comparable(words: &[String], reply: &[u8]) -> String {
    let text = String::from_utf8_lossy(reply).into_owned();
    match words[0].to_uppercase().as_str() {
        "KEYS" | "SMEMBERS" | "SCAN" | "PUBSUB" => {
            let mut lines: Vec<_> = text.lines().collect();
            lines.sort_unstable();
            lines.join("\n")
        }
        // The times in question are at least 10^10 seconds or milliseconds apart, or from now.
        "TTL" | "PTTL" | "EXPIRETIME" => match text.trim().trim_start_matches(':').parse::<i64>() {
            Ok(number) if number > 1_000_000 => format!("about {}", (number + 500_000_000) / 1_000_000_000),
            _ => text,
        },
        // In no order.
        "UNSUBSCRIBE" | "PUNSUBSCRIBE" if words.len() == 1 => {
            text.lines().last().unwrap_or_default().to_owned()
        }
        "TIME" => text.lines().count().to_string(),
        _ => text,
    }
}

fn run(server_of_redis: &RedisServer, steps: &[Step]) -> Result<(), TestCaseError> {
    let failed = |error: io::Error| TestCaseError::fail(error.to_string());
    let mut reset = Real::connect(server_of_redis).map_err(failed)?;
    for command in [
        "CONFIG SET maxmemory 0 min-replicas-to-write 0",
        "FLUSHALL",
        "ACL DELUSER weak",
        "CLIENT KILL TYPE NORMAL",
        "CLIENT KILL TYPE PUBSUB",
    ] {
        reset.ask(command).map_err(failed)?;
    }
    let mut real = Vec::new();
    let mut server = Server::new(ServerVersion::V7);
    let mut in_multi = [false; CLIENTS];
    for client in 0..CLIENTS {
        real.push(Real::connect(server_of_redis).map_err(failed)?);
        assert_eq!(server.connect(client as u64, "", now()), []);
    }
    real[2].ask("HELLO 3").map_err(failed)?;
    server.handle(2, &["HELLO", "3"].map(Vec::from), now());

    // At the end each list gets something, which those who wait for it must get as well.
    let ends =
        KEYS.iter().map(|key| Step { client: 0, words: ["RPUSH", key, "end"].map(str::to_owned).into() });
    let asleep = |server: &Server, client: usize| server.is_waiting(client as u64);
    for step in steps.iter().cloned().chain(ends) {
        if asleep(&server, step.client) || step.words[0] == "RESET" && step.client == 2 {
            continue;
        }
        let name = step.words[0].as_str();
        if in_multi[step.client] && IN_NO_TRANSACTION.contains(&name) {
            continue;
        }
        match name {
            "MULTI" => in_multi[step.client] = true,
            "EXEC" | "DISCARD" | "RESET" => in_multi[step.client] = false,
            _ => {}
        }
        let words: Vec<Vec<u8>> = step.words.iter().map(|word| word.as_bytes().to_vec()).collect();
        let output = server.handle(step.client as u64, &words, now());
        real[step.client].send(&step.words).map_err(failed)?;
        if asleep(&server, step.client) {
            // Else the order in which two wait would be another one.
            let blocked =
                format!("blocked_clients:{}", (0..CLIENTS).filter(|client| asleep(&server, *client)).count());
            while !String::from_utf8_lossy(&reset.ask("INFO clients").map_err(failed)?).contains(&blocked) {}
        }
        let (mut replies, mut theirs) = (Vec::new(), Vec::new());
        for output in output {
            let Output::Send(client, bytes) = output else { continue };
            let mut ours = BufReader::new(bytes.as_slice());
            while !ours.fill_buf().map_err(failed)?.is_empty() {
                let expected = reply(&mut ours).map_err(failed)?;
                let got = reply(&mut real[usize::try_from(client).expect("small")].0);
                let got = got.map_err(|error| {
                    TestCaseError::fail(format!("{step:?}: ours {expected:?}, theirs {error}"))
                })?;
                replies.push((client, comparable(&step.words, &expected)));
                theirs.push((client, comparable(&step.words, &got)));
            }
        }
        if name == "PUBLISH" {
            // A message that matches several patterns of a client is sent to it for each, in no order.
            replies.sort_unstable();
            theirs.sort_unstable();
        }
        prop_assert_eq!(replies, theirs, "ours and theirs, by client, after {:?}", step);
    }
    for (client, real) in real.iter_mut().enumerate() {
        if !asleep(&server, client) {
            // Nothing more has come.
            let got = real.ask("PING").map_err(failed)?;
            let pong = server.handle(client as u64, &["PING".into()], now());
            prop_assert_eq!(pong, [Output::Send(client as u64, got)], "the end of client {}", client);
        }
    }
    Ok(())
}

fn config() -> Config {
    let cases =
        std::env::var("SETNX_LOCK_SEARCH_RUNS").ok().and_then(|runs| runs.parse::<u32>().ok()).unwrap_or(1);
    Config { cases: 300 * cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() }
}

#[test]
fn the_replies_are_those_of_a_real_server() {
    let real = RedisServer::start().expect("redis-server starts");
    let sequences = proptest::collection::vec(step(), 1..60);
    let outcome = TestRunner::new(config()).run(&sequences, |steps| run(&real, &steps));
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

//! The errors of real failures: their chains of causes, their classes, and what their texts never contain.

use std::sync::Arc;
use std::time::Duration;

use redis::Commands as _;
use setnx_lock::{Error, Lock, LockOptions, LockState, Locker, Protocol};
use setnx_lock_proto::values::SideKey;
use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use crate::support::scenario::{Scenario, client_pool, closed_port, opened, patient};
use crate::support::{Outcome, RedisServer, Target, chain, expiring, millis, server_of, trials_of};

trials_of! {
    "errors";
    real_failures_are_classified_and_each_cause_is_printed_once,
    a_long_value_is_cut,
    a_long_key_is_cut,
    a_long_refusal_is_cut,
    a_password_is_in_no_text,
    a_password_is_in_no_error,
    a_password_that_the_server_quotes_is_in_no_error,
}

/// The longest text of an error.
const LONGEST: usize = 1024;

/// A failure: its name, and its classes.
type Case = (&'static str, Error, &'static str);

/// Makes a call fail in each of these ways, on real servers.
fn cases() -> Result<Vec<Case>, Box<dyn std::error::Error>> {
    let scenario = Scenario::set();
    let (target, server) = (&scenario.target, &scenario.server);
    let key = target.key("errors");
    let locker = patient(&server.url())?.pool_size(1).build()?;
    let lock = |options: LockOptions| Lock::new(&locker, &key.key, options.timeout(millis(50))).unwrap();
    let failing = |url: &str, options: LockOptions| -> Result<Error, Box<dyn std::error::Error>> {
        let locker = Locker::builder(url)?.retry_for(Duration::ZERO).build()?;
        Ok(Lock::new(&locker, "errors", options)?.lock().expect_err(url))
    };
    let mut cases = Vec::new();

    key.set("1895000000.5000000000000001");
    cases.push(("held", lock(expiring()).lock().unwrap_err(), "contention, transient"));
    key.delete();

    let port = closed_port()?;
    let error = failing(&format!("redis://127.0.0.1:{port}/"), expiring())?;
    cases.push(("no server", error, "transient"));

    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {port}"))?;
    cases.push(("replica", failing(&replica.url(), expiring())?, "transient"));

    let secured = RedisServer::start_with("requirepass secret")?;
    cases.push(("no password", failing(&secured.url(), expiring())?, ""));
    let error = failing(&secured.url().replace("redis://", "redis://:wrong@"), expiring())?;
    cases.push(("wrong password", error, ""));

    let old = server_of(ServerVersion::V2_0);
    let error = failing(&old.url(), expiring().protocol(Protocol::Watched))?;
    cases.push(("too old", error, ""));

    for (name, words, classes) in [
        ("loading", "-LOADING Redis is loading the dataset in memory\r\n", "transient"),
        ("over memory", "-OOM command not allowed when used memory\r\n", "transient"),
        ("not permitted", "-NOPERM this user has no permissions\r\n", ""),
    ] {
        server.next("SETNX", Fault::Say(words));
        cases.push((name, lock(expiring()).try_lock().unwrap_err(), classes));
    }

    let _: i32 = target.connection().rpush(key.key.as_bytes(), "item")?;
    cases.push(("wrong type", lock(expiring()).lock().unwrap_err(), ""));
    key.delete();

    server.next("SETNX", Fault::CutAfter);
    let error = lock(LockOptions::without_expiration()).lock().unwrap_err();
    cases.push(("lost SETNX", error, "transient, may hold"));
    key.delete();
    let held = lock(expiring()).lock()?;
    server.next("DEL", Fault::CutBefore);
    cases.push(("lost DEL", held.release().unwrap_err(), "transient, may hold"));
    server.next("GET", Fault::CutAfter);
    cases.push(("lost GET", lock(expiring()).state().unwrap_err(), "transient"));
    key.delete();

    let held = lock(expiring()).lock()?;
    server.next("GETSET", Fault::CutBefore);
    cases.push(("lost GETSET", held.extend().unwrap_err(), "transient, may hold"));
    server.next("INCR", Fault::Say("-NOPERM this user has no permissions\r\n"));
    cases.push(("token not permitted", held.fencing_token().unwrap_err(), ""));
    key.set("job 7");
    cases.push(("lock lost", held.extend().unwrap_err(), ""));
    let error = lock(expiring().max_attempts(1)).lock().unwrap_err();
    cases.push(("attempts used up", error, "contention, transient"));
    key.delete();
    let counter = SideKey::Fence.of(key.key.as_bytes());
    let () = target.connection().set(&counter, -5)?;
    let error = lock(expiring()).lock()?.fencing_token().unwrap_err();
    cases.push(("no token", error, ""));
    let () = target.connection().del(&counter)?;
    let error = lock(LockOptions::without_expiration()).lock()?.extend().unwrap_err();
    cases.push(("no lease", error, ""));
    Ok(cases)
}

fn real_failures_are_classified_and_each_cause_is_printed_once() -> Outcome {
    for (name, error, classes) in cases()? {
        let all = [
            ("contention", error.is_contention()),
            ("transient", error.is_transient()),
            ("may hold", error.may_hold_lock()),
        ];
        let its: Vec<&str> = all.into_iter().filter_map(|(class, is_of)| is_of.then_some(class)).collect();
        assert_eq!(its.join(", "), classes, "{name}: {error:?}");

        let sources =
            std::iter::successors(Some(&error as &dyn std::error::Error), |error| (*error).source());
        let texts: Vec<String> = sources.map(ToString::to_string).collect();
        for (n, text) in texts.iter().enumerate() {
            for cause in &texts[n + 1..] {
                assert!(!text.contains(cause), "{name}: {texts:?}");
                assert_eq!(chain(&error).matches(cause.as_str()).count(), 1, "{name}: {texts:?}");
            }
        }
        let has_cause = name.starts_with("no server") || name.starts_with("lost ");
        assert_eq!(texts.len() > 1, has_cause, "{name}: {error:?}");
        // The reason of a refused connection is the last of the causes.
        if name.starts_with("no server") {
            assert!(texts.last().is_some_and(|text| text.contains("Connection refused")), "{texts:?}");
        }
        let expected = chain(&error);
        assert_eq!(format!("{:#}", anyhow::Error::from(error)), expected, "{name}");
    }
    Ok(())
}

/// All texts of an error and of its sources.
fn all_texts(error: &Error) -> Vec<String> {
    let sources = std::iter::successors(Some(error as &dyn std::error::Error), |error| (*error).source());
    let texts = sources.flat_map(|error| [error.to_string(), format!("{error:?}")]);
    texts.chain([format!("{error:#?}"), chain(error)]).collect()
}

/// Asserts that no text of the error, nor of one of its sources, is longer than [`LONGEST`].
#[track_caller]
fn assert_short(error: &Error) {
    let sources = std::iter::successors(Some(error as &dyn std::error::Error), |error| (*error).source());
    for text in sources.flat_map(|error| [error.to_string(), format!("{error:?}")]) {
        let begins: String = text.chars().take(200).collect();
        assert!(text.len() <= LONGEST, "{} bytes: {begins}", text.len());
    }
}

fn a_long_value_is_cut() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let locker = opened(&server.url())?;
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let key = target.key("long-value");
        let lock = Lock::new(&locker, &key.key, expiring().timeout(Duration::ZERO).protocol(protocol))?;
        for (value, length) in [("x", 900_000), ("\u{200b}", 900_000), ("\n", 900_000), ("x", 9_000_000)] {
            key.set(&value.repeat(length / value.len()));
            let error = lock.lock().expect_err("held");
            let Error::Contended { details, .. } = &error else { panic!("{error:?}") };
            assert!(matches!(details.seen, Some(LockState::Unreadable(_))), "{error:?}");
            assert!(chain(&error).contains(" bytes)\" or more"), "{error}");
            assert_short(&error);
        }
    }
    Ok(())
}

fn a_long_key_is_cut() -> Outcome {
    let scenario = Scenario::set();
    let secured = TestServer::builder().config("requirepass secret").start();
    let unreachable = format!("redis://127.0.0.1:{}/", closed_port()?);
    // Text that is printed as it is, and text that is escaped.
    for text in ["k", "\u{200b}", "\"", "\n"] {
        let key = text.repeat(100_000 / text.len());
        let locker = opened(&scenario.server.url())?;
        let lock = Lock::new(&locker, key.as_str(), expiring().timeout(Duration::ZERO))?;
        let held = lock.lock()?;
        for text in [format!("{lock:?}"), format!("{held:?}")] {
            assert!(text.len() <= 2 * LONGEST, "{} bytes", text.len());
        }
        assert_short(&lock.lock().expect_err("held"));
        scenario.server.next("DEL", Fault::CutBefore);
        assert_short(&held.release().expect_err("no reply"));
        lock.clear()?;
        assert_short(&lock.with(|_| lock.lock().expect_err("nested"))?);
        // With a refusal that is long as well: what `Debug` escapes takes up to three times the bytes.
        let refused = format!("-ERR {}\r\n", text.trim().repeat(1000)).leak();
        for fault in [Fault::CutAfter, Fault::Say(refused)] {
            scenario.server.next("SETNX", fault);
            let unexpiring = Lock::new(&locker, key.as_str(), LockOptions::without_expiration())?;
            assert_short(&unexpiring.lock().expect_err("no reply, or refused"));
            lock.clear()?;
        }
        for url in [&unreachable, &secured.url()] {
            let locker = Locker::builder(url)?.retry_for(Duration::ZERO).build()?;
            assert_short(&Lock::new(&locker, key.as_str(), expiring())?.lock().expect_err(url));
        }
        let error = Lock::new(&locker, key.as_str(), LockOptions::expiring_after(Duration::ZERO));
        assert_short(&error.expect_err("an expiration of zero"));
    }
    Ok(())
}

/// On the library's own pool, and on one of the redis crate's.
fn a_long_refusal_is_cut() -> Outcome {
    for (command, begins) in [
        ("SETNX", "ERR"),
        ("SETNX", "OOM"),
        ("GET", "WRONGTYPE"),
        ("WATCH", "ERR unknown command"),
        ("AUTH", "WRONGPASS"),
        ("SELECT", "ERR"),
        ("INFO", "ERR max number of clients"),
    ] {
        let scenario = Scenario::set();
        let key = scenario.target.key("long-refusal");
        key.set("1532000016.5000000000000001");
        let text: &'static str = format!("-{begins} {}\r\n", "\u{200b}\"x".repeat(40_000)).leak();
        for _ in 0..40 {
            scenario.server.next(command, Fault::Say(text));
        }
        let url = match command {
            "AUTH" => scenario.server.url().replace("redis://", "redis://:secret@"),
            "SELECT" => format!("{}1", scenario.server.url()),
            _ => scenario.server.url(),
        };
        let own = patient(&url)?.pool_size(1).retry_for(Duration::ZERO).build()?;
        let lockers = if command == "SELECT" { vec![own, plain(&url)?] } else { vec![own] };
        for locker in lockers {
            let options = expiring().timeout(Duration::ZERO).protocol(Protocol::Watched);
            assert_short(&Lock::new(&locker, &key.key, options)?.lock().expect_err(command));
        }
    }
    // The address of a master, and one that cannot be used.
    let scenario = Scenario::set();
    let host = "h".repeat(200_000);
    let info = format!("redis_version:2.4.18\r\nrole:slave\r\nmaster_host:{host}\r\nmaster_port:6379\r\n");
    scenario.server.next("INFO", Fault::Say(format!("${}\r\n{info}\r\n", info.len()).leak()));
    let error = Lock::new(&scenario.locker(), "replica", expiring())?.try_lock().expect_err("a replica");
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert_short(&error);
    assert_short(
        &Locker::open(&format!("redis://localhost/?protocol={host}")).expect_err("no such protocol"),
    );
    Ok(())
}

/// A locker on a pool of the redis crate's own manager.
fn plain(url: &str) -> Result<Locker, Box<dyn std::error::Error>> {
    let builder = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    let pool = builder.connection_timeout(millis(500)).build_unchecked(redis::Client::open(url)?);
    Ok(Locker::with_pool(pool).retry_for(millis(500)).build()?)
}

const PASSWORD: &str = "Tr0ub4dor";

#[track_caller]
fn assert_no_password(texts: &[String]) {
    for text in texts {
        assert!(!text.contains(PASSWORD), "{text}");
    }
}

fn a_password_is_in_no_text() -> Outcome {
    let server = RedisServer::start_with(&format!("requirepass {PASSWORD}"))?;
    let urls = [
        format!("redis://:{PASSWORD}@{}/", server.address()),
        format!("redis://default:{PASSWORD}@{}/?protocol=resp3", server.address()),
        format!("unix://{}?pass={PASSWORD}", server.socket().display()),
    ];
    for url in urls {
        let builder = patient(&url)?;
        let locker = builder.clone().build()?;
        let lock = Lock::new(&locker, "password", expiring())?;
        let held = lock.lock()?;
        let shared = Locker::with_pool(client_pool(&url));
        assert_no_password(&[
            format!("{builder:?}"),
            format!("{locker:?}"),
            format!("{lock:?}"),
            format!("{held:?}"),
            format!("{shared:?}"),
            format!("{:?}", shared.build()?),
        ]);
    }
    Ok(())
}

fn a_password_is_in_no_error() -> Outcome {
    let other = RedisServer::start_with("requirepass another")?;
    let open = RedisServer::start()?;
    let port = closed_port()?;
    let addresses = [other.address().to_string(), open.address().to_string(), format!("127.0.0.1:{port}")];
    for address in addresses {
        for url in [format!("redis://:{PASSWORD}@{address}/"), format!("redis://user:{PASSWORD}@{address}/")]
        {
            let locker = Locker::builder(&url)?.retry_for(Duration::ZERO).build()?;
            let lock = Lock::new(&locker, "password", expiring().timeout(Duration::ZERO))?;
            assert_no_password(&all_texts(&lock.lock().expect_err(&address)));
        }
    }
    let locker = opened(&format!("redis://:{PASSWORD}@{}/", other.address()))?;
    let text = chain(&Lock::new(&locker, "password", expiring())?.lock().expect_err("wrong password"));
    assert!(text.contains("WRONGPASS") && !text.contains("INFO"), "the server refused AUTH: {text}");
    // A pool of another manager has r2d2's text for a cause.
    let locker = plain(&format!("redis://user:{PASSWORD}@{}/", other.address()))?;
    let lock = Lock::new(&locker, "password", expiring().timeout(Duration::ZERO))?;
    assert_no_password(&all_texts(&lock.lock().expect_err("wrong password")));

    for url in [
        format!("redis://:{PASSWORD}@127.0.0.1:port/"),
        format!("redis://:{PASSWORD}@127.0.0.1/first"),
        format!("redis://:{PASSWORD}@127.0.0.1/?protocol=resp9"),
        format!("redis://user:{PASSWORD}@/"),
        format!("redis//:{PASSWORD}@127.0.0.1/"),
        format!("http://user:{PASSWORD}@127.0.0.1/"),
        format!("redis://user:{PASSWORD}#@127.0.0.1/"),
        format!("unix://?db=first&pass={PASSWORD}"),
    ] {
        // Some of these are addresses.
        if let Err(error) = Locker::open(&url) {
            assert_no_password(&all_texts(&error));
        }
    }
    Ok(())
}

/// From Redis 5 on a server quotes the arguments of a command that
/// it does not know: those of HELLO before 6, and of a renamed AUTH.
fn a_password_that_the_server_quotes_is_in_no_error() -> Outcome {
    let server = RedisServer::start_with("rename-command AUTH \"\"\nrename-command HELLO \"\"")?;
    for user in ["", "user"] {
        for query in ["", "?protocol=resp3"] {
            let url = format!("redis://{user}:{PASSWORD}@{}/{query}", server.address());
            let locker = Locker::builder(&url)?.retry_for(Duration::ZERO).build()?;
            for locker in [locker, plain(&url)?] {
                let lock = Lock::new(&locker, "password", expiring().timeout(Duration::ZERO))?;
                assert_no_password(&all_texts(&lock.lock().expect_err("AUTH is unknown")));
            }
        }
    }
    Ok(())
}

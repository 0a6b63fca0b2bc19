//! The errors of real failures: their chains of causes, their classes, and what their texts never contain.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockOptions, Locker, LockerBuilder, Manager, Protocol};

use crate::servers::{Emulated, Fault, Proxy};
use crate::support::scenario::{Scenario, closed_port, opened, patient};
use crate::support::{LONG, Load, Outcome, RedisServer, Target, TestKey, chain, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "errors",
        tests![
            real_failures_are_classified,
            each_cause_is_printed_once,
            errors_convert_into_those_of_anyhow,
            a_long_value_is_cut,
            a_long_key_is_cut,
            a_long_refusal_is_cut,
            a_password_is_in_no_text,
            a_password_is_in_no_error,
        ],
    )
}

/// The longest text of an error.
const LONGEST: usize = 1024;

/// A failure, and its class.
struct Case {
    name: &'static str,
    error: Error,
    contention: bool,
    transient: bool,
    may_hold: bool,
}

impl Case {
    fn new(name: &'static str, error: Error) -> Self {
        Self { name, error, contention: false, transient: false, may_hold: false }
    }

    fn contention(self) -> Self {
        Self { contention: true, ..self }
    }

    fn transient(self) -> Self {
        Self { transient: true, ..self }
    }

    fn may_hold(self) -> Self {
        Self { may_hold: true, ..self }
    }
}

/// Makes a call fail in each of these ways, on real servers.
fn cases() -> Result<Vec<Case>, Box<dyn std::error::Error>> {
    let server = Arc::new(RedisServer::start()?);
    let scenario = Scenario::of(&server, None, Load::Any)?;
    let (target, proxy) = (&scenario.target, &scenario.proxy);
    let key = target.key("errors");
    let locker = patient(&proxy.url())?.pool_size(1).build()?;
    let lock = |options: LockOptions| Lock::new(&locker, &key.key, options.timeout(millis(50))).unwrap();
    let failing = |url: &str, options: LockOptions| -> Result<Error, Box<dyn std::error::Error>> {
        let locker = Locker::builder(url)?.unreachable_timeout(Duration::ZERO).build()?;
        Ok(Lock::new(&locker, "errors", options)?.lock().expect_err(url))
    };
    let mut cases = Vec::new();

    key.set("1895000000.5");
    cases.push(Case::new("held", lock(expiring()).lock().unwrap_err()).contention().transient());
    key.delete();

    let port = closed_port()?;
    let error = failing(&format!("redis://127.0.0.1:{port}/"), expiring())?;
    cases.push(Case::new("no server", error).transient());
    let locker = Locker::builder(&format!("redis://127.0.0.1:{port}/"))?.unreachable_timeout(Duration::ZERO);
    let error = locker.build()?.inspect().unwrap_err();
    cases.push(Case::new("no server to inspect", error).transient());

    let replica = RedisServer::start_with(&format!("replicaof 127.0.0.1 {port}"))?;
    cases.push(Case::new("replica", failing(&replica.url(), expiring())?).transient());

    let secured = RedisServer::start_with("requirepass secret")?;
    cases.push(Case::new("no password", failing(&secured.url(), expiring())?));
    let error = failing(&secured.url().replace("redis://", "redis://:wrong@"), expiring())?;
    cases.push(Case::new("wrong password", error));

    let old = Proxy::emulating(Emulated::V2_0, server.address())?;
    let error = failing(&old.url(), expiring().protocol(Protocol::Watched))?;
    cases.push(Case::new("too old", error));

    let say = |name, fault| {
        proxy.next("SETNX", fault);
        Case::new(name, lock(expiring()).lock().unwrap_err())
    };
    cases.push(say("loading", Fault::Say("-LOADING Redis is loading the dataset in memory\r\n")).transient());
    cases.push(say("over memory", Fault::Say("-OOM command not allowed when used memory\r\n")).transient());
    cases.push(say("not permitted", Fault::Say("-NOPERM this user has no permissions\r\n")));

    let _: i32 = target.connection().rpush(key.key.as_bytes(), "item")?;
    cases.push(Case::new("wrong type", lock(expiring()).lock().unwrap_err()));
    key.delete();

    proxy.next("SETNX", Fault::CutAfter);
    let error = lock(LockOptions::held_until_released()).lock().unwrap_err();
    cases.push(Case::new("lost SETNX", error).transient().may_hold());
    key.delete();
    let held = lock(expiring()).lock()?;
    proxy.next("DEL", Fault::CutBefore);
    cases.push(Case::new("lost DEL", held.release().unwrap_err()).transient().may_hold());
    proxy.next("GET", Fault::CutAfter);
    cases.push(Case::new("lost GET", lock(expiring()).state().unwrap_err()).transient());
    key.delete();

    let held = lock(expiring()).lock()?;
    proxy.next("GETSET", Fault::CutBefore);
    cases.push(Case::new("lost GETSET", held.extend().unwrap_err()).transient().may_hold());
    proxy.next("INCR", Fault::Say("-NOPERM this user has no permissions\r\n"));
    cases.push(Case::new("token not permitted", held.fencing_token().unwrap_err()));
    key.set("1895000000.5");
    cases.push(Case::new("lock lost", held.extend().unwrap_err()));
    let error = lock(expiring().max_attempts(1)).lock().unwrap_err();
    cases.push(Case::new("attempts used up", error).contention().transient());
    key.delete();
    let counter = [key.key.as_bytes(), b":setnx-lock:fence"].concat();
    let () = target.connection().set(&counter, -5)?;
    let error = lock(expiring()).lock()?.fencing_token().unwrap_err();
    cases.push(Case::new("no token", error));
    let () = target.connection().del(&counter)?;
    let error = lock(LockOptions::held_until_released()).lock()?.extend().unwrap_err();
    cases.push(Case::new("no lease", error));
    Ok(cases)
}

fn real_failures_are_classified() -> Outcome {
    for Case { name, error, contention, transient, may_hold } in cases()? {
        assert_eq!(
            (error.is_contention(), error.is_transient(), error.may_hold_lock()),
            (contention, transient, may_hold),
            "{name}: {error:?}"
        );
    }
    Ok(())
}

/// The text of an error, and of each of its sources.
fn displayed(error: &dyn std::error::Error) -> Vec<String> {
    std::iter::successors(Some(error), |error| (*error).source()).map(ToString::to_string).collect()
}

fn each_cause_is_printed_once() -> Outcome {
    for Case { name, error, .. } in cases()? {
        let texts = displayed(&error);
        for (n, text) in texts.iter().enumerate() {
            for cause in &texts[n + 1..] {
                assert!(!text.contains(cause), "{name}: {texts:?}");
                assert_eq!(chain(&error).matches(cause.as_str()).count(), 1, "{name}: {texts:?}");
            }
        }
        let has_cause = ["no server", "no server to inspect", "replica"].contains(&name)
            || ["lost SETNX", "lost DEL", "lost GET", "lost GETSET"].contains(&name);
        assert_eq!(error.source().is_some(), has_cause, "{name}: {error:?}");
        // The reason of a refused connection is the last of the causes.
        if name.starts_with("no server") {
            assert!(texts.last().is_some_and(|text| text.contains("Connection refused")), "{texts:?}");
        }
    }
    Ok(())
}

fn errors_convert_into_those_of_anyhow() -> Outcome {
    fn locks(lock: &Lock) -> anyhow::Result<()> {
        lock.try_with(|_| anyhow::Ok(()))?;
        drop(lock.lock()?);
        Ok(())
    }
    for Case { name, error, .. } in cases()? {
        let expected = chain(&error);
        assert_eq!(format!("{:#}", anyhow::Error::from(error)), expected, "{name}");
    }
    let port = closed_port()?;
    let builder = Locker::builder(&format!("redis://127.0.0.1:{port}/"))?;
    let locker = builder.unreachable_timeout(Duration::ZERO).build()?;
    let lock = Lock::new(&locker, "errors", expiring())?;
    let error = locks(&lock).expect_err("no server listens there");
    assert!(matches!(error.downcast_ref(), Some(Error::NoConnection { .. })), "{error:?}");
    let text = format!("{error:#}");
    assert_eq!(text.matches("Connection refused").count(), 1, "{text}");
    // Another thread may print it.
    std::thread::spawn(move || drop(error)).join().unwrap();
    Ok(())
}

/// Asserts that no text of the error is longer than [`LONGEST`].
#[track_caller]
pub(crate) fn assert_short(error: &Error) {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(
                text.len() <= LONGEST,
                "{} bytes: {}",
                text.len(),
                text.chars().take(200).collect::<String>()
            );
        }
        source = error.source();
    }
}

fn a_long_value_is_cut() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let target = Target::of(&server);
    let locker = patient(&server.url())?.build()?;
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let key = target.key("long-value");
        for value in ["x", "\u{200b}", "\n"] {
            key.set(&value.repeat(900_000 / value.len()));
            let options = expiring().timeout(Duration::ZERO).protocol(protocol);
            let error = Lock::new(&locker, &key.key, options)?.lock().expect_err("held");
            let Error::Timeout { details, .. } = &error else { panic!("{error:?}") };
            assert!(details.seen.is_some() && chain(&error).contains(" bytes)"), "{error}");
            assert_short(&error);
        }
    }
    Ok(())
}

/// Keys of 100 kB, of text that is printed as it is and of text that is escaped.
fn long_keys() -> [String; 4] {
    ["k", "\u{200b}", "\"", "\n"].map(|text| text.repeat(100_000 / text.len()))
}

fn a_long_key_is_cut() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let scenario = Scenario::of(&server, None, Load::Any)?;
    let secured = RedisServer::start_with("requirepass secret")?;
    let port = closed_port()?;
    let at_once = |url: &str| -> Result<Locker, Error> {
        Locker::builder(url)?.unreachable_timeout(Duration::ZERO).build()
    };
    for key in long_keys() {
        let locker = opened(&scenario.proxy.url())?;
        let lock = Lock::new(&locker, key.as_str(), expiring().timeout(Duration::ZERO))?;
        let held = lock.lock()?;
        for text in [format!("{lock:?}"), format!("{held:?}")] {
            assert!(text.len() <= 2 * LONGEST, "{} bytes", text.len());
        }
        assert_short(&lock.lock().expect_err("held"));
        assert_short(&lock.with(|_| lock.lock()).expect_err("held"));
        scenario.proxy.next("DEL", Fault::CutBefore);
        assert_short(&held.release().expect_err("no reply"));
        lock.clear()?;
        let nested = lock.with(|_| lock.lock().expect_err("nested"))?;
        assert_short(&nested);
        scenario.proxy.next("SETNX", Fault::CutAfter);
        let unexpiring = Lock::new(&locker, key.as_str(), LockOptions::held_until_released())?;
        assert_short(&unexpiring.lock().expect_err("no reply"));
        lock.clear()?;
        for url in [format!("redis://127.0.0.1:{port}/"), secured.url()] {
            assert_short(&Lock::new(&at_once(&url)?, key.as_str(), expiring())?.lock().expect_err(&url));
        }
        let error = Lock::new(&locker, key.as_str(), LockOptions::expiring_after(Duration::ZERO));
        assert_short(&error.expect_err("an expiration of zero"));
    }
    Ok(())
}

/// Locks through a proxy that replies to `command` with a refusal of 200 kB.
fn refused_at_length(
    scenario: &Scenario,
    key: &TestKey,
    command: &'static str,
    begins: &str,
    builder: LockerBuilder,
) -> Result<Error, Box<dyn std::error::Error>> {
    let text: &'static str = format!("-{begins} {}\r\n", "\u{200b}\"x".repeat(40_000)).leak();
    for _ in 0..20 {
        scenario.proxy.next(command, Fault::Say(text));
    }
    let locker = builder.pool_size(1).unreachable_timeout(Duration::ZERO).build()?;
    let lock = Lock::new(&locker, &key.key, expiring().timeout(Duration::ZERO).protocol(Protocol::Watched))?;
    Ok(lock.lock().expect_err(command))
}

fn a_long_refusal_is_cut() -> Outcome {
    for (command, begins) in [
        ("SETNX", "ERR"),
        ("SETNX", "OOM"),
        ("GET", "WRONGTYPE"),
        ("WATCH", "ERR unknown command"),
        ("AUTH", "WRONGPASS"),
        ("AUTH", "ERR max number of clients"),
        ("SELECT", "ERR"),
        ("HELLO", "ERR"),
        ("INFO", "ERR max number of clients"),
    ] {
        let scenario = Scenario::set()?;
        let key = scenario.target.key("long-refusal");
        key.set("1532000016.5");
        let url = match command {
            "AUTH" => scenario.proxy.url().replace("redis://", "redis://:secret@"),
            "SELECT" => format!("{}1", scenario.proxy.url()),
            "HELLO" => format!("{}?protocol=resp3", scenario.proxy.url()),
            _ => scenario.proxy.url(),
        };
        let error = refused_at_length(&scenario, &key, command, begins, patient(&url)?)?;
        assert_short(&error);
    }
    Ok(())
}

pub(crate) const PASSWORD: &str = "Tr0ub4dor";

#[track_caller]
pub(crate) fn assert_no_password(texts: &[String]) {
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
        let manager = Manager::new(redis::Client::open(url.as_str())?).command_timeout(LONG);
        let pool = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).build_unchecked(manager.clone());
        let shared = Locker::with_managed_pool(pool, &manager);
        assert_no_password(&[
            format!("{builder:?}"),
            format!("{locker:?}"),
            format!("{lock:?}"),
            format!("{held:?}"),
            format!("{manager:?}"),
            format!("{shared:?}"),
            format!("{:?}", locker.inspect()?),
            locker.inspect()?.to_string(),
        ]);
    }
    let builder = Locker::builder(&format!("redis://user:{PASSWORD}@127.0.0.1:1/"))?;
    assert!(format!("{builder:?}").contains("127.0.0.1:1"));
    Ok(())
}

/// All texts of an error and of its sources.
pub(crate) fn all_texts(error: &Error) -> Vec<String> {
    let mut texts = vec![format!("{error:#?}"), chain(error)];
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = source {
        texts.extend([error.to_string(), format!("{error:?}")]);
        source = error.source();
    }
    texts
}

fn a_password_is_in_no_error() -> Outcome {
    let other = RedisServer::start_with("requirepass another")?;
    let open = RedisServer::start()?;
    let port = closed_port()?;
    let addresses = [other.address().to_string(), open.address().to_string(), format!("127.0.0.1:{port}")];
    for address in addresses {
        for url in [
            format!("redis://:{PASSWORD}@{address}/"),
            format!("redis://user:{PASSWORD}@{address}/"),
            format!("redis://user:{PASSWORD}@{address}/?protocol=resp3"),
        ] {
            let locker = Locker::builder(&url)?.unreachable_timeout(Duration::ZERO).build()?;
            let lock = Lock::new(&locker, "password", expiring().timeout(Duration::ZERO))?;
            assert_no_password(&all_texts(&lock.lock().expect_err(&address)));
            assert_no_password(&all_texts(&locker.inspect().expect_err(&address)));
        }
    }
    // A pool of another manager has r2d2's text for a cause.
    let client = redis::Client::open(format!("redis://user:{PASSWORD}@{}/", other.address()))?;
    let builder = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    let locker = Locker::with_pool(builder.connection_timeout(millis(500)).build_unchecked(client));
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

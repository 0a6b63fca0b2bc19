//! Error texts that quote a server at length: they are cut, and never quote a password.

use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, Locker};

use crate::errors::{PASSWORD, all_texts, assert_no_password, assert_short};
use crate::servers::Fault;
use crate::support::scenario::{Scenario, opened};
use crate::support::{Outcome, RedisServer, chain, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "error_texts",
        tests![
            a_password_that_the_server_quotes_is_in_no_error,
            a_refused_login_is_no_refused_inspection,
            a_long_refusal_through_a_plain_pool_is_cut,
            the_address_of_a_master_is_cut,
            an_unusable_address_is_cut,
            a_long_key_with_a_long_refusal_is_cut,
            a_text_is_cut_between_characters,
        ],
    )
}

/// A locker on a pool of the redis crate's own manager.
fn plain(url: &str) -> Result<Locker, redis::RedisError> {
    let builder = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    let pool = builder.connection_timeout(millis(500)).build_unchecked(redis::Client::open(url)?);
    Ok(Locker::with_pool(pool))
}

/// From Redis 5 on a server quotes the arguments of a command that it does not know: those of HELLO before 6, and of a renamed AUTH.
fn a_password_that_the_server_quotes_is_in_no_error() -> Outcome {
    let server = RedisServer::start_with("rename-command AUTH \"\"\nrename-command HELLO \"\"")?;
    for user in ["", "user"] {
        for query in ["", "?protocol=resp3"] {
            let url = format!("redis://{user}:{PASSWORD}@{}/{query}", server.address());
            let locker = Locker::builder(&url)?.unreachable_timeout(Duration::ZERO).build()?;
            for locker in [locker, plain(&url)?] {
                let lock = Lock::new(&locker, "password", expiring().timeout(Duration::ZERO))?;
                assert_no_password(&all_texts(&lock.lock().expect_err("AUTH is unknown")));
                assert_no_password(&all_texts(&locker.inspect().expect_err("AUTH is unknown")));
            }
        }
    }
    Ok(())
}

fn a_refused_login_is_no_refused_inspection() -> Outcome {
    let server = RedisServer::start_with("requirepass another")?;
    let locker = opened(&format!("redis://:{PASSWORD}@{}/", server.address()))?;
    let text = chain(&locker.inspect().expect_err("wrong password"));
    assert!(text.contains("WRONGPASS"), "{text}");
    assert!(!text.contains("INFO"), "the server refused AUTH: {text}");
    Ok(())
}

fn a_long_refusal_through_a_plain_pool_is_cut() -> Outcome {
    for command in ["SELECT", "HELLO"] {
        let scenario = Scenario::set()?;
        for _ in 0..20 {
            scenario.proxy.next(command, Fault::Say(format!("-ERR {}\r\n", "x".repeat(200_000)).leak()));
        }
        let url = if command == "HELLO" { "?protocol=resp3" } else { "1" };
        let locker = plain(&format!("{}{url}", scenario.proxy.url()))?;
        let error = Lock::new(&locker, "refused", expiring().timeout(Duration::ZERO))?.lock();
        assert_short(&error.expect_err("refused"));
    }
    Ok(())
}

fn the_address_of_a_master_is_cut() -> Outcome {
    let scenario = Scenario::set()?;
    let host = "h".repeat(200_000);
    let info = format!("redis_version:2.4.18\r\nrole:slave\r\nmaster_host:{host}\r\nmaster_port:6379\r\n");
    scenario.proxy.next("INFO", Fault::Say(format!("${}\r\n{info}\r\n", info.len()).leak()));
    let error = Lock::new(&scenario.locker(), "replica", expiring())?.lock().expect_err("a replica");
    assert!(matches!(error, Error::NoConnection { .. }), "{}", error);
    assert_short(&error);
    Ok(())
}

fn an_unusable_address_is_cut() -> Outcome {
    let url = format!("redis://localhost/?protocol={}", "p".repeat(100_000));
    assert_short(&Locker::open(&url).expect_err("no such protocol"));
    Ok(())
}

fn a_long_key_with_a_long_refusal_is_cut() -> Outcome {
    let scenario = Scenario::set()?;
    let locker = scenario.locker();
    // What `Debug` escapes takes up to three times the bytes.
    for text in ["x", "\"", "\u{200b}", "\u{ad}"] {
        scenario.proxy.next("SETNX", Fault::Say(format!("-ERR {}\r\n", text.repeat(1000)).leak()));
        let key = "k".repeat(100_000);
        assert_short(&Lock::new(&locker, key.as_str(), expiring())?.lock().expect_err("refused"));
    }
    Ok(())
}

fn a_text_is_cut_between_characters() -> Outcome {
    let locker = Locker::builder("redis://127.0.0.1:1/")?.unreachable_timeout(Duration::ZERO).build()?;
    // Characters of two, three and four bytes, and bytes that are escaped.
    for text in ["é", "\u{20ac}", "\u{1f512}", "\n"] {
        for before in ["", "a", "ab", "abc"] {
            let key = format!("{before}{}", text.repeat(1000));
            let error = Lock::new(&locker, key.as_str(), expiring())?.lock().expect_err("no server");
            let shown = error.to_string();
            let shown = shown.split_once('…').expect("it is cut").0.trim_start_matches("lock ");
            let whole = setnx_lock::Key::from(key.as_str()).to_string();
            let rest = whole.strip_prefix(shown).unwrap_or_else(|| panic!("{shown} is not the beginning"));
            let escaped = setnx_lock::Key::from(text).to_string();
            assert!(rest.starts_with(&escaped), "cut within a character: {shown}");
        }
    }
    Ok(())
}

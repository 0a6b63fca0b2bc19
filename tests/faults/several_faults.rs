//! What a server refuses to several keys: each has an outcome of its own, or is named by the error.

mod interrupted;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{Error, Key, LockOptions, MultiLock, Protocol, RefusalKind};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::scenario::{FOREIGN, Scenario, opened, patient};
use crate::support::sent::probed;
use crate::support::target::PROTOCOLS;
use crate::support::{
    AnyServer, LONG, Outcome, PAST, RedisServer, Release, Target, TestKey, expiring, millis, release_all,
    tests,
};

const COMMAND_TIMEOUT: Duration = Duration::from_millis(900);

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = crate::support::trials(
        "several_faults",
        tests![
            a_user_without_one_of_the_keys,
            a_server_without_transactions,
            a_server_over_its_memory,
            a_key_of_another_type,
            a_refusal_concerns_one_key,
            what_could_not_be_given_back_is_reported,
            an_unknown_outcome_is_reported_for_each_key,
        ],
    );
    trials.extend(interrupted::trials());
    trials
}

/// The keys that an error names.
fn named(error: &Error) -> BTreeSet<Key> {
    match error {
        Error::Several { cause, others, .. } => {
            named(cause).into_iter().chain(others.iter().flat_map(named)).collect()
        }
        error => error.key().cloned().into_iter().collect(),
    }
}

fn a_user_without_one_of_the_keys() -> Outcome {
    let server = TestServer::start();
    server.say(&["ACL", "SETUSER", "some", "on", ">secret", "~ours:*", "+@all"])?;
    let locker = opened(&format!("redis://some:secret@{}/", server.address()))?;
    for protocol in PROTOCOLS {
        let options = expiring().protocol(protocol);
        for names in [["ours:1", "theirs"], ["a", "ours:1"]] {
            let refused = names.into_iter().find(|name| !name.starts_with("ours")).map(Key::from);
            for outcome in [
                MultiLock::new(&locker, names, options)?.lock().map(Some),
                MultiLock::new(&locker, names, options)?.try_lock(),
            ] {
                let error = outcome.expect_err("one of the keys is not the user's");
                assert!(
                    matches!(&error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::NotPermitted),
                    "{error:?}"
                );
                assert_eq!(error.key(), refused.as_ref(), "{error}");
                assert_eq!(server.say(&["EXISTS", "ours:1"])?, ":0", "given back");
            }
        }
        drop(MultiLock::new(&locker, ["ours:1", "ours:2"], options)?.lock()?);
    }
    Ok(())
}

fn a_server_without_transactions() -> Outcome {
    let config = ["WATCH", "MULTI"].map(|name| format!("rename-command {name} \"\"")).join("\n");
    let server = Arc::new(RedisServer::start_with(&config)?);
    let target = Target::of(&server).with(Protocol::Auto);
    let keys = target.keys("auto", 3);
    let locks = target.locks(&keys, expiring());
    for expired in [false, true] {
        if expired {
            keys[1].set(PAST);
        }
        let held = locks.lock()?;
        held.extend()?;
        held.fencing_tokens()?;
        held.verify()?;
        held.release()?;
        assert!(keys.iter().all(|key| key.value().is_none()));
    }
    for protocol in [Protocol::Watched, Protocol::Ttl] {
        keys[1].set(PAST);
        let error = target.with(protocol).locks(&keys, expiring()).lock().expect_err("it needs transactions");
        // What was acquired cannot be given back either.
        let cause = match &error {
            Error::Several { cause, .. } => cause,
            error => error,
        };
        assert!(matches!(cause, Error::Refused { .. }), "{error:?}");
        assert_eq!(keys[1].value().as_deref(), Some(PAST));
        for key in [&keys[0], &keys[2]] {
            assert!(key.value().is_none() || named(&error).contains(&key.key), "{error:?}");
        }
        keys.iter().for_each(TestKey::delete);
    }
    Ok(())
}

fn a_server_over_its_memory() -> Outcome {
    for protocol in PROTOCOLS {
        let server = Arc::new(TestServer::start());
        let target = Target::of(&server).with(protocol);
        let keys = target.keys("memory", 3);
        let locks = target.locks(&keys, LockOptions::expiring_after(2 * LONG).timeout(LONG));
        let over_memory = |error: &Error| {
            let Error::Refused { refusal, .. } = error else { panic!("{error:?}") };
            assert_eq!(refusal.kind(), RefusalKind::OverMemory);
            assert!(keys.iter().any(|key| error.key() == Some(&key.key)));
        };
        let held = locks.lock()?;
        let (values, end) = (keys.iter().map(TestKey::value).collect::<Vec<_>>(), held.expires_at());
        server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
        over_memory(&held.extend().expect_err("the server has no memory"));
        assert_eq!((keys.iter().map(TestKey::value).collect::<Vec<_>>(), held.expires_at()), (values, end));
        held.ensure_held()?;
        for (_, outcome) in release_all(held) {
            match outcome {
                // The machine stalled between its look and what was to follow soon.
                Err(error) if protocol != Protocol::Classic => over_memory(&error),
                outcome => {
                    assert_eq!(
                        outcome?,
                        Release::Released { certified: false },
                        "the server executes DEL alone"
                    );
                }
            }
        }
        keys.iter().for_each(TestKey::delete);
        over_memory(&locks.try_lock().expect_err("the server has no memory"));
        server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
        keys[1].set(PAST);
        server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
        over_memory(&locks.try_lock().expect_err("the server has no memory"));
        assert_eq!([keys[0].value(), keys[2].value()], [None, None]);
        server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
        drop(locks.lock()?);
    }
    Ok(())
}

fn a_key_of_another_type() -> Outcome {
    let server = Arc::new(TestServer::start());
    for protocol in PROTOCOLS {
        let target = Target::of(&server).with(protocol);
        let keys = target.keys("list", 3);
        server.say(&["RPUSH", &keys[1].key.to_string(), "precious"])?;
        let locks = target.locks(&keys, expiring());
        for outcome in [locks.lock().map(Some), locks.try_lock()] {
            let error = outcome.expect_err("one is a list");
            assert!(
                matches!(&error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::WrongType),
                "{error:?}"
            );
            assert_eq!(error.key(), Some(&keys[1].key));
            assert_eq!([keys[0].value(), keys[2].value()], [None, None], "given back");
            assert_eq!(server.say(&["LLEN", &keys[1].key.to_string()])?, ":1");
        }
    }
    Ok(())
}

fn a_refusal_concerns_one_key() -> Outcome {
    let scenario = Scenario::set();
    let keys = scenario.target.keys("refused", 3);
    let named = || keys.iter().map(|key| key.key.clone());
    let locks = MultiLock::new(&scenario.locker(), named(), expiring())?;
    let refusal = || Fault::Say("-NOPERM this user has no permissions to access one of the keys\r\n");
    let held = locks.lock()?;
    let end = held.expires_at();
    scenario.server.nth("GETSET", 2, refusal());
    let error = held.extend().expect_err("one is refused");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert_eq!(error.key(), Some(&keys[1].key));
    let extended: Vec<bool> = held.guards().iter().map(|guard| guard.expires_at() > end).collect();
    assert_eq!(extended, [true, false, true]);
    held.ensure_held()?;
    scenario.server.nth("DEL", 2, refusal());
    let released: Vec<_> = release_all(held).into_iter().map(|(_, outcome)| outcome).collect();
    assert!(matches!(released[1], Err(Error::Refused { .. })), "{released:?}");
    assert!(released[0].is_ok() && released[2].is_ok(), "{released:?}");
    assert_eq!([keys[0].value(), keys[2].value()], [None, None]);
    assert!(keys[1].value().is_some());
    Ok(())
}

fn what_could_not_be_given_back_is_reported() -> Outcome {
    for protocol in PROTOCOLS {
        let scenario = Scenario::set();
        let keys = scenario.target.keys("left", 3);
        let named = || keys.iter().map(|key| key.key.clone());
        let options = expiring().timeout(millis(100)).protocol(protocol);
        let locker = scenario.locker();
        probed(&locker, protocol)?;
        let locks = MultiLock::new(&locker, named(), options)?;
        keys[2].set(FOREIGN);
        // Together; then a transaction for each; then, as of any lock, a deletion without one.
        for _ in 0..6 {
            scenario.server.next("DEL", Fault::Say("-NOPERM this user has no permissions\r\n"));
        }
        let error = locks.lock().expect_err("one is held");
        let Error::Several { cause, others, .. } = &error else { panic!("{error:?}") };
        assert!(matches!(**cause, Error::Contended { .. }), "{error:?}");
        assert_eq!(error.key(), Some(&keys[2].key));
        let left: Vec<_> = others.iter().filter_map(Error::key).collect();
        assert_eq!(left, [&keys[0].key, &keys[1].key], "{error:?}");
        assert!(others.iter().all(|other| matches!(other, Error::Refused { .. })), "{error:?}");
        let text = error.to_string();
        assert!(named().all(|key| text.contains(&key.to_string())), "{text}");
        assert!(keys[0].value().is_some() && keys[1].value().is_some(), "they are held as it says");
    }
    Ok(())
}

fn an_unknown_outcome_is_reported_for_each_key() -> Outcome {
    for protocol in PROTOCOLS {
        let scenario = Scenario::set();
        let keys = scenario.target.keys("unknown", 3);
        let builder = patient(&scenario.server.url())?.pool_size(1).command_timeout(COMMAND_TIMEOUT);
        let each = keys.iter().map(|key| key.key.clone());
        let locks = MultiLock::new(&scenario.open(builder), each, expiring().protocol(protocol))?;
        locks.with(|_| ())?;
        let command = if protocol == Protocol::Ttl { "SET" } else { "SETNX" };
        for _ in &keys {
            scenario.server.next(command, Fault::LoseReply);
        }
        // No time is left to read what the keys hold, and what is acquired is not released in the background so far.
        scenario.server.delay_by(|asked| if asked.name == "GET" { LONG } else { Duration::ZERO });
        let error = locks.try_lock().expect_err("the reply is lost");
        let Error::Several { cause, others, .. } = &error else { panic!("{error:?}") };
        let unknown: Vec<&Error> = [&**cause].into_iter().chain(others).collect();
        for (key, error) in keys.iter().zip(&unknown) {
            assert!(matches!(error, Error::InDoubt { .. }), "{error:?}");
            assert_eq!(error.key(), Some(&key.key));
            assert!(error.to_string().contains(&format!("the reply to {command} was lost")), "{error}");
            assert!(key.value().is_some(), "in this case it was acquired");
        }
        scenario.server.clear_faults();
        assert_eq!(unknown.len(), keys.len());
        assert!(error.may_hold_lock());
    }
    Ok(())
}

//! A fault at every command on several keys, and what a server refuses to several keys. Whatever the fault, the call ends in time with a
//! correct outcome for each key: held by the guard, free, or named by the error and free once its lease has passed.

mod interrupted;

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use libtest_mimic::Trial;
use setnx_lock::chrono::{DateTime, Utc};
use setnx_lock::{
    Error, Key, Lock, LockOptions, LockState, Locks, LocksGuard, Protocol, RefusalKind, Release,
};

use crate::servers::Fault;
use crate::support::every_command::{self, COMMAND_TIMEOUT, Failure, LEASE, Stage};
use crate::support::scenario::{FOREIGN, Scenario, opened, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Load, Outcome, PAST, RedisServer, Target, TestKey, expiring, millis, tests};

/// Long enough for any load, and short enough to detect a call that does not end.
const IN_TIME: Duration = Duration::from_secs(90);

/// A path through the commands on several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// Acquires free locks.
    Free,
    /// Takes over expired locks.
    TakeOver,
    /// Tries once to take over one of the locks and to acquire the other.
    Once,
    Release,
    Extension,
    Tokens,
    /// Gives back what it got, since another lock is held.
    GiveBack,
}

const PATHS: [(&str, Path); 7] = [
    ("free_locks", Path::Free),
    ("expired_locks", Path::TakeOver),
    ("one_attempt", Path::Once),
    ("a_release", Path::Release),
    ("an_extension", Path::Extension),
    ("tokens", Path::Tokens),
    ("what_was_acquired_is_given_back", Path::GiveBack),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = crate::support::trials(
        "several_faults",
        tests![
            a_server_without_the_command_on_several_keys,
            a_user_without_the_command_or_one_of_the_keys,
            a_server_without_transactions,
            a_server_over_its_memory,
            a_key_of_another_type,
            a_refusal_concerns_one_key,
            what_could_not_be_given_back_is_reported,
            an_unknown_outcome_is_reported_for_each_key,
        ],
    );
    trials.extend(interrupted::trials());
    trials.extend(every_command::trials::<KeysStage>("several_faults", &PATHS));
    trials
}

/// What a run starts from.
struct KeysStage {
    scenario: Scenario,
    path: Path,
    keys: Vec<TestKey>,
    locks: Locks,
    held: Option<LocksGuard>,
    /// What each key holds at first.
    values: Vec<Option<String>>,
}

impl Stage for KeysStage {
    type Path = Path;

    fn set_once(
        server: &Arc<RedisServer>,
        protocol: Protocol,
        path: Path,
        lease: Duration,
    ) -> Result<Self, Failure> {
        let scenario = Scenario::of(server, None, Load::Any)?;
        let keys = scenario.target.keys("several", 2);
        let builder = patient(&scenario.proxy.url())?.pool_size(1).command_timeout(COMMAND_TIMEOUT);
        let locker = scenario.open(builder);
        let options = LockOptions::expiring_after(lease).protocol(protocol).timeout(LONG);
        let named = || keys.iter().map(|key| key.key.clone());
        let locks = Locks::new(&locker, named(), options)?;
        Lock::new(&locker, &keys[0].key, options)?.state()?;
        let mut held = None;
        match path {
            Path::Free => {}
            Path::TakeOver => keys.iter().for_each(|key| key.set(PAST)),
            Path::Once => keys[1].set(PAST),
            Path::GiveBack => keys[1].set(FOREIGN),
            Path::Release | Path::Extension | Path::Tokens => held = Some(locks.lock()?),
        }
        let locks = match path {
            Path::GiveBack => locks.with_options(options.timeout(millis(100)))?,
            _ => locks,
        };
        scenario.proxy.forget();
        let values = keys.iter().map(TestKey::value).collect();
        Ok(Self { scenario, path, keys, locks, held, values })
    }

    fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    fn run(mut self) -> Result<Scenario, Failure> {
        let began = Instant::now();
        match self.held.take() {
            None => {
                let acquired = match self.path {
                    Path::Once => self.locks.try_lock(),
                    _ => self.locks.lock().map(Some),
                };
                self.judge_acquired(acquired)?;
            }
            Some(held) if self.path == Path::Release => self.judge_released(&held.release())?,
            Some(held) => {
                let ends: Vec<_> = held.guards().iter().map(setnx_lock::LockGuard::expires_at).collect();
                let used = match self.path {
                    Path::Extension => held.extend().map(drop),
                    _ => held.fencing_tokens().map(drop),
                };
                self.judge_used(&held, &used, &ends)?;
                mem::forget(held);
            }
        }
        assert!(began.elapsed() < IN_TIME);
        self.assert_nothing_sent_twice();
        self.judge_keys()?;
        Ok(self.scenario)
    }
}

impl KeysStage {
    /// Whether the key holds a value that a lock under test has sent.
    fn holds_our_value(&self, n: usize) -> bool {
        let Some(value) = self.keys[n].value() else { return false };
        let was_held = !matches!(value.as_str(), PAST | FOREIGN) && self.values[n].as_ref() == Some(&value);
        was_held
            || self.scenario.proxy.asked().iter().any(|asked| {
                ["SETNX", "MSETNX", "GETSET", "SET"].contains(&asked.name.as_str())
                    && asked.arguments.contains(&value)
            })
    }

    /// Whether that is so, and the lease has not passed, which ends a second before the value's time.
    fn is_held(&self, n: usize) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let until = self.keys[n].value().and_then(|value| value.parse::<f64>().ok());
        self.holds_our_value(n) && until.is_some_and(|until| until > now.as_secs_f64() + 1.0)
    }

    fn judge_acquired(&self, acquired: Result<Option<LocksGuard>, Error>) -> Result<(), String> {
        let contends = self.path == Path::GiveBack;
        match acquired {
            Ok(Some(held)) if !contends => {
                for (n, guard) in held.guards().iter().enumerate() {
                    let ours = self.holds_our_value(n);
                    if guard.ensure_held().is_ok() && !ours {
                        return Err(format!("granted, but the key holds {:?}", self.keys[n].value()));
                    }
                }
                mem::forget(held);
                Ok(())
            }
            // Granted after its lease: then it waits for its own value to expire.
            Ok(None) => self.judge_left(&BTreeSet::new(), "None"),
            Ok(Some(held)) => Err(format!("granted, but one is held: {held:?}")),
            Err(error) => {
                // With enough time each loss of a reply is made good.
                let expected = contends || self.path == Path::Once;
                if !expected {
                    return Err(format!("{error:?}"));
                }
                let named = named(&error);
                self.judge_left(&named, &format!("{error:?}"))
            }
        }
    }

    /// Asserts that no key is left held which the error does not name.
    fn judge_left(&self, named: &BTreeSet<Key>, outcome: &str) -> Result<(), String> {
        for (n, key) in self.keys.iter().enumerate() {
            if self.is_held(n) && !named.contains(&key.key) {
                return Err(format!("{outcome}, but {} is left held: {:?}", key.key, key.value()));
            }
        }
        Ok(())
    }

    fn judge_released(&self, released: &[(Key, Result<Release, Error>)]) -> Result<(), String> {
        for (n, (key, released)) in released.iter().enumerate() {
            let value = self.keys[n].value();
            match (released, &value) {
                (Ok(Release::Released { .. }), None) => {}
                (Ok(Release::Expired) | Err(Error::Unknown { .. }), _) => {}
                // Not sent. In Ttl the server may have deleted the key since.
                (Err(Error::Io { .. } | Error::NoConnection { .. }), _) => {}
                _ => return Err(format!("{key}: {released:?}, and the key holds {value:?}")),
            }
        }
        // Once a deletion may have been carried out, none follows.
        for key in &self.keys {
            let asked = self.scenario.proxy.asked();
            let deletes = asked
                .iter()
                .filter(|asked| asked.name == "DEL" && asked.arguments.contains(&key.key.to_string()));
            // A transaction that was not carried out is repeated for each key by itself.
            let at_most = if asked.iter().any(|asked| asked.name == "MULTI") { 2 } else { 1 };
            if deletes.count() > at_most {
                return Err(format!("deleted more often than {at_most} times: {asked:?}"));
            }
        }
        Ok(())
    }

    fn judge_used(
        &self,
        held: &LocksGuard,
        used: &Result<(), Error>,
        ends: &[Option<DateTime<Utc>>],
    ) -> Result<(), String> {
        let extends = self.path == Path::Extension;
        for (n, guard) in held.guards().iter().enumerate() {
            let (end, before) = (guard.expires_at(), &ends[n]);
            if used.is_ok() && (end > *before) != extends || !extends && end != *before {
                return Err(format!("{used:?}, until {before:?} and then {end:?}"));
            }
            let ours = self.holds_our_value(n);
            if guard.ensure_held().is_ok() && !ours {
                return Err(format!("{used:?}, but the key holds {:?}", self.keys[n].value()));
            }
        }
        match used {
            Ok(()) | Err(Error::Io { .. } | Error::NoConnection { .. } | Error::Expired { .. }) => Ok(()),
            Err(Error::Unknown { .. }) if extends => Ok(()),
            Err(error) => Err(format!("{error:?}")),
        }
    }

    /// No two commands set a key to the same value.
    #[track_caller]
    fn assert_nothing_sent_twice(&self) {
        let mut sent = BTreeSet::new();
        for asked in self.scenario.proxy.asked() {
            let pairs = if asked.name == "MSETNX" { asked.arguments.len() } else { 2 };
            if ["SETNX", "MSETNX", "GETSET", "SET"].contains(&asked.name.as_str()) {
                for pair in asked.arguments[..pairs].chunks(2) {
                    assert!(sent.insert(pair.to_vec()), "sent twice: {pair:?}");
                }
            }
        }
    }

    /// Whatever happened, each lock frees itself once the expiration and one second have passed.
    fn judge_keys(&self) -> Result<(), Failure> {
        if self.path == Path::GiveBack {
            self.keys[1].delete();
        }
        let at_most = SystemTime::now() + LEASE + Duration::from_secs(1);
        for key in &self.keys {
            match self.scenario.target.lock(key, expiring()).state()? {
                LockState::Absent => {}
                LockState::Until(expiry) if expiry.system_time().is_some_and(|expiry| expiry <= at_most) => {}
                other => return Err(format!("{} holds {other}", key.key).into()),
            }
        }
        // That is not waited for.
        self.keys.iter().for_each(TestKey::delete);
        drop(self.scenario.target.locks(&self.keys, expiring()).lock()?);
        Ok(())
    }
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

fn a_server_without_the_command_on_several_keys() -> Outcome {
    let server = Arc::new(RedisServer::start_with("rename-command MSETNX \"\"")?);
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Auto] {
        let scenario = Scenario::of(&server, None, Load::Any)?;
        let keys = scenario.target.keys("without", 3);
        let locker = scenario.open(patient(&scenario.proxy.url())?);
        let each = keys.iter().map(|key| key.key.clone());
        let locks = Locks::new(&locker, each, expiring().protocol(protocol))?;
        for asks in [true, false] {
            scenario.proxy.forget();
            let held = locks.try_lock()?.expect("each is acquired by itself");
            assert!(keys.iter().all(|key| key.value().is_some()));
            let names = scenario.proxy.names();
            let count = |name: &str| names.iter().filter(|found| *found == name).count();
            // What was refused is not asked for again soon.
            assert_eq!((count("MSETNX"), count("SETNX")), (usize::from(asks), 3), "{names:?}");
            assert!(held.release().into_iter().all(|(_, outcome)| outcome.is_ok()));
        }
        keys[1].set(FOREIGN);
        assert!(locks.try_lock()?.is_none());
        assert_eq!([keys[0].value(), keys[2].value()], [None, None]);
        keys[1].set(PAST);
        drop(locks.lock()?);
        assert!(keys.iter().all(|key| key.value().is_none()));
    }
    Ok(())
}

fn a_user_without_the_command_or_one_of_the_keys() -> Outcome {
    let server = RedisServer::start()?;
    server.say(&["ACL", "SETUSER", "single", "on", ">secret", "~*", "+@all", "-msetnx"])?;
    server.say(&["ACL", "SETUSER", "some", "on", ">secret", "~ours:*", "+@all"])?;
    let locker = |user: &str| opened(&format!("redis://{user}:secret@{}/", server.address()));
    for protocol in PROTOCOLS {
        let options = expiring().protocol(protocol);
        let locks = Locks::new(&locker("single")?, ["ours:1", "ours:2"], options)?;
        let held = locks.lock()?;
        assert!(held.release().into_iter().all(|(_, outcome)| outcome.is_ok()));
        let locker = locker("some")?;
        drop(Locks::new(&locker, ["ours:1", "ours:2"], options)?.lock()?);
        for names in [["ours:1", "theirs"], ["a", "ours:1"]] {
            let refused = names.into_iter().find(|name| !name.starts_with("ours")).map(Key::from);
            for outcome in [
                Locks::new(&locker, names, options)?.lock().map(Some),
                Locks::new(&locker, names, options)?.try_lock(),
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
        drop(Locks::new(&locker, ["ours:1", "ours:2"], options)?.lock()?);
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
        assert!(held.verify().into_iter().all(|(_, verification)| verification.is_ok()));
        held.fencing_tokens()?;
        for (key, outcome) in held.release() {
            assert!(matches!(outcome, Ok(Release::Released { .. })), "{key}: {outcome:?}");
        }
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
        assert!(matches!(cause, Error::Unsupported { .. }), "{error:?}");
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
        let server = Arc::new(RedisServer::start()?);
        let target = Target::of(&server).with(protocol);
        let keys = target.keys("memory", 3);
        let locks = target.locks(&keys, expiring());
        let over_memory = |error: &Error| {
            let Error::Refused { refusal, .. } = error else { panic!("{error:?}") };
            assert_eq!(refusal.kind(), RefusalKind::OverMemory);
            assert!(keys.iter().any(|key| error.key() == Some(&key.key)));
        };
        let held = locks.lock()?;
        let values: Vec<_> = keys.iter().map(TestKey::value).collect();
        let end = held.expires_at();
        server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
        over_memory(&held.extend().expect_err("the server has no memory"));
        assert_eq!(keys.iter().map(TestKey::value).collect::<Vec<_>>(), values);
        assert_eq!(held.expires_at(), end);
        held.ensure_held()?;
        for (_, outcome) in held.release() {
            match (protocol, outcome) {
                (Protocol::Classic, outcome) => {
                    assert_eq!(outcome?, Release::Released { certified: false }, "the server executes DEL");
                }
                // The transaction is refused, and a plain DEL could delete another's key.
                (_, outcome) => over_memory(&outcome.expect_err("the server has no memory")),
            }
        }
        keys.iter().for_each(TestKey::delete);
        over_memory(&locks.lock().expect_err("the server has no memory"));
        over_memory(&locks.try_lock().expect_err("the server has no memory"));
        server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
        keys[1].set(PAST);
        server.say(&["CONFIG", "SET", "maxmemory", "1"])?;
        over_memory(&locks.lock().expect_err("the server has no memory"));
        assert_eq!([keys[0].value(), keys[2].value()], [None, None]);
        server.say(&["CONFIG", "SET", "maxmemory", "0"])?;
        // The refusal passes by itself, so all are asked for together again.
        let held = locks.lock()?;
        assert!(held.release().into_iter().all(|(_, outcome)| outcome.is_ok()));
    }
    Ok(())
}

fn a_key_of_another_type() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
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
    let scenario = Scenario::set()?;
    let keys = scenario.target.keys("refused", 3);
    let named = || keys.iter().map(|key| key.key.clone());
    let locks = Locks::new(&scenario.locker(), named(), expiring())?;
    let refusal = || Fault::Say("-NOPERM this user has no permissions to access one of the keys\r\n");
    let held = locks.lock()?;
    let ends: Vec<_> = held.guards().iter().map(setnx_lock::LockGuard::expires_at).collect();
    scenario.proxy.nth("GETSET", 2, refusal());
    let error = held.extend().expect_err("one is refused");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert_eq!(error.key(), Some(&keys[1].key));
    let extended: Vec<bool> =
        held.guards().iter().zip(&ends).map(|(guard, end)| guard.expires_at() > *end).collect();
    assert_eq!(extended, [true, false, true]);
    held.ensure_held()?;
    scenario.proxy.nth("DEL", 2, refusal());
    let released: Vec<_> = held.release().into_iter().map(|(_, outcome)| outcome).collect();
    assert!(matches!(released[1], Err(Error::Refused { .. })), "{released:?}");
    assert!(released[0].is_ok() && released[2].is_ok(), "{released:?}");
    assert_eq!([keys[0].value(), keys[2].value()], [None, None]);
    assert!(keys[1].value().is_some());
    Ok(())
}

fn what_could_not_be_given_back_is_reported() -> Outcome {
    for protocol in PROTOCOLS {
        let scenario = Scenario::set()?;
        let keys = scenario.target.keys("left", 3);
        let named = || keys.iter().map(|key| key.key.clone());
        let options = expiring().timeout(millis(100)).protocol(protocol);
        let locks = Locks::new(&scenario.locker(), named(), options)?;
        keys[2].set(FOREIGN);
        // Together; then a transaction for each; then, as of any lock, a deletion without one.
        for _ in 0..6 {
            scenario.proxy.next("DEL", Fault::Say("-NOPERM this user has no permissions\r\n"));
        }
        let error = locks.lock().expect_err("one is held");
        let Error::Several { cause, others, .. } = &error else { panic!("{error:?}") };
        assert!(matches!(**cause, Error::Timeout { .. }), "{error:?}");
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
        let scenario = Scenario::set()?;
        let keys = scenario.target.keys("unknown", 3);
        let builder = patient(&scenario.proxy.url())?.pool_size(1).command_timeout(COMMAND_TIMEOUT);
        let each = keys.iter().map(|key| key.key.clone());
        let locks = Locks::new(&scenario.open(builder), each, expiring().protocol(protocol))?;
        locks.with(|_| ())?;
        let command = if protocol == Protocol::Ttl { "EXEC" } else { "MSETNX" };
        scenario.proxy.next(command, Fault::SwallowAnswer);
        // No time is left to read what the keys hold.
        let error = locks.try_lock().expect_err("the reply is lost");
        let Error::Several { cause, others, .. } = &error else { panic!("{error:?}") };
        let unknown: Vec<&Error> = [&**cause].into_iter().chain(others).collect();
        for (key, error) in keys.iter().zip(&unknown) {
            assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
            assert_eq!(error.key(), Some(&key.key));
            assert!(error.to_string().contains(&format!("the reply to {command} was lost")), "{error}");
            assert!(key.value().is_some(), "in this case it was acquired");
        }
        assert_eq!(unknown.len(), keys.len());
        assert!(error.may_hold_lock());
    }
    Ok(())
}

//! The paths through the commands on several keys, with a fault at every command.

use std::collections::BTreeSet;
use std::mem;
use std::time::{Duration, Instant, SystemTime};

use setnx_lock::chrono::{DateTime, Utc};
use setnx_lock::{
    Error, Key, Lock, LockGuard, LockOptions, LockState, LossReason, MultiLock, MultiLockGuard, Protocol,
};

use super::named;
use crate::support::every_command::{COMMAND_TIMEOUT, Failure, LEASE, Stage};
use crate::support::scenario::{FOREIGN, Scenario, patient};
use crate::support::{LONG, PAST, Release, TestKey, expiring, millis, release_all};

/// A path through the commands on several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
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

pub(super) const PATHS: [(&str, Path); 7] = [
    ("free_locks", Path::Free),
    ("expired_locks", Path::TakeOver),
    ("one_attempt", Path::Once),
    ("a_release", Path::Release),
    ("an_extension", Path::Extension),
    ("tokens", Path::Tokens),
    ("what_was_acquired_is_given_back", Path::GiveBack),
];

/// What a run starts from.
pub(super) struct KeysStage {
    scenario: Scenario,
    path: Path,
    keys: Vec<TestKey>,
    locks: MultiLock,
    held: Option<MultiLockGuard>,
    /// What each key holds at first.
    values: Vec<Option<String>>,
}

impl Stage for KeysStage {
    type Path = Path;

    fn set_once(protocol: Protocol, path: Path, lease: Duration) -> Result<Self, Failure> {
        let scenario = Scenario::set();
        let keys = scenario.target.keys("several", 2);
        let builder = patient(&scenario.server.url())?.pool_size(1).command_timeout(COMMAND_TIMEOUT);
        let locker = scenario.open(builder);
        let options = LockOptions::expiring_after(lease).protocol(protocol).timeout(LONG);
        let named = || keys.iter().map(|key| key.key.clone());
        let locks = MultiLock::new(&locker, named(), options)?;
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
            Path::GiveBack => MultiLock::new(&locker, named(), options.timeout(millis(100)))?,
            _ => locks,
        };
        scenario.server.clear_log();
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
            Some(held) if self.path == Path::Release => self.judge_released(&release_all(held))?,
            Some(held) => {
                let ends: Vec<_> = held.guards().iter().map(LockGuard::expires_at).collect();
                let used = match self.path {
                    Path::Extension => held.extend().map(drop),
                    _ => held.fencing_tokens().map(drop),
                };
                self.judge_used(&held, &used, &ends)?;
                mem::forget(held);
            }
        }
        assert!(began.elapsed() < LONG);
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
            || self.scenario.server.log().iter().any(|asked| {
                ["SETNX", "GETSET", "SET"].contains(&asked.name.as_str()) && asked.arguments.contains(&value)
            })
    }

    /// Whether that is so, and the lease has not passed.
    fn is_held(&self, n: usize) -> bool {
        self.holds_our_value(n) && self.keys[n].is_leased()
    }

    fn judge_acquired(&self, acquired: Result<Option<MultiLockGuard>, Error>) -> Result<(), String> {
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
                (Ok(Release::Expired) | Err(Error::InDoubt { .. }), _) => {}
                // Not sent. In Ttl the server may have deleted the key since.
                (Err(Error::Unavailable { .. }), _) => {}
                _ => return Err(format!("{key}: {released:?}, and the key holds {value:?}")),
            }
        }
        // Once a deletion may have been carried out, none follows.
        for key in &self.keys {
            let asked = self.scenario.server.log();
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
        held: &MultiLockGuard,
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
            Ok(()) | Err(Error::Unavailable { .. } | Error::Lost { reason: LossReason::Expired, .. }) => {
                Ok(())
            }
            Err(Error::InDoubt { .. }) if extends => Ok(()),
            Err(error) => Err(format!("{error:?}")),
        }
    }

    /// No two commands set a key to the same value.
    #[track_caller]
    fn assert_nothing_sent_twice(&self) {
        let mut sent = BTreeSet::new();
        for asked in self.scenario.server.log() {
            if ["SETNX", "GETSET", "SET"].contains(&asked.name.as_str()) {
                let pair = asked.arguments[..2].to_vec();
                assert!(sent.insert(pair.clone()), "sent twice: {pair:?}");
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
                LockState::Until { expiry, .. }
                    if expiry.date().is_some_and(|expiry| SystemTime::from(expiry) <= at_most) => {}
                other => return Err(format!("{} holds {other}", key.key).into()),
            }
        }
        // That is not waited for.
        self.keys.iter().for_each(TestKey::delete);
        drop(self.scenario.target.locks(&self.keys, expiring()).lock()?);
        Ok(())
    }
}

//! One run of a path: what it starts from, and the judgement of its outcome.

use std::time::{Duration, Instant, SystemTime};
use std::{mem, thread};

use setnx_lock::{Error, Lock, LockGuard, LockOptions, LockState, LockToken, LossReason, Protocol};

use super::{Case, IN_TIME, LEASE, Path};
use crate::support::every_command::COMMAND_TIMEOUT;
use crate::support::scenario::{Scenario, assert_nothing_sent_twice, patient};
use crate::support::{LONG, PAST, Release, TestKey, Variant, expiring, millis, release, waited};
use crate::threads::successors::{Successor, successor};

/// Everything that a path starts from.
pub(super) struct Stage {
    pub(super) scenario: Scenario,
    path: Path,
    protocol: Protocol,
    key: TestKey,
    lock: Lock,
    held: Option<LockGuard>,
    /// Of a lock that is resumed.
    token: Option<LockToken>,
    /// What the key holds at first.
    value: Option<String>,
    /// A thread that waits for the lock.
    successor: Option<Successor>,
}

impl Stage {
    /// Sets the stage. On a busy machine one attempt may take longer than the time limits allow.
    pub(super) fn set(case: Case) -> Result<Self, Box<dyn std::error::Error>> {
        let end = Instant::now() + LONG;
        loop {
            match Self::set_once(case) {
                Err(_) if Instant::now() < end => {}
                set => return set,
            }
        }
    }

    fn set_once(case: Case) -> Result<Self, Box<dyn std::error::Error>> {
        let Case { protocol, path, emulated, load } = case;
        let scenario = Scenario::of(emulated, load);
        let key = scenario.target.key("boundary");
        let builder = patient(&scenario.server.url())?.pool_size(1).command_timeout(COMMAND_TIMEOUT);
        let builder = match path {
            // Here a reply may be missing while it connects.
            Path::Connecting => builder.connect_timeout(COMMAND_TIMEOUT).retry_for(COMMAND_TIMEOUT),
            _ => builder,
        };
        let locker = scenario.open(builder);
        let options = LockOptions::expiring_after(LEASE).protocol(protocol).timeout(millis(100));
        let variant =
            Variant { notifications: matches!(path, Path::ReleaseWithNotification), ..Variant::default() };
        let options = variant.set(options);
        let lock = Lock::new(&locker, &key.key, options)?;
        if !matches!(path, Path::Connecting) {
            // Most calls find an open connection.
            lock.state()?;
        }
        let options = match path {
            Path::EarlyRelease => options.hold_at_least(LEASE / 4),
            _ => options,
        };
        // On a busy machine a grant may come after its lease, which is then waited for.
        let patient = Lock::new(&locker, &key.key, options.timeout(LONG))?;
        let held = match path {
            Path::Free | Path::Connecting => None,
            Path::TakeOver => {
                key.set(PAST);
                None
            }
            _ => Some(patient.lock()?),
        };
        let (held, token) = match (path, held) {
            (Path::Resume, Some(held)) => (None, Some(held.into_token()?)),
            (_, held) => (held, None),
        };
        // The waiter asks the server after a hint of the release, or when the lease has passed.
        let waits = || Lock::new(&locker, &key.key, options.poll_interval(LONG).timeout(LONG));
        let successor =
            matches!(path, Path::ReleaseWithSuccessor).then(waits).transpose()?.map(|lock| successor(&lock));
        scenario.server.clear_log();
        let value = held.as_ref().and_then(|_| key.value());
        Ok(Self { scenario, path, protocol, key, lock, held, token, value, successor })
    }

    /// Runs the path without a fault, and returns the names of its commands. After a stall of the machine, which changes them, it fails.
    pub(super) fn undisturbed(mut self) -> Result<Vec<String>, Box<dyn std::error::Error>> {
        match self.held.take() {
            Some(held) => match self.path {
                Path::Extension => {
                    held.extend()?;
                    mem::forget(held);
                }
                Path::Token => {
                    held.fencing_token()?;
                    mem::forget(held);
                }
                _ => match release(held)? {
                    Release::Released { .. } | Release::LeftToExpire => {}
                    late => return Err(format!("the machine stalled: {late:?}").into()),
                },
            },
            None => mem::forget(self.acquire()?),
        }
        let names = self.scenario.server.names();
        self.successor.map(Successor::join).transpose()?;
        Ok(names)
    }

    /// Runs the path, and returns whether the fault happened.
    pub(super) fn run(mut self) -> Result<bool, Box<dyn std::error::Error>> {
        let (began, began_at) = (Instant::now(), SystemTime::now());
        match self.held.take() {
            None => {
                let acquired = self.acquire();
                assert!(began.elapsed() < IN_TIME);
                self.judge_acquired(acquired, began_at)?;
            }
            Some(held) if matches!(self.path, Path::Extension | Path::Token) => {
                let lease_end = held.expires_at().map(SystemTime::from).ok_or("a lease has an end")?;
                let used = match self.path {
                    Path::Extension => held.extend().map(drop),
                    _ => held.fencing_token().map(drop),
                };
                assert!(began.elapsed() < IN_TIME);
                self.judge_used(&held, &used, lease_end)?;
                mem::forget(held);
            }
            Some(held) => {
                let lease_end = held.expires_at().map(SystemTime::from).ok_or("a lease has an end")?;
                let released = release(held);
                assert!(began.elapsed() < IN_TIME);
                match self.successor.take() {
                    None => self.judge_released(&released, lease_end)?,
                    Some(successor) => self.judge_with_successor(&released, successor.join())?,
                }
            }
        }
        assert_nothing_sent_twice(&self.scenario.server);
        self.judge_key()?;
        Ok(self.scenario.server.faults_left() == 0)
    }

    /// Acquires the lock, or goes on with it.
    fn acquire(&self) -> Result<LockGuard, Error> {
        match &self.token {
            Some(token) => self.lock.resume(token),
            None => self.lock.lock(),
        }
    }

    /// Whether the key holds a value that a lock under test has sent.
    fn holds_our_value(&self) -> bool {
        let value = self.key.value();
        if value.is_some() && value == self.value {
            return true;
        }
        self.scenario
            .server
            .log()
            .iter()
            .any(|asked| asked.arguments.get(1) == value.as_ref() && value.is_some())
    }

    /// Whether the server may have deleted the key of a lease with this end: in Ttl, one second later.
    fn may_have_expired(&self, lease_end: SystemTime) -> bool {
        self.protocol == Protocol::Ttl && SystemTime::now() >= lease_end + millis(500)
    }

    fn judge_acquired(&self, acquired: Result<LockGuard, Error>, began: SystemTime) -> Result<(), String> {
        match acquired {
            Ok(held) => {
                let (granted, ends) = (began + waited(), held.expires_at().map(SystemTime::from));
                if ends.is_none_or(|ends| ends < granted) {
                    return Err(format!("granted at {granted:?}, after its lease, which ended at {ends:?}"));
                }
                let ours = self.holds_our_value();
                if held.ensure_held().is_ok() && !ours {
                    return Err(format!("granted, but the key holds {:?}", self.key.value()));
                }
                mem::forget(held);
                Ok(())
            }
            // A token works in its lease, in Classic, and the new lease, a later one, may end before the reply comes.
            Err(Error::Lost { reason: LossReason::Expired, .. })
                if self
                    .token
                    .as_ref()
                    .and_then(LockToken::expires_at)
                    .is_some_and(|end| SystemTime::now() >= SystemTime::from(end)) =>
            {
                Ok(())
            }
            // The server may have granted the lock, or not.
            Err(Error::InDoubt { .. }) => Ok(()),
            // Granted after its lease, so the grant was not used, and the call waited for its own value to expire.
            Err(Error::Contended { .. })
                if self.holds_our_value() || self.may_have_expired(began + LEASE) =>
            {
                Ok(())
            }
            // Nothing is in doubt, so no value of ours may be left.
            Err(Error::Unavailable { .. }) if !self.holds_our_value() => Ok(()),
            Err(error) => Err(format!("{error:?}, and the key holds {:?}", self.key.value())),
        }
    }

    /// A holder has extended its lease, or taken a token, or not.
    fn judge_used(
        &self,
        held: &LockGuard,
        used: &Result<(), Error>,
        lease_end: SystemTime,
    ) -> Result<(), String> {
        let ends = held.expires_at().map(SystemTime::from).ok_or("a lease has an end")?;
        let (passed, has_more) = (SystemTime::now() >= lease_end, ends > lease_end);
        let extends = matches!(self.path, Path::Extension);
        let plausible = match used {
            Ok(()) => has_more == extends,
            // The old lease counts, and no longer.
            Err(Error::InDoubt { .. }) => extends && !has_more,
            Err(Error::Unavailable { .. }) => !has_more,
            // Extended, but the reply came after the new lease.
            Err(Error::Lost { reason: LossReason::Expired, .. }) => passed,
            Err(_) => false,
        };
        let ours = self.holds_our_value();
        if plausible && (ours || held.ensure_held().is_err()) {
            return Ok(());
        }
        Err(format!("{used:?}, until {lease_end:?} and then {ends:?}; the key holds {:?}", self.key.value()))
    }

    fn judge_released(&self, released: &Result<Release, Error>, lease_end: SystemTime) -> Result<(), String> {
        let value = self.key.value();
        match (released, &value) {
            (Ok(Release::Released { .. }), None) => {}
            (Ok(Release::LeftToExpire), Some(_)) if matches!(self.path, Path::EarlyRelease) => {}
            (Ok(Release::LeftToExpire), None) if self.may_have_expired(lease_end - LEASE + LEASE / 4) => {}
            // The deletion failed, or the lease passed before it.
            (Ok(Release::Expired), _) => {}
            (Err(Error::InDoubt { .. }), _) => {}
            (Err(Error::Unavailable { .. }), Some(_)) => {}
            (Err(Error::Unavailable { .. }), None) if self.may_have_expired(lease_end) => {}
            _ => return Err(format!("{released:?}, and the key holds {value:?}")),
        }
        // Once a deletion may have been carried out, none follows.
        let names = self.scenario.server.names();
        let deletions = names.iter().filter(|name| *name == "DEL").count();
        if deletions > 1 { Err(format!("deleted more than once: {names:?}")) } else { Ok(()) }
    }

    /// Whatever happened, the waiting thread acquires the lock, and is the only holder.
    fn judge_with_successor(
        &self,
        released: &Result<Release, Error>,
        successor: Result<LockGuard, Error>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        match released {
            Ok(Release::Released { .. } | Release::Expired) => {}
            Err(Error::InDoubt { .. } | Error::Unavailable { .. }) => {}
            _ => return Err(format!("{released:?}").into()),
        }
        let successor =
            successor.map_err(|error| format!("{released:?}, and the successor failed: {error:?}"))?;
        let ours = self.holds_our_value();
        let other = self.scenario.target.lock(&self.key, LockOptions::expiring_after(LEASE)).try_lock()?;
        if successor.ensure_held().is_ok() && (!ours || other.is_some()) {
            return Err(format!("{released:?}, but the successor is not the only holder: {other:?}").into());
        }
        // The lease of either may have passed by now.
        drop((successor, other));
        Ok(())
    }

    /// Whatever happened, the lock can be acquired once the expiration and one second have passed.
    fn judge_key(&self) -> Result<(), Box<dyn std::error::Error>> {
        let lock = self.scenario.target.lock(&self.key, expiring());
        let free_at = match lock.state()? {
            LockState::Absent => SystemTime::now(),
            LockState::Until { expiry, .. } => {
                SystemTime::from(expiry.date().ok_or("a time in this century")?)
            }
            other => return Err(format!("the key holds {other}").into()),
        };
        let at_most = SystemTime::now() + LEASE + Duration::from_secs(1);
        if free_at > at_most {
            return Err(format!("the key is not free before {free_at:?}, later than {at_most:?}").into());
        }
        thread::sleep(free_at.duration_since(SystemTime::now()).unwrap_or_default() + millis(1));
        lock.try_lock()?.map(drop).ok_or("the lock is not free after its expiry".into())
    }
}

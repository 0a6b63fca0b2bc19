//! A fault at every boundary: each protocol, each path through it, each command on the path, each fault. Whatever the fault, the call
//! ends in time with a correct outcome or error; no value is sent twice; and the key is held, or free at most the expiration and one
//! second later.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{mem, thread};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, LockState, Locker, Protocol, Release};

use crate::handoffs::{Successor, successor};
use crate::servers::{Fault, Played};
use crate::support::scenario::{Scenario, assert_nothing_sent_twice};
use crate::support::target::{PROTOCOLS, played_name};
use crate::support::{LONG, Load, Outcome, RedisServer, TestKey, Variant, millis};
use crate::transactions::PAST;

const LEASE: Duration = Duration::from_millis(400);
/// Later than the lease, and within the command time-out.
const LATE: Duration = Duration::from_millis(600);
const COMMAND_TIMEOUT: Duration = Duration::from_millis(900);
/// Long enough for any load, and short enough to detect a call that does not end.
const IN_TIME: Duration = Duration::from_secs(20);

/// A path through a protocol.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// Acquires a free lock.
    Free,
    /// The same without a connection: the server check comes first.
    Connecting,
    /// Takes over an expired lock.
    TakeOver,
    /// Releases a lock.
    Release,
    /// The same, with the whole transaction in one batch, as all but the first of a locker are.
    ReleaseInOneBatch,
    /// Releases a lock, and sends a notification to waiters of other processes.
    ReleaseWithNotification,
    /// Hands a lock off to a waiting thread.
    Handoff,
}

const PATHS: [(&str, Path); 7] = [
    ("a_free_lock", Path::Free),
    ("a_new_connection", Path::Connecting),
    ("an_expired_lock", Path::TakeOver),
    ("a_release", Path::Release),
    ("a_release_in_one_batch", Path::ReleaseInOneBatch),
    ("a_release_with_a_notification", Path::ReleaseWithNotification),
    ("a_handoff", Path::Handoff),
];

/// The faults, and whether each can happen to a command within a batch: a stream of bytes loses nothing in the middle.
const FAULTS: [(&str, Fault, bool); 7] = [
    ("request_lost", Fault::SwallowRequest, false),
    ("reply_lost", Fault::SwallowAnswer, false),
    ("reply_later_than_the_lease", Fault::AnswerLate(LATE), true),
    ("cut_before", Fault::CutBefore, true),
    ("cut_after", Fault::CutAfter, true),
    ("cut_within_the_reply", Fault::CutWithin, true),
    ("half_open", Fault::HalfOpen, true),
];

/// Where not every boundary is tried, one of so many neighbours is.
const STRIDE: usize = 3;

/// What a trial is about.
#[derive(Clone, Copy, Debug)]
struct Case {
    protocol: Protocol,
    path: Path,
    /// The old version that the server plays, if any.
    played: Option<Played>,
    load: Load,
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for protocol in PROTOCOLS {
        for (path_name, path) in PATHS {
            match (protocol, path) {
                (Protocol::Classic, Path::ReleaseInOneBatch) => continue,
                // The notification is the same in all protocols.
                (Protocol::Watched | Protocol::Ttl, Path::ReleaseWithNotification) => continue,
                _ => {}
            }
            let case = Case { protocol, path, played: None, load: Load::Any };
            for (fault_name, fault, within_batch) in FAULTS {
                let in_one_batch = matches!(path, Path::ReleaseInOneBatch | Path::ReleaseWithNotification);
                if in_one_batch && !within_batch {
                    continue;
                }
                let name = format!("{protocol:?}").to_lowercase();
                let name = format!("boundaries::{name}::{path_name}::{fault_name}");
                trials.push(Trial::test(name, move || at_every_command(case, &fault)));
            }
        }
    }
    trials.extend(unpipelined_and_under_load());
    trials
}

/// Unpipelined and under load, on each version by each protocol: some of the boundaries, with one fault each, in turn.
fn unpipelined_and_under_load() -> Vec<Trial> {
    let mut trials = Vec::new();
    let versions = Played::ALL.map(Some).into_iter().chain([None]);
    for (played, protocol) in versions.flat_map(|played| PROTOCOLS.map(|protocol| (played, protocol))) {
        if !is_new_enough(played, protocol) {
            continue;
        }
        for (path_name, path) in PATHS {
            match (protocol, path) {
                // Under load the connection is open already, and a notification is a batch of its own.
                (_, Path::Connecting | Path::ReleaseWithNotification) => continue,
                (Protocol::Classic, Path::ReleaseInOneBatch) => continue,
                (Protocol::Watched | Protocol::Ttl, Path::Release) => continue,
                _ => {}
            }
            for load in [Load::Unpipelined, Load::Contended] {
                let case = Case { protocol, path, played, load };
                let version = played.map_or("current".to_owned(), played_name);
                let load = load.name().unwrap_or_default();
                let name = format!("{load}::{version}::{protocol:?}").to_lowercase();
                let turn = trials.len();
                trials.push(Trial::test(format!("boundaries::{name}::{path_name}"), move || {
                    at_some_commands(case, turn)
                }));
            }
        }
    }
    trials
}

/// Whether a server is new enough for the protocol.
fn is_new_enough(played: Option<Played>, protocol: Protocol) -> bool {
    let oldest = match protocol {
        Protocol::Classic => Played::V1_2,
        Protocol::Watched => Played::V2_2,
        _ => Played::V2_6,
    };
    played.is_none_or(|version| version >= oldest)
}

/// Runs the path once without a fault, to count its commands, and then once for each of them with the fault.
fn at_every_command(case: Case, fault: &Fault) -> Outcome {
    if matches!(case.path, Path::Connecting) {
        let disturbed = Stage::set(case)?;
        disturbed.scenario.proxy.next("INFO", fault.clone());
        return disturbed.run().map(|happened| assert!(happened)).map_err(Into::into);
    }
    let commands = Stage::set(case)?.undisturbed()?;
    at_these(case, &commands, (0..commands.len()).map(|place| (place, fault.clone())))
}

/// The same for some of the commands, each with another fault: one that can happen within a batch.
fn at_some_commands(case: Case, turn: usize) -> Outcome {
    let faults: Vec<Fault> =
        FAULTS.into_iter().filter_map(|(_, fault, within_batch)| within_batch.then_some(fault)).collect();
    let commands = Stage::set(case)?.undisturbed()?;
    let places = (turn % commands.len()..).step_by(STRIDE).take(commands.len().div_ceil(STRIDE));
    let chosen =
        places.zip(turn..).map(|(place, n)| (place % commands.len(), faults[n % faults.len()].clone()));
    at_these(case, &commands, chosen)
}

fn at_these(case: Case, commands: &[String], faults: impl Iterator<Item = (usize, Fault)>) -> Outcome {
    let mut happened = 0;
    for (place, fault) in faults {
        let disturbed = Stage::set(case)?;
        disturbed.scenario.proxy.at(place + 1, fault.clone());
        let outcome = disturbed.run();
        let outcome = outcome.map_err(|problem| {
            format!("{} ({} of {commands:?}), {fault:?}: {problem}", commands[place], place + 1)
        })?;
        happened += usize::from(outcome);
    }
    // If the machine stalls for longer than a lease, a path may have fewer commands than before.
    assert!(happened > 0, "no fault ever happened");
    Ok(())
}

/// Everything that a path starts from.
struct Stage {
    scenario: Scenario,
    key: TestKey,
    lock: Lock,
    held: Option<LockGuard>,
    /// A thread that waits for the lock.
    successor: Option<Successor>,
}

impl Stage {
    fn set(case: Case) -> Result<Self, Box<dyn std::error::Error>> {
        let Case { protocol, path, played, load } = case;
        let scenario = Scenario::of(&Arc::new(RedisServer::start()?), played, load)?;
        let key = scenario.target.key("boundary");
        let builder = Locker::builder(&scenario.proxy.url())?.pool_size(1).connect_timeout(COMMAND_TIMEOUT);
        let locker =
            scenario.open(builder.command_timeout(COMMAND_TIMEOUT).unreachable_timeout(COMMAND_TIMEOUT));
        let options = LockOptions::expiring_after(LEASE).protocol(protocol).timeout(millis(100));
        let variant = Variant {
            handoff: matches!(path, Path::Handoff),
            notifications: matches!(path, Path::ReleaseWithNotification),
            ..Variant::default()
        };
        let options = variant.set(options);
        let lock = Lock::new(&locker, &key.key, options)?;
        let held = match path {
            // Opens the connection first: most calls find one open.
            Path::Free => lock.state().map(|_| None)?,
            Path::Connecting => None,
            Path::TakeOver => {
                key.set(PAST);
                lock.state().map(|_| None)?
            }
            Path::ReleaseInOneBatch => {
                lock.lock()?.release()?;
                Some(lock.lock()?)
            }
            Path::Release | Path::ReleaseWithNotification | Path::Handoff => Some(lock.lock()?),
        };
        // The waiter asks the server after a hint of the release, or when the lease has passed.
        let waits = || Lock::new(&locker, &key.key, options.poll_interval(LONG).timeout(LONG));
        let successor = variant.handoff.then(waits).transpose()?.map(|lock| successor(&lock));
        scenario.proxy.forget();
        Ok(Self { scenario, key, lock, held, successor })
    }

    fn undisturbed(self) -> Result<Vec<String>, Box<dyn std::error::Error>> {
        match self.held {
            Some(held) => drop(held),
            None => mem::forget(self.lock.lock()?),
        }
        let names = self.scenario.proxy.names();
        self.successor.map(Successor::join).transpose()?;
        Ok(names)
    }

    /// Runs the path, and returns whether the fault happened.
    fn run(mut self) -> Result<bool, Box<dyn std::error::Error>> {
        let (began, began_at) = (Instant::now(), SystemTime::now());
        match self.held.take() {
            None => {
                let acquired = self.lock.lock();
                assert!(began.elapsed() < IN_TIME);
                self.judge_acquired(acquired, began_at)?;
            }
            Some(held) => {
                let released = held.release();
                assert!(began.elapsed() < IN_TIME);
                match self.successor.take() {
                    None => self.judge_released(&released)?,
                    Some(successor) => self.judge_handed_off(&released, successor.join())?,
                }
            }
        }
        assert_nothing_sent_twice(&self.scenario.proxy);
        self.judge_key()?;
        Ok(self.scenario.proxy.faults_left() == 0)
    }

    /// Whether the key holds a value that a lock under test has sent.
    fn holds_our_value(&self) -> bool {
        let value = self.key.value();
        self.scenario
            .proxy
            .asked()
            .iter()
            .any(|asked| asked.arguments.get(1) == value.as_ref() && value.is_some())
    }

    fn judge_acquired(&self, acquired: Result<LockGuard, Error>, began: SystemTime) -> Result<(), String> {
        match acquired {
            Ok(held) => {
                let (granted, ends) = (began + held.waited(), held.expires_at_system_time());
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
            // The server may have granted the lock, or not.
            Err(Error::Unknown { .. }) => Ok(()),
            // Granted after its lease, so the grant was not used, and the call waited for its own value to expire.
            Err(Error::Timeout { .. }) if self.holds_our_value() => Ok(()),
            // Nothing is in doubt, so no value of ours may be left.
            Err(Error::Io { .. } | Error::NoConnection { .. }) if !self.holds_our_value() => Ok(()),
            Err(error) => Err(format!("{error:?}, and the key holds {:?}", self.key.value())),
        }
    }

    fn judge_released(&self, released: &Result<Release, Error>) -> Result<(), String> {
        let value = self.key.value();
        match (released, &value) {
            (Ok(Release::Released { .. }), None) => {}
            // The deletion failed, or the lease passed before it.
            (Ok(Release::Expired), _) => {}
            (Err(Error::Unknown { .. }), _) => {}
            (Err(Error::Io { .. } | Error::NoConnection { .. }), Some(_)) => {}
            _ => return Err(format!("{released:?}, and the key holds {value:?}")),
        }
        // Once a deletion may have been carried out, none follows.
        let names = self.scenario.proxy.names();
        let deletions = names.iter().filter(|name| *name == "DEL").count();
        if deletions > 1 { Err(format!("deleted more than once: {names:?}")) } else { Ok(()) }
    }

    /// Whatever happened, the waiting thread acquires the lock, and is the only holder.
    fn judge_handed_off(
        &self,
        released: &Result<Release, Error>,
        successor: Result<LockGuard, Error>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        match released {
            Ok(Release::HandedOff { .. } | Release::Released { .. } | Release::Expired) => {}
            Err(Error::Unknown { .. } | Error::Io { .. } | Error::NoConnection { .. }) => {}
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
        let lock = self.scenario.target.lock(&self.key, LockOptions::expiring_after(LEASE));
        let free_at = match lock.state()? {
            LockState::Absent => SystemTime::now(),
            LockState::Until(expiry) => expiry.system_time().ok_or("a time in this century")?,
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

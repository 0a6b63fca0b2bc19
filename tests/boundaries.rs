//! A fault at every boundary: each protocol, each way through it, each command that it sends, each thing that can happen to a
//! command. Whatever it is, the call ends in time, with the right answer or the right error; nothing is sent twice; and the key is
//! ours, or free again after the expiration and one second at most.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{mem, thread};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, LockState, Locker, Protocol, Release};

use crate::handoffs::{Successor, successor};
use crate::servers::{Fault, Played};
use crate::support::scenario::{Scenario, assert_nothing_sent_twice};
use crate::support::target::{PROTOCOLS, proxy_name};
use crate::support::{LONG, Load, Outcome, RedisServer, TestKey, Variant, millis};
use crate::transactions::PAST;

const LEASE: Duration = Duration::from_millis(400);
/// Later than the lease, and still within the time that an answer is waited for.
const LATE: Duration = Duration::from_millis(600);
const COMMAND_TIMEOUT: Duration = Duration::from_millis(900);
/// Long enough for any load, and short enough to tell from waiting for ever.
const IN_TIME: Duration = Duration::from_secs(20);

/// A way through a protocol.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// Nobody holds the lock.
    Free,
    /// The same, and there is no connection yet: the look at the server comes first.
    Connecting,
    /// Its holder is dead.
    TakeOver,
    /// It is given back.
    Release,
    /// The same, by a locker whose transactions go in one trip, as all but the first do.
    ReleaseInOneTrip,
    /// It is given back, and a token left for whoever waits.
    ReleaseWithToken,
    /// It passes on to a thread that waits for it.
    HandOver,
}

const PATHS: [(&str, Path); 7] = [
    ("a_free_lock", Path::Free),
    ("a_new_connection", Path::Connecting),
    ("a_dead_holder_s_lock", Path::TakeOver),
    ("a_release", Path::Release),
    ("a_release_in_one_trip", Path::ReleaseInOneTrip),
    ("a_release_with_a_token", Path::ReleaseWithToken),
    ("a_hand_over", Path::HandOver),
];

/// What can happen, and whether it can to a command in the middle of a trip: a stream of bytes loses nothing in between.
const FAULTS: [(&str, Fault, bool); 7] = [
    ("request_lost", Fault::SwallowRequest, false),
    ("answer_lost", Fault::SwallowAnswer, false),
    ("answer_later_than_the_lease", Fault::AnswerLate(LATE), true),
    ("cut_before", Fault::CutBefore, true),
    ("cut_after", Fault::CutAfter, true),
    ("cut_within_the_answer", Fault::CutWithin, true),
    ("half_open", Fault::HalfOpen, true),
];

/// So many boundaries that are next to each other have one trial among them, where not all are tried.
const STRIDE: usize = 3;

/// What is tried.
#[derive(Clone, Copy, Debug)]
struct Case {
    protocol: Protocol,
    path: Path,
    /// The old version that the server plays, if it does.
    played: Option<Played>,
    load: Load,
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for protocol in PROTOCOLS {
        for (path_name, path) in PATHS {
            match (protocol, path) {
                (Protocol::Classic, Path::ReleaseInOneTrip) => continue,
                // The token is the same in all protocols.
                (Protocol::Watched | Protocol::Ttl, Path::ReleaseWithToken) => continue,
                _ => {}
            }
            let case = Case { protocol, path, played: None, load: Load::Any };
            for (fault_name, fault, in_one_trip) in FAULTS {
                let one_trip = matches!(path, Path::ReleaseInOneTrip | Path::ReleaseWithToken);
                if one_trip && !in_one_trip {
                    continue;
                }
                let name = format!("{protocol:?}").to_lowercase();
                let name = format!("boundaries::{name}::{path_name}::{fault_name}");
                trials.push(Trial::test(name, move || at_every_command(case, &fault)));
            }
        }
    }
    trials.extend(under_load());
    trials
}

/// Apart and in a crowd, on each version with each protocol: some of the boundaries, and one fault at each, by turns.
fn under_load() -> Vec<Trial> {
    let mut trials = Vec::new();
    let versions = Played::ALL.map(Some).into_iter().chain([None]);
    for (played, protocol) in versions.flat_map(|played| PROTOCOLS.map(|protocol| (played, protocol))) {
        if !is_new_enough(played, protocol) {
            continue;
        }
        for (path_name, path) in PATHS {
            match (protocol, path) {
                // The connection is there already, and a token has a trip of its own.
                (_, Path::Connecting | Path::ReleaseWithToken) => continue,
                (Protocol::Classic, Path::ReleaseInOneTrip) => continue,
                (Protocol::Watched | Protocol::Ttl, Path::Release) => continue,
                _ => {}
            }
            for load in [Load::Apart, Load::Contended] {
                let case = Case { protocol, path, played, load };
                let version = played.map_or("current".to_owned(), proxy_name);
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

/// Goes the way once without a fault, to see how many commands it takes, and then once for each of them with the fault.
fn at_every_command(case: Case, fault: &Fault) -> Outcome {
    if matches!(case.path, Path::Connecting) {
        let disturbed = Stage::set(case)?;
        disturbed.scenario.proxy.next("INFO", fault.clone());
        return disturbed.go().map(|happened| assert!(happened)).map_err(Into::into);
    }
    let commands = Stage::set(case)?.undisturbed()?;
    at_these(case, &commands, (0..commands.len()).map(|place| (place, fault.clone())))
}

/// The same with another fault for each of some commands: those that can happen wherever others' commands go before and after.
fn at_some_commands(case: Case, turn: usize) -> Outcome {
    let faults: Vec<Fault> =
        FAULTS.into_iter().filter_map(|(_, fault, in_one_trip)| in_one_trip.then_some(fault)).collect();
    let commands = Stage::set(case)?.undisturbed()?;
    let places = (turn % commands.len()..).step_by(STRIDE).take(commands.len().div_ceil(STRIDE));
    let harm =
        places.zip(turn..).map(|(place, n)| (place % commands.len(), faults[n % faults.len()].clone()));
    at_these(case, &commands, harm)
}

fn at_these(case: Case, commands: &[String], harm: impl Iterator<Item = (usize, Fault)>) -> Outcome {
    let mut happened = 0;
    for (place, fault) in harm {
        let disturbed = Stage::set(case)?;
        disturbed.scenario.proxy.at(place + 1, fault.clone());
        let went = disturbed.go();
        let went = went.map_err(|problem| {
            format!("{} ({} of {commands:?}), {fault:?}: {problem}", commands[place], place + 1)
        })?;
        happened += usize::from(went);
    }
    // Where the machine stands still for longer than a lease, a way may be shorter than it was.
    assert!(happened > 0, "no fault ever happened");
    Ok(())
}

/// Everything up to where the way begins.
struct Stage {
    scenario: Scenario,
    key: TestKey,
    lock: Lock,
    held: Option<LockGuard>,
    /// A thread that waits for it.
    successor: Option<Successor>,
}

impl Stage {
    fn set(case: Case) -> Result<Self, Box<dyn std::error::Error>> {
        let Case { protocol, path, played, load } = case;
        let scenario = Scenario::of(&Arc::new(RedisServer::start()?), played, load)?;
        let key = scenario.target.key("boundary");
        let settings = Locker::builder(&scenario.proxy.url())?.pool_size(1).connect_timeout(COMMAND_TIMEOUT);
        let locker =
            scenario.open(settings.command_timeout(COMMAND_TIMEOUT).unreachable_timeout(COMMAND_TIMEOUT));
        let options = LockOptions::expiring_after(LEASE).protocol(protocol).timeout(millis(100));
        let variant = Variant {
            handoff: matches!(path, Path::HandOver),
            wake_ups: matches!(path, Path::ReleaseWithToken),
            ..Variant::default()
        };
        let options = variant.set(options);
        let lock = Lock::new(&locker, &key.key, options)?;
        let held = match path {
            // The connection is there already, as it is for most calls.
            Path::Free => lock.state().map(|_| None)?,
            Path::Connecting => None,
            Path::TakeOver => {
                key.set(PAST);
                lock.state().map(|_| None)?
            }
            Path::ReleaseInOneTrip => {
                let _released = lock.lock()?.release()?;
                Some(lock.lock()?)
            }
            Path::Release | Path::ReleaseWithToken | Path::HandOver => Some(lock.lock()?),
        };
        // It polls for itself when it is told to, or when the lock's time has passed.
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

    /// Goes the way, and returns whether the fault happened on it.
    fn go(mut self) -> Result<bool, Box<dyn std::error::Error>> {
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
                    Some(successor) => self.judge_handed_over(&released, successor.join())?,
                }
            }
        }
        assert_nothing_sent_twice(&self.scenario.proxy);
        self.judge_key()?;
        Ok(self.scenario.proxy.faults_left() == 0)
    }

    /// Whether the key holds one of the values that we have sent.
    fn is_ours(&self) -> bool {
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
                let ours = self.is_ours();
                if held.ensure_held().is_ok() && !ours {
                    return Err(format!("granted, but the key holds {:?}", self.key.value()));
                }
                mem::forget(held);
                Ok(())
            }
            // We may have it, or not: the server knows.
            Err(Error::Unknown { .. }) => Ok(()),
            // Granted later than its lease, and refused; now it is waited for as anybody's.
            Err(Error::Timeout { .. }) if self.is_ours() => Ok(()),
            // Nothing is in doubt then, so nothing may be left of us.
            Err(Error::Io { .. } | Error::NoConnection { .. }) if !self.is_ours() => Ok(()),
            Err(error) => Err(format!("{error:?}, and the key holds {:?}", self.key.value())),
        }
    }

    fn judge_released(&self, released: &Result<Release, Error>) -> Result<(), String> {
        let value = self.key.value();
        match (released, &value) {
            (Ok(Release::Released { .. }), None) => {}
            // The deletion came to nothing, or the lease passed on the way to it.
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

    /// Whatever happened, the thread that waits gets the lock, and has it alone.
    fn judge_handed_over(
        &self,
        released: &Result<Release, Error>,
        successor: Result<LockGuard, Error>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        match released {
            Ok(Release::HandedOff { .. } | Release::Released { .. } | Release::Expired) => {}
            Err(Error::Unknown { .. } | Error::Io { .. } | Error::NoConnection { .. }) => {}
            _ => return Err(format!("{released:?}").into()),
        }
        let successor = successor.map_err(|error| format!("{released:?}, and the heir got {error:?}"))?;
        let ours = self.is_ours();
        let other = self.scenario.target.lock(&self.key, LockOptions::expiring_after(LEASE)).try_lock()?;
        if successor.ensure_held().is_ok() && (!ours || other.is_some()) {
            return Err(format!("{released:?}, and the heir shares it with {other:?}").into());
        }
        // Either may have lost it by now.
        drop((successor, other));
        Ok(())
    }

    /// Whatever happened, the next one gets the lock when the expiration and one second have passed.
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
        lock.try_lock()?.map(drop).ok_or("the lock is not free when it should be".into())
    }
}

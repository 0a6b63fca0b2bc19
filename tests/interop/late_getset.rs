//! A gem up to 1.4.1 finds no key, since the lock has just been released, and is held up before its GETSET, which
//! overwrites the value of the Rust client that has acquired the lock meanwhile. What is found within 0.7 s counts, so
//! rounds that a busy machine has made longer are repeated.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use setnx_lock::{Event, Lock, LockGuard, LockOptions, ProblemKind, Protocol};
use setnx_lock_testing::Proxy;

use crate::support::rounds::until_soon;
use crate::support::ruby::{Attempt, CLASSIC, Gem, RubyPeer};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, RedisServer, Target, TestKey, millis, trial};

/// For how long what is found counts as a loser's, and a bit less.
const SOON: Duration = Duration::from_millis(600);
type Test = fn(Protocol) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, Test)] =
        crate::support::tests![a_release_deletes_the_gems_value, beside_gems_each_lock_is_written_again,];
    // That a real gem is missing is told by the tests of `interop`.
    if !Gem::available().unwrap_or_default().contains(&CLASSIC) {
        return Vec::new();
    }
    let of = |protocol: Protocol| {
        let name = format!("{protocol:?}").to_lowercase();
        tests.iter().map(move |(test, run)| {
            let run = *run;
            trial(format!("late_getset::{name}::{test}"), move || run(protocol))
        })
    };
    PROTOCOLS.into_iter().flat_map(of).collect()
}

/// A gem whose commands go through a proxy.
struct Beside {
    target: Target,
    proxy: Proxy,
    ruby: RubyPeer,
    key: TestKey,
}

/// A lock whose value the gem has overwritten.
struct Overwritten {
    held: LockGuard,
    began: Instant,
    /// What the gem has written.
    value: String,
}

impl Beside {
    fn start(protocol: Protocol) -> Result<Self, Failed> {
        let server = Arc::new(RedisServer::start()?);
        let target = Target::of(&server).with(protocol);
        let proxy = Proxy::before(server.address())?;
        let ruby = RubyPeer::start(CLASSIC, &proxy.url())?;
        let key = target.key("late");
        Ok(Self { target, proxy, ruby, key })
    }

    fn lock(&self, options: LockOptions) -> Lock {
        self.target.lock(&self.key, options.timeout(LONG))
    }

    /// Has the gem, which waits for this long, overwrite the value of a lock that was just acquired.
    fn overwrites(
        &mut self,
        lock: &Lock,
        expiration: Duration,
        timeout: Duration,
    ) -> Result<Overwritten, Failed> {
        let first = lock.lock()?;
        let (reading, writing) = (self.proxy.pause("GET", 1), self.proxy.pause("GETSET", 1));
        self.ruby.begin_to_acquire(&self.key.key.to_string(), Some(expiration), timeout)?;
        reading.reached();
        first.release()?;
        reading.go_on();
        writing.reached();
        let began = Instant::now();
        let held = lock.lock()?;
        let own = self.key.value();
        writing.go_on();
        loop {
            match self.key.value() {
                value if value == own => thread::sleep(millis(1)),
                Some(value) => return Ok(Overwritten { held, began, value }),
                None => return Err("the key is gone".into()),
            }
        }
    }

    fn name(&self) -> String {
        self.key.key.to_string()
    }

    /// The gem has the lock next, and releases it.
    fn gem_is_next(&mut self) -> Outcome {
        let name = self.name();
        assert_eq!(self.ruby.outcome(&name)?, Attempt::Held);
        self.ruby.release(&name)?;
        assert_eq!(self.key.value(), None);
        Ok(())
    }
}

/// The expirations of the gem, beside Rust's 3 s.
const EXPIRATIONS: [Duration; 3] = [millis(3000), millis(4000), millis(500)];

fn a_release_deletes_the_gems_value(protocol: Protocol) -> Outcome {
    let mut beside = Beside::start(protocol)?;
    let lock = beside.lock(LockOptions::expiring_after(millis(3000)));
    for expiration in EXPIRATIONS {
        until_soon(|| {
            let Overwritten { held, began, .. } = beside.overwrites(&lock, expiration, LONG)?;
            let released = held.release();
            let is_soon = began.elapsed() < SOON;
            assert!(released.is_ok() || !is_soon, "{released:?}");
            beside.gem_is_next()?;
            Ok(is_soon)
        })?;
    }
    Ok(())
}

/// Holds the lock for longer than the gem's time lasts. Returns false
/// if it was lost, as when the machine was too busy to look in time.
fn outlasts(beside: &mut Beside, lock: &Lock) -> Result<bool, Failed> {
    let Overwritten { held, value, .. } = beside.overwrites(lock, millis(500), LONG)?;
    let end = Instant::now() + LONG;
    while beside.key.value().as_ref() == Some(&value) && held.ensure_held().is_ok() {
        assert!(Instant::now() < end, "it is neither written again nor lost");
        thread::sleep(millis(10));
    }
    // The gem looks all the time, and would have taken over by now.
    thread::sleep(millis(2000));
    let is_held = held.verify().is_ok() && held.ensure_held().is_ok();
    assert_eq!(held.release().is_ok(), is_held);
    beside.gem_is_next()?;
    Ok(is_held)
}

fn beside_gems_each_lock_is_written_again(protocol: Protocol) -> Outcome {
    let mut beside = Beside::start(protocol)?;
    let (sender, problems) = std::sync::mpsc::channel();
    let locker = beside.target.locker_observed_by(move |event: &Event<'_>| {
        if let Event::Problem { kind: ProblemKind::ValueOverwritten, details, .. } = event {
            // After the test there is no receiver.
            let _ = sender.send((*details).to_owned());
        }
    })?;
    let other = beside.target.key("of-a-gem");
    other.set("1895000000.5");
    beside.target.lock_through(&locker, &other, LockOptions::expiring_after(LONG)).state()?;
    let options = LockOptions::expiring_after(millis(4000)).timeout(LONG);
    let lock = beside.target.lock_through(&locker, &beside.key, options);
    until_soon(|| outlasts(&mut beside, &lock))?;
    let details = problems.recv_timeout(LONG)?;
    assert!(
        details.contains("a client that does not have the lock overwrote the holder's value"),
        "{details}"
    );
    Ok(())
}

//! Ruby and Rust on the same keys: the families of the gem, each with each protocol of this library.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, SystemTime};
use std::{fs, io, iter, thread};

use libtest_mimic::Trial;
use setnx_lock::{LockOptions, LockState, Protocol, Version};

use crate::support::processes::worker;
use crate::support::record::recorded;
use crate::support::ruby::{Attempt, CLASSIC, Gem, NO_TAKEOVER, RubyPeer, TTL};
use crate::support::{LONG, Load, Outcome, Release, Target, TestKey, Variant, millis, release, trial};

/// The expiration on both sides in the tests without a crash.
const EXPIRATION: Duration = Duration::from_secs(30);

type Test = fn(&Pair) -> Outcome;

/// A family of the gem, and a protocol on a server.
struct Pair {
    gem: Gem,
    target: Target,
    scenario: &'static str,
}

pub(crate) fn trials(target: &Target) -> Vec<Trial> {
    let tests: &[(&str, Test)] = crate::support::tests![
        ruby_holds_and_rust_waits,
        rust_holds_and_ruby_waits,
        ruby_is_killed_and_rust_takes_over,
        rust_is_killed_and_ruby_takes_over,
        rust_extends_its_lease_and_ruby_takes_over_on_time,
        no_update_is_lost_among_four_processes_of_each,
    ];
    let gems = match Gem::available() {
        Ok(gems) => gems,
        // A run that tests nothing fails.
        Err(problem) => {
            let name = format!("interop::{}::the_gem_of_the_environment", target.name);
            return vec![trial(name, move || Err(problem.clone().into()))];
        }
    };
    let only = gems.len() == 1;
    gems.into_iter()
        .flat_map(|gem| target.in_every_variant().map(move |target| (gem, target)))
        // Two versions of the port that few programs use run in one variant, and not on old versions.
        .filter(|(gem, target)| {
            only || [CLASSIC, TTL].contains(gem)
                || !target.is_old()
                    && target.variant == Variant::default()
                    && target.protocol != Protocol::Auto
        })
        // What a server refuses to a gem depends neither on the load nor on what `Auto` is.
        .filter(|(gem, target)| {
            works_on(*gem, target) || target.variant.load == Load::Any && target.protocol != Protocol::Auto
        })
        .flat_map(|(gem, target)| {
            tests.iter().map(move |(name, test)| {
                let scenario = format!("gem_{gem}: {name}");
                let gem_works = works_on(gem, &target);
                let works = gem_works && target.supports_its_protocol();
                let pair = move |target: &Target| Pair { gem, target: target.clone(), scenario: name };
                let refused = move |target: &Target| {
                    if gem_works {
                        target.refuses_its_protocol(&format!("{gem}-{name}"))
                    } else {
                        the_gem_is_refused(&pair(target))
                    }
                };
                recorded("interop", &target, &scenario, works, move |target| test(&pair(target)), refused)
            })
        })
        .collect()
}

/// Gems from 1.4.2 on need a SET with options.
fn works_on(gem: Gem, target: &Target) -> bool {
    [NO_TAKEOVER, CLASSIC].contains(&gem) || target.version >= Version::new(2, 6, 12)
}

/// The test of a gem on a server that is too old for it: its command fails, and nothing is written.
fn the_gem_is_refused(pair: &Pair) -> Outcome {
    let (mut ruby, key) = (pair.peer()?, pair.key());
    let error = ruby.acquire(&key.key.to_string(), Some(EXPIRATION), LONG).expect_err("SET has no options");
    assert!(error.to_string().contains("Redis::CommandError"), "{error}");
    assert_eq!(key.value(), None);
    Ok(())
}

impl Pair {
    fn peer(&self) -> io::Result<RubyPeer> {
        RubyPeer::start(self.gem, &self.target.url)
    }

    fn key(&self) -> TestKey {
        self.target.key(&format!("{}-{}", self.gem, self.scenario))
    }
}

fn options() -> LockOptions {
    LockOptions::expiring_after(EXPIRATION)
}

fn seconds_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn ruby_holds_and_rust_waits(pair: &Pair) -> Outcome {
    let (mut ruby, key) = (pair.peer()?, pair.key());
    let name = key.key.to_string();
    assert_eq!(ruby.acquire(&name, Some(EXPIRATION), LONG)?, Attempt::Held);
    let value = key.value();
    let lock = pair.target.lock(&key, options().timeout(millis(250)));
    let text = lock.lock().expect_err("Ruby holds it").to_string();
    assert!(text.starts_with(&format!("Timeout on lock {name} exceeded 0.25 sec")), "{text}");
    let seen = match pair.gem {
        NO_TAKEOVER => "held without an expiration",
        CLASSIC => "held until 2",
        _ => "held with an empty value",
    };
    assert!(text.contains(seen), "{text}");
    assert_eq!(key.value(), value, "a contender leaves the value alone");

    let waiting = thread::spawn(move || lock.try_lock_for(LONG));
    thread::sleep(millis(150));
    assert!(!waiting.is_finished());
    ruby.release(&name)?;
    let held = waiting.join().unwrap()?.expect("Ruby has released it");
    assert_eq!(release(held)?, pair.target.released());
    assert_eq!(key.value(), None);
    Ok(())
}

fn rust_holds_and_ruby_waits(pair: &Pair) -> Outcome {
    let (mut ruby, key) = (pair.peer()?, pair.key());
    let name = key.key.to_string();
    let held = pair.target.lock(&key, options()).lock()?;
    let value = key.value();
    for expiration in [Some(EXPIRATION), None] {
        let attempt = ruby.acquire(&name, expiration, millis(250))?;
        assert_eq!(attempt, Attempt::Timeout(format!("Timeout on lock {name} exceeded 0.25 sec")));
    }
    assert_eq!(key.value(), value, "Ruby leaves the value alone");

    ruby.begin_to_acquire(&name, Some(EXPIRATION), LONG)?;
    thread::sleep(millis(150));
    assert_eq!(key.value(), value);
    assert_eq!(release(held)?, pair.target.released());
    assert_eq!(ruby.outcome(&name)?, Attempt::Held);
    ruby.release(&name)?;
    assert_eq!(key.value(), None);
    Ok(())
}

fn ruby_is_killed_and_rust_takes_over(pair: &Pair) -> Outcome {
    let (mut ruby, key) = (pair.peer()?, pair.key());
    let before = seconds_now();
    assert_eq!(ruby.acquire(&key.key.to_string(), Some(millis(500)), LONG)?, Attempt::Held);
    if pair.gem == NO_TAKEOVER {
        // Its value names no time, so nothing takes over: the key is cleared by hand.
        let value = key.value();
        ruby.kill()?;
        let lock = pair.target.lock(&key, options().timeout(millis(700)));
        let text = lock.lock().expect_err("it never expires").to_string();
        assert!(text.contains("held without an expiration"), "{text}");
        assert_eq!(key.value(), value);
        assert!(lock.clear()?);
        assert!(lock.try_lock()?.is_some());
        return Ok(());
    }
    // The value of a classic gem holds the expiry. A time to live began after `before`.
    let expiry = match key.value().map(|value| value.parse::<f64>()) {
        Some(Ok(until)) => until,
        Some(Err(_)) | None => before + 0.5,
    };
    ruby.kill()?;
    let held = pair.target.lock(&key, options().timeout(LONG)).lock()?;
    assert!(seconds_now() >= expiry, "taken over before {expiry}");
    assert_eq!(release(held)?, pair.target.released());
    assert_eq!(key.value(), None);
    Ok(())
}

fn rust_is_killed_and_ruby_takes_over(pair: &Pair) -> Outcome {
    let (mut ruby, key) = (pair.peer()?, pair.key());
    let name = key.key.to_string();
    let (protocol, variant) = (pair.target.protocol_name(), pair.target.variant.name());
    let mut rust = worker(&["hold", &pair.target.url, &name, "500ms", &protocol, &variant])?;
    let mut line = String::new();
    BufReader::new(rust.stdout.take().expect("it is piped").take(100)).read_line(&mut line)?;
    assert_eq!(line, "holding\n");
    let expiry = match pair.target.lock(&key, options()).state()? {
        // A time to live is known to a millisecond, and counted from the reply on.
        LockState::Until { expiry, .. } => {
            SystemTime::from(expiry.date().expect("in this century")) - millis(10)
        }
        // The server has removed it already.
        LockState::Absent if pair.target.decided_protocol() == Protocol::Ttl => SystemTime::UNIX_EPOCH,
        state => panic!("the key does not hold an expiry: {state:?}"),
    };
    rust.kill()?;
    rust.wait()?;
    if pair.gem == NO_TAKEOVER && pair.target.decided_protocol() != Protocol::Ttl {
        // The gem takes nothing over, however long ago the lease has ended.
        while SystemTime::now() < expiry {
            thread::sleep(millis(20));
        }
        let (value, attempt) = (key.value(), ruby.acquire(&name, Some(EXPIRATION), millis(250))?);
        assert!(matches!(attempt, Attempt::Timeout(_)), "{attempt:?}");
        assert_eq!(key.value(), value);
        key.delete();
        assert_eq!(ruby.acquire(&name, Some(EXPIRATION), LONG)?, Attempt::Held);
        return ruby.release(&name).map_err(Into::into);
    }
    assert_eq!(ruby.acquire(&name, Some(EXPIRATION), LONG)?, Attempt::Held);
    assert!(SystemTime::now() >= expiry, "taken over too early");
    ruby.release(&name)?;
    assert_eq!(key.value(), None);
    Ok(())
}

fn rust_extends_its_lease_and_ruby_takes_over_on_time(pair: &Pair) -> Outcome {
    let (mut ruby, key) = (pair.peer()?, pair.key());
    let name = key.key.to_string();
    let held = pair.target.lock(&key, options()).lock()?;
    held.extend_by(2 * EXPIRATION)?;
    let value = key.value();
    let attempt = ruby.acquire(&name, Some(EXPIRATION), millis(250))?;
    assert!(matches!(attempt, Attempt::Timeout(_)), "{attempt:?}");
    assert_eq!(key.value(), value, "Ruby leaves the value alone");
    // Ruby waits while the lease becomes a short one, and takes over when that has passed.
    if pair.gem != NO_TAKEOVER || pair.target.decided_protocol() == Protocol::Ttl {
        ruby.begin_to_acquire(&name, Some(EXPIRATION), LONG)?;
        held.extend_by(millis(500))?;
        let end = held.expires_at().map(SystemTime::from).expect("it expires");
        assert_eq!(ruby.outcome(&name)?, Attempt::Held);
        assert!(SystemTime::now() >= end, "taken over before {end:?}");
        assert!(held.loss_signal().is_lost());
        assert_eq!(release(held)?, Release::Expired);
        ruby.release(&name)?;
        assert_eq!(key.value(), None);
    }
    Ok(())
}

/// Processes of one language that increment the number.
struct Counting {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Counting {
    /// Waits until the processes are ready, so that a language that starts slowly is not at a disadvantage.
    fn ready(mut process: Child) -> io::Result<Self> {
        let mut output = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut line = String::new();
        output.read_line(&mut line)?;
        assert_eq!(line, "ready\n");
        Ok(Self { process, output })
    }

    fn go(&mut self) -> io::Result<()> {
        writeln!(self.process.stdin.as_ref().expect("it is piped"), "go")
    }

    fn finish(mut self) -> Outcome {
        let mut output = String::new();
        self.output.read_to_string(&mut output)?;
        assert!(self.process.wait()?.success(), "{output}");
        Ok(())
    }
}

fn no_update_is_lost_among_four_processes_of_each(pair: &Pair) -> Outcome {
    const OF_EACH: usize = 4;
    const ROUNDS: usize = 12;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("number");
    fs::write(&file, "0")?;
    let (key, file) = (pair.key(), file.display().to_string());
    let (name, rounds, url) = (key.key.to_string(), ROUNDS.to_string(), &pair.target.url);
    let protocol = pair.target.protocol_name();
    let expiration = EXPIRATION.as_secs().to_string();
    let ruby = || {
        let mut ruby = pair.gem.ruby("peer.rb", url);
        ruby.args(["churn", &OF_EACH.to_string(), &name, &file, &rounds, &expiration]);
        ruby.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let variant = pair.target.variant;
    let rust = |variant: Variant| {
        worker(&["churn", url, &name, &file, &rounds, &expiration, &protocol, &variant.name()])
    };
    // The load threads of one process are load enough.
    let quiet = if variant.load == Load::Contended { Load::Any } else { variant.load };
    let others = iter::repeat_n(Variant { load: quiet, ..variant }, OF_EACH - 1);
    let mut all: Vec<Counting> = iter::once(ruby())
        .chain(iter::once(variant).chain(others).map(rust))
        .map(|child| Counting::ready(child?))
        .collect::<io::Result<_>>()?;
    for counting in &mut all {
        counting.go()?;
    }
    all.into_iter().try_for_each(Counting::finish)?;
    assert_eq!(fs::read_to_string(&file)?, (2 * OF_EACH * ROUNDS).to_string(), "no update is lost");
    assert_eq!(key.value(), None, "no key is left behind");
    Ok(())
}

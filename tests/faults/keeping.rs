//! Leases that a locker's keeper thread extends: processes that are
//! killed and stopped, servers and networks that fail, the end of it.

use std::io::{BufRead, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io, thread};

use rustix::process::{Pid, Signal, kill_process};
use setnx_lock::{Error, Event, Lock, LockGuard, LockOptions, LossReason, Protocol};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::processes::{TaskOutcome, protocol_named, worker};
use crate::support::scenario::{ANOTHERS, Scenario, assert_nothing_sent_twice, opened, patient};
use crate::support::sent::{connected, names, recorded};
use crate::support::target::PROTOCOLS;
use crate::support::{
    AnyServer, LONG, Outcome, RedisServer, Release, Target, expiring, millis, release, trials_of,
};

trials_of! {
    "keeping";
    a_stopped_process_whose_lock_was_not_taken_goes_on_in_watched,
    it_ends_at_the_limit,
    it_ends_with_the_release,
    a_release_waits_for_an_extension_on_its_way,
    an_extension_that_fails_is_tried_again,
    locks_of_one_trip_fail_and_succeed_by_themselves,
    a_fault_in_a_trip_of_many_locks_loses_none,
    a_server_that_takes_no_transaction_on_several_keys,
    a_lease_that_a_call_has_made_longer_is_not_cut_short,
    the_keeper_is_one_thread_that_ends_with_its_locker,
}

/// A lease in tests whose steps take no notice of how long they take.
const BRIEF: Duration = Duration::from_millis(600);

/// Another process that holds a lock, whose lease is extended.
pub(crate) struct Holder {
    process: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    pub(crate) fn performing(task: &[&str]) -> io::Result<Self> {
        let mut process = worker(task)?;
        let input = process.stdin.take();
        let lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        Ok(Self { process, input, lines })
    }

    pub(crate) fn line(&mut self) -> io::Result<String> {
        self.lines.next().unwrap_or_else(|| Err(io::Error::other("the process has ended")))
    }

    pub(crate) fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.input.as_ref().expect("it is piped"), "{line}")
    }

    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("it has an id");
        Ok(kill_process(pid, signal)?)
    }

    pub(crate) fn ends_well(mut self) -> io::Result<bool> {
        self.input = None;
        Ok(self.process.wait()?.success())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Acquires a lock whose lease is extended, prints `holding`, and then for each line whether the lock is still held.
pub(crate) fn as_worker(url: &str, key: &str, expiration: &str, protocol: &str) -> TaskOutcome {
    let options = LockOptions::expiring_after(humantime::parse_duration(expiration)?).timeout(LONG);
    let options = options.protocol(protocol_named(protocol)?).auto_extend(LONG);
    let held = Lock::new(&opened(url)?, key, options)?.lock()?;
    println!("holding");
    for line in io::stdin().lines() {
        line?;
        println!("{:?}", held.loss_signal().reason());
    }
    Ok(())
}

fn holder(server: &impl AnyServer, key: &str, protocol: Protocol) -> io::Result<Holder> {
    let protocol = format!("{protocol:?}").to_lowercase();
    let expiration = format!("{}ms", BRIEF.as_millis());
    let mut holder = Holder::performing(&["keep", &server.url(), key, &expiration, &protocol])?;
    assert_eq!(holder.line()?, "holding");
    Ok(holder)
}

/// A lease that is extended in a second, and passes only if the machine stands still for two.
const KEPT: LockOptions = LockOptions::expiring_after(Duration::from_secs(3)).timeout(LONG).auto_extend(LONG);

/// Waits until each lease has been extended.
fn await_extensions(held: &[LockGuard]) -> Result<(), Error> {
    let ends: Vec<_> = held.iter().map(LockGuard::expires_at).collect();
    for (held, end) in held.iter().zip(ends) {
        while held.expires_at() == end {
            held.ensure_held()?;
            thread::sleep(millis(10));
        }
    }
    Ok(())
}

fn a_stopped_process_whose_lock_was_not_taken_goes_on_in_watched() -> Outcome {
    let server = TestServer::start();
    let lock = Lock::new(&opened(&server.url())?, "k", expiring().timeout(Duration::ZERO))?;
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let mut holder = holder(&server, "k", protocol)?;
        holder.signal(Signal::STOP)?;
        thread::sleep(BRIEF + millis(100));
        let before = lock.state()?;
        holder.signal(Signal::CONT)?;
        if protocol == Protocol::Classic {
            holder.say("still there?")?;
            assert!(holder.line()?.contains("Expired"));
        } else {
            let end = Instant::now() + LONG;
            while lock.state()? == before {
                assert!(Instant::now() < end, "it extends by proof");
                thread::sleep(millis(5));
            }
            assert!(lock.try_lock()?.is_none());
        }
        drop(holder);
        server.say(&["DEL", "k"])?;
    }
    Ok(())
}

fn it_ends_at_the_limit() -> Outcome {
    let server = TestServer::start();
    for protocol in PROTOCOLS {
        let options = LockOptions::expiring_after(millis(450)).timeout(LONG).protocol(protocol);
        let limit = millis(900);
        let lock = Lock::new(&opened(&server.url())?, "k", options.auto_extend(limit))?;
        let held = lock.lock()?;
        let latest = SystemTime::now() + limit;
        let (signal, mut extensions, mut last) =
            (held.loss_signal(), 0, held.expires_at().map(SystemTime::from));
        while !signal.wait_timeout(millis(5)) {
            let end = held.expires_at().map(SystemTime::from);
            assert!(end <= Some(latest), "{end:?} after {latest:?}");
            extensions += u32::from(end != last);
            last = end;
        }
        assert_eq!(signal.reason(), Some(LossReason::Expired));
        // In Classic a lease of 0.45 s passes if the machine stands still for so long.
        assert!(extensions > 0 || SystemTime::now() > latest);
        drop(held);
        assert!(lock.try_lock_for(LONG)?.is_some());
    }
    Ok(())
}

fn it_ends_with_the_release() -> Outcome {
    let server = TestServer::start();
    let options = LockOptions::expiring_after(BRIEF).timeout(LONG).auto_extend(LONG);
    let lock = connected(Lock::new(&opened(&server.url())?, "k", options)?)?;
    let held = lock.lock()?;
    held.on_loss(|reason| panic!("{reason}"));
    held.release()?;
    server.clear_log();
    thread::sleep(BRIEF / 2);
    assert_eq!(names(&recorded(&server)), [""; 0], "nothing is sent any more");
    Ok(())
}

fn a_release_waits_for_an_extension_on_its_way() -> Outcome {
    for (protocol, command) in [(Protocol::Classic, "GETSET"), (Protocol::Watched, "EXEC")] {
        let scenario = Scenario::set();
        let key = scenario.target.key("waits");
        let locker = scenario.open(patient(&scenario.server.url())?);
        let held = Lock::new(&locker, &key.key, KEPT.protocol(protocol))?.lock()?;
        let extension = scenario.server.pause(command, 1);
        extension.reached();
        let releasing = thread::spawn(move || release(held));
        thread::sleep(millis(50));
        assert!(!releasing.is_finished(), "the deletion must not come before the new value");
        extension.go_on();
        let released = releasing.join().unwrap()?;
        assert!(matches!(released, Release::Released { .. } | Release::Expired), "{released:?}");
        assert!(released == Release::Expired || key.value().is_none());
    }
    Ok(())
}

fn an_extension_that_fails_is_tried_again() -> Outcome {
    for (protocol, command, fault) in [
        (Protocol::Classic, "GETSET", Fault::CutBefore),
        (Protocol::Watched, "EXEC", Fault::CutAfter),
        (Protocol::Ttl, "WATCH", Fault::Say("-LOADING Redis is loading\r\n")),
    ] {
        let scenario = Scenario::set();
        let key = scenario.target.key("again");
        let (sender, events) = mpsc::channel();
        let locker = patient(&scenario.server.url())?.observer(move |event: &Event<'_>| {
            if let Event::Extended { .. } | Event::Lost { .. } = event {
                let _ = sender.send(format!("{event:?}"));
            }
        });
        let locker = locker.build()?;
        scenario.server.next(command, fault.clone());
        let held = Lock::new(&locker, &key.key, KEPT.protocol(protocol))?.lock()?;
        // On a machine that stands still for two seconds it is lost.
        if events.recv_timeout(LONG)?.starts_with("Extended") {
            held.ensure_held()?;
            assert_eq!(scenario.server.faults_left(), 0);
            held.release()?;
            assert_eq!(key.value(), None, "{protocol:?} {fault:?}");
        }
    }
    Ok(())
}

/// Several locks are extended in one trip, of which one is lost, and one is refused.
fn locks_of_one_trip_fail_and_succeed_by_themselves() -> Outcome {
    let server = std::sync::Arc::new(TestServer::start());
    for protocol in PROTOCOLS {
        let target = Target::of(&server).with(protocol);
        let locker = target.locker();
        let keys: Vec<_> = (0..6).map(|n| target.key(&format!("together-{n}"))).collect();
        let held: Vec<_> = keys
            .iter()
            .map(|key| target.lock_through(&locker, key, KEPT).lock())
            .collect::<Result<_, _>>()?;
        keys[1].set(ANOTHERS);
        keys[2].delete();
        keys[3].delete();
        let () = redis::cmd("LPUSH").arg(keys[3].key.as_bytes()).arg("a").query(&mut target.connection())?;
        let ends: Vec<_> = held.iter().map(LockGuard::expires_at).collect();
        for n in [0, 4, 5] {
            while held[n].expires_at() == ends[n] {
                held[n].ensure_held()?;
                thread::sleep(millis(10));
            }
        }
        assert!(held[1].loss_signal().wait_timeout(LONG) && held[2].loss_signal().wait_timeout(LONG));
        assert!(matches!(held[1].loss_signal().reason(), Some(LossReason::Taken(_))));
        assert_eq!(held[2].loss_signal().reason(), Some(LossReason::Gone));
        let released: Vec<_> = held.into_iter().map(LockGuard::release).collect();
        assert_eq!(keys[1].value().as_deref(), Some(ANOTHERS));
        for n in [0, 4, 5] {
            assert!(released[n].is_ok() && keys[n].value().is_none(), "{:?}", released[n]);
        }
        let () = redis::cmd("DEL").arg(keys[3].key.as_bytes()).query(&mut target.connection())?;
    }
    Ok(())
}

/// Whatever happens to one command of a trip for several locks:
/// each is extended in the end, and no value is sent twice.
fn a_fault_in_a_trip_of_many_locks_loses_none() -> Outcome {
    for (protocol, place, fault) in [
        (Protocol::Classic, 1, Fault::CutAfter),
        (Protocol::Classic, 8, Fault::CutBefore),
        (Protocol::Watched, 15, Fault::CutWithin),
    ] {
        // On a machine that is busy enough the keeper gets no processor for a whole lease.
        let mut attempts = (0..5).map(|_| keeps_all(protocol, place, fault.clone()));
        let kept = attempts.find(|kept| !kept.as_ref().is_ok_and(|kept| !kept));
        assert!(
            kept.transpose()?.is_some(),
            "{protocol:?}, {fault:?} at {place}: a lease has passed each time"
        );
    }
    Ok(())
}

/// Returns whether several locks are extended although a fault meets a command of that. Where not, a lease has passed.
fn keeps_all(protocol: Protocol, place: usize, fault: Fault) -> Result<bool, Box<dyn std::error::Error>> {
    let scenario = Scenario::set();
    let locker = scenario.open(patient(&scenario.server.url())?);
    let keys: Vec<_> = (0..6).map(|n| scenario.target.key(&format!("disturbed-{n}"))).collect();
    let held: Vec<_> = keys
        .iter()
        .map(|key| Lock::new(&locker, &key.key, KEPT.protocol(protocol))?.lock())
        .collect::<Result<_, _>>()?;
    scenario.server.clear_log();
    scenario.server.at(place, fault);
    match await_extensions(&held) {
        Err(Error::Lost { reason: LossReason::Expired, .. }) => return Ok(false),
        kept => kept?,
    }
    assert_nothing_sent_twice(&scenario.server);
    // What was cut in the release is not what is tested here.
    for held in held {
        let released = held.release();
        assert!(released.is_ok() || scenario.server.faults_left() == 0, "{released:?}");
    }
    Ok(true)
}

/// As a server of a cluster, which takes keys of one slot only.
fn a_server_that_takes_no_transaction_on_several_keys() -> Outcome {
    let port = setnx_lock_testing::free_port()?;
    let server = RedisServer::start_with(&format!("cluster-enabled yes\ncluster-port {port}"))?;
    let slots: Vec<String> = (0..16384).map(|slot| slot.to_string()).collect();
    server.say(
        &[&["CLUSTER", "ADDSLOTS"][..], &slots.iter().map(String::as_str).collect::<Vec<_>>()].concat(),
    )?;
    let end = Instant::now() + LONG;
    while !server.say(&["SET", "ready", "1"])?.contains("OK") {
        assert!(Instant::now() < end, "the cluster is not ready");
        thread::sleep(millis(20));
    }
    let locker = opened(&server.url())?;
    let held: Vec<_> = (0..5)
        .map(|n| Lock::new(&locker, format!("k{n}"), KEPT.protocol(Protocol::Watched))?.lock())
        .collect::<Result<_, _>>()?;
    await_extensions(&held)?;
    held.into_iter().try_for_each(|held| held.release().map(drop))?;
    Ok(())
}

fn a_lease_that_a_call_has_made_longer_is_not_cut_short() -> Outcome {
    let server = TestServer::start();
    // A busy machine may pause for two seconds, before which the call has to come.
    let lease = 5 * BRIEF;
    let options = LockOptions::expiring_after(lease).timeout(LONG).auto_extend(LONG);
    let held = Lock::new(&opened(&server.url())?, "k", options)?.lock()?;
    held.extend_by(LONG / 2)?;
    let end = held.expires_at();
    thread::sleep(lease + millis(100));
    assert_eq!(held.expires_at(), end);
    Ok(())
}

/// Prints how many keeper threads there are: with two lockers that each keep many locks, and after they are dropped.
pub(crate) fn count_keepers(url: &str) -> TaskOutcome {
    let keepers = || -> io::Result<usize> {
        // A thread that ends meanwhile has no name any more.
        let names = fs::read_dir("/proc/self/task")?
            .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .collect::<Vec<_>>();
        Ok(names.iter().filter(|name| name.starts_with("setnx-lock keep")).count())
    };
    let lockers = [opened(url)?, opened(url)?];
    let plain = Lock::new(&lockers[0], "plain", expiring())?.lock()?;
    plain.extend()?;
    // A thread has its name only once it runs.
    thread::sleep(millis(20));
    println!("{}", keepers()?);
    let signal = plain.loss_signal();
    let options = expiring().auto_extend(LONG);
    let lock = |n: usize| Lock::new(&lockers[n % 2], format!("k{n}"), options)?.lock();
    let held: Vec<_> = (0..200).map(lock).collect::<Result<_, _>>()?;
    let end = Instant::now() + LONG;
    while keepers()? < 2 && Instant::now() < end {
        thread::sleep(millis(5));
    }
    thread::sleep(millis(20));
    println!("{}", keepers()?);
    drop((held, signal, plain, lockers));
    while keepers()? > 0 && Instant::now() < end {
        thread::sleep(millis(5));
    }
    println!("{}", keepers()?);
    Ok(())
}

fn the_keeper_is_one_thread_that_ends_with_its_locker() -> Outcome {
    let server = TestServer::start();
    let mut counting = Holder::performing(&["count_keepers", &server.url()])?;
    assert_eq!(counting.line()?, "0", "an extension by hand needs none");
    assert_eq!(counting.line()?, "2", "one for each locker");
    assert_eq!(counting.line()?, "0");
    assert!(counting.ends_well()?);
    Ok(())
}

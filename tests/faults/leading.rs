//! Five processes of which one leads: they are killed, stopped, and told to end, and their server fails over.

mod leaders;

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use setnx_lock::{CancelToken, Error, Event, Lock, LockOptions, Locker};
use setnx_lock_testing::TestServer;

use crate::support::notified::until;
use crate::support::scenario::{opened, patient};
use crate::support::{LONG, Outcome, expiring, millis, trials_of};
use leaders::{KEY, LEASE, Leaders};

trials_of! {
    "leading";
    one_of_five_leads_while_leaders_are_killed_stopped_and_told_to_end,
    whatever_fails_is_tried_again,
    what_can_never_lead_is_refused,
    leading_ends_with_the_locker,
    a_panic_ends_the_term_and_the_call,
}

fn one_of_five_leads_while_leaders_are_killed_stopped_and_told_to_end() -> Outcome {
    let server = TestServer::start();
    let mut leaders = Leaders::start(&server.url())?;
    let lock = Lock::new(&opened(&server.url())?, KEY, expiring())?;
    let (mut after_kill, mut after_end) = (Vec::new(), Vec::new());
    let mut leader = leaders.next(Duration::ZERO);
    for _ in 0..2 {
        let name = lock.holder()?.expect("it has a name").name().to_owned();
        assert_eq!(name, format!("leader:{}", leader.process));
        let killed = leaders.signal(leader.process, Signal::KILL)?;
        let next = leaders.next(killed);
        after_kill.push(next.first.saturating_sub(killed));
        leaders.replace(leader.process)?;
        let told = leaders.signal(next.process, Signal::TERM)?;
        leader = leaders.next(told);
        after_end.push(leader.first.saturating_sub(told));
        leaders.replace(next.process)?;
        // It is stopped until another leads, and goes on.
        let stopped = leaders.signal(leader.process, Signal::STOP)?;
        let next = leaders.next(stopped);
        leaders.signal(leader.process, Signal::CONT)?;
        leader = next;
        thread::sleep(LEASE / 2);
    }
    let terms = leaders.end()?;
    println!("after a kill {after_kill:?}, after an end {after_end:?}, {} terms", terms.len());
    // By the machine's clock; a stall of it may come on top.
    assert!(after_kill.iter().min() < Some(&(LEASE + millis(1100))), "{after_kill:?}");
    assert!(after_end.iter().min() < Some(&millis(300)), "{after_end:?}");
    Ok(())
}

/// What the observer of a locker was told about leading.
fn observed(url: &str) -> Result<(Locker, mpsc::Receiver<String>), Error> {
    let (sender, events) = mpsc::channel();
    let told = move |event: &Event<'_>| {
        let told = match event {
            Event::LeadershipBegan { key, .. } => format!("{key} began"),
            Event::LeadershipEnded { key, .. } => format!("{key} ended"),
            Event::LeadershipFailed { key, error, .. } => format!("{key} failed: {error}"),
            Event::Lost { key, .. } => format!("{key} lost"),
            _ => return,
        };
        let _ = sender.send(told);
    };
    Ok((patient(url)?.retry_for(Duration::ZERO).observer(told).build()?, events))
}

fn whatever_fails_is_tried_again() -> Outcome {
    let server = TestServer::start();
    let (locker, events) = observed(&server.url())?;
    let lock = Lock::new(&locker, "k", LockOptions::expiring_after(LEASE))?;
    let stop = CancelToken::new();
    let (led, leads) = mpsc::channel();
    let leading = thread::spawn({
        let (lock, stop) = (lock.clone(), stop.clone());
        move || {
            lock.lead(&stop, |held| {
                let signal = held.loss_signal();
                let _ = led.send(held.key().to_string());
                while !signal.is_lost() && !stop.is_cancelled() {
                    thread::sleep(millis(5));
                    let _ = held.verify();
                }
            })
        }
    });
    assert_eq!(leads.recv_timeout(LONG)?, "k");
    // It is cleared: it is lost, and led again.
    server.delete("k");
    let next = || events.recv_timeout(LONG);
    assert_eq!([next()?, next()?, next()?], ["k began", "k lost", "k ended"]);
    leads.recv_timeout(LONG)?;
    assert_eq!(next()?, "k began");
    // The server is away, and comes back empty.
    server.stop();
    until("it has failed", || events.try_iter().any(|event| event.starts_with("k failed: ")));
    server.start_again();
    leads.recv_timeout(LONG)?;
    let began = Instant::now();
    stop.cancel();
    leading.join().unwrap()?;
    assert!(began.elapsed() < LONG);
    assert_eq!(events.try_iter().last().as_deref(), Some("k ended"));
    assert_eq!(server.get("k"), None);
    lock.lead(&stop, |_| panic!("it is cancelled"))?;
    Ok(())
}

fn what_can_never_lead_is_refused() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let stop = CancelToken::new();
    let endless = Lock::new(&locker, "k", LockOptions::without_expiration())?;
    let error = endless.lead(&stop, |_| panic!("it cannot lead")).expect_err("no expiration");
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("no expiration"), "{error}");
    let lock = Lock::new(&locker, "k", expiring())?;
    let nested = lock.with(|_| lock.lead(&stop, |_| panic!("it waits for itself")))?;
    assert!(matches!(nested, Err(Error::Nested { .. })), "{nested:?}");
    Ok(())
}

fn leading_ends_with_the_locker() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    server.hold("k", LONG);
    let lock = Lock::new(&locker, "k", expiring().timeout(Duration::ZERO))?;
    let leading = thread::spawn(move || lock.lead(&CancelToken::new(), |_| panic!("another leads")));
    until("it waits", || server.names().iter().any(|name| name == "GET"));
    let _ = locker.drain(LONG);
    leading.join().unwrap()?;
    // One that leads is told to stop first.
    let locker = opened(&server.url())?;
    let lock = Lock::new(&locker, "led", expiring().max_attempts(1))?;
    let stop = CancelToken::new();
    let leading = thread::spawn({
        let stop = stop.clone();
        move || {
            lock.lead(&stop, |_| {
                while !stop.is_cancelled() {
                    thread::sleep(millis(5));
                }
            })
        }
    });
    until("it leads", || !locker.held().is_empty());
    assert_eq!(locker.drain(millis(30)).still_held.len(), 1, "its work does not see the drain");
    stop.cancel();
    assert!(locker.drain(LONG).still_held.is_empty());
    leading.join().unwrap()?;
    assert_eq!(server.get("led"), None);
    Ok(())
}

fn a_panic_ends_the_term_and_the_call() -> Outcome {
    let server = TestServer::start();
    let (locker, events) = observed(&server.url())?;
    let lock = Lock::new(&locker, "k", expiring())?;
    let leading = thread::spawn(move || {
        lock.lead(&CancelToken::new(), |_| std::panic::resume_unwind(Box::new("on purpose")))
    });
    assert!(leading.join().is_err());
    assert_eq!(events.try_iter().collect::<Vec<_>>(), ["k began", "k ended"]);
    assert_eq!(server.get("k"), None);
    Ok(())
}

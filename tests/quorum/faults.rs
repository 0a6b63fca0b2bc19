//! A quorum whose servers and networks fail: a minority does not matter, without a majority nothing stays held.

use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Error, LockOptions, Locker, Protocol, Quorum};
use setnx_lock_testing::{Fault, TestServer};

use super::{KEY, OPTIONS, Servers};
use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, brief, opened};
use crate::support::sent::probed;
use crate::support::{LONG, Outcome, chain, millis, trials_of};

trials_of! {
    "quorum";
    a_minority_that_is_killed_does_not_matter,
    a_minority_that_hangs_is_not_waited_for,
    without_a_majority_there_is_no_lock,
    a_majority_that_is_killed_under_a_holder,
    grants_that_come_too_late_are_given_back,
    a_reply_that_is_cut_off_is_resolved,
    a_lock_whose_reply_was_lost_is_given_back_later,
    what_another_client_has_meanwhile_is_left,
    a_command_that_arrives_after_all_is_undone,
    shutting_down_ends_an_attempt,
    shutting_down_waits_for_no_server,
}

const SIZES: [(usize, usize); 3] = [(3, 1), (5, 1), (5, 2)];

fn a_minority_that_is_killed_does_not_matter() -> Outcome {
    for (count, killed) in SIZES {
        let servers = Servers::start(count);
        let lock = servers.lock(OPTIONS)?;
        let held = servers.held(&lock)?;
        servers.0[..killed].iter().for_each(|server| server.stop());
        held.ensure_held()?;
        held.extend()?;
        held.verify()?;
        held.release()?;
        let held = lock.lock()?;
        held.extend()?;
        held.release()?;
        let others = servers.lock(OPTIONS)?;
        assert!(others.try_lock()?.is_some());
        servers.0[..killed].iter().for_each(TestServer::restart_empty);
        until("those that are back are used again", || {
            let held = lock.lock().unwrap();
            thread::sleep(millis(5));
            let holding = servers.holding();
            held.release().unwrap();
            holding == count
        });
    }
    Ok(())
}

/// Commands may take much longer than the calls do.
fn a_minority_that_hangs_is_not_waited_for() -> Outcome {
    for (count, hanging) in SIZES {
        let servers = Servers::start(count);
        let lock = servers.lock(OPTIONS)?;
        drop(lock.lock()?);
        servers.until_holding(0);
        let began = Instant::now();
        servers.0[..hanging].iter().for_each(|server| server.hang());
        let held = lock.lock()?;
        held.extend()?;
        held.verify()?;
        held.release()?;
        assert!(servers.lock(OPTIONS)?.try_lock()?.is_some());
        assert!(began.elapsed() < LONG / 2, "it waited for a server that hangs");
        servers.0[..hanging].iter().for_each(|server| server.resume());
        // What came late is given back.
        servers.until_holding(0);
        let held = servers.held(&lock)?;
        held.release()?;
    }
    Ok(())
}

/// Returns the lock through lockers that retry nothing and soon give up.
fn impatient(servers: &Servers) -> Result<Quorum, Error> {
    let open = |url: String| brief(&url, 4).retry_for(Duration::ZERO).build();
    let lockers = servers.0.iter().map(|server| open(server.url())).collect::<Result<Vec<Locker>, _>>()?;
    Quorum::new(lockers, KEY, OPTIONS)
}

fn without_a_majority_there_is_no_lock() -> Outcome {
    for (count, killed) in [(3, 2), (3, 3), (5, 3)] {
        let servers = Servers::start(count);
        let lock = impatient(&servers)?;
        servers.0[..killed].iter().for_each(|server| server.stop());
        for outcome in [lock.try_lock().map(|_| ()), lock.lock().map(drop)] {
            let error = outcome.expect_err("there is no majority");
            assert!(error.is_transient() && !error.is_contention() && !error.is_lost(), "{error:?}");
            let text = chain(&error);
            let needed = count / 2 + 1;
            assert!(text.contains(&format!(" of {count} servers agreed, and {needed} must")), "{text}");
            for server in &servers.0[..killed] {
                assert!(text.contains(&format!("; {}: no ", server.address())), "{text}");
            }
        }
        servers.0[..killed].iter().for_each(TestServer::restart_empty);
        servers.until_holding(0);
    }
    Ok(())
}

fn a_majority_that_is_killed_under_a_holder() -> Outcome {
    let servers = Servers::start(3);
    let held = servers.held(&impatient(&servers)?)?;
    servers.0[..2].iter().for_each(|server| server.stop());
    for outcome in [held.extend(), held.verify()] {
        let error = outcome.expect_err("there is no majority");
        assert!(!error.is_lost() && error.is_transient(), "nobody says that it is lost: {error:?}");
        assert!(chain(&error).contains("of 3 servers agreed, and 2 must"), "{error}");
    }
    held.ensure_held()?;
    assert!(held.remaining() > Duration::ZERO);
    let error = held.release().expect_err("two were not asked");
    assert!(!error.is_lost() && chain(&error).starts_with("lock quorum not released: "), "{error}");
    Ok(())
}

/// Less than half of their leases is left.
fn grants_that_come_too_late_are_given_back() -> Outcome {
    const LEASE: Duration = Duration::from_secs(1);
    let servers = Servers::start(3);
    for server in &servers.0[..2] {
        server.delay_reply("SET", LEASE * 3 / 5);
    }
    let lock = servers.lock(LockOptions::expiring_after(LEASE).protocol(Protocol::Auto))?;
    let error = lock.try_lock().expect_err("too little is left");
    let text = chain(&error);
    assert!(error.is_transient() && !error.is_contention() && !error.is_lost(), "{error:?}");
    assert!(text.contains("of 3 servers agreed, and 2 must") && text.contains("no answer in time"), "{text}");
    servers.until_holding(0);
    Ok(())
}

fn a_reply_that_is_cut_off_is_resolved() -> Outcome {
    let servers = Servers::start(3);
    let lock = servers.lock(OPTIONS)?;
    for fault in [Fault::CutAfter, Fault::CutWithin] {
        for server in &servers.0 {
            server.next("SET", fault.clone());
        }
        let held = lock.try_lock()?.expect("each key shows it");
        servers.until_holding(3);
        assert!(servers.0.iter().all(|server| server.faults_left() == 0));
        held.verify()?;
        held.release()?;
        servers.until_holding(0);
    }
    Ok(())
}

/// A lock on three servers, of which the first two execute SETNX and send no reply.
fn without_replies(servers: &Servers, protocol: Protocol) -> Result<Quorum, Error> {
    let name = if protocol == Protocol::Ttl { "SET" } else { "SETNX" };
    let mut lockers = vec![opened(&servers.0[2].url())?];
    for server in &servers.0[..2] {
        let locker = brief(&server.url(), 1).build()?;
        probed(&locker, protocol)?;
        server.clear_log();
        server.lose_reply(name);
        lockers.push(locker);
    }
    let options = LockOptions::expiring_after(2 * LONG).protocol(protocol);
    Quorum::new(lockers, KEY, options)
}

/// The leases are longer than the test waits.
fn a_lock_whose_reply_was_lost_is_given_back_later() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let servers = Servers::start(3);
        let lock = without_replies(&servers, protocol)?;
        let error = lock.try_lock().expect_err("two replies are lost");
        assert!(!error.is_contention() && error.is_transient(), "{error:?}");
        servers.until_holding(0);
        for server in &servers.0[..2] {
            assert_eq!(server.faults_left(), 0);
            until("it has looked and released", || {
                let names = server.names();
                names.iter().any(|name| name == "GET") && names.iter().any(|name| name == "DEL")
            });
        }
        drop(lock.lock()?);
    }
    Ok(())
}

fn what_another_client_has_meanwhile_is_left() -> Outcome {
    let servers = Servers::start(3);
    let lock = without_replies(&servers, Protocol::Watched)?;
    let asking = lock.clone();
    let waiting = thread::spawn(move || asking.try_lock().map(|held| held.is_some()));
    servers.until_holding(3);
    servers.set(0, FOREIGN);
    servers.set(1, FOREIGN);
    assert!(waiting.join().unwrap().is_err());
    servers.until_holding(2);
    for server in &servers.0[..2] {
        server.wait_for("GET", 2);
        assert!(server.names().iter().all(|name| name != "DEL"), "{:?}", server.names());
    }
    assert_eq!(servers.value(0).as_deref(), Some(FOREIGN));
    Ok(())
}

/// The key shows another holder meanwhile, so that the call ends by contention.
fn a_command_that_arrives_after_all_is_undone() -> Outcome {
    let servers = Servers::start(3);
    let lock = servers.lock(OPTIONS.protocol(Protocol::Watched))?;
    for (n, server) in servers.0.iter().enumerate() {
        servers.set(n, FOREIGN);
        server.next("SETNX", Fault::CutBefore);
    }
    // A server whose thread is late is not asked any more.
    until("each server has been asked", || {
        assert!(lock.try_lock().unwrap().is_none());
        servers.0.iter().all(|server| server.faults_left() == 0)
    });
    for (n, server) in servers.0.iter().enumerate() {
        let asked = || server.log().into_iter().find(|asked| asked.name == "SETNX");
        servers.set(n, &asked().unwrap().arguments[1]);
        until("it is undone", || servers.value(n).is_none());
    }
    Ok(())
}

fn shutting_down_ends_an_attempt() -> Outcome {
    let servers = Servers::start(3);
    let lockers = servers.0.iter().map(|server| brief(&server.url(), 1).build());
    let lockers = lockers.collect::<Result<Vec<_>, _>>()?;
    let lock = Quorum::new(&lockers, KEY, OPTIONS)?;
    servers.0.iter().for_each(|server| server.hang());
    let waiter = thread::spawn(move || lock.try_lock().map(drop));
    thread::sleep(millis(100));
    lockers[0].shut_down();
    let error = waiter.join().unwrap().expect_err("it was ended");
    assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
    servers.0.iter().for_each(|server| server.resume());
    Ok(())
}

/// What is left to do for a server that hangs is done by its thread, later.
fn shutting_down_waits_for_no_server() -> Outcome {
    let servers = Servers::start(3);
    let lockers = servers.lockers()?;
    let held = servers.held(&Quorum::new(&lockers, KEY, OPTIONS)?)?;
    servers.0[2].hang();
    let another = Quorum::new(&lockers, "another", OPTIONS)?.lock()?;
    held.release()?;
    let ended = thread::spawn(move || lockers.iter().for_each(Locker::shut_down));
    until("the lockers are shut down", || ended.is_finished());
    assert!(servers.value(0).is_none() && servers.value(1).is_none());
    servers.0[2].resume();
    servers.until_holding(0);
    another.release()?;
    Ok(())
}

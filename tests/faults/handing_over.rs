//! Locks that go to other processes while many do so, the server refuses, and processes are killed. Faults at each command are in
//! `boundaries`.

use std::io::{BufRead as _, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, LockToken, Locker, Protocol, RefusalKind};
use setnx_lock_testing::{Fault, ServerVersion};

use crate::support::notified::until;
use crate::support::processes::{TaskOutcome, protocol_named, worker};
use crate::support::scenario::{closed_port, patient, until_connected};
use crate::support::sent::{connected, names, probed, recorded};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, expiring, millis, server_of, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "handing_over",
        tests![
            a_token_outlives_its_process,
            what_is_sent_for_a_token,
            a_thousand_tokens_are_used_by_many_threads_on_a_server_that_is_full_at_times,
            a_token_whose_extension_got_no_reply_names_what_the_key_holds,
            a_token_waits_for_a_server_that_settles,
            an_unreachable_server_is_not_waited_for,
            a_value_that_was_overwritten_by_another_user_of_the_token_is_written_again,
        ],
    )
}

/// Prints a token, and lives until it is killed.
pub(crate) fn as_worker(url: &str, key: &str, protocol: &str) -> TaskOutcome {
    let options = LockOptions::expiring_after(LONG).protocol(protocol_named(protocol)?);
    println!("{}", Lock::new(&Locker::open(url)?, key, options)?.lock()?.into_token()?);
    thread::sleep(LONG);
    Ok(())
}

fn a_token_outlives_its_process() -> Outcome {
    for protocol in PROTOCOLS {
        let server = server_of(ServerVersion::V7);
        let name = format!("{protocol:?}").to_lowercase();
        let mut giver = worker(&["hand_out", &server.url(), "k", &name])?;
        let mut line = String::new();
        BufReader::new(giver.stdout.take().expect("it is piped")).read_line(&mut line)?;
        giver.kill()?;
        giver.wait()?;
        let token: LockToken = line.parse()?;
        let locker = patient(&server.url())?.build()?;
        let lock = Lock::new(&locker, "k", expiring().protocol(protocol))?;
        assert!(lock.try_lock()?.is_none());
        let held = lock.resume(&token)?;
        held.verify()?;
        held.release()?;
        assert_eq!(server.get("k"), None);
    }
    Ok(())
}

/// A token costs nothing, and one round trip more than a release is made to resume.
fn what_is_sent_for_a_token() -> Outcome {
    let sent = |version: ServerVersion, protocol: Protocol| -> Result<Vec<Vec<String>>, Error> {
        let server = server_of(version);
        let locker = patient(&server.url())?.build()?;
        probed(&locker, protocol)?;
        let lock = connected(Lock::new(&locker, "k", expiring().protocol(protocol))?)?;
        let held = lock.lock()?;
        server.clear_log();
        let token = held.into_token()?;
        assert!(recorded(&server).is_empty());
        let held = lock.resume(&token)?;
        let resumed = recorded(&server);
        held.release()?;
        Ok(resumed)
    };
    let classic = sent(ServerVersion::V1_2, Protocol::Classic)?;
    assert_eq!(names(&classic), ["GET", "GETSET"]);
    for protocol in [Protocol::Watched, Protocol::Ttl] {
        let compared = sent(ServerVersion::V7, protocol)?;
        assert_eq!(names(&compared), ["WATCH", "GET", "MULTI", "SET", "EXEC"], "{protocol:?}");
        let at_once = sent(ServerVersion::V8_4, protocol)?;
        assert_eq!(names(&at_once), ["SET"], "{protocol:?}: {at_once:?}");
    }
    Ok(())
}

fn a_thousand_tokens_are_used_by_many_threads_on_a_server_that_is_full_at_times() -> Outcome {
    const TOKENS: usize = 1000;
    const THREADS: usize = 128;
    for protocol in [Protocol::Classic, Protocol::Auto] {
        let server = server_of(ServerVersion::V7);
        server.delay(millis(1));
        let (giver, taker) = (patient(&server.url())?.build()?, patient(&server.url())?.build()?);
        let options = expiring().protocol(protocol);
        let lock = |locker: &Locker, n: usize| Lock::new(locker, format!("k:{n}"), options);
        let mut tokens = Vec::new();
        for n in 0..TOKENS {
            tokens.push(lock(&giver, n)?.lock()?.into_token()?);
        }
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || -> Result<usize, Error> {
            let mut refused = 0;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some(token) = tokens.get(n) else { return Ok(refused) };
                let lock = lock(&taker, n)?;
                let held = loop {
                    match lock.resume(token) {
                        Ok(held) => break held,
                        // Nothing was changed.
                        Err(Error::Refused { refusal, .. }) if refusal.is_transient() => {
                            refused += 1;
                            thread::sleep(millis(5));
                        }
                        Err(error) => return Err(error),
                    }
                };
                held.verify()?;
                assert!(lock.resume(token).expect_err("it was used").is_lost());
                // One that is refused is tried again.
                let _ = held.release();
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let refused: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            until("some are used", || done.load(Ordering::Relaxed) > TOKENS / 10);
            server.fill_up();
            thread::sleep(millis(100));
            server.free_memory();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<Result<usize, Error>>()
        })?;
        assert!(refused > 0, "the server was not full in time");
        let none = server.run(&["KEYS", "none"]);
        until("none is left", || server.run(&["KEYS", "k:*"]) == none);
    }
    Ok(())
}

fn a_token_whose_extension_got_no_reply_names_what_the_key_holds() -> Outcome {
    for protocol in PROTOCOLS {
        let server = server_of(ServerVersion::V7);
        let locker = patient(&server.url())?.build()?;
        probed(&locker, protocol)?;
        let lock = Lock::new(&locker, "k", expiring().protocol(protocol))?;
        let held = lock.lock()?;
        let change = if protocol == Protocol::Classic { "GETSET" } else { "EXEC" };
        // And the reply to the look that follows.
        server.next(change, Fault::CutAfter);
        server.nth("GET", 2, Fault::CutAfter);
        let extended = held.extend();
        assert!(matches!(extended, Err(Error::InDoubt { .. })), "{protocol:?}: {extended:?}");
        assert_eq!(server.faults_left(), 0);
        server.clear_log();
        let token = held.into_token()?;
        assert_eq!(server.names(), ["GET"], "{protocol:?}");
        lock.resume(&token)?.release()?;
        assert_eq!(server.get("k"), None);
    }
    Ok(())
}

/// The server may have forgotten that the token was used.
fn a_token_waits_for_a_server_that_settles() -> Outcome {
    for protocol in PROTOCOLS {
        let server = server_of(ServerVersion::V7);
        let settling =
            patient(&server.url())?.settle_after_restart(LONG).retry_for(Duration::ZERO).build()?;
        let lock = |locker: &Locker| Lock::new(locker, "k", expiring().protocol(protocol));
        server.advance(2 * LONG);
        let token = lock(&settling)?.lock()?.into_token()?;
        server.restart();
        let resumed = until_connected(|| lock(&settling)?.resume(&token));
        let Err(Error::Refused { refusal, .. }) = &resumed else { panic!("{protocol:?}: {resumed:?}") };
        assert_eq!(refusal.kind(), RefusalKind::Settling);
        // Nothing was changed.
        lock(&patient(&server.url())?.build()?)?.resume(&token)?.release()?;
    }
    Ok(())
}

fn an_unreachable_server_is_not_waited_for() -> Outcome {
    for protocol in PROTOCOLS.into_iter().chain([Protocol::Auto]) {
        let server = server_of(ServerVersion::V7);
        let options = expiring().protocol(protocol);
        let token = Lock::new(&patient(&server.url())?.build()?, "k", options)?.lock()?.into_token()?;
        // One that would be retried for a minute.
        let away = patient(&format!("redis://127.0.0.1:{}/", closed_port()?))?.build()?;
        let began = Instant::now();
        let resumed = Lock::new(&away, "k", options)?.resume(&token);
        assert!(matches!(resumed, Err(Error::Unavailable { .. })), "{protocol:?}: {resumed:?}");
        let released = away.release_token(&token);
        assert!(matches!(released, Err(Error::Unavailable { .. })), "{protocol:?}: {released:?}");
        assert!(began.elapsed() < LONG / 2, "{protocol:?}: {:?}", began.elapsed());
        Lock::new(&patient(&server.url())?.build()?, "k", options)?.resume(&token)?.release()?;
    }
    Ok(())
}

fn a_value_that_was_overwritten_by_another_user_of_the_token_is_written_again() -> Outcome {
    let server = server_of(ServerVersion::V7);
    let locker = patient(&server.url())?.build()?;
    let lock = Lock::new(&locker, "k", expiring())?;
    // Where the machine stalls, it is too late.
    for _ in 0..5 {
        let held = lock.resume(&lock.lock()?.into_token()?)?;
        let own = server.get("k").expect("it is held");
        let losers = format!("{}0", &own[..own.len() - 1]);
        server.run(&["SET", "k", &losers]);
        let end = Instant::now() + millis(1500);
        while server.get("k").is_none_or(|value| value == losers) && Instant::now() < end {
            thread::sleep(millis(5));
        }
        let is_repaired = server.get("k").is_some_and(|value| value != losers) && held.verify().is_ok();
        drop(held);
        if is_repaired {
            return Ok(());
        }
        server.delete("k");
    }
    Err("it was never written again".into())
}

//! Fencing tokens in use: a storage refuses the write of a process that was stopped for longer than its lease.

use std::time::Duration;
use std::{io, thread};

use rustix::process::Signal;
use setnx_lock::{Lock, LockGuard, LockOptions, MultiLock, Protocol};
use setnx_lock_testing::{Fault, TestServer};

use crate::faults::keeping::Holder;
use crate::support::processes::{TaskOutcome, protocol_named};
use crate::support::scenario::{opened, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer, LONG, Outcome, expiring, trials_of};

trials_of! {
    "fencing";
    a_storage_refuses_the_write_of_a_process_that_was_stopped,
    a_counter_that_is_forgotten_outlives_each_hold,
    a_lease_begins_only_if_its_counter_is_kept,
    a_refused_call_leaves_the_counter_as_it_is,
}

/// Remembers the greatest token that it has seen, and refuses writes with a smaller one.
#[derive(Debug, Default)]
struct Storage {
    greatest: u64,
    written: Vec<String>,
}

impl Storage {
    fn write(&mut self, token: u64, text: &str) -> bool {
        let accepted = token >= self.greatest;
        if accepted {
            self.greatest = token;
            self.written.push(text.to_owned());
        }
        accepted
    }
}

/// Acquires a lock, prints its token, and for each line prints a write with that token, as a program does that does not
/// look whether its lease has passed.
pub(crate) fn as_worker(url: &str, key: &str, protocol: &str) -> TaskOutcome {
    let options = LockOptions::expiring_after(Duration::from_millis(300)).timeout(LONG);
    let lock = Lock::new(&opened(url)?, key, options.protocol(protocol_named(protocol)?))?;
    // On a busy machine a lease may pass before its token is there.
    let (held, token) = loop {
        let held = lock.lock()?;
        if let Ok(token) = held.fencing_token() {
            break (held, token);
        }
    };
    println!("{token}");
    for line in io::stdin().lines() {
        println!("{token} {}", line?);
    }
    drop(held);
    Ok(())
}

fn a_storage_refuses_the_write_of_a_process_that_was_stopped() -> Outcome {
    for protocol in PROTOCOLS {
        let (server, mut storage) = (TestServer::start(), Storage::default());
        let name = format!("{protocol:?}").to_lowercase();
        let mut stopped = Holder::performing(&["fenced", &server.url(), "k", &name])?;
        let first: u64 = stopped.line()?.parse()?;
        stopped.say("before")?;
        let mut write = |line: &str| -> Result<bool, Box<dyn std::error::Error>> {
            let (token, text) = line.split_once(' ').ok_or("a token and a text")?;
            Ok(storage.write(token.parse()?, text))
        };
        assert!(write(&stopped.line()?)?);
        stopped.signal(Signal::STOP)?;
        let lock = Lock::new(&opened(&server.url())?, "k", expiring().protocol(protocol))?;
        let held = lock.lock()?;
        let second = held.fencing_token()?;
        assert!(second > first);
        assert!(write(&format!("{second} by the next holder"))?);
        stopped.signal(Signal::CONT)?;
        stopped.say("too late")?;
        assert!(!write(&stopped.line()?)?, "its token is smaller");
        assert!(stopped.ends_well()?);
        held.release()?;
        assert_eq!(storage.written, ["before", "by the next holder"]);
    }
    Ok(())
}

/// The time for which the server keeps a lock, and a counter. It
/// is passed in parts of two thirds, by the server's clock only.
const KEPT: Duration = LONG;

fn a_counter_that_is_forgotten_outlives_each_hold() -> Outcome {
    for protocol in PROTOCOLS {
        let server = TestServer::start();
        let locker = opened(&server.url())?;
        let unknown = patient(&server.url())?.skip_server_check().build()?;
        let options = LockOptions::expiring_after(KEPT).timeout(LONG).protocol(protocol);
        let forgetting = options.forget_tokens_after(KEPT);
        let (lock, plain) = (Lock::new(&locker, "k", forgetting)?, Lock::new(&unknown, "k", options)?);
        let waits = || server.advance(KEPT * 2 / 3);
        let held = lock.lock()?;
        assert_eq!(held.fencing_token()?, 1);
        for _ in 0..2 {
            waits();
            held.extend()?;
        }
        // It goes on where the option is not set, and the version is not known, and is handed over once more.
        waits();
        let held = plain.resume(&held.into_token()?.to_string().parse()?)?;
        assert_eq!(held.fencing_token()?, 1);
        waits();
        held.extend()?;
        waits();
        let token = held.into_token()?.to_string().parse()?;
        locker.release_token(&token)?;
        assert_eq!(lock.with(LockGuard::fencing_token)??, 2, "{protocol:?}");
        waits();
        waits();
        assert_eq!(lock.with(LockGuard::fencing_token)??, 1, "{protocol:?}: it was not used for longer");

        let held = lock.lock()?;
        held.extend_by(2 * KEPT)?;
        assert_eq!(held.fencing_token()?, 2);
        waits();
        waits();
        held.release()?;
        assert_eq!(lock.with(LockGuard::fencing_token)??, 3, "{protocol:?}");

        // Several at once, and an extension for longer than the counter is kept.
        let several = MultiLock::new(&locker, ["k", "l", "m"], forgetting)?;
        let held = several.lock()?;
        let tokens: Vec<u64> = held.fencing_tokens()?.into_iter().map(|(_, token)| token).collect();
        assert_eq!(tokens, [4, 1, 1]);
        waits();
        held.extend_by(2 * KEPT)?;
        waits();
        waits();
        drop(held);
        assert_eq!(lock.with(LockGuard::fencing_token)??, 5, "{protocol:?}");
    }
    Ok(())
}

fn a_lease_begins_only_if_its_counter_is_kept() -> Outcome {
    for protocol in PROTOCOLS {
        let server = TestServer::start();
        let locker = opened(&server.url())?;
        let options = LockOptions::expiring_after(KEPT).timeout(LONG).protocol(protocol);
        let lock = Lock::new(&locker, "k", options.forget_tokens_after(KEPT))?;
        let held = lock.lock()?;
        assert_eq!(held.fencing_token()?, 1);
        let value = server.get("k");
        server.run(&["ACL", "SETUSER", "default", "-expire"]);
        let error = held.extend().expect_err("the counter would be forgotten");
        assert!(error.to_string().contains("and EXPIRE on KEY:setnx-lock:fence:{KEY}"), "{error}");
        assert_eq!(server.get("k"), value);
        let token = held.into_token()?;
        let error = lock.resume(&token).expect_err("the counter would be forgotten");
        assert!(error.to_string().contains("and EXPIRE on KEY:setnx-lock:fence:{KEY}"), "{error}");
        assert_eq!(server.get("k"), value, "the token is not used up");
        server.run(&["ACL", "SETUSER", "default", "+expire"]);
        // What carries it out in a transaction.
        let carries_out = if protocol == Protocol::Classic { "EXPIRE" } else { "EXEC" };
        server.next(carries_out, Fault::CutAfter);
        let held = lock.resume(&token)?;
        server.next(carries_out, Fault::CutAfter);
        held.extend()?;
        assert_eq!(server.faults_left(), 0);
        held.release()?;
        // The reply to INCR alone does not say that the counter is forgotten.
        let held = lock.lock()?;
        server.next(carries_out, Fault::CutAfter);
        assert_eq!(held.fencing_token()?, 3, "{protocol:?}");
        // A counter that was deleted does not end a hold, but no other goes on with its number.
        server.delete("k:setnx-lock:fence:{k}");
        held.extend()?;
        let error = lock.resume(&held.into_token()?).expect_err("the next holder may get that number");
        assert!(error.is_lost() && error.to_string().contains("do not begin the work"), "{error}");
    }
    Ok(())
}

/// EXPIRE only sets a time, so that of a client which has not the lock could shorten a holder's, and numbers would
/// begin again while it holds.
fn a_refused_call_leaves_the_counter_as_it_is() -> Outcome {
    const COUNTER: &str = "k:setnx-lock:fence:{k}";
    for protocol in PROTOCOLS {
        let server = TestServer::start();
        let locker = opened(&server.url())?;
        let options = LockOptions::expiring_after(KEPT).timeout(LONG).protocol(protocol);
        let [short, long] =
            [KEPT, 9 * KEPT].map(|kept| Lock::new(&locker, "k", options.forget_tokens_after(kept)));
        let (short, long) = (short?, long?);
        let is_kept =
            || server.run(&["TTL", COUNTER]).parse().is_ok_and(|left: u64| left > 8 * KEPT.as_secs());

        let held = short.lock()?;
        held.fencing_token()?;
        let token = held.into_token()?;
        short.resume(&token)?.release()?;
        let next = long.lock()?;
        next.fencing_token()?;
        assert!(is_kept());
        assert!(short.resume(&token).is_err_and(|error| error.is_lost()));
        assert!(is_kept(), "{protocol:?}: it was delivered twice");
        next.release()?;

        // Both are cleared while they are held.
        let (counted, plain) = (short.lock()?, short_of_another(&server, options)?);
        counted.fencing_token()?;
        server.delete("k");
        let plain = plain.lock()?;
        server.delete("k");
        // Before, another client's value may be a loser's.
        thread::sleep(Duration::from_millis(750));
        let next = long.lock()?;
        next.fencing_token()?;
        assert!(counted.extend().is_err_and(|error| error.is_lost()));
        assert!(is_kept(), "{protocol:?}: it was extended");
        assert!(plain.fencing_token().is_err_and(|error| error.is_lost()));
        assert!(is_kept(), "{protocol:?}: it was counted");
        next.release()?;
    }
    Ok(())
}

fn short_of_another(server: &TestServer, options: LockOptions) -> Result<Lock, setnx_lock::Error> {
    Lock::new(&opened(&server.url())?, "k", options.forget_tokens_after(KEPT))
}

//! How long calls retry while the server is unreachable or loses their replies: `LockerBuilder::retry_for`.

use std::fmt::Debug;
use std::io;
use std::time::{Duration, Instant};

use setnx_lock::{Error, Lock, Locker, TransportError};

use crate::support::scenario::closed_port;
use crate::support::{LONG, Outcome, chain, expiring, trials_of};

trials_of! {
    "unreachable";
    zero_fails_at_the_first_refused_connection,
    a_call_retries_for_its_timeout_or_for_retry_for_if_that_is_shorter,
}

const SHORT: Duration = Duration::from_millis(300);

/// A locker for a port without a server.
fn without_a_server(retry_for: Duration) -> Result<Locker, Box<dyn std::error::Error>> {
    let port = closed_port()?;
    let builder = Locker::builder(&format!("redis://127.0.0.1:{port}/"))?;
    // So that an attempt to connect ends on a busy machine, too, before the call does.
    Ok(builder.command_timeout(LONG).retry_for(retry_for).build()?)
}

#[track_caller]
fn assert_refused(error: &Error) {
    let Error::Unavailable { cause, .. } = error else { panic!("{error:?}") };
    assert_connection_refused(cause);
    let text = chain(error);
    assert!(text.starts_with("lock unreachable: no connection to 127.0.0.1:"), "{text}");
    assert!(text.contains("check that the server is up") && text.contains(": 127.0.0.1:"), "{text}");
}

#[track_caller]
fn assert_connection_refused(failed: &TransportError) {
    assert_eq!(failed.kind(), io::ErrorKind::ConnectionRefused, "{failed}");
    assert!(failed.to_string().contains("Connection refused"), "{failed}");
}

/// Asserts that a call fails with a refused connection, not before `least`, and before [`LONG`].
#[track_caller]
fn assert_fails_after<T: Debug>(least: Duration, call: impl FnOnce() -> Result<T, Error>) {
    let began = Instant::now();
    assert_refused(&call().expect_err("no server listens there"));
    let took = began.elapsed();
    assert!((least..LONG).contains(&took), "after {took:?}");
}

fn zero_fails_at_the_first_refused_connection() -> Outcome {
    let locker = without_a_server(Duration::ZERO)?;
    for timeout in [Some(LONG), Some(Duration::ZERO), None] {
        let options = timeout.map_or(expiring().wait_forever(), |timeout| expiring().timeout(timeout));
        let lock = Lock::new(&locker, "unreachable", options)?;
        assert_fails_after(Duration::ZERO, || lock.lock());
        assert_fails_after(Duration::ZERO, || lock.with(|_| ()));
        assert_refused(&lock.try_lock().expect_err("no server listens there"));
        assert_refused(&lock.state().expect_err("no server listens there"));
        assert_refused(&lock.clear().expect_err("no server listens there"));
    }
    Ok(())
}

fn a_call_retries_for_its_timeout_or_for_retry_for_if_that_is_shorter() -> Outcome {
    let locker = without_a_server(SHORT)?;
    for options in [expiring().timeout(LONG), expiring().wait_forever()] {
        let lock = Lock::new(&locker, "unreachable", options)?;
        // The second call retries for as long as the first.
        for _ in 0..2 {
            assert_fails_after(SHORT, || lock.lock());
        }
    }
    let lock = Lock::new(&without_a_server(2 * LONG)?, "unreachable", expiring().timeout(SHORT))?;
    assert_fails_after(SHORT, || lock.lock());
    assert_fails_after(SHORT, || lock.try_lock_for(SHORT));
    assert_fails_after(Duration::ZERO, || lock.try_lock());
    Ok(())
}

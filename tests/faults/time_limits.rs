//! How long a call takes: that the table in `docs/limits.md` has these
//! rows, and those that the simulation's scene `limits` has not.

use std::time::Duration;
use std::{fs, mem, thread};

use setnx_lock::{Error, Lock, LockOptions, Locker, MultiLock, Protocol};
use setnx_lock_testing::TestServer;

use crate::support::{LONG, Outcome, trials_of};

const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);
/// How late each reply is.
const LATE: Duration = Duration::from_millis(90);
const RETRY_FOR: Duration = Duration::from_millis(400);

const ONE: &str = "`try_lock()`, `resume()`, `release()`, `extend()`, `verify()`, `fencing_token()`, `into_token()`, `state()`, `holder()`, `clear()`";

/// The rows: the calls, and within which time each returns.
const ROWS: [(&str, &str); 12] = [
    (
        "`lock()`, `try_lock_for()`, acquiring in `with()`, `acquire()` of a permit",
        "the timeout plus one command timeout",
    ),
    (
        "the same with `wait_forever()`",
        "no limit; keeps waiting while all connections are in use, or the server [refuses for now][operations.md#a-server-that-refuses-for-now]",
    ),
    (
        "either, while the server is unreachable or a replica",
        "`retry_for`, or the timeout if shorter, plus one connect timeout",
    ),
    (ONE, "one command timeout"),
    ("`release_token()`", "two command timeouts"),
    ("acquiring several keys", "as for one key, plus up to four command timeouts"),
    (
        "calls on the guard of several keys",
        "as for one key; in a cluster, plus one command timeout: a node may hang, or have fewer connections than slots",
    ),
    ("dropping a guard", "as `release()`"),
    (
        "`release_later()`, dropping with `release_later_on_drop()`",
        "at once; after `shut_down()` or `drain()`, as `release()` of one key after the other",
    ),
    ("`shut_down()`, dropping the last clone of a locker", "one command timeout"),
    ("`drain()`", "its limit plus one command timeout"),
    ("`ensure_held()`, `remaining()`, `is_lost()`", "at once"),
];

trials_of! {
    "time_limits";
    the_table_has_these_rows,
    waiting_for_ever_has_no_limit,
    a_replica_is_asked_for_retry_for_and_a_connect_timeout,
    what_is_known_is_said_at_once,
}

fn the_table_has_these_rows() -> Outcome {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/limits.md"))?;
    let (_, table) = page.split_once("| call | returns within |\n|---|---|\n").expect("the table");
    let rows = table.lines().map_while(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    assert_eq!(rows.collect::<Vec<_>>(), ROWS);
    Ok(())
}

fn locker(server: &TestServer) -> Result<Locker, Error> {
    let builder = Locker::builder(&server.url())?.connect_timeout(LONG).command_timeout(COMMAND_TIMEOUT);
    builder.retry_for(RETRY_FOR).pool_size(2).build()
}

fn waiting_for_ever_has_no_limit() -> Outcome {
    let server = TestServer::start();
    let options = LockOptions::expiring_after(LONG).protocol(Protocol::Auto).wait_forever();
    let lock = Lock::new(&locker(&server)?, "k", options)?;
    server.fill_up();
    let waiting = thread::spawn(move || lock.lock().map(mem::forget).is_ok());
    thread::sleep(2 * (2 * COMMAND_TIMEOUT + RETRY_FOR));
    assert!(!waiting.is_finished());
    server.free_memory();
    assert!(waiting.join().expect("it does not panic"));
    Ok(())
}

fn a_replica_is_asked_for_retry_for_and_a_connect_timeout() -> Outcome {
    let server = TestServer::start();
    server.become_replica();
    server.delay(LATE);
    let connect_timeout = 2 * LATE;
    for options in
        [LockOptions::expiring_after(LONG).timeout(LONG), LockOptions::expiring_after(LONG).wait_forever()]
    {
        let builder = Locker::builder(&server.url())?.connect_timeout(connect_timeout).retry_for(RETRY_FOR);
        let lock = Lock::new(&builder.command_timeout(LONG).build()?, "k", options)?;
        server.clear_log();
        let error = lock.lock().expect_err("it is a replica");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        let looks = server.whole_log().iter().filter(|asked| asked.name == "INFO").count();
        let fit = 1 + usize::try_from((RETRY_FOR + connect_timeout).as_millis() / LATE.as_millis())?;
        assert!((2..=fit).contains(&looks), "{looks} looks, and {fit} fit");
    }
    Ok(())
}

fn what_is_known_is_said_at_once() -> Outcome {
    let server = TestServer::start();
    let locker = locker(&server)?;
    let options = LockOptions::expiring_after(LONG).protocol(Protocol::Auto);
    let held = Lock::new(&locker, "held", options)?.lock()?;
    let several = MultiLock::new(&locker, ["a", "b", "c"], options)?.lock()?;
    let signal = held.loss_signal();
    server.clear_log();
    server.hang();
    held.ensure_held()?;
    several.ensure_held()?;
    assert!(held.remaining().is_some() && several.remaining().is_some() && !signal.is_lost());
    assert_eq!(server.names(), Vec::<String>::new());
    server.resume();
    Ok(())
}

//! Refusals that the redis crate reports in a form of its own: the connection of a shared pool stays usable, and the reason is reported.

use std::time::Instant;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, Locker, Manager, RefusalKind};

use crate::support::scenario::patient;
use crate::support::{LONG, Outcome, RedisServer, expiring, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "shared_pools",
        tests![
            a_transaction_that_is_refused_leaves_the_connection_usable,
            a_database_that_does_not_exist_is_named_at_once_with_each_protocol,
        ],
    )
}

fn a_transaction_that_is_refused_leaves_the_connection_usable() -> Outcome {
    let server = RedisServer::start()?;
    let manager = Manager::new(redis::Client::open(server.url())?).command_timeout(LONG);
    let pool = r2d2::Pool::builder().max_size(1).test_on_check_out(false).build(manager.clone())?;
    let mut connection = pool.get()?;
    let refused = redis::pipe().atomic().cmd("SET").arg("k").query::<()>(&mut *connection);
    let error = refused.expect_err("SET needs a value");
    assert!(matches!(error.kind(), redis::ErrorKind::Server(_)), "{error:?}");
    let pong: String = redis::cmd("PING").query(&mut *connection)?;
    assert_eq!(pong, "PONG");
    drop(connection);
    let locker = Locker::with_managed_pool(pool, &manager);
    assert!(Lock::new(&locker, "shared", expiring())?.try_lock()?.is_some());
    Ok(())
}

fn a_database_that_does_not_exist_is_named_at_once_with_each_protocol() -> Outcome {
    let server = RedisServer::start()?;
    for protocol in ["resp2", "resp3"] {
        let url = format!("{}99?protocol={protocol}", server.url());
        let locker = patient(&url)?.unreachable_timeout(LONG).build()?;
        let began = Instant::now();
        let error =
            Lock::new(&locker, "database", expiring().timeout(LONG))?.lock().expect_err("no such database");
        let Error::Refused { refusal, .. } = &error else { panic!("{protocol}: {error:?}") };
        assert_eq!(refusal.kind(), RefusalKind::NoSuchDatabase, "{protocol}");
        assert!(began.elapsed() < LONG * 2 / 3, "{protocol}: waiting does not help");
    }
    Ok(())
}

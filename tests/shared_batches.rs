//! The load that tests run under: under load their commands share batches with those of the load threads, unpipelined they do not.

use std::sync::Arc;

use libtest_mimic::Trial;
use setnx_lock::Lock;

use crate::servers::{Emulated, Position, Proxy};
use crate::support::load_threads::{LoadThreads, Tolerance};
use crate::support::notified::{connection, until};
use crate::support::scenario::patient;
use crate::support::{Load, Outcome, RedisServer, Target, Variant, expiring, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "shared_batches",
        tests![
            under_load_batches_are_shared_on_every_version,
            under_load_batches_are_shared_on_a_server_without_a_proxy,
            unpipelined_batches_have_one_command,
        ],
    )
}

/// The test that the tests which are excluded from some loads exist.
pub(crate) fn exclusions_name_tests(unknown: Vec<&'static str>) -> Trial {
    Trial::test("shared_batches::exclusions_name_tests", move || {
        assert!(unknown.is_empty(), "tests/support/load.rs excludes tests that do not exist: {unknown:?}");
        Ok(())
    })
}

/// How often something must be seen to count as usual.
const OFTEN: usize = 20;

/// Acquires a lock again and again, until `it_is_so` returns true for the positions of its commands in their batches.
fn lock_until(lock: &Lock, proxy: &Proxy, what: &str, it_is_so: impl Fn(&[Position]) -> bool) {
    let key = lock.key().to_string();
    until(what, || {
        drop(lock.lock().unwrap());
        let ours = proxy.asked().into_iter().filter(|asked| asked.arguments.first() == Some(&key));
        it_is_so(&ours.map(|asked| asked.position).collect::<Vec<_>>())
    });
}

fn under_load_batches_are_shared_on_every_version() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let versions = Emulated::ALL.map(|version| Proxy::emulating(version, server.address()));
    for proxy in versions.into_iter().chain([Proxy::before(server.address())]) {
        let proxy = proxy?;
        let (locker, _load_threads) = Load::Contended.open(patient(&proxy.url())?, Tolerance::Strict)?;
        let lock = Lock::new(&locker, "batches", expiring())?;
        lock_until(&lock, &proxy, "commands at the head of a batch, and behind it", |positions| {
            let first = positions.iter().filter(|position| position.place == 1 && position.of > 1).count();
            let later = positions.iter().filter(|position| position.place > 1).count();
            first >= OFTEN && later >= OFTEN
        });
    }
    Ok(())
}

fn under_load_batches_are_shared_on_a_server_without_a_proxy() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let mut connection = connection(&server);
    // A server that reads less often than it executes commands has found several in one read.
    let mut read_together = || {
        let stats: String = redis::cmd("INFO").arg("stats").query(&mut connection).unwrap();
        let number = |name: &str| -> usize {
            let value = stats.lines().find_map(|line| line.strip_prefix(name)).expect("a current server");
            value.parse().unwrap()
        };
        number("total_commands_processed:").saturating_sub(number("total_reads_processed:"))
    };
    let variant = Variant { load: Load::Contended, ..Variant::default() };
    Target::of(&server).in_the(variant).under_load(|target| {
        let lock = target.lock(&target.key("batches"), expiring());
        until("fewer reads than commands", || {
            drop(lock.lock().unwrap());
            read_together() >= 5 * OFTEN
        });
        Ok(())
    })
}

fn unpipelined_batches_have_one_command() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let (locker, _) = Load::Unpipelined.open(patient(&proxy.url())?.pool_size(1), Tolerance::Strict)?;
    let _load_threads = LoadThreads::around(&locker, Tolerance::Strict);
    let lock = Lock::new(&locker, "batches", expiring())?;
    lock_until(&lock, &proxy, "many commands", |positions| {
        assert!(positions.iter().all(|position| position.of == 1), "{positions:?}");
        positions.len() >= 5 * OFTEN
    });
    Ok(())
}

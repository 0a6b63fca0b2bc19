//! The company that tests are in: in a crowd what they send does go together with what others send, and apart it does not.

use std::sync::Arc;

use libtest_mimic::Trial;
use setnx_lock::{Lock, Locker};

use crate::servers::{Proxy, Played, Position};
use crate::support::load_threads::{LoadThreads, Temper};
use crate::support::notified::{connection, until};
use crate::support::{Load, Target, Outcome, RedisServer, Variant, expiring, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "in_company",
        tests![
            in_a_crowd_trips_are_shared_on_every_version,
            in_a_crowd_trips_are_shared_on_a_server_without_a_gate,
            apart_nobody_shares_whoever_is_there,
        ],
    )
}

/// How often something has to be seen to be no exception.
const OFTEN: usize = 20;

/// Takes a lock again and again, until it is so of the seats that its commands had.
fn lock_until(lock: &Lock, proxy: &Proxy, what: &str, it_is_so: impl Fn(&[Position]) -> bool) {
    let key = lock.key().to_string();
    until(what, || {
        drop(lock.lock().unwrap());
        let ours = proxy.asked().into_iter().filter(|asked| asked.arguments.first() == Some(&key));
        it_is_so(&ours.map(|asked| asked.position).collect::<Vec<_>>())
    });
}

fn in_a_crowd_trips_are_shared_on_every_version() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let versions = Played::ALL.map(|version| Proxy::playing(version, server.address()));
    for proxy in versions.into_iter().chain([Proxy::before(server.address())]) {
        let proxy = proxy?;
        let (locker, _companions) = Load::Contended.open(Locker::builder(&proxy.url())?, Temper::Strict)?;
        let lock = Lock::new(&locker, "in_company", expiring())?;
        lock_until(&lock, &proxy, "commands that lead others, and that are taken along", |seats| {
            let leading = seats.iter().filter(|seat| seat.place == 1 && seat.of > 1).count();
            let taken_along = seats.iter().filter(|seat| seat.place > 1).count();
            leading >= OFTEN && taken_along >= OFTEN
        });
    }
    Ok(())
}

fn in_a_crowd_trips_are_shared_on_a_server_without_a_gate() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let mut connection = connection(&server);
    // Who reads less often than there are commands finds several at once.
    let mut found_together = || {
        let stats: String = redis::cmd("INFO").arg("stats").query(&mut connection).unwrap();
        let number = |name: &str| -> usize {
            let value = stats.lines().find_map(|line| line.strip_prefix(name)).expect("a current server");
            value.parse().unwrap()
        };
        number("total_commands_processed:").saturating_sub(number("total_reads_processed:"))
    };
    let variant = Variant { load: Load::Contended, ..Variant::default() };
    Target::of(&server).in_the(variant).under_load(|target| {
        let lock = target.lock(&target.key("in_company"), expiring());
        until("fewer reads than commands", || {
            drop(lock.lock().unwrap());
            found_together() >= 5 * OFTEN
        });
        Ok(())
    })
}

fn apart_nobody_shares_whoever_is_there() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let (locker, _) = Load::Apart.open(Locker::builder(&proxy.url())?.pool_size(1), Temper::Strict)?;
    let _companions = LoadThreads::around(&locker, Temper::Strict);
    let lock = Lock::new(&locker, "in_company", expiring())?;
    lock_until(&lock, &proxy, "many commands", |seats| {
        assert!(seats.iter().all(|seat| seat.of == 1), "{seats:?}");
        seats.len() >= 5 * OFTEN
    });
    Ok(())
}

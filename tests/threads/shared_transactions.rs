//! Threads that release share two trips: WATCH and GET of each key, then all deletions and one EXEC. What comes of each
//! is tested where trips are built, in `src/net`.

use std::thread;

use libtest_mimic::Trial;
use setnx_lock::{Lock, LockGuard, Protocol};
use setnx_lock_testing::Received;

use crate::support::releases::{self, CERTIFIED};
use crate::support::scenario::Scenario;
use crate::support::{Connections, LONG, Outcome, TestKey, expiring, millis, release, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials_on_both("shared_transactions", tests![threads_that_release_share_two_trips])
}

const THREADS: usize = 5;

fn count(batch: &[Received], name: &str) -> usize {
    batch.iter().filter(|asked| asked.name == name).count()
}

fn names(batch: &[Received]) -> Vec<&str> {
    batch.iter().map(|asked| asked.name.as_str()).collect()
}

/// They are queued behind another thread's command.
fn threads_that_release_share_two_trips(connections: Connections) -> Outcome {
    loop {
        let scenario = Scenario::set();
        let locker = connections.to(&scenario.server.url(), 1).command_timeout(LONG).retry_for(LONG);
        let locker = scenario.open(locker.observer(releases::record));
        let lock =
            |key: &TestKey| Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched)).unwrap();
        let keys: Vec<TestKey> = (0..THREADS).map(|n| scenario.target.key(&format!("own:{n}"))).collect();
        let held: Vec<LockGuard> = keys.iter().map(|key| lock(key).lock()).collect::<Result<_, _>>()?;
        let other = scenario.target.key("other");
        let other = lock(&other);
        scenario.server.clear_log();
        let looking = scenario.server.pause("GET", 1);
        thread::scope(|scope| {
            let first = scope.spawn(|| other.state());
            looking.reached();
            let threads: Vec<_> = held.into_iter().map(|held| scope.spawn(move || release(held))).collect();
            // For the threads to queue. One that does not in this time makes another round.
            thread::sleep(millis(100));
            looking.go_on();
            assert!(first.join().unwrap().is_ok());
            for thread in threads {
                assert_eq!(thread.join().unwrap().unwrap(), CERTIFIED);
            }
        });
        let batches = scenario.server.batches();
        if let Some(watching) = batches.iter().position(|batch| count(batch, "WATCH") == THREADS) {
            assert_eq!(names(&batches[watching]), [["WATCH", "GET"].repeat(THREADS), vec!["MULTI"]].concat());
            assert_eq!(names(&batches[watching + 1]), [["DEL"].repeat(THREADS), vec!["EXEC"]].concat());
            return Ok(());
        }
    }
}

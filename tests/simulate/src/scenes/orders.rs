//! Several keys that calls want in different company: none waits for another that waits for it, and none leaves a key.

use setnx_lock::{Error, LockOptions, MultiLock, Protocol};
use world::network::{self, Faults, ServerId};
use world::run::{self, chance};
use world::thread;

use super::{SECOND, a_server, limits, locker, millis, start, sure};
use crate::calls::{Holding, one_of, timed};
use crate::laws::broken;

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

pub(super) fn calls_want_keys_in_different_company() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    let latency = (30, one_of(&[90, 3000]));
    let server = a_server(latency, protocol);
    let loses_replies = chance(2);
    if loses_replies {
        network::set_faults(Faults { latency, lost_replies: 40, ..Faults::NONE });
    }
    // What is left where nothing goes wrong is still there in the end.
    let expiration = if loses_replies { millis(1000, 3000) } else { 200 * SECOND };
    let options = LockOptions::expiring_after(expiration).protocol(protocol).timeout(60 * SECOND);
    for number in 0..3 {
        start(&format!("process {number}"), move || {
            let locker = locker(server);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let locker = locker.clone();
                    thread::spawn(move || {
                        while run::now() < 20 * SECOND {
                            let first = one_of(&[0, 1, 2, 3]);
                            let keys = KEYS.iter().cycle().skip(first).take(one_of(&[2, 3, 4])).copied();
                            hold(&sure(MultiLock::new(&locker, keys, options)));
                            thread::sleep(millis(0, 100));
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap_or_else(|_| broken("a thread panics"));
            }
        });
    }
    thread::sleep(100 * SECOND);
    if !loses_replies {
        for key in KEYS {
            is_free(server, key);
        }
    }
}

fn hold(locks: &MultiLock) {
    let guard = if chance(4) {
        timed("try_lock of several", limits().waiting_for_several(SECOND), || locks.try_lock())
    } else {
        timed("lock of several", 61 * SECOND, || locks.lock()).map(Some)
    };
    match guard {
        Ok(Some(guard)) => {
            let holding = Holding::begin(guard.guards(), None, limits());
            holding.work(millis(0, 150));
            holding.end().by(|| guard.release());
        }
        Err(Error::Contended { details, .. }) => broken(&format!("calls wait for each other: {details:?}")),
        // A reply was lost.
        Ok(None) | Err(_) => {}
    }
}

fn is_free(server: ServerId, key: &str) {
    let found = server.look(&["EXISTS", key]);
    if found != "0" {
        broken(&format!("{key} is left: {}", server.look(&["GET", key])));
    }
}

//! Worlds in which a server becomes another while programs wait for it: an older version, a replica that was promoted.

use setnx_lock::{Lock, LockOptions, Protocol};
use setnx_lock_testing::ServerVersion;
use world::network;
use world::process::{Clocks, Process};
use world::run::{self, chance};
use world::thread;

use super::servers::{several, start_worker};
use super::{SECOND, a_server, limits, millis, sure};
use crate::calls::{Holding, one_of, refused, timed};
use crate::laws::{self, Losers, Rules, Tokens};
use crate::servers::{Failover, Servers, Topology};

/// A server comes back as an older version and as a newer one. Calls
/// in `Auto` that wait, and releases, go on with what it has now.
pub(super) fn a_server_becomes_older() {
    let server = a_server((30, 90), Protocol::Auto);
    for name in ["one", "other", "third"] {
        start_worker(name, server, 6 * SECOND, "a wait ends since the server is older");
    }
    while run::now() < 50 * SECOND {
        thread::sleep(millis(500, 4000));
        server.kill();
        network::trouble_for(SECOND);
        thread::sleep(millis(1, 300));
        server.restart_as(one_of(&[
            ServerVersion::V2_4,
            ServerVersion::V2_6,
            ServerVersion::V7,
            ServerVersion::V8_4,
        ]));
    }
    thread::sleep(120 * SECOND);
}

/// A failover loses locks that their holders still rely on: nothing is granted until these have expired.
pub(super) fn a_new_master_settles() {
    let servers = several(Topology::Sentinels, Tokens::Differ);
    let rules = Rules {
        is_exclusive: true,
        losers: Losers::None,
        tokens: Tokens::Differ,
        keeps_keys: false,
        free_at_most: None,
    };
    laws::set_rules(&servers, rules);
    let protocol = one_of(&[Protocol::Watched, Protocol::Ttl]);
    for _ in 0..6 {
        let copy: Servers = servers.clone();
        Process::start("process", Clocks::default(), move || {
            let builder = sure(copy.builder()).command_timeout(SECOND).settle_after_failover(10 * SECOND);
            let locker = sure(builder.build());
            let options = LockOptions::expiring_after(10 * SECOND).protocol(protocol).timeout(8 * SECOND);
            while run::now() < 100 * SECOND {
                let key = one_of(&["a", "b"]);
                let lock = sure(Lock::new(&locker, key, options));
                let began = run::now();
                match timed("lock", limits().waiting(8 * SECOND), || lock.lock()) {
                    Ok(guard) => {
                        let holding = Holding::begin([&guard], None, limits());
                        thread::sleep(millis(10, if chance(3) { 9900 } else { 300 }));
                        holding.end().by(|| guard.release());
                    }
                    Err(error) => refused(key, began, &error),
                }
            }
        });
    }
    while run::now() < 90 * SECOND {
        thread::sleep(millis(3000, 8000));
        servers.fail_over(Failover { is_planned: chance(2), lost: millis(300, 1000) });
        thread::sleep(14 * SECOND);
    }
    thread::sleep(120 * SECOND);
}

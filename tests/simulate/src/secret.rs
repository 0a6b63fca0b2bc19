//! The password of the servers, which changes, and what programs know of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use world::network::{self, ServerId};
use world::run;

use crate::calls::up_to;
use crate::servers::Servers;

/// The number of the password that programs read, as from a file.
static KNOWN: AtomicU64 = AtomicU64::new(0);
/// The number of the last one, and of the last that all know.
static LAST: AtomicU64 = AtomicU64::new(0);
static SETTLED: AtomicU64 = AtomicU64::new(0);

fn password(number: u64) -> String {
    format!("secret-{number}")
}

/// Returns the password that a program reads now.
pub(crate) fn current() -> String {
    password(KNOWN.load(Ordering::Relaxed))
}

/// Servers want the first one.
pub(crate) fn begin(servers: &Servers) {
    servers.with_password().into_iter().for_each(|server| require(server, 0));
}

fn require(server: ServerId, number: u64) {
    server.configure(&format!("requirepass {}", password(number)));
}

/// The next one comes: each server, and those who read it, know it a little earlier or later than others. All know it
/// before there is another.
pub(crate) fn rotate(servers: &Servers) {
    if LAST.load(Ordering::Relaxed) > SETTLED.load(Ordering::Relaxed) {
        return;
    }
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let apart = Duration::from_secs(3);
    network::trouble_for(apart);
    run::after(apart, move || SETTLED.store(number, Ordering::Relaxed));
    run::after(up_to(apart), move || KNOWN.store(number, Ordering::Relaxed));
    for server in servers.with_password() {
        run::after(up_to(apart), move || require(server, number));
    }
}

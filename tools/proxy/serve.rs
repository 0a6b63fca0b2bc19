//! The proxy's work until it is to end. A signal ends it like the end of the input, so that the server behind it ends as well: a
//! process that is killed by a signal drops nothing.

use std::error::Error;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::RedisServer;
use testkit::servers::{Emulated, Proxy};

/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Starts a proxy that emulates `version` before the server at `given`, or before a private one, and prints its address. Returns when the
/// standard input has ended, or a signal asks this process to end.
pub(crate) fn serve(
    version: Emulated,
    given: Option<SocketAddr>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    // Before the server is started: none is left behind if the signal comes in between.
    let over = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&over))?;
    }
    let private = if given.is_none() { Some(RedisServer::start()?) } else { None };
    let real = given.or(private.as_ref().map(RedisServer::address)).expect("given or started");
    let proxy = Proxy::emulating(version, real)?;
    println!("Redis {} is emulated at {} until Ctrl-D", version.number(), proxy.url());
    let ended = thread::spawn(|| io::stdin().lock().read_to_end(&mut Vec::new()));
    while !ended.is_finished() && !over.load(Ordering::Relaxed) {
        // The record is for tests; here it would only grow.
        proxy.forget();
        thread::sleep(LOOK);
    }
    Ok(())
}

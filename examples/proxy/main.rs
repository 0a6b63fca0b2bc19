//! An old Redis to try a program on: a current server behind a proxy that makes it behave like an old version.
//!
//! `make proxy VERSION=2.4`, or `cargo run --example proxy -- --help`.

#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
#[path = "../../tests/support/redis_server.rs"]
mod redis_server;
#[allow(dead_code, unused_imports, reason = "shared with the tests")]
#[path = "../../compat/servers/mod.rs"]
mod servers;
#[path = "../shared/version.rs"]
mod version;

use std::error::Error;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use clap::Parser;

use redis_server::RedisServer;
use servers::{Played, Proxy};

/// Makes a current Redis server behave like an old one, on a port of its own on this machine, until the standard input ends.
/// compat/servers/README.md says what is played, and what is not.
#[derive(Debug, Parser)]
#[command(name = "proxy")]
struct Options {
    /// The version to play, such as 2.4
    #[arg(value_name = "VERSION", default_value = "2.4", value_parser = version::played)]
    version: Played,
    /// The current server behind the proxy; a private one is started unless given
    #[arg(long, value_name = "ADDRESS:PORT")]
    server: Option<SocketAddr>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let private = if options.server.is_none() { Some(RedisServer::start()?) } else { None };
    let real = options.server.or(private.as_ref().map(RedisServer::address)).expect("given or started");
    let proxy = Proxy::playing(options.version, real)?;
    println!("Redis {} is played at {} until Ctrl-D", options.version.number(), proxy.url());
    let ended = thread::spawn(|| io::stdin().lock().read_to_end(&mut Vec::new()));
    while !ended.is_finished() {
        // The record is for tests; here it would only grow.
        proxy.forget();
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

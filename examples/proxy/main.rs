//! An old Redis to try a program on: a current server, and before it the gate that makes it look like an old one.
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

/// Makes a current Redis look like an old one, on a port of its own on this machine, until the standard input ends. What is
/// played, and what is not, is in compat/servers/README.md.
#[derive(Debug, Parser)]
#[command(name = "proxy")]
struct Options {
    /// Which version to play, such as 2.4
    #[arg(value_name = "VERSION", default_value = "2.4", value_parser = version::played)]
    version: Played,
    /// A current server to stand before; a private one is started unless given
    #[arg(long, value_name = "ADDRESS:PORT")]
    before: Option<SocketAddr>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let private = if options.before.is_none() { Some(RedisServer::start()?) } else { None };
    let real = options.before.or(private.as_ref().map(RedisServer::address)).expect("one of both");
    let proxy = Proxy::playing(options.version, real)?;
    println!("Redis {} is played at {}; Ctrl-D ends it", options.version.number(), proxy.url());
    let over = thread::spawn(|| io::stdin().lock().read_to_end(&mut Vec::new()));
    while !over.is_finished() {
        // Nobody reads what was asked.
        proxy.forget();
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

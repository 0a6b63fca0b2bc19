//! An old Redis to try a program on: a current server behind a proxy that makes it behave like an old version.
//!
//! `make proxy VERSION=2.4`, or `cargo run -p setnx-lock-proxy -- --help`.

#[path = "../shared/version.rs"]
mod version;

mod serve;

use std::error::Error;
use std::net::SocketAddr;

use clap::Parser;

use testkit::RedisServer;
use testkit::servers::Emulated;

/// Makes a current Redis server behave like an old one, on a port of its own on this machine, until the standard input ends, or a
/// signal comes (TERM, INT, HUP). compat/testkit/README.md says what is emulated, and what is not.
#[derive(Debug, Parser)]
#[command(name = "proxy")]
struct Options {
    /// The version to emulate, such as 2.4
    #[arg(value_name = "VERSION", default_value = "2.4", value_parser = version::emulated)]
    version: Emulated,
    /// The current server behind the proxy; a private one is started unless given
    #[arg(long, value_name = "ADDRESS:PORT")]
    server: Option<SocketAddr>,
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let options = Options::parse();
    serve::serve(options.version, options.server)
}

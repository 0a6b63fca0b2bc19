//! Tells what a server can do for locks, and what may go wrong there.
//!
//! `make server URL=redis://127.0.0.1/`, or `cargo run --example server -- URL`.

use std::process::ExitCode;

use clap::Parser;
use setnx_lock::{Locker, Protocol};

/// Tells what a Redis server can do for locks, and what may go wrong there. Fails if it is none to lock on.
#[derive(Debug, Parser)]
#[command(name = "server")]
struct Options {
    /// The server's address
    #[arg(value_name = "URL", default_value = "redis://127.0.0.1/")]
    url: String,
}

fn main() -> ExitCode {
    let options = Options::parse();
    // A replica is to be told of as well, not refused.
    let told =
        Locker::builder(&options.url).and_then(|settings| settings.skip_server_check().build()?.inspect());
    match told {
        Ok(server) => {
            println!("{server}");
            let usable = server.unsupported_reason(Protocol::Classic).is_none();
            if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

//! Prints what a Redis server supports of what locks need, and warns of what may go wrong there.
//!
//! `make inspect URL=redis://127.0.0.1/`, or `cargo run -p setnx-lock-inspect -- URL`.

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use setnx_lock::{Locker, Protocol, ServerReport};

/// Prints which lock protocols a Redis server supports, and warns of what may go wrong there. Fails if it supports none.
#[derive(Debug, Parser)]
#[command(name = "inspect")]
struct Options {
    /// The server's address
    #[arg(value_name = "URL", default_value = "redis://127.0.0.1/")]
    url: String,
}

fn main() -> ExitCode {
    match inspect(&Options::parse().url) {
        Ok(report) => {
            println!("{report}");
            let protocols = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];
            let usable = protocols.into_iter().any(|protocol| report.unsupported_reason(protocol).is_none());
            if usable { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("inspect: {}", with_sources(&error));
            ExitCode::FAILURE
        }
    }
}

fn inspect(url: &str) -> Result<ServerReport, setnx_lock::Error> {
    // Without the check of new connections, which refuses replicas: they are reported as well.
    Locker::builder(url)?.skip_server_check().build()?.inspect()
}

/// The error and its causes, on one line.
fn with_sources(error: &dyn Error) -> String {
    let source = error.source().map(|source| format!(": {}", with_sources(source)));
    format!("{error}{}", source.unwrap_or_default())
}

//! A server of an old version on a port, for programs to try: `test-server 2.4 --port 6380`.

use std::process::ExitCode;
use std::{env, thread};

use setnx_lock_testing::{ServerVersion, TestServer};

const USAGE: &str = "usage: test-server [VERSION] [--port PORT] [--password PASSWORD]

Runs a Redis server that behaves like an old version, on 127.0.0.1, until it is stopped (Ctrl-C).
It keeps its keys in memory. README.md says which commands it has.";

fn main() -> ExitCode {
    match run(env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("test-server: {problem}\n\n{USAGE}");
            ExitCode::from(64)
        }
    }
}

fn run(mut arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let mut builder = TestServer::builder();
    let mut version = "2.4".to_owned();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(());
            }
            "--port" => {
                builder = builder.port(value()?.parse().map_err(|_| "the port is a number up to 65535")?);
            }
            "--password" => builder = builder.password(&value()?),
            option if option.starts_with('-') => return Err(format!("there is no option {option}")),
            _ => version = argument,
        }
    }
    let names = ServerVersion::ALL.map(ServerVersion::name).join(", ");
    let version = ServerVersion::named(&version).ok_or(format!("no version {version}; there are {names}"))?;
    let server = builder.version(version.name()).try_start().map_err(|error| error.to_string())?;
    // Nobody reads the log.
    server.overlook("");
    println!("Redis {} at {}", version.number(), server.url());
    loop {
        thread::park();
    }
}

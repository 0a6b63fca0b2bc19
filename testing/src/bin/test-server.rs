//! A server of an old version on a port, for programs to try: `test-server 2.4 --port 6380`.

use std::process::ExitCode;
use std::{env, thread};

use setnx_lock_testing::{ServerVersion, TestServer};

const DEFAULT: &str = "2.4";

fn usage() -> String {
    let names = ServerVersion::ALL.map(ServerVersion::name).join(", ");
    format!(
        "usage: test-server [VERSION] [--port PORT] [--password PASSWORD]

Runs a Redis server that behaves like this version, on 127.0.0.1, until it is stopped (Ctrl-C).
It keeps its keys in memory. Versions: {names}; {DEFAULT} unless given.
The port is a free one unless given."
    )
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.iter().any(|argument| ["--help", "-h"].contains(&argument.as_str())) {
        println!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let server = match parsed(arguments.into_iter()) {
        Ok(builder) => builder.try_start(),
        Err(problem) => {
            eprintln!("test-server: {problem}\n\n{}", usage());
            return ExitCode::from(64);
        }
    };
    match server {
        Ok(server) => {
            // Nobody reads the log.
            server.overlook("");
            println!("Redis {} at {}", server.version().number(), server.url());
            loop {
                thread::park();
            }
        }
        Err(error) => {
            eprintln!("test-server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn parsed(
    mut arguments: impl Iterator<Item = String>,
) -> Result<setnx_lock_testing::TestServerBuilder, String> {
    let mut builder = TestServer::builder();
    let mut version = None;
    while let Some(argument) = arguments.next() {
        let (name, joined) =
            argument.split_once('=').map_or((&*argument, None), |(name, value)| (name, Some(value)));
        let mut value =
            || joined.map(str::to_owned).or_else(|| arguments.next()).ok_or(format!("{name} needs a value"));
        match name {
            "--port" => {
                let port = value()?;
                let number = port.parse().map_err(|_| format!("{port} is no port: a number up to 65535"))?;
                builder = builder.port(number);
            }
            "--password" => builder = builder.password(&value()?),
            option if option.starts_with('-') => return Err(format!("there is no option {option}")),
            _ => {
                if let Some(before) = version.replace(argument) {
                    return Err(format!("two versions: {before} and another"));
                }
            }
        }
    }
    let version = version.unwrap_or(DEFAULT.to_owned());
    let version = ServerVersion::named(&version).ok_or(format!("there is no version {version}"))?;
    Ok(builder.version(version.name()))
}

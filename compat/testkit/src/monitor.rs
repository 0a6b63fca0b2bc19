//! The commands that a server executes, as its MONITOR reports them.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};

use crate::{LONG, RedisServer};

/// Records the commands that a server executes, by `MONITOR` on a connection of its own.
pub struct Monitor(BufReader<TcpStream>);

/// The argument that ends a recording.
const END: &str = "end-of-recording";

impl Monitor {
    pub fn on(server: &RedisServer) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(server.address())?;
        stream.set_read_timeout(Some(LONG))?;
        stream.write_all(b"*1\r\n$7\r\nMONITOR\r\n")?;
        let mut monitor = Self(BufReader::new(stream));
        assert_eq!(monitor.line()?, "+OK");
        Ok(monitor)
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn command(&mut self) -> std::io::Result<Vec<String>> {
        // +1795157376.492303 [0 127.0.0.1:40000] "SETNX" "key" "value"
        Ok(self.line()?.split('"').skip(1).step_by(2).map(str::to_owned).collect())
    }

    /// Returns the pauses of at least this time between two commands of a name, by the server's clock, for as long as commands come.
    pub fn pauses(mut self, name: &'static str, least: Duration) -> impl Iterator<Item = Duration> {
        let end = Instant::now() + LONG;
        let mut sent = None;
        std::iter::from_fn(move || {
            while Instant::now() < end {
                let line = self.line().ok()?;
                let (time, command) = line.trim_start_matches('+').split_once(' ')?;
                let time: f64 = time.parse().ok()?;
                if command.contains(&format!("\"{name}\""))
                    && let Some(before) = sent.replace(time)
                    && time - before >= least.as_secs_f64()
                {
                    return Some(Duration::from_secs_f64(time - before));
                }
            }
            None
        })
    }

    /// Returns all commands until now, each as its words.
    pub fn recorded(mut self, server: &RedisServer) -> std::io::Result<Vec<Vec<String>>> {
        server.say(&["ECHO", END])?;
        let mut commands = Vec::new();
        loop {
            let words = self.command()?;
            if words.last().is_some_and(|word| word == END) {
                return Ok(commands);
            }
            commands.push(words);
        }
    }
}

/// Returns the lock after its locker has opened a connection, so that the commands of connecting are sent already.
pub fn connected(lock: Lock) -> Result<Lock, Error> {
    lock.state().map(|_| lock)
}

/// Has a locker probe what its server has for this protocol.
pub fn probed(locker: &Locker, protocol: Protocol) -> Result<(), Error> {
    let options = LockOptions::expiring_after(LONG).protocol(protocol);
    Lock::new(locker, "setnx-lock-test:probed", options)?.with(|_| ())
}

pub fn names(commands: &[Vec<String>]) -> Vec<&str> {
    commands.iter().map(|words| words[0].as_str()).collect()
}

//! What a server carries out, as its own MONITOR tells it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use setnx_lock::{Error, Lock};

use super::{LONG, RedisServer};

/// Records what the server carries out, from `MONITOR` on a connection of its own.
pub(crate) struct Monitor(BufReader<TcpStream>);

/// What ends a recording.
const END: &str = "end-of-recording";

impl Monitor {
    pub(crate) fn on(server: &RedisServer) -> std::io::Result<Self> {
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

    /// Waits for a command of which this is so.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, what: &str, mut it_is_so: impl FnMut(&[String]) -> bool) {
        let end = Instant::now() + LONG;
        while !it_is_so(&self.command().unwrap()) {
            assert!(Instant::now() < end, "never sent: {what}");
        }
    }

    /// Waits until somebody begins to wait for tokens of the key.
    #[track_caller]
    pub(crate) fn wait_for_a_listener(&mut self, key: &str) {
        let list = format!("{key}:setnx-lock:wake-up");
        self.wait_for("BLPOP", |words| words[0] == "BLPOP" && words.contains(&list));
    }

    /// Returns all commands until now, each with its words.
    pub(crate) fn recorded(mut self, server: &RedisServer) -> std::io::Result<Vec<Vec<String>>> {
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

/// Returns the lock with a connection opened, and so with what is said when one is.
pub(crate) fn connected(lock: Lock) -> Result<Lock, Error> {
    lock.state().map(|_| lock)
}

pub(crate) fn names(commands: &[Vec<String>]) -> Vec<&str> {
    commands.iter().map(|words| words[0].as_str()).collect()
}

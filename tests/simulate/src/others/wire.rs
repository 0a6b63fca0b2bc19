//! A connection of another program.

use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use world::net::TcpStream;
use world::time::{SystemTime, UNIX_EPOCH};

use crate::servers::Servers;

/// What a program raises if it gets no reply, or an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken;

/// A connection that is opened again if it breaks. A command is sent once.
pub(super) struct Wire {
    address: SocketAddr,
    timeout: Duration,
    stream: Option<TcpStream>,
    received: Vec<u8>,
}

/// Returns the time that a lock's value begins with, in seconds.
pub(crate) fn time_in(value: &str) -> Option<f64> {
    value.split(':').next()?.parse().ok()
}

/// Returns what the clock of the process shows.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Wire {
    pub(super) fn to(servers: &Servers, timeout: Duration) -> Self {
        let (host, port) = servers.of("").address();
        let address = SocketAddr::new(host.parse().expect("an address"), port);
        Self { address, timeout, stream: None, received: Vec::new() }
    }

    /// Sends a command, and returns its reply: the text of a value,
    /// a number or a status; `None` for nil and for an empty list.
    pub(super) fn say(&mut self, words: &[&str]) -> Result<Option<String>, Broken> {
        let said = self.try_to_say(words);
        if said.is_err() {
            self.stream = None;
        }
        said
    }

    fn try_to_say(&mut self, words: &[&str]) -> Result<Option<String>, Broken> {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            let _infallible = write!(text, "${}\r\n{word}\r\n", word.len());
        }
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                self.received.clear();
                let stream = TcpStream::connect_timeout(&self.address, self.timeout).map_err(|_| Broken)?;
                stream.set_read_timeout(Some(self.timeout)).map_err(|_| Broken)?;
                self.stream.insert(stream)
            }
        };
        stream.write_all(text.as_bytes()).map_err(|_| Broken)?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Option<String>, Broken> {
        let line = self.take_line()?;
        let (kind, rest) = line.split_at(1);
        match (kind, rest.parse::<usize>()) {
            ("-", _) => Err(Broken),
            ("$", Ok(length)) => {
                let body = self.take(length + 2)?;
                Ok(Some(String::from_utf8_lossy(&body[..length]).into_owned()))
            }
            ("*", Ok(count)) => {
                let mut last = None;
                for _ in 0..count {
                    last = self.reply()?;
                }
                Ok(last)
            }
            ("$" | "*", Err(_)) => Ok(None),
            _ => Ok(Some(rest.to_owned())),
        }
    }

    fn take_line(&mut self) -> Result<String, Broken> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.take(end + 2)?;
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            self.receive()?;
        }
    }

    fn take(&mut self, count: usize) -> Result<Vec<u8>, Broken> {
        while self.received.len() < count {
            self.receive()?;
        }
        Ok(self.received.drain(..count).collect())
    }

    fn receive(&mut self) -> Result<(), Broken> {
        let mut buffer = [0; 512];
        let stream = self.stream.as_mut().ok_or(Broken)?;
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => Err(Broken),
            Ok(count) => {
                self.received.extend(&buffer[..count]);
                Ok(())
            }
        }
    }
}

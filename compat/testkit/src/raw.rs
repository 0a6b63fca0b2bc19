//! A raw connection to a server or a proxy, for tests of the bytes of a reply.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::LONG;

/// How long a connection must be silent to count as silent.
pub const SILENCE: Duration = Duration::from_millis(150);

pub struct Wire(BufReader<TcpStream>);

impl Wire {
    pub fn to(url: &str) -> Self {
        let address = url.trim_start_matches("redis://").trim_end_matches('/');
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    pub fn send(&mut self, command: &str) {
        self.send_all(&[command]);
    }

    /// Sends commands in one piece.
    pub fn send_all(&mut self, commands: &[impl AsRef<str>]) {
        let mut request = String::new();
        for command in commands {
            let words: Vec<&str> = command.as_ref().split(' ').collect();
            let _infallible = write!(request, "*{}\r\n", words.len());
            for word in words {
                let _infallible = write!(request, "${}\r\n{word}\r\n", word.len());
            }
        }
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
    }

    /// Reads the next line, without its end; an empty one if the connection is closed.
    pub fn line(&mut self) -> String {
        self.0.get_mut().set_read_timeout(Some(LONG)).unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command and returns the reply: of a bulk the text, of an array everything in one line.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    pub fn answer(&mut self) -> String {
        let line = self.line();
        let count = line[1..].parse::<usize>();
        match (line.as_bytes()[0], count) {
            (b'$', Ok(length)) => {
                let mut bulk = vec![0; length + 2];
                self.0.read_exact(&mut bulk).unwrap();
                String::from_utf8_lossy(&bulk[..length]).into_owned()
            }
            (b'*', Ok(count)) => {
                let parts: Vec<String> = (0..count).map(|_| self.answer()).collect();
                format!("[{}]", parts.join(" "))
            }
            _ => line,
        }
    }

    /// Asserts that no bytes arrive for a while, and that the connection stays open.
    #[track_caller]
    pub fn is_silent(&mut self) {
        self.0.get_mut().set_read_timeout(Some(SILENCE)).unwrap();
        let read = self.0.fill_buf().map(<[u8]>::to_vec);
        assert!(read.is_err(), "bytes arrived, or the connection was closed: {read:?}");
    }

    /// Reads everything up to the end of the connection, which may be a reset.
    pub fn rest(&mut self) -> String {
        self.0.get_mut().set_read_timeout(Some(LONG)).unwrap();
        let mut rest = String::new();
        let end = self.0.read_to_string(&mut rest).map_err(|error| error.kind());
        assert_ne!(end, Err(ErrorKind::WouldBlock), "the connection stays open");
        rest
    }
}

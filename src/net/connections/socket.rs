//! A socket to the server: sends packed commands and receives replies, within a
//! deadline for all of them. A signal does not end a wait. After an error a socket
//! must not be used again: a late reply would be taken for the next command's (I8).

use std::io::{self, Read, Write};
use std::mem;
#[cfg(unix)]
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proto::values::{LONGEST_READ, Uptime};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, Parser, RedisResult, Value};

use super::addresses;
use crate::net::errors::TransportError;
use crate::net::patience::Looks;
use crate::net::resp;
use crate::system::clock;
#[cfg(unix)]
use crate::system::net::UnixStream;
use crate::system::net::{self, TcpStream};
use crate::system::thread;

/// A socket that is connected.
pub(crate) struct Socket {
    stream: Stream,
    /// What was received and not read yet is from `start` to `end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// How much more of a long text is received and dropped, before anything else is read.
    dropped: usize,
    /// The redis crate's, from the first reply on that locks do not get.
    parser: Option<Parser>,
}

/// When a thread spins, which looks for the reply without sleeping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::net) enum Spin {
    Never,
    /// For a while before it sleeps, where that pays.
    First,
}

/// How much of what a server sends is kept.
#[derive(Clone, Copy)]
pub(super) struct Longest {
    /// A reply of which more bytes are kept ends the connection.
    pub(super) reply: usize,
    /// Of a longer text only the beginning is kept.
    pub(super) text: usize,
}

impl Longest {
    /// A megabyte: Redis says as much as that in no INFO.
    pub(super) const WHOLE: Self = Self { reply: 1 << 20, text: usize::MAX };
    /// What lets a long value be told from a lock's, which has some tens of bytes.
    pub(super) const VALUE: Self = Self { reply: 1 << 20, text: LONGEST_READ };
}

/// How often a process is asked for a connection that has no room for one.
#[cfg(unix)]
const ACCEPTED_EVERY: Duration = Duration::from_millis(10);

/// How many bytes are received at a time, unless a reply is longer.
const BUFFER: usize = 4096;

impl Socket {
    /// Connects until `deadline`; `None` to an address that is reached in another way.
    pub(super) fn connect(
        address: &ConnectionAddr,
        settings: &TcpSettings,
        deadline: Uptime,
        looks: &Arc<Looks>,
    ) -> Option<io::Result<Self>> {
        let kind = match address {
            ConnectionAddr::Tcp(host, port) => connect_tcp(host, *port, settings, deadline).map(Kind::Tcp),
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => connect_unix(path, deadline).map(Kind::Unix),
            _ => return None,
        };
        Some(kind.map(|kind| {
            let stream =
                Stream { kind, looks: Arc::clone(looks), is_blocking: true, timeout: Duration::ZERO };
            Self { stream, buffer: vec![0; BUFFER], start: 0, end: 0, dropped: 0, parser: None }
        }))
    }

    /// Sends all of it, from `now` on.
    pub(super) fn write(&mut self, bytes: &[u8], now: Uptime, deadline: Uptime) -> io::Result<()> {
        self.stream.write_all(bytes, now, deadline)
    }

    /// Receives the next reply.
    pub(super) fn receive(&mut self, deadline: Uptime, longest: Longest, spin: Spin) -> RedisResult<Value> {
        let mut looks = spin == Spin::First;
        if self.dropped > 0 {
            self.drop_text(deadline, &mut looks)?;
        }
        while self.parser.is_none() {
            match resp::read(&self.buffer[self.start..self.end], longest.text) {
                resp::Read::Reply(value, length) => {
                    self.start += length;
                    return Ok(value);
                }
                resp::Read::Long { head, text, length } if self.end - self.start >= text + longest.text => {
                    self.shorten(head, text, length, longest.text);
                    self.drop_text(deadline, &mut looks)?;
                }
                resp::Read::Part | resp::Read::Long { .. } if self.end - self.start >= longest.reply => {
                    return Err(too_long().into());
                }
                resp::Read::Part | resp::Read::Long { .. } => {
                    self.receive_more(deadline, &mut looks)?;
                }
                resp::Read::Other => match resp::foreign(&self.buffer[self.start..self.end]) {
                    Some(error) => return Err(error),
                    None => self.parser = Some(Parser::new()),
                },
            }
        }
        let Self { stream, buffer, start, end, parser: Some(parser), .. } = self else {
            unreachable!("it was just made")
        };
        let received = &buffer[*start..*end];
        let mut reader = Reader { received, stream, deadline, looks, at_most: longest.reply };
        let value = parser.parse_value(&mut reader);
        *start = *end - reader.received.len();
        value
    }

    /// Receives what there is. Returns how many bytes.
    fn receive_more(&mut self, deadline: Uptime, looks: &mut bool) -> io::Result<usize> {
        self.make_room();
        let count = self.stream.read(&mut self.buffer[self.end..], deadline, looks)?;
        self.end += count;
        if count > 0 { Ok(count) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Has a text of which only the beginning was received end there. The rest is dropped when it comes.
    #[cold]
    fn shorten(&mut self, head: usize, text: usize, length: usize, longest: usize) {
        let [head, text] = [head, text].map(|place| self.start + place);
        // As many digits as before.
        let digits = text - head - 3;
        self.buffer[head + 1..text - 2].copy_from_slice(format!("{longest:0digits$}").as_bytes());
        self.dropped = length - longest;
        let received = (self.end - text - longest).min(self.dropped);
        self.buffer.copy_within(text + longest + received..self.end, text + longest);
        (self.end, self.dropped) = (self.end - received, self.dropped - received);
    }

    /// Receives and drops the rest of a long text. What follows it stays.
    #[cold]
    fn drop_text(&mut self, deadline: Uptime, looks: &mut bool) -> io::Result<()> {
        while self.dropped > 0 {
            let count = self.receive_more(deadline, looks)?;
            let (more, received) = (self.end - count, count.min(self.dropped));
            self.buffer.copy_within(more + received..self.end, more);
            (self.end, self.dropped) = (self.end - received, self.dropped - received);
        }
        Ok(())
    }

    /// Makes room for more behind what was received.
    fn make_room(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        if self.end == self.buffer.len() {
            self.buffer.resize(2 * self.end, 0);
        } else if self.end == 0 && self.buffer.len() > 16 * BUFFER {
            self.buffer = vec![0; BUFFER];
        }
    }
}

fn too_long() -> io::Error {
    let text = "the reply is longer than a megabyte, and no lock's value is";
    let error = TransportError::new(io::ErrorKind::InvalidData, text);
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A stream whose calls end at a deadline.
struct Stream {
    kind: Kind,
    looks: Arc<Looks>,
    is_blocking: bool,
    /// How long one call of the system blocks at most, where it blocks.
    timeout: Duration,
}

impl Stream {
    fn write_all(&mut self, mut bytes: &[u8], now: Uptime, deadline: Uptime) -> io::Result<()> {
        let mut left = Some(deadline.since(now));
        while !bytes.is_empty() {
            if self.is_blocking {
                match left.take() {
                    Some(left) => self.block_for(left)?,
                    None => self.block_until(deadline)?,
                }
            }
            match self.kind.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                // The system's buffer has no room, which is waited for.
                Err(error) if is_not_ready(&error) => self.block_until(deadline)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads what is there, or waits for it. `looks`: it may look for it first; not again after it did so in vain.
    fn read(&mut self, buffer: &mut [u8], deadline: Uptime, looks: &mut bool) -> io::Result<usize> {
        if mem::take(looks) && self.looks.may_pay() {
            self.set_blocking(false)?;
            let found = self.looks.until_some(|| match self.kind.read(buffer) {
                Err(error) if is_not_ready(&error) => None,
                read => Some(read),
            });
            if let Some(read) = found {
                *looks = true;
                return read;
            }
        }
        loop {
            self.block_until(deadline)?;
            match self.kind.read(buffer) {
                Err(error) if is_not_ready(&error) => {}
                read => return read,
            }
        }
    }

    /// Makes calls of the system block, until the deadline. It is an error if that has passed.
    fn block_until(&mut self, deadline: Uptime) -> io::Result<()> {
        self.block_for(deadline.since(clock::uptime()))
    }

    fn block_for(&mut self, left: Duration) -> io::Result<()> {
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.set_blocking(true)?;
        let timeout = in_steps(left);
        if timeout != self.timeout {
            self.kind.set_timeout(timeout)?;
            self.timeout = timeout;
        }
        Ok(())
    }

    fn set_blocking(&mut self, blocking: bool) -> io::Result<()> {
        if blocking != self.is_blocking {
            self.kind.set_nonblocking(!blocking)?;
            self.is_blocking = blocking;
        }
        Ok(())
    }
}

/// Reads for the parser, which takes as many bytes as there are, those of later replies among them.
struct Reader<'a> {
    /// What was received before.
    received: &'a [u8],
    stream: &'a mut Stream,
    deadline: Uptime,
    looks: bool,
    /// How many bytes may still be read.
    at_most: usize,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at_most == 0 {
            return Err(too_long());
        }
        let count = match self.received {
            [] => self.stream.read(buffer, self.deadline, &mut self.looks)?,
            received => (&mut &*received).read(buffer)?,
        };
        self.received = self.received.get(count..).unwrap_or_default();
        self.at_most = self.at_most.saturating_sub(count);
        Ok(count)
    }
}

/// Rounds up to steps of 10 ms: the usual limit, which has just begun to run, then costs no system call.
pub(super) fn in_steps(limit: Duration) -> Duration {
    let steps = u64::from(limit.subsec_nanos().div_ceil(10_000_000));
    Duration::from_secs(limit.as_secs()).saturating_add(Duration::from_millis(10 * steps))
}

/// Returns true if a call would block, has blocked for its time, or was interrupted by a signal.
fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn connect_tcp(host: &str, port: u16, settings: &TcpSettings, deadline: Uptime) -> io::Result<TcpStream> {
    let stream = addresses::connect(host, port, deadline)?;
    net::set(&stream, settings)?;
    Ok(stream)
}

#[cfg(unix)]
fn connect_unix(path: &Path, deadline: Uptime) -> io::Result<UnixStream> {
    loop {
        match net::connect_unix(path) {
            Err(error) if is_not_ready(&error) => {}
            connected => return connected,
        }
        let left = deadline.since(clock::uptime());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(ACCEPTED_EVERY.min(left));
    }
}

enum Kind {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Kind {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            #[cfg(unix)]
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(unix)]
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(nonblocking),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_nonblocking(nonblocking),
        }
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout);
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(timeout).and(stream.set_write_timeout(timeout)),
            #[cfg(unix)]
            Self::Unix(stream) => stream.set_read_timeout(timeout).and(stream.set_write_timeout(timeout)),
        }
    }
}

#[cfg(test)]
mod tests;

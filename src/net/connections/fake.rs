//! A connection without a server, whose replies a test chooses.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{RedisError, RedisResult, Value};

use super::connection::Connection;
use super::lender::Lender;
use super::opener::Opener;
use super::transport::Transport;

/// Its replies to packed commands of this number, and the error that ends them.
type Script = dyn Fn(&str, usize) -> (Vec<Value>, Option<RedisError>) + Send + Sync;

/// The connection, and what opens more like it.
#[derive(Clone)]
pub(crate) struct FakeConnection {
    script: Arc<Script>,
    replies: VecDeque<RedisResult<Value>>,
    /// What was sent in each trip.
    pub(in crate::net) sent: Arc<Mutex<Vec<String>>>,
    /// True once it was closed before it went back.
    pub(in crate::net) is_closed: Arc<AtomicBool>,
}

impl FakeConnection {
    pub(in crate::net) fn answering(
        script: impl Fn(usize) -> (Vec<Value>, Option<RedisError>) + Send + Sync + 'static,
    ) -> Self {
        Self::answering_to(move |_, count| script(count))
    }

    pub(in crate::net) fn answering_to(
        script: impl Fn(&str, usize) -> (Vec<Value>, Option<RedisError>) + Send + Sync + 'static,
    ) -> Self {
        Self {
            script: Arc::new(script),
            replies: VecDeque::new(),
            sent: Arc::default(),
            is_closed: Arc::default(),
        }
    }

    /// Returns the opener of such connections.
    pub(in crate::net) fn opener(&self) -> Opener {
        Opener::borrowing(Arc::new(self.clone()))
    }

    /// Returns such a connection, open.
    pub(in crate::net) fn open(&self) -> Connection {
        let mut connection = Connection::new(Arc::new(self.opener()));
        connection.connect().unwrap();
        connection
    }

    pub(super) fn write(&mut self, packed: &[u8]) {
        let packed = String::from_utf8_lossy(packed).into_owned();
        // Each begins with how many texts it has.
        let count = packed.split("\r\n").filter(|line| line.starts_with('*')).count();
        let (replies, ended) = (self.script)(&packed, count);
        self.sent.lock().unwrap().push(packed);
        self.replies = replies.into_iter().map(Ok).chain(ended.map(Err)).collect();
    }

    pub(super) fn receive(&mut self) -> RedisResult<Value> {
        self.replies.pop_front().unwrap_or_else(|| Err(closed()))
    }
}

impl Lender for FakeConnection {
    fn lend_at_once(&self) -> Option<Transport> {
        Some(Transport::Fake(self.clone()))
    }

    fn lend_within(&self, _: Duration, _: Duration) -> Result<Transport, Option<String>> {
        Ok(Transport::Fake(self.clone()))
    }

    fn open(&self) -> u32 {
        1
    }

    fn size(&self) -> u32 {
        1
    }

    fn tests_on_check_out(&self) -> bool {
        false
    }
}

/// A connection that was closed.
pub(in crate::net) fn closed() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionReset, "closed").into()
}

/// A reply that did not come in time.
pub(in crate::net) fn late() -> RedisError {
    io::Error::new(io::ErrorKind::TimedOut, "late").into()
}

/// A refusal.
pub(in crate::net) fn refused(words: &str) -> Value {
    redis::parse_redis_value(format!("-{words}\r\n").as_bytes()).unwrap()
}

//! A connection without a server, whose replies a test chooses.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io};

use redis::{RedisError, RedisResult, Value};

use super::lock_connection::LockConnection;

/// Its replies to packed commands of this number, and the error that ends them.
type Script = dyn Fn(&str, usize) -> (Vec<Value>, Option<RedisError>) + Send + Sync;

/// The connection, and a manager that opens more like it.
#[derive(Clone)]
pub(in crate::net) struct FakeConnection {
    script: Arc<Script>,
    /// True if it cannot be closed.
    pub(in crate::net) is_stuck: bool,
    pub(in crate::net) is_invalidated: bool,
    /// What was sent in each exchange, with the number of replies expected.
    pub(in crate::net) sent: Arc<Mutex<Vec<(String, usize)>>>,
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
        Self { script: Arc::new(script), is_stuck: false, is_invalidated: false, sent: Arc::default() }
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

impl LockConnection for FakeConnection {
    fn invalidate(&mut self) -> bool {
        self.is_invalidated = true;
        !self.is_stuck
    }

    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        _: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        let packed = String::from_utf8_lossy(packed).into_owned();
        let (came, ended) = (self.script)(&packed, count);
        self.sent.lock().unwrap().push((packed, count));
        replies.extend(came);
        ended.map_or(Ok(()), Err)
    }
}

impl r2d2::ManageConnection for FakeConnection {
    type Connection = Self;
    type Error = RedisError;

    fn connect(&self) -> Result<Self, RedisError> {
        Ok(self.clone())
    }

    fn is_valid(&self, _: &mut Self) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Self) -> bool {
        false
    }
}

impl fmt::Debug for FakeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeConnection").finish_non_exhaustive()
    }
}

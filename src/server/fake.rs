//! A connection to nobody, which answers what a test wants.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, io};

use redis::{ConnectionLike, RedisError, RedisResult, Value};

use super::carrier::Carrier;
use crate::version::Version;

/// What it answers with to so many commands: replies, and what ends them.
type Script = dyn Fn(usize) -> (Vec<Value>, Option<RedisError>) + Send + Sync;

/// The connection, and a manager that opens more like it.
#[derive(Clone)]
pub(super) struct Fake {
    script: Arc<Script>,
    pub(super) version: Option<Version>,
    /// What was sent in each trip, with the number of replies that were to come.
    pub(super) sent: Arc<Mutex<Vec<(String, usize)>>>,
}

impl Fake {
    pub(super) fn answering(
        script: impl Fn(usize) -> (Vec<Value>, Option<RedisError>) + Send + Sync + 'static,
    ) -> Self {
        Self { script: Arc::new(script), version: None, sent: Arc::default() }
    }
}

/// A connection that was closed.
pub(super) fn closed() -> RedisError {
    io::Error::new(io::ErrorKind::ConnectionReset, "closed").into()
}

/// What the server says no with.
pub(super) fn no(words: &str) -> Value {
    redis::parse_redis_value(format!("-{words}\r\n").as_bytes()).unwrap()
}

impl Carrier for Fake {
    const COMBINES: bool = true;

    fn retire(&mut self) -> bool {
        true
    }

    fn server_version(&self) -> Option<Version> {
        self.version
    }

    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        _: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        self.sent.lock().unwrap().push((String::from_utf8_lossy(packed).into_owned(), count));
        let (came, ended) = (self.script)(count);
        replies.extend(came);
        ended.map_or(Ok(()), Err)
    }
}

impl ConnectionLike for Fake {
    fn req_packed_command(&mut self, _: &[u8]) -> RedisResult<Value> {
        unreachable!("everything goes through exchange")
    }

    fn req_packed_commands(&mut self, _: &[u8], _: usize, _: usize) -> RedisResult<Vec<Value>> {
        unreachable!("everything goes through exchange")
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

impl r2d2::ManageConnection for Fake {
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

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fake").finish_non_exhaustive()
    }
}

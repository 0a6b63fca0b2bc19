//! Connections of a user's own type, which do with each batch what a test wants.

use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionLike, RedisError, RedisResult, Value};
use setnx_lock::{LockConnection, Locker};

/// A batch as the connection receives it: its bytes, and how many replies it expects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packed<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) count: usize,
}

type Act = dyn Fn(&mut redis::Connection, Packed<'_>, &mut Vec<Value>) -> RedisResult<()> + Send + Sync;

/// Opens staged connections.
struct Stage<const PIPELINES: bool> {
    client: redis::Client,
    act: Arc<Act>,
}

/// A connection that calls `act` for each batch.
struct Staged<const PIPELINES: bool> {
    inner: redis::Connection,
    act: Arc<Act>,
    invalidated: bool,
}

impl Packed<'_> {
    /// Sends the batch and receives the replies, as an ordinary connection does.
    pub(crate) fn carry(self, inner: &mut redis::Connection, replies: &mut Vec<Value>) -> RedisResult<()> {
        LockConnection::exchange(inner, self.bytes, self.count, Duration::MAX, replies)
    }
}

/// Returns a locker on a pool of so many staged connections.
pub(crate) fn staged<const PIPELINES: bool>(
    url: &str,
    pool_size: u32,
    act: impl Fn(&mut redis::Connection, Packed<'_>, &mut Vec<Value>) -> RedisResult<()> + Send + Sync + 'static,
) -> Locker {
    let stage = Stage::<PIPELINES> { client: redis::Client::open(url).unwrap(), act: Arc::new(act) };
    let builder = r2d2::Pool::builder().max_size(pool_size).test_on_check_out(false);
    Locker::with_pool(builder.build(stage).unwrap())
}

impl<const PIPELINES: bool> r2d2::ManageConnection for Stage<PIPELINES> {
    type Connection = Staged<PIPELINES>;
    type Error = RedisError;

    fn connect(&self) -> Result<Staged<PIPELINES>, RedisError> {
        let inner = self.client.get_connection()?;
        Ok(Staged { inner, act: Arc::clone(&self.act), invalidated: false })
    }

    fn is_valid(&self, _: &mut Staged<PIPELINES>) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, connection: &mut Staged<PIPELINES>) -> bool {
        connection.invalidated
    }
}

impl<const PIPELINES: bool> LockConnection for Staged<PIPELINES> {
    const PIPELINES: bool = PIPELINES;

    fn invalidate(&mut self) -> bool {
        self.invalidated = true;
        true
    }

    fn exchange(
        &mut self,
        bytes: &[u8],
        count: usize,
        _: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        assert!(!self.invalidated, "used again after it was invalidated");
        (self.act)(&mut self.inner, Packed { bytes, count }, replies)
    }
}

impl<const PIPELINES: bool> ConnectionLike for Staged<PIPELINES> {
    fn req_packed_command(&mut self, bytes: &[u8]) -> RedisResult<Value> {
        self.inner.req_packed_command(bytes)
    }

    fn req_packed_commands(&mut self, bytes: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        self.inner.req_packed_commands(bytes, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }

    fn check_connection(&mut self) -> bool {
        self.inner.check_connection()
    }

    fn is_open(&self) -> bool {
        !self.invalidated && self.inner.is_open()
    }
}

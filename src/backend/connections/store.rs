//! Where a pool keeps the connections that no thread uses: a list of its own, or an r2d2 pool that other users may share.
//!
//! r2d2 starts three threads for each pool, which open connections in advance and retry for as long as the pool exists. A locker that
//! opens its own connections needs none of that.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, mem};

use super::lock_connection::LockConnection;
use crate::clock::{self, Uptime};

/// How long a connection stays open that is not needed while others are.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Why a connection that was taken is there.
const HERE: &str = "it is here until it is returned";

pub(super) enum Store<M: r2d2::ManageConnection> {
    Own(Arc<IdleList<M>>),
    Shared(r2d2::Pool<M>),
}

/// The open connections that no thread uses, the last returned at the back.
pub(super) struct IdleList<M: r2d2::ManageConnection> {
    manager: M,
    idle: Mutex<VecDeque<(Uptime, M::Connection)>>,
}

/// A connection out of a store. Returns there when it is dropped.
pub(super) enum Taken<M: r2d2::ManageConnection>
where
    M::Connection: LockConnection,
{
    Own { connection: Option<M::Connection>, list: Arc<IdleList<M>> },
    Shared(r2d2::PooledConnection<M>),
}

/// A suspect connection could not be closed, so the store has one place less.
#[derive(Debug)]
pub(super) struct Stuck;

impl<M: r2d2::ManageConnection> Store<M>
where
    M::Connection: LockConnection,
{
    pub(super) fn own(manager: M) -> Self {
        Store::Own(Arc::new(IdleList { manager, idle: Mutex::default() }))
    }

    /// Returns a connection, one that is connected if there is one. `Ok(None)`: all are in use, or r2d2 has yet to make one.
    pub(super) fn take(&self) -> Result<Option<Taken<M>>, Stuck> {
        // Held until there is a connected one, so that r2d2 does not return them again.
        let mut unconnected = Vec::new();
        while let Some(taken) = self.take_any() {
            let Some(taken) = taken.unless_suspect()? else { continue };
            if taken.is_connected() {
                return Ok(Some(taken));
            }
            unconnected.push(taken);
            if matches!(self, Store::Own(_)) {
                // It was made for this call, so that there is none that is connected.
                break;
            }
        }
        Ok(unconnected.pop())
    }

    fn take_any(&self) -> Option<Taken<M>> {
        match self {
            Store::Own(list) => {
                let idle = list.lock().pop_back().map(|(_, connection)| connection);
                let connection = idle.or_else(|| list.manager.connect().ok());
                connection
                    .map(|connection| Taken::Own { connection: Some(connection), list: Arc::clone(list) })
            }
            Store::Shared(pool) => pool.try_get().map(Taken::Shared),
        }
    }
}

impl<M: r2d2::ManageConnection> IdleList<M>
where
    M::Connection: LockConnection,
{
    fn put(&self, mut connection: M::Connection) {
        if self.manager.has_broken(&mut connection) || !connection.is_connected() {
            return;
        }
        let now = clock::uptime();
        let mut idle = self.lock();
        idle.push_back((now, connection));
        let outdated = idle.iter().take_while(|(since, _)| now.since(*since) > IDLE_TIMEOUT).count();
        let outdated: Vec<_> = idle.drain(..outdated).collect();
        drop(idle);
        // Closing takes a system call each.
        drop(outdated);
    }
}

impl<M: r2d2::ManageConnection> IdleList<M> {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Uptime, M::Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self) -> usize {
        self.lock().len()
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for Store<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Store::Own(list) => f.debug_struct("Own").field("idle", &list.count()).finish(),
            Store::Shared(pool) => f.debug_tuple("Shared").field(&pool.state()).finish(),
        }
    }
}

impl<M: r2d2::ManageConnection> Taken<M>
where
    M::Connection: LockConnection,
{
    /// Closes a suspect connection: one that has been idle for long, or was opened before the server was seen to close others. A command
    /// on a closed connection would have an unknown outcome.
    pub(super) fn unless_suspect(self) -> Result<Option<Self>, Stuck> {
        if !self.is_suspect() {
            return Ok(Some(self));
        }
        if self.invalidate() { Ok(None) } else { Err(Stuck) }
    }

    /// Takes it out of use (I8). Returns whether its place in the store is free.
    pub(super) fn invalidate(mut self) -> bool {
        let closed = LockConnection::invalidate(&mut *self);
        if !closed {
            mem::forget(self);
        }
        closed
    }
}

impl<M: r2d2::ManageConnection> Deref for Taken<M>
where
    M::Connection: LockConnection,
{
    type Target = M::Connection;

    fn deref(&self) -> &M::Connection {
        match self {
            Taken::Own { connection: Some(connection), .. } => connection,
            Taken::Own { connection: None, .. } => unreachable!("{HERE}"),
            Taken::Shared(connection) => connection,
        }
    }
}

impl<M: r2d2::ManageConnection> DerefMut for Taken<M>
where
    M::Connection: LockConnection,
{
    fn deref_mut(&mut self) -> &mut M::Connection {
        match self {
            Taken::Own { connection: Some(connection), .. } => connection,
            Taken::Own { connection: None, .. } => unreachable!("{HERE}"),
            Taken::Shared(connection) => connection,
        }
    }
}

impl<M: r2d2::ManageConnection> Drop for Taken<M>
where
    M::Connection: LockConnection,
{
    fn drop(&mut self) {
        if let Taken::Own { connection, list } = self
            && let Some(connection) = connection.take()
        {
            list.put(connection);
        }
    }
}

//! Other libraries in Rust, with the settings that they come with.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock::RedLock;
use rslock::LockManager;
use tokio::runtime::{Builder, Runtime};

use super::{Client, Locks, version_of};
use crate::Failure;
use crate::steady::{self, Log, Window};

/// Asynchronous, all of a process on one connection. Uncontended it runs as tasks, as it is meant to; contended, a
/// thread for each waiter drives it, which costs it some microseconds where it sleeps for up to 200 ms.
pub(super) struct Rslock {
    runtime: Arc<Runtime>,
    manager: LockManager,
    lease: Duration,
}

impl Rslock {
    pub(super) fn open(url: &str, lease: Duration) -> Result<Self, Failure> {
        let runtime = Arc::new(Builder::new_multi_thread().enable_all().build()?);
        Ok(Self { runtime, manager: LockManager::new(vec![url]), lease })
    }
}

impl Locks for Rslock {
    fn version(&self) -> String {
        format!("rslock {}, tokio {}", version_of("rslock"), version_of("tokio"))
    }

    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        let (runtime, manager) = (Arc::clone(&self.runtime), self.manager.clone());
        Ok(Box::new(RslockThread { runtime, manager, lease: self.lease }))
    }

    fn pairs(&self, tasks: usize, keys: &str, end: Instant) -> Option<Result<Vec<Duration>, Failure>> {
        let tasks: Vec<_> = (0..tasks)
            .map(|n| {
                let (manager, key, lease) = (self.manager.clone(), format!("{keys}:{n}"), self.lease);
                self.runtime.spawn(async move {
                    let mut releases = Vec::new();
                    let mut left = Instant::now();
                    while left < end {
                        let guard = manager.acquire(key.as_str(), lease).await?;
                        left = Instant::now();
                        guard.release().await;
                        releases.push(left.elapsed());
                    }
                    Ok::<_, Failure>(releases)
                })
            })
            .collect();
        let each: Result<Vec<_>, _> = tasks.into_iter().map(|task| self.runtime.block_on(task)?).collect();
        Some(each.map(|releases| releases.concat()))
    }

    fn steady(&self, keys: &str, window: &Arc<Window>) -> Option<Vec<Result<Log, Failure>>> {
        let tasks: Vec<_> = (0..window.threads)
            .map(|n| {
                let (manager, key, lease) = (self.manager.clone(), steady::key(keys, n), self.lease);
                let mut log = Log::new(window);
                self.runtime.spawn(async move {
                    while log.asks() {
                        let guard = manager.acquire(key.as_str(), lease).await?;
                        log.entered();
                        guard.release().await;
                        log.left()?;
                    }
                    Ok::<_, Failure>(log)
                })
            })
            .collect();
        let each = tasks.into_iter().map(|task| self.runtime.block_on(task));
        // A task that panicked has failed, too.
        Some(each.map(|done| done.unwrap_or_else(|error| Err(error.into()))).collect())
    }
}

struct RslockThread {
    runtime: Arc<Runtime>,
    manager: LockManager,
    lease: Duration,
}

impl Client for RslockThread {
    fn hold(&mut self, key: &str, inside: &mut dyn FnMut()) -> Result<(), Failure> {
        let guard = self.runtime.block_on(self.manager.acquire(key, self.lease))?;
        inside();
        self.runtime.block_on(guard.release());
        Ok(())
    }
}

/// Opens a connection for each command.
pub(super) struct Redlock {
    manager: RedLock,
    lease: usize,
}

impl Redlock {
    pub(super) fn open(url: &str, lease: Duration) -> Result<Self, Failure> {
        Ok(Self { manager: RedLock::new(vec![url]), lease: usize::try_from(lease.as_millis())? })
    }
}

impl Locks for Redlock {
    fn version(&self) -> String {
        format!("redlock {}", version_of("redlock"))
    }

    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        Ok(Box::new(RedlockThread { manager: self.manager.clone(), lease: self.lease }))
    }
}

struct RedlockThread {
    manager: RedLock,
    lease: usize,
}

impl Client for RedlockThread {
    fn hold(&mut self, key: &str, inside: &mut dyn FnMut()) -> Result<(), Failure> {
        let guard = self.manager.acquire(key.as_bytes(), self.lease)?;
        inside();
        drop(guard);
        Ok(())
    }
}

//! A key on the server, and the leases that are written into it.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::thread;

const FREE: usize = 0;
/// By another process.
const HELD: usize = 1;

/// A lock on the server: what its key holds.
#[derive(Debug)]
pub(super) struct Server {
    value: AtomicUsize,
    /// The last value that was written.
    last: AtomicUsize,
    holders: AtomicUsize,
    /// Whether a lease may be left: a thread that panics takes none.
    may_be_left: AtomicBool,
}

/// A lease that is in the key. Left by all, it expires.
#[derive(Debug)]
pub(super) struct Lease {
    server: Arc<Server>,
    value: usize,
    is_over: bool,
}

impl Server {
    pub(super) fn new(held: bool) -> Arc<Self> {
        Arc::new(Self {
            value: AtomicUsize::new(if held { HELD } else { FREE }),
            last: AtomicUsize::new(HELD),
            holders: AtomicUsize::new(0),
            may_be_left: AtomicBool::new(false),
        })
    }

    fn write(self: &Arc<Self>, from: usize) -> Option<Lease> {
        let value = self.last.fetch_add(1, SeqCst) + 1;
        self.value.compare_exchange(from, value, SeqCst, SeqCst).ok()?;
        Some(Lease { server: Arc::clone(self), value, is_over: false })
    }

    /// SETNX.
    pub(super) fn set(self: &Arc<Self>) -> Option<Lease> {
        self.write(FREE)
    }

    /// The other process releases it.
    pub(super) fn free(&self) {
        self.value.store(FREE, SeqCst);
    }

    pub(super) fn is_free(&self) -> bool {
        self.value.load(SeqCst) == FREE
    }

    pub(super) fn is_held_elsewhere(&self) -> bool {
        self.value.load(SeqCst) == HELD
    }

    pub(super) fn allow_left(&self) {
        self.may_be_left.store(true, SeqCst);
    }
}

impl Lease {
    /// What a holder does, alone.
    pub(super) fn work(&self, pause: impl FnOnce()) {
        self.assert_held();
        assert_eq!(self.server.holders.fetch_add(1, SeqCst), 0, "two threads hold the lock");
        pause();
        thread::yield_now();
        assert_eq!(self.server.holders.fetch_sub(1, SeqCst), 1, "two threads hold the lock");
    }

    pub(super) fn assert_held(&self) {
        assert_eq!(self.server.value.load(SeqCst), self.value, "not granted to this thread");
    }

    /// GETSET: replaced by the lease of another thread, in one command.
    pub(super) fn replace(mut self) -> Lease {
        self.is_over = true;
        self.server.write(self.value).expect("another thread holds the lock")
    }

    /// DEL. The same if the key expires.
    pub(super) fn end(mut self) {
        self.clear();
    }

    fn clear(&mut self) {
        self.is_over = true;
        let ended = self.server.value.compare_exchange(self.value, FREE, SeqCst, SeqCst);
        assert!(ended.is_ok(), "another thread holds the lock: {ended:?}");
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_over && self.server.may_be_left.load(SeqCst) {
            self.clear();
        }
        assert!(self.is_over || std::thread::panicking(), "a lease is lost");
    }
}

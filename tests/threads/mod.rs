//! What a lock does among the threads of a process, and among processes, on a current server: the wait queue,
//! cancellation, several keys, permits, notifications, windows, transactions that threads share.
//!
//! | file | what it tests |
//! |---|---|
//! | `cancellation` | waits that are ended by a cancel token or a shutdown |
//! | `draining` | what a locker holds, and the end of its use |
//! | `many_threads` | thousands of threads on few connections; the library's own threads |
//! | `notification_faults` | faults of release notifications |
//! | `notified_permits` | permits whose releases notify other processes |
//! | `notifications` | release notifications: the rules, waiters that stop waiting |
//! | `permits` | semaphores, readers and writers |
//! | `shared_transactions` | keys that several threads change by one transaction |
//! | `queueing` | the wait queue of a key among the threads of a process |
//! | `several` | several locks held together |
//! | `successors` | a release acquires the lock for the next thread: its lease, other clients |
//! | `windows` | when a process that keeps a key busy leaves it to pollers |
//!
//! Add a test where a promise is about who gets the lock next. Wait for an event (`asleep`, `until`), not for a time,
//! and give options that never poll (`QUEUED`), so that only what is tested wakes a thread.

pub(crate) mod cancellation;
pub(crate) mod draining;
pub(crate) mod many_threads;
pub(crate) mod notification_faults;
pub(crate) mod notifications;
pub(crate) mod notified_permits;
pub(crate) mod permits;
pub(crate) mod queueing;
pub(crate) mod several;
pub(crate) mod shared_transactions;
pub(crate) mod successors;
pub(crate) mod windows;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    [
        cancellation::trials(),
        draining::trials(),
        many_threads::trials(),
        notification_faults::trials(),
        notifications::trials(),
        notified_permits::trials(),
        permits::trials(),
        shared_transactions::trials(),
        queueing::trials(),
        several::trials(),
        successors::trials(),
        windows::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

//! Work on several threads at the same time.

use crate::system::thread;

/// Runs `work` on this many threads, of which the caller's is one, and waits until it has ended on each. Where a thread
/// cannot be started there are fewer: `work` takes what it does next from a list that all share.
pub(super) fn on_threads(count: usize, work: impl Fn() + Sync) {
    if count <= 1 {
        return work();
    }
    thread::scope(|scope| {
        for _ in 1..count {
            let started = thread::named("setnx-lock-send").spawn_scoped(scope, &work);
            if started.is_err() {
                break;
            }
        }
        work();
    });
}

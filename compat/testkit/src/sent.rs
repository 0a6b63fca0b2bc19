//! The commands that a server has received.

use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
use setnx_lock_testing::Proxy;

use crate::LONG;

/// Returns the commands since the log was cleared, each as its words.
pub fn recorded(server: &Proxy) -> Vec<Vec<String>> {
    let words = |received: setnx_lock_testing::Received| [vec![received.name], received.arguments].concat();
    server.whole_log().into_iter().map(words).collect()
}

/// Returns the lock after its locker has opened a connection, so that the commands of connecting are sent already.
pub fn connected(lock: Lock) -> Result<Lock, Error> {
    lock.state().map(|_| lock)
}

/// Has a locker probe what its server has for this protocol.
pub fn probed(locker: &Locker, protocol: Protocol) -> Result<(), Error> {
    let options = LockOptions::expiring_after(LONG).protocol(protocol);
    Lock::new(locker, "setnx-lock-test:probed", options)?.with(|_| ())
}

pub fn names(commands: &[Vec<String>]) -> Vec<&str> {
    commands.iter().map(|words| words[0].as_str()).collect()
}

//! Locks that are given up before their leases end, over a network on which that takes long.

use std::sync::{Arc, Mutex};

use setnx_lock::{Error, Lock, LockGuard, LockOptions, LossReason, Protocol};
use world::network::{self, Faults};
use world::run::{self, chance, random};
use world::thread;

use super::{SECOND, a_server, builder, millis, start, sure};
use crate::calls::{one_of, up_to};
use crate::laws::broken;

/// No work was done after the lease, so such a lock is not lost, whatever becomes of its key.
pub(super) fn a_lock_that_is_given_up_in_time_is_not_lost() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    let server = a_server((200, 3000), protocol);
    start("process", move || {
        let locker = sure(builder(server).pool_size(2).build());
        network::set_faults(Faults { latency: (200, 3000), delays: 6, delay: 2 * SECOND, ..Faults::NONE });
        let lost = Arc::new(Mutex::new(Vec::new()));
        let mut given_up = Vec::new();
        for number in 0..300 {
            let (key, expiration) = (format!("key {number}"), millis(300, 900));
            let options = LockOptions::expiring_after(expiration).protocol(protocol).timeout(SECOND);
            let options = if chance(3) { options.hold_at_least(up_to(expiration)) } else { options };
            let options = if chance(3) { options.auto_extend(10 * SECOND) } else { options };
            let Ok(guard) = sure(Lock::new(&locker, &key, options)).lock() else { continue };
            let (noted, signal) = (Arc::clone(&lost), guard.loss_signal());
            let of_callback = key.clone();
            guard.on_loss(move |reason| noted.lock().unwrap().push((of_callback, reason)));
            thread::sleep(up_to(expiration / 2));
            if guard.ensure_held().is_err() {
                continue;
            }
            if let Err(Error::Lost { reason: LossReason::Expired, .. }) = end(guard) {
                broken(&format!("{key} was given up in time, and its release says that it was lost"));
            }
            given_up.push((key, signal));
        }
        thread::sleep(10 * SECOND);
        for (key, signal) in given_up {
            let was_told = lost.lock().unwrap().contains(&(key.clone(), LossReason::Expired));
            if was_told || signal.reason() == Some(LossReason::Expired) {
                broken(&format!("{key} was given up in time, and is lost"));
            }
        }
        run::note("all was given up");
    });
    thread::sleep(1000 * SECOND);
}

fn end(guard: LockGuard) -> Result<(), Error> {
    match random(0..4) {
        0 => drop(guard),
        1 => guard.release_later(),
        2 => return guard.leave_to_expire(),
        _ => return guard.release(),
    }
    Ok(())
}

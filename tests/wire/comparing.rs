//! Servers that compare a key and change it in one command: Redis 8.4 and Valkey 9.

use std::sync::Arc;
use std::time::Duration;

use setnx_lock::{Lock, LockOptions, Locker, MultiLock, Protocol};
use setnx_lock_testing::{Fault, ServerVersion, TestServer};

use crate::support::scenario::{FOREIGN, opened};
use crate::support::sent::probed;
use crate::support::{Outcome, PAST, Release, Target, TestKey, expiring, release, server_of, trials_of};

trials_of! {
    "comparing";
    a_change_is_one_command,
    a_key_that_holds_something_else_is_read,
    what_was_read_late_is_judged_by_that_time,
    several_go_in_one_trip,
    a_user_without_the_right_to_compare_gets_transactions,
}

const BOTH: [(ServerVersion, &str); 2] =
    [(ServerVersion::V8_4, "DELEX"), (ServerVersion::Valkey9, "DELIFEQ")];
const PROTOCOLS: [(Protocol, &str); 2] = [(Protocol::Watched, "SETNX"), (Protocol::Ttl, "SET")];

/// A server, a locker that has found out what it has, and a key there.
fn set(comparing: ServerVersion) -> Result<(Arc<TestServer>, Locker, TestKey), setnx_lock::Error> {
    let server = Arc::new(server_of(comparing));
    let locker = opened(&server.url())?;
    probed(&locker, Protocol::Ttl)?;
    server.clear_log();
    let key = Target::of(&server).key("compared");
    Ok((server, locker, key))
}

fn a_change_is_one_command() -> Outcome {
    for (comparing, deletes) in BOTH {
        let (server, locker, key) = set(comparing)?;
        for (protocol, asks) in PROTOCOLS {
            let lock = Lock::new(&locker, &key.key, expiring().protocol(protocol))?;
            let held = lock.lock()?;
            held.extend()?;
            assert_eq!(key.time_to_live() > 0, protocol == Protocol::Ttl);
            assert_eq!(release(held)?, Release::Released { certified: true });
            assert_eq!(server.names(), [asks, "SET", deletes], "{protocol:?}");
            server.clear_log();

            // In Ttl the time to live decides as well.
            key.set(PAST);
            lock.lock()?.release()?;
            let takeover: &[&str] = match protocol {
                Protocol::Ttl => &["WATCH", "GET", "PTTL", "MULTI", "SET", "EXEC"],
                _ => &["SET"],
            };
            assert_eq!(server.names(), [&[asks, "GET"], takeover, &[deletes]].concat(), "{protocol:?}");
            server.clear_log();
        }
    }
    Ok(())
}

fn a_key_that_holds_something_else_is_read() -> Outcome {
    for (comparing, deletes) in BOTH {
        let (server, locker, key) = set(comparing)?;
        let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
        let held = lock.lock()?;
        key.set(FOREIGN);
        server.clear_log();
        assert!(held.extend().is_err());
        assert_eq!(release(held)?, Release::Lost);
        assert_eq!(server.names(), ["SET", "GET"], "it is known to be lost");
        key.delete();
        let held = lock.lock()?;
        key.set(FOREIGN);
        server.clear_log();
        assert_eq!(release(held)?, Release::Lost);
        assert_eq!(server.names(), [deletes, "GET"]);
        assert_eq!(key.value().as_deref(), Some(FOREIGN));
    }
    Ok(())
}

/// What a losing gem has written is deleted within the lease alone: afterwards it may be a holder's.
fn what_was_read_late_is_judged_by_that_time() -> Outcome {
    const LEASE: Duration = Duration::from_millis(400);
    const GEMS: &str = "1895000000.5";
    for (comparing, deletes) in BOTH {
        for late in [false, true] {
            let (server, locker, key) = set(comparing)?;
            let options = LockOptions::expiring_after(LEASE).protocol(Protocol::Watched);
            let held = Lock::new(&locker, &key.key, options)?.lock()?;
            key.set(GEMS);
            server.clear_log();
            if late {
                server.next("GET", Fault::DelayReply(2 * LEASE));
            }
            let released = release(held);
            let is_deleted = key.value().is_none();
            let names = server.names();
            assert!(!late || !is_deleted, "{released:?}, {names:?}");
            // On a busy machine the lease may pass without that.
            assert!(late || !is_deleted || names == [deletes, "GET", deletes], "{released:?}, {names:?}");
        }
    }
    Ok(())
}

fn several_go_in_one_trip() -> Outcome {
    for (comparing, deletes) in BOTH {
        let (server, locker, key) = set(comparing)?;
        let keys = ["{k}:1", "{k}:2", "{k}:3"];
        let held = MultiLock::new(&locker, keys, expiring().protocol(Protocol::Ttl))?.lock()?;
        held.release()?;
        let trips = server.batches();
        let sizes: Vec<usize> = trips.iter().map(Vec::len).collect();
        assert_eq!(sizes, [3, 3], "{trips:?}");
        assert!(trips[1].iter().all(|asked| asked.name == deletes));
        drop(key);
    }
    Ok(())
}

/// It is refused once, and carried out all the same.
fn a_user_without_the_right_to_compare_gets_transactions() -> Outcome {
    for (comparing, deletes) in BOTH {
        let (server, locker, key) = set(comparing)?;
        let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Ttl))?;
        server.next(deletes, Fault::Say("-NOPERM this user has no permissions to run the command\r\n"));
        for refused in [&[deletes][..], &[]] {
            assert_eq!(release(lock.lock()?)?, Release::Released { certified: true });
            let transaction = &["WATCH", "GET", "MULTI", "DEL", "EXEC"];
            assert_eq!(server.names(), [&["SET"], refused, transaction].concat());
            server.clear_log();
        }
    }
    Ok(())
}

//! What a server refuses of permits, readers and writers.

use std::collections::BTreeSet;

use setnx_lock::{Error, LockState, Locker, RefusalKind, RwLock, Semaphore};
use setnx_lock_proto::values::SideKey;
use setnx_lock_testing::{Fault, TestServer};

use crate::support::asleep::Sleeper;
use crate::support::scenario::{FOREIGN, Scenario, opened, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer, Outcome, TestKey, chain, expiring, millis, trials_of};

type Failure = Box<dyn std::error::Error>;

trials_of! {
    "permit_faults";
    a_user_that_may_not_look,
    a_user_without_one_of_the_keys,
    a_key_of_another_type,
    a_number_of_readers_that_cannot_be_read,
    readers_that_wait_while_their_number_is_changed,
}

const NAME: &str = "pool";

/// Opens a server as a user that may do less than all.
fn restricted(server: &impl AnyServer, rules: &[&str]) -> Result<Locker, Failure> {
    let set = [&["ACL", "SETUSER", "weak", "on", ">weak", "~*", "+@all"], rules].concat();
    assert_eq!(server.say(&set)?, "+OK");
    let url = format!("redis://weak:weak@127.0.0.1:{}/", server.address().port());
    Ok(opened(&url)?)
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(outcome: Result<T, Error>, kind: RefusalKind, words: &str) {
    let error = outcome.expect_err("it is refused");
    let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
    assert_eq!(refusal.kind(), kind, "{error:?}");
    assert!(chain(&error).contains(words), "{}", chain(&error));
}

fn a_user_that_may_not_look() -> Outcome {
    let server = TestServer::start();
    let semaphore = Semaphore::new(&restricted(&server, &["-mget"])?, NAME, 2, expiring())?;
    // What was granted is held.
    semaphore.acquire()?.ensure_held()?;
    for slot in ["pool:0", "pool:1"] {
        server.say(&["SET", slot, FOREIGN])?;
    }
    assert_refused(semaphore.acquire(), RefusalKind::NotPermitted, "mget");
    assert_refused(semaphore.try_acquire(), RefusalKind::NotPermitted, "mget");
    assert_refused(semaphore.states(), RefusalKind::NotPermitted, "mget");
    Ok(())
}

fn a_user_without_one_of_the_keys() -> Outcome {
    let server = TestServer::start();
    let locker = restricted(&server, &["resetkeys", "~pool:0"])?;
    let semaphore = Semaphore::new(&locker, NAME, 2, expiring())?;
    let mut outcomes = BTreeSet::new();
    // Which is asked for first is left to chance.
    for _ in 0..40 {
        outcomes.insert(match semaphore.acquire() {
            Ok(held) => Some(held.slot()),
            Err(Error::Refused { .. }) => None,
            Err(error) => return Err(error.into()),
        });
        assert_eq!(server.say(&["EXISTS", "pool:0", "pool:1"])?, ":0");
    }
    assert_eq!(outcomes, BTreeSet::from([None, Some(0)]));
    Ok(())
}

/// Where the number of readers of a lock of this name stands.
const READERS: &str = "pool:setnx-lock:readers:{pool}";

fn a_number_of_readers_that_cannot_be_read() -> Outcome {
    let scenario = Scenario::set();
    let name = scenario.target.key(NAME);
    let lock = RwLock::new(&scenario.locker(), &name.key, 2, expiring())?;
    for write in [false, true] {
        (0..3).for_each(|_| scenario.server.next("GET", Fault::CutBefore));
        let error = if write { lock.write().map(drop) } else { lock.read().map(drop) };
        let error = error.expect_err("no look has a reply");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert!(
            error.to_string().contains(&format!("{}: GET failed", name.beside(SideKey::Readers).key)),
            "{error}"
        );
        assert!(scenario.server.log().iter().all(|asked| asked.name == "GET"), "nothing is acquired");
    }

    let server = TestServer::start();
    let locker = restricted(&server, &["resetkeys", "~pool:0", "~pool:1"])?;
    let lock = RwLock::new(&locker, NAME, 2, expiring())?;
    assert_refused(lock.read(), RefusalKind::NotPermitted, READERS);
    assert_refused(lock.write(), RefusalKind::NotPermitted, READERS);
    assert_refused(lock.set_readers(), RefusalKind::NotPermitted, READERS);
    server.say(&["RPUSH", READERS, "element"])?;
    let lock = RwLock::new(&opened(&server.url())?, NAME, 2, expiring())?;
    assert_refused(lock.read(), RefusalKind::WrongType, "WRONGTYPE");
    assert_refused(lock.set_readers(), RefusalKind::WrongType, "WRONGTYPE");
    assert_eq!(server.say(&["LLEN", READERS])?, ":1", "it is left alone");
    Ok(())
}

fn readers_that_wait_while_their_number_is_changed() -> Outcome {
    let scenario = Scenario::set();
    let name = scenario.target.key(NAME);
    let number = name.beside(SideKey::Readers);
    let locker = scenario.open(patient(&scenario.server.url())?);
    let slots = [0, 1].map(|slot| scenario.target.key(&format!("{NAME}:{slot}")));
    // It polls: so seldom that it is asleep when the keys are released.
    let lock = RwLock::new(&locker, &name.key, 2, expiring().poll_interval(millis(1000)))?;
    drop(lock.read()?);
    for slot in &slots {
        slot.set(FOREIGN);
    }
    let reading = [(); 3].map(|()| {
        let lock = lock.clone();
        Sleeper::start(move || lock.read()?.release())
    });
    reading.iter().for_each(Sleeper::rests);
    // Another program has changed it since. The keys of its readers are acquired and released as well.
    number.set("4");
    let changing = Sleeper::start({
        let lock = RwLock::new(&locker, &name.key, 2, expiring().poll_interval(millis(20)))?;
        move || lock.set_readers()
    });
    changing.rests();
    slots.iter().for_each(TestKey::delete);
    changing.join()?;
    reading.into_iter().try_for_each(Sleeper::join)?;
    assert_eq!(number.value().as_deref(), Some("2"));

    // While it is changed, it is compared.
    number.set("4");
    let change = scenario.server.pause("GETSET", 1);
    let changing = Sleeper::start({
        let lock = RwLock::new(&locker, &name.key, 2, expiring())?;
        move || lock.set_readers()
    });
    change.reached();
    let early = lock.read().expect_err("the number is not changed yet");
    assert!(matches!(early, Error::Invalid { .. }), "{early:?}");
    change.go_on();
    changing.join()?;
    drop(lock.read()?);

    // The reply to the change is lost: it may have been made.
    number.set("4");
    let lock = RwLock::new(&opened(&scenario.server.url())?, &name.key, 2, expiring())?;
    scenario.server.next("GETSET", Fault::CutAfter);
    let error = lock.set_readers().expect_err("the reply is lost");
    assert!(matches!(error, Error::InDoubt { command: "GETSET", .. }), "{error:?}");
    assert_eq!(number.value().as_deref(), Some("2"));
    lock.set_readers()?;
    Ok(())
}

fn a_key_of_another_type() -> Outcome {
    const KEYS: [&str; 2] = ["pool:0", "pool:1"];
    for protocol in PROTOCOLS {
        let server = TestServer::start();
        let locker = opened(&server.url())?;
        let options = expiring().protocol(protocol);
        let semaphore = Semaphore::new(&locker, NAME, 2, options)?;
        server.say(&["RPUSH", KEYS[0], "element"])?;
        assert_eq!(semaphore.states()?[0], LockState::Absent);
        // Which is asked for first is left to chance.
        for _ in 0..3 {
            let held = semaphore.acquire()?;
            assert_eq!(held.slot(), 1);
            assert!(semaphore.try_acquire()?.is_none());
            drop(held);

            server.say(&["SET", KEYS[1], FOREIGN])?;
            let polling = Semaphore::new(&locker, NAME, 2, options.poll_interval(millis(40)))?;
            let waiter = Sleeper::start(move || polling.acquire());
            waiter.rests();
            server.say(&["DEL", KEYS[1]])?;
            assert_eq!(waiter.join()?.slot(), 1);
        }
        server.say(&["RPUSH", KEYS[1], "element"])?;
        assert_refused(semaphore.acquire(), RefusalKind::WrongType, "WRONGTYPE");
        assert_refused(semaphore.try_acquire(), RefusalKind::WrongType, "WRONGTYPE");
        for key in KEYS {
            assert_eq!(server.say(&["LLEN", key])?, ":1", "it is left alone");
        }
    }
    Ok(())
}

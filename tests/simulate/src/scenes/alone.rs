//! Threads with keys of their own, whose connections break at each command: what a call says is what the keys hold.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use setnx_lock::{CancelToken, Error, Lock, LockOptions, Locker, MultiLock, Protocol, Semaphore};
use setnx_lock_testing::ServerVersion;
use world::network::{self, Faults, ServerId};
use world::run::{self, chance, random};
use world::thread;

use super::settled::Settled;
use super::{COMMAND, SECOND, builder, limits, millis, start, sure};
use crate::calls::{one_of, timed, up_to};
use crate::laws::{self, broken};
use crate::others::time_in;

/// Longer than any command is on its way.
const LATE: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(30);

pub(super) fn each_call_says_what_the_keys_hold() {
    let protocol = one_of(&[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]);
    let version = match protocol {
        Protocol::Classic => one_of(&[ServerVersion::V1_2, ServerVersion::V2_0, ServerVersion::V7]),
        Protocol::Watched => one_of(&[ServerVersion::V2_2, ServerVersion::V2_4, ServerVersion::V8_4]),
        _ => one_of(&[ServerVersion::V2_6, ServerVersion::V7, ServerVersion::V8_4, ServerVersion::Valkey9]),
    };
    let server = ServerId::start("server", version, &[]);
    let one_in = one_of(&[25, 5]);
    // In Classic a late GETSET overwrites what its process holds by then.
    let is_late = protocol != Protocol::Classic && chance(2);
    let (delays, delay) = if is_late { (3, millis(1200, 1900)) } else { (2 * one_in, millis(50, 1200)) };
    network::set_faults(Faults {
        latency: (30, 300),
        lost_requests: one_in,
        lost_replies: one_in,
        silences: 4 * one_in,
        delays,
        delay,
    });
    start("process", move || {
        let pool = u32::try_from(random(1..5)).unwrap_or(1);
        let settled = Arc::<Settled>::default();
        let locker = sure(builder(server).pool_size(pool).observer(Arc::clone(&settled)).build());
        let each = |number: u64| {
            let (locker, is_rare) = (locker.clone(), one_in > 5 && !is_late);
            let settled = Arc::clone(&settled);
            move || {
                for round in 0.. {
                    if run::now() >= 90 * SECOND {
                        return;
                    }
                    // What a call has left goes on in the background, and concerns no other call.
                    let name = format!("own{number}:{round}:");
                    Own {
                        server,
                        locker: locker.clone(),
                        protocol,
                        name,
                        is_rare,
                        in_doubt: Cell::new(false),
                        settled: Arc::clone(&settled),
                    }
                    .round();
                    thread::sleep(LATE);
                }
            }
        };
        let threads: Vec<_> = (0..random(1..5)).map(|number| thread::spawn(each(number))).collect();
        for thread in threads {
            thread.join().unwrap_or_else(|_| broken("a thread panics"));
        }
        if chance(2) {
            Own {
                server,
                locker: locker.clone(),
                protocol,
                name: "last:".to_owned(),
                is_rare: false,
                in_doubt: Cell::new(false),
                settled: Arc::clone(&settled),
            }
            .drains();
        }
        // The last lease has ended, and an attempt that is under way.
        thread::sleep(LEASE + LATE);
        settled.is_whole();
    });
    thread::sleep(150 * SECOND);
}

/// The keys of one call and its guard.
struct Own {
    server: ServerId,
    locker: Locker,
    protocol: Protocol,
    /// All begin with it.
    name: String,
    /// Most calls succeed.
    is_rare: bool,
    /// An extension has had no reply, and may yet come. In Classic,
    /// what it may have written proves nothing, and is left to expire.
    in_doubt: Cell<bool>,
    settled: Arc<Settled>,
}

/// Returns true if an error says that this key is held still, or may be. Of several that are in doubt it may name one.
fn names(error: &Error, key: &str) -> bool {
    let whole = key.rfind(':').map_or(key, |at| &key[..=at]);
    let is_named =
        |error: &Error| error.key().is_some_and(|named| named.as_ref().starts_with(whole.as_bytes()));
    match error {
        Error::Several { cause, others, .. } => {
            names(cause, key) || others.iter().any(|other| is_named(other) || names(other, key))
        }
        error => error.may_hold_lock() && is_named(error),
    }
}

/// A call may fail like this. When connections break so often, a server may look like a proxy, for a minute.
fn failed(error: &Error) {
    if !error.chain().to_string().contains("as a proxy does") {
        laws::failed(error);
    }
}

impl Own {
    /// Returns the keys that are held, with the times in their values.
    fn held(&self) -> Vec<(String, f64)> {
        let keys = self.server.look(&["KEYS", &format!("{}*", self.name)]);
        let held = |key: &str| {
            let value = self.server.look(&["GET", key]);
            (key.to_owned(), time_in(&value).unwrap_or_else(|| broken(&format!("{key} holds {value}"))))
        };
        let now = run::wall_clock().as_secs_f64();
        let own = keys.lines().filter(|key| !key.contains(":setnx-lock:")).map(held);
        own.filter(|(_, until)| *until > now).collect()
    }

    /// The keys are as a call has said.
    fn expects(&self, what: &str, count: usize) {
        let held = self.held();
        if held.len() != count {
            broken(&format!("{what}, and {held:?} are held, not {count}"));
        }
    }

    /// What was held is released, unless the library has said that it is left to expire: in Classic, where a DEL of the
    /// background thread has no reply.
    fn has_none_of(&self, before: &[(String, f64)], what: &str) {
        let is_left = |key: &str| self.protocol == Protocol::Classic && self.settled.is_left_to_expire(key);
        let mut left = self.held().into_iter().filter(|held| before.contains(held));
        if let Some(left) = left.find(|(key, _)| !is_left(key)) {
            broken(&format!("{what}, and {left:?} is held"));
        }
    }

    /// A call on a guard has failed, after which so many keys are
    /// held; unless it does not know. Nobody else has had them.
    fn failed(&self, what: &str, error: &Error, count: usize) {
        run::note(&format!("{what}: {}", error.chain()));
        failed(error);
        if error.is_lost() {
            broken(&format!("{what} says {}, and nobody else wants it", error.chain()));
        }
        if error.may_hold_lock() {
            return;
        }
        self.expects(&format!("{what} says {}", error.chain()), count);
        thread::sleep(LATE);
        self.expects(&format!("{what} said {} a while ago", error.chain()), count);
    }

    /// A call has acquired nothing. What is held all the same, or
    /// later, an error names. `expired`: a takeover may come too late.
    fn not_acquired(&self, what: &str, error: Option<&Error>, expired: bool) {
        let text = error.map_or_else(|| "nothing".to_owned(), |error| error.chain().to_string());
        run::note(&format!("{what}: {text}"));
        if let Some(error) = error {
            failed(error);
            self.settled.note(error);
        }
        if error.is_none_or(Error::is_contention) && !expired {
            broken(&format!("{what} says {text}, and nobody else wants it"));
        }
        for when in ["", " a while ago"] {
            let held = self.held();
            if let Some((key, _)) = held.iter().find(|(key, _)| !error.is_some_and(|error| names(error, key)))
            {
                broken(&format!("{what} said {text}{when}, and {key} is held"));
            }
            // One of several may have been acquired, and given back before an earlier command for it came.
            if what == "lock of several" {
                return;
            }
            thread::sleep(LATE);
        }
        self.is_settled(what, error);
    }

    /// What a command without a reply may have acquired is released in the background. In Classic a DEL without a reply
    /// ends that, and nothing is to be done about a GETSET.
    fn is_settled(&self, what: &str, error: Option<&Error>) {
        let in_doubt = error.filter(|error| error.may_hold_lock());
        if let Some(error) = in_doubt.filter(|_| self.is_rare && self.protocol != Protocol::Classic) {
            thread::sleep(LEASE / 3);
            self.expects(&format!("{what} said {} a while ago", error.chain()), 0);
        }
    }

    fn round(&self) {
        let options = LockOptions::expiring_after(LEASE).protocol(self.protocol).timeout(SECOND);
        let name = |part: &str| format!("{}{part}", self.name);
        let expired = chance(2);
        if expired {
            for part in ["a", "b", "one", "permits:0", "permits:1", "permits:2"] {
                let _left = self.server.look(&["SET", &name(part), "1532000016.5"]);
            }
        }
        match random(0..4) {
            0 => {
                let locks = sure(MultiLock::new(&self.locker, [name("a"), name("b")], options));
                match timed("lock of several", limits().waiting_for_several(SECOND), || locks.lock()) {
                    Ok(guard) => {
                        self.expects("two are acquired", 2);
                        if chance(2) {
                            self.extends("extend", 2, || guard.extend());
                        }
                        self.releases(&self.held(), || guard.release());
                    }
                    Err(error) => self.not_acquired("lock of several", Some(&error), expired),
                }
            }
            1 => {
                let permits = sure(Semaphore::new(&self.locker, name("permits"), 3, options));
                match timed("acquire", limits().waiting_for_several(SECOND), || permits.acquire()) {
                    Ok(permit) => {
                        // A command for another may come late.
                        let (name, mut held) = (permit.key().to_string(), self.held());
                        held.retain(|(key, _)| *key == name);
                        if held.len() != 1 {
                            broken(&format!("{name} is acquired, and {held:?} are held"));
                        }
                        self.releases(&held, || permit.release());
                    }
                    Err(error) => self.not_acquired("acquire", Some(&error), expired),
                }
            }
            _ => self.one(&sure(Lock::new(&self.locker, name("one"), options)), expired),
        }
    }

    /// What was given up is released, or a drain lists it.
    fn drains(&self) {
        let options = LockOptions::expiring_after(LEASE).protocol(self.protocol).timeout(SECOND);
        let mut guards = Vec::new();
        for number in 0..random(1..5) {
            let lock = sure(Lock::new(&self.locker, format!("{}{number}", self.name), options));
            guards.extend(lock.lock());
        }
        let before = self.held();
        for guard in guards {
            match random(0..3) {
                0 => guard.release_later(),
                1 => drop(guard),
                _ => _ = guard.release().map_err(|error| failed(&error)),
            }
        }
        let limit = up_to(SECOND);
        let drained = timed("drain", limit + COMMAND, || self.locker.drain(limit));
        run::note(&format!("{drained:?}"));
        let is_listed = |key: &str| drained.unsettled.iter().any(|left| left.key.as_ref() == key.as_bytes());
        if let Some((key, _)) = self.held().iter().find(|held| before.contains(held) && !is_listed(&held.0)) {
            broken(&format!("{key} is held, and the drain does not list it"));
        }
    }

    fn one(&self, lock: &Lock, expired: bool) {
        let acquired = match random(0..3) {
            0 => timed("try_lock", COMMAND, || lock.try_lock()),
            1 => {
                let token = CancelToken::new();
                let lock = lock.clone().cancelled_by(&token);
                let canceller = thread::spawn(move || {
                    thread::sleep(up_to(SECOND / 5));
                    token.cancel();
                });
                let acquired = timed("lock", limits().waiting(SECOND), || lock.lock()).map(Some);
                let _ended = canceller.join();
                acquired
            }
            _ => timed("lock", limits().waiting(SECOND), || lock.lock()).map(Some),
        };
        let mut guard = match acquired {
            Ok(Some(guard)) => guard,
            Ok(None) => return self.not_acquired("try_lock", None, expired),
            Err(error) => return self.not_acquired("lock", Some(&error), expired),
        };
        self.expects("it is acquired", 1);
        for _ in 0..random(0..3) {
            match random(0..4) {
                0 => self.extends("extend", 1, || guard.extend()),
                1 => {
                    if let Err(error) = timed("verify", limits().of_guard(), || guard.verify()) {
                        self.failed("verify", &error, 1);
                    }
                }
                2 => {
                    if let Err(error) = timed("fencing_token", limits().of_guard(), || guard.fencing_token())
                    {
                        self.failed("fencing_token", &error, 1);
                    }
                }
                _ => {
                    let (limit, before) = (limits().of_release(LEASE) + COMMAND, self.held());
                    let token = match timed("into_token", limit, || guard.into_token()) {
                        Ok(token) => token,
                        Err(error) => return self.left("into_token", &error, &before),
                    };
                    self.expects("it is given away", 1);
                    guard = match timed("resume", COMMAND, || lock.resume(&token)) {
                        Ok(guard) => guard,
                        Err(error) => return self.failed("resume", &error, 1),
                    };
                    self.expects("it is resumed", 1);
                }
            }
        }
        self.releases(&self.held(), || guard.release());
    }

    /// After an extension that succeeds each value names a later time, and after one that fails the same.
    fn extends(&self, what: &str, count: usize, extend: impl FnOnce() -> Result<(), Error>) {
        let before = self.held();
        thread::sleep(Duration::from_millis(2));
        let outcome = timed(what, limits().of_guard() + COMMAND, extend);
        let after = self.held();
        let later = after.iter().zip(&before).filter(|(after, before)| after.1 > before.1).count();
        match outcome {
            Ok(()) if later != count => broken(&format!("{what} succeeds: {before:?}, {after:?}")),
            Ok(()) => {}
            Err(error) => {
                self.failed(what, &error, count);
                self.in_doubt.set(self.in_doubt.get() || error.may_hold_lock());
                let later = self.held().iter().zip(&before).any(|(after, before)| after.1 > before.1);
                if count == 1 && later && !self.in_doubt.get() {
                    broken(&format!("{what} said {}: {before:?}, {:?}", error.chain(), self.held()));
                }
            }
        }
    }

    fn releases(&self, before: &[(String, f64)], release: impl FnOnce() -> Result<(), Error>) {
        match timed("release", limits().of_release(LEASE), release) {
            // A SETNX that comes late, after another was granted, finds a free key.
            Ok(()) => self.has_none_of(before, "it is released"),
            Err(error) => self.left("release", &error, before),
        }
    }

    /// A release has failed. It is tried again in the background,
    /// unless the error says that it may have been carried out.
    fn left(&self, what: &str, error: &Error, before: &[(String, f64)]) {
        run::note(&format!("{what}: {}", error.chain()));
        failed(error);
        if error.is_lost() {
            broken(&format!("{what} says {}, and nobody else wants it", error.chain()));
        }
        let is_tried =
            matches!(error, Error::Unavailable { .. }) || error.to_string().contains("tried again");
        if is_tried && self.is_rare && !self.in_doubt.get() {
            thread::sleep(LEASE * 2 / 3);
            self.has_none_of(before, &format!("{what} said {} a while ago", error.chain()));
        }
    }
}

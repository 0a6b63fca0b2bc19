//! What all programs do with locks: each call in its time, each hold looked at.

use std::cell::Cell;
use std::time::Duration;

use setnx_lock::{Error, LockGuard};
use world::run::{self, random};
use world::thread;

use crate::laws::{self, HoldId};
use crate::plan::Plan;
use crate::servers::Topology;

/// What a call may take beyond what is documented: other threads run.
const SLACK: Duration = Duration::from_millis(60);

/// How long a call takes at most: limits.md, How long a call takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) command: Duration,
    pub(crate) connect: Duration,
    pub(crate) retry: Duration,
    /// Leases may be longer than expirations.
    pub(crate) lengthens: bool,
    pub(crate) in_cluster: bool,
}

impl Limits {
    pub(crate) fn of(plan: &Plan) -> Self {
        Self {
            command: plan.command_timeout,
            connect: plan.connect_timeout,
            retry: plan.retry_for,
            lengthens: !plan.settles,
            in_cluster: plan.topology == Topology::Cluster,
        }
    }

    /// Of a call that waits for a lock.
    pub(crate) fn waiting(self, timeout: Duration) -> Duration {
        (timeout + self.command).max(timeout.min(self.retry) + self.connect)
    }

    /// The same for several keys.
    pub(crate) fn waiting_for_several(self, timeout: Duration) -> Duration {
        self.waiting(timeout) + 4 * self.command
    }

    /// Of a call on a guard: it may wait for one before it; in a cluster, for the background thread's, on keys of other
    /// slots as well.
    pub(crate) fn of_guard(self) -> Duration {
        if self.in_cluster { 3 * self.command } else { 2 * self.command }
    }

    /// Of a release, which may wait for a connection until the lease ends.
    pub(crate) fn of_release(self, left: Duration) -> Duration {
        left + self.of_guard()
    }
}

thread_local! {
    /// How long callbacks of the program have taken on this thread.
    static CALLED_BACK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Sleeps as a callback: the library calls it on the thread that notices a loss, which may be in a call.
pub(crate) fn sleep_in_callback(time: Duration) {
    let began = run::now();
    thread::sleep(time);
    CALLED_BACK.set(CALLED_BACK.get() + run::now().saturating_sub(began));
}

/// How long a call takes, but for callbacks, and the time during which its process is stopped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    began: Duration,
    /// What does not count.
    before: Duration,
}

fn uncounted() -> Duration {
    run::stopped() + CALLED_BACK.get()
}

impl Clock {
    pub(crate) fn start(what: &str) -> Self {
        run::note(what);
        world::network::begin_call();
        Self { began: run::now(), before: uncounted() }
    }

    /// The call has ended. Its process's clock may be slower.
    pub(crate) fn within(self, what: &str, limit: Duration) {
        let uncounted = uncounted().saturating_sub(self.before);
        let took = run::now().saturating_sub(self.began + uncounted);
        if took > limit + limit / 500 + SLACK {
            laws::broken(&format!("{what} took {took:?}, and at most {limit:?}"));
        }
    }
}

/// Runs a call that is to end within a time.
pub(crate) fn timed<T>(what: &str, limit: Duration, call: impl FnOnce() -> T) -> T {
    let clock = Clock::start(what);
    let done = call();
    clock.within(what, limit);
    done
}

pub(crate) fn left(guard: &LockGuard) -> Duration {
    guard.remaining().unwrap_or_default()
}

/// Chooses one of these.
pub(crate) fn one_of<T: Copy>(all: &[T]) -> T {
    all[usize::try_from(random(0..all.len() as u64)).unwrap_or_default()]
}

/// Returns a random time up to this one.
pub(crate) fn up_to(longest: Duration) -> Duration {
    Duration::from_micros(random(0..u64::try_from(longest.as_micros()).unwrap_or(u64::MAX - 1) + 1))
}

/// What a key's holder has by a guard.
#[derive(Debug)]
pub(crate) struct Holding<'a> {
    guards: Vec<(&'a LockGuard, HoldId)>,
    limits: Limits,
}

impl<'a> Holding<'a> {
    /// The guards were acquired. `waited_since`: since when they were waited for, if only one was.
    pub(crate) fn begin(
        guards: impl IntoIterator<Item = &'a LockGuard>,
        waited_since: Option<Duration>,
        limits: Limits,
    ) -> Self {
        let acquired = |guard: &'a LockGuard| {
            // A lock that was waited for is a new one.
            let is_over = waited_since.is_some() && guard.remaining() == Some(Duration::ZERO);
            if is_over && run::stopped().is_zero() && run::clock_set().is_zero() {
                laws::broken(&format!("{} is acquired, and its lease has ended", guard.key()));
            }
            (guard, laws::acquired(&guard.key().to_string(), left(guard), waited_since))
        };
        Self { guards: guards.into_iter().map(acquired).collect(), limits }
    }

    /// The number of the first hold, for [`laws::same_hold`].
    pub(crate) fn id(&self) -> HoldId {
        self.guards[0].1
    }

    /// Works for a while, and looks at the locks meanwhile. Returns false if one is lost.
    pub(crate) fn work(&self, time: Duration) -> bool {
        if random(0..4) == 0 {
            // Without a look.
            thread::sleep(time);
            return true;
        }
        let until = run::now() + time;
        while run::now() < until {
            let rest = until.saturating_sub(run::now());
            thread::sleep(up_to(Duration::from_millis(40)).min(rest));
            let (guard, id) = one_of(&self.guards);
            if !self.look(guard, id) {
                return false;
            }
        }
        true
    }

    fn look(&self, guard: &LockGuard, id: HoldId) -> bool {
        let limit = self.limits.of_guard();
        let chosen = random(0..14);
        if chosen < 2 {
            laws::extends(id);
        }
        let outcome = match chosen {
            0 => timed("extend", limit, || guard.extend()),
            1 if self.limits.lengthens => timed("extend_by", limit, || {
                guard.extend_by(left(guard) + Duration::from_millis(random(1..500)))
            }),
            2 => timed("verify", limit, || guard.verify()),
            3 => timed("fencing_token", limit, || guard.fencing_token())
                .map(|number| laws::token(id, number, None)),
            _ => timed("ensure_held", Duration::ZERO, || guard.ensure_held()),
        };
        if let Err(error) = &outcome {
            told(id, error);
        }
        let is_lost = outcome.is_err_and(|error| error.is_lost());
        if is_lost {
            laws::leaves(id);
        } else {
            laws::still_held(id, left(guard));
        }
        !is_lost
    }

    /// The holder relies on the locks no more: they are released next. Returns what [`Released`] needs.
    pub(crate) fn end(self) -> Released {
        let longest = self.guards.iter().map(|(guard, _)| left(guard)).max().unwrap_or_default();
        let keys = self.guards.iter().map(|(guard, id)| (guard.key().to_string(), *id)).collect();
        for (_, id) in &self.guards {
            laws::leaves(*id);
        }
        Released { keys, limit: self.limits.of_release(longest) }
    }
}

/// Locks that are about to be released.
#[derive(Debug)]
pub(crate) struct Released {
    keys: Vec<(String, HoldId)>,
    pub(crate) limit: Duration,
}

impl Released {
    /// The number of the hold of this key.
    pub(crate) fn id_of(&self, key: &str) -> HoldId {
        self.keys.iter().find(|(own, _)| own == key).map_or(0, |(_, id)| *id)
    }

    /// Releases them by this call.
    pub(crate) fn by(self, release: impl FnOnce() -> Result<(), Error>) {
        let outcome = timed("release", self.limit, release);
        self.told(outcome.err().as_ref());
        self.done();
    }

    /// Releases them by dropping their guard: at once, or late and by another thread.
    pub(crate) fn by_dropping(self, guard: impl Send + 'static) {
        if random(0..3) == 0 {
            // Nobody waits for it.
            thread::spawn(move || {
                thread::sleep(up_to(Duration::from_millis(300)));
                drop(guard);
            });
        } else {
            timed("drop", self.limit, || drop(guard));
        }
        self.done();
    }

    /// What came of the release. An error of several is of one of them.
    pub(crate) fn told(&self, error: Option<&Error>) {
        let Some(error) = error else { return };
        let key = error.key().map(ToString::to_string);
        let whose = self.keys.iter().find(|(own, _)| Some(own) == key.as_ref());
        told(whose.unwrap_or(&self.keys[0]).1, error);
    }

    /// They are released, as far as that has worked.
    pub(crate) fn done(self) {
        for (key, id) in &self.keys {
            laws::released(key);
            laws::forget(*id);
        }
    }
}

/// A call on a hold has failed.
pub(crate) fn told(id: HoldId, error: &Error) {
    run::note(&format!("is told: {}", error.chain()));
    if error.is_lost() {
        let reason = if let Error::Lost { reason, .. } = error { Some(reason) } else { None };
        laws::lost(id, reason, &error.chain());
    }
    laws::failed(error);
}

/// A call has not acquired a lock, which it has wanted since a time.
pub(crate) fn refused(key: &str, since: Duration, error: &Error) {
    run::note(&format!("not acquired: {}", error.chain()));
    if error.is_contention() {
        laws::waited_in_vain(key, since);
    }
    laws::failed(error);
    // A call that does not wait fails at once where the server is known to be unreachable.
    thread::sleep(up_to(Duration::from_millis(20)));
}

//! Attempts to open connections to one server: how the last one failed, and when the next may begin.

use std::time::Duration;

use proto::values::Uptime;

use super::opener::Opener;
use crate::net::errors::{Failure, Refusal, RefusalKind};
use crate::net::limits::{Limits, REMEMBERED};
use crate::system::clock;
use crate::system::sync::Mutex;

/// How long after an attempt that failed, and after the beginning of each that follows, the next begins.
const PAUSE: Duration = REMEMBERED;
/// How long after a panic the next attempt begins. TLS libraries panic each time where the program has not set them up.
const PANIC_PAUSE: Duration = Duration::from_secs(5);

/// Shared by the threads that use a pool.
#[derive(Default)]
pub(in crate::net) struct Dialing {
    state: Mutex<DialState>,
}

#[derive(Default)]
struct DialState {
    /// No attempt begins before, since a server without room has closed a connection.
    left_alone_until: Uptime,
    /// When the last attempt failed and how, unless a later one succeeded.
    failure: Option<(Uptime, Failure)>,
    /// No attempt begins before.
    next_attempt: Uptime,
    in_progress: usize,
    /// When the last of them began.
    last_began: Uptime,
}

impl Dialing {
    /// Returns true if an attempt may begin now, which the caller then makes. Any number may before one has failed.
    pub(in crate::net) fn begin(&self, now: Uptime) -> bool {
        let mut state = self.state.lock();
        if now < state.left_alone_until {
            return false;
        }
        if state.failure.is_some() {
            if now < state.next_attempt {
                return false;
            }
            state.next_attempt = now.after(PAUSE);
        }
        state.in_progress += 1;
        state.last_began = now;
        true
    }

    pub(in crate::net) fn is_in_progress(&self) -> bool {
        self.state.lock().in_progress > 0
    }

    pub(in crate::net) fn succeeded(&self) {
        let mut state = self.state.lock();
        let DialState { left_alone_until, last_began, .. } = *state;
        let in_progress = state.in_progress - 1;
        *state = DialState { left_alone_until, in_progress, last_began, ..DialState::default() };
    }

    /// Notes that the server had no room for a connection that was open already.
    pub(in crate::net) fn leave_alone(&self, now: Uptime) {
        self.state.lock().left_alone_until = now.after(PAUSE);
    }

    pub(in crate::net) fn failed(&self, now: Uptime, error: Failure) {
        let mut state = self.state.lock();
        state.in_progress -= 1;
        if error.found_all_in_use() {
            // It says nothing about the server: what was known of it counts on.
            if let Some((when, _)) = &mut state.failure {
                *when = now;
            }
            return;
        }
        state.next_attempt = state.next_attempt.max(now.after(pause(&error)));
        state.failure = Some((now, error));
    }

    /// Returns how connecting failed, if that was after `began` or so shortly before that no attempt was made since.
    /// With no time left for another attempt any failure counts.
    pub(in crate::net) fn failure_since(&self, began: Uptime, over: bool) -> Option<Failure> {
        let state = self.state.lock();
        let (when, error) = state.failure.as_ref()?;
        let valid = match error {
            // It may have become a master since.
            Failure::Refused(refusal)
                if refusal.is_of_replica() || refusal.kind() == RefusalKind::Sentinel =>
            {
                Duration::ZERO
            }
            error => pause(error),
        };
        (over || when.after(valid) >= began).then(|| error.clone())
    }

    /// Returns why no connection is free while there are some: a pool
    /// lends none, or the server has not answered what they carry.
    pub(in crate::net) fn all_in_use(&self, opener: &Opener) -> Failure {
        let is_lending = opener.lends() && self.is_in_progress();
        let address = (!is_lending).then(|| opener.address());
        Failure::all_in_use(address.as_deref())
    }

    /// Returns the refusal of connections that a thread waits for to pass, if there is one.
    pub(in crate::net) fn refused_for_now(&self, limits: &Limits<'_>, opener: &Opener) -> Option<Refusal> {
        let failure = self.failure_since(limits.waits_since, false).filter(|_| !opener.is_connected());
        match failure? {
            // A replica is waited for as one that is unreachable.
            Failure::Refused(refusal) if refusal.is_transient() && !refusal.is_of_replica() => Some(refusal),
            _ => None,
        }
    }

    /// Returns that no attempt in progress ends in time, since the program does not say how to log in, if so.
    fn overdue(&self, opener: &Opener, now: Uptime) -> Option<Failure> {
        let state = self.state.lock();
        let all_are = state.in_progress > 0 && now.since(state.last_began) >= opener.connect_timeout;
        (all_are && opener.asks_for_login()).then(Failure::login_took_too_long)
    }

    /// Returns why a thread waits for a connection no longer, if so.
    pub(in crate::net) fn given_up(&self, limits: &Limits<'_>, opener: &Opener) -> Option<Failure> {
        let now = clock::uptime();
        let over = now >= limits.connected_by || limits.stop.is_over();
        let waited = now.since(limits.waits_since);
        // While there are connections, a failure to open one more says nothing about the server.
        if opener.is_connected() {
            return over.then(|| self.all_in_use(opener).after(waited));
        }
        match self.failure_since(limits.waits_since, over).or_else(|| self.overdue(opener, now)) {
            Some(error) if over || now >= limits.waits_until(&error) => Some(error.after(waited)),
            None if over => {
                let address = opener.address();
                Some(if self.is_in_progress() || opener.lends() {
                    opener.connecting().after(waited)
                } else {
                    Failure::all_in_use(Some(&address)).after(waited)
                })
            }
            _ => None,
        }
    }
}

fn pause(error: &Failure) -> Duration {
    if matches!(error, Failure::Panicked(_)) { PANIC_PAUSE } else { PAUSE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Uptime {
        Uptime::of(Duration::from_millis(millis))
    }

    fn replica() -> Failure {
        Failure::Refused(Refusal::of_replica("a", None))
    }

    #[test]
    fn attempts_are_free_until_one_fails_and_paced_until_one_succeeds() {
        let dialing = Dialing::default();
        assert!(dialing.begin(at(0)) && dialing.begin(at(0)));
        dialing.failed(at(10), Failure::Panicked("no provider".into()));
        assert!(!dialing.begin(at(5009)) && dialing.begin(at(5010)));
        assert!(!dialing.begin(at(5011)), "one at a time");
        assert!(dialing.begin(at(5060)));
        dialing.failed(at(5060), replica());
        assert!(dialing.is_in_progress());
        assert!(!dialing.begin(at(5109)) && dialing.begin(at(5110)));
        (0..3).for_each(|_| dialing.succeeded());
        assert!(!dialing.is_in_progress());
        assert!(dialing.begin(at(5111)) && dialing.begin(at(5111)));
    }

    #[test]
    fn a_server_without_room_is_left_alone_for_a_moment_also_after_it_took_a_connection() {
        let dialing = Dialing::default();
        assert!(dialing.begin(at(0)));
        dialing.leave_alone(at(10));
        dialing.succeeded();
        assert!(!dialing.begin(at(59)) && dialing.begin(at(60)) && dialing.begin(at(60)));
    }

    #[test]
    fn a_failure_counts_for_later_calls_until_the_next_attempt_may_begin() {
        let dialing = Dialing::default();
        assert_eq!(dialing.failure_since(at(0), false), None);
        assert!(dialing.begin(at(50)));
        dialing.failed(at(100), Failure::Panicked("no provider".into()));
        assert!(dialing.failure_since(at(0), false).is_some());
        assert!(dialing.failure_since(at(5100), false).is_some());
        assert_eq!(dialing.failure_since(at(5101), false), None);
        assert!(dialing.begin(at(5990)));
        dialing.failed(at(6000), replica());
        assert!(dialing.failure_since(at(6000), false).is_some());
        assert_eq!(dialing.failure_since(at(6001), false), None);
        assert!(dialing.failure_since(at(6001), true).is_some());
    }
}

//! Where events go: to the log and to the observer. What a thread of the library notices is reported on a thread of its
//! own, so that neither a slow observer nor a slow log delays a lease.
//!
//! A warning that repeats is written at once, and then once a minute for each key, with how many were left out.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::Note;
use proto::values::{Key, State, Uptime};

use super::reports::{Report, Reports};
use crate::net::TransportError;
use crate::report::event::{Event, LeftOut, Observer, ProblemKind, log_event, repeated};
use crate::report::state::{LockState, LossReason};
use crate::system::clock;
use crate::system::random::HashMap;
use crate::system::sync::Mutex;
use crate::values::contained::{Contained, contained};

thread_local! {
    /// True while this thread works for the library, and not for a call.
    static NOTICES: Cell<bool> = const { Cell::new(false) };
}

/// Does the work of a thread of the library: what it notices is reported later.
pub(crate) fn noticing(work: impl FnOnce()) {
    NOTICES.set(true);
    work();
    NOTICES.set(false);
}

/// What reports an event to where it goes.
type ReportTo = Box<dyn FnOnce(&EventSink) + Send>;

/// Returns what reports an event later, if it is one that a thread of the library may notice.
fn reporting(event: &Event<'_>) -> Option<ReportTo> {
    Some(match *event {
        Event::Extended { key, certified } => {
            let key = key.clone();
            Box::new(move |sink| sink.report(&Event::Extended { key: &key, certified }))
        }
        Event::ExtendFailed { key, error } => {
            let (key, error) = (key.clone(), error.clone());
            Box::new(move |sink| sink.report(&Event::ExtendFailed { key: &key, error: &error }))
        }
        Event::Released { key, held, certified, left_to_expire, outlived_lease } => {
            let key = key.clone();
            Box::new(move |sink| {
                sink.report(&Event::Released { key: &key, held, certified, left_to_expire, outlived_lease });
            })
        }
        Event::ReleaseFailed { key, error } => {
            let (key, error) = (key.clone(), error.clone());
            Box::new(move |sink| sink.report(&Event::ReleaseFailed { key: &key, error: &error }))
        }
        Event::Settled { key, after, outcome } => {
            let key = key.clone();
            Box::new(move |sink| sink.report(&Event::Settled { key: &key, after, outcome }))
        }
        Event::Problem { key, kind, details } => {
            let (key, details) = (key.cloned(), details.to_owned());
            Box::new(move |sink| sink.report(&Event::Problem { key: key.as_ref(), kind, details: &details }))
        }
        _ => return None,
    })
}

/// Where events go.
#[derive(Clone, Default)]
pub(crate) struct EventSink {
    observer: Option<Contained<Arc<dyn Observer>>>,
    repeats: Arc<Repeats>,
    reports: Option<Arc<Reports>>,
}

impl EventSink {
    pub(crate) fn new(observer: impl Observer) -> Self {
        Self { observer: Some(Contained::new(Arc::new(observer))), ..Self::default() }
    }

    /// Returns the sink with what reports later.
    pub(crate) fn reporting_by(self, reports: Arc<Reports>) -> Self {
        Self { reports: Some(reports), ..self }
    }

    pub(crate) fn notify(&self, event: &Event<'_>) {
        let later = if NOTICES.get() { reporting(event) } else { None };
        match later {
            Some(report) if !self.is_dropped() => self.report_later(report),
            Some(_) => {}
            None => self.report(event),
        }
    }

    /// Reports a loss, and does what the program does then.
    pub(crate) fn lost(
        &self,
        key: &Key,
        reason: LossReason,
        held: Duration,
        then: impl FnOnce() + Send + 'static,
    ) {
        let key = key.clone();
        let report = move |sink: &Self| {
            sink.report(&Event::Lost { key: &key, reason: &reason, held });
            then();
        };
        if NOTICES.get() { self.report_later(report) } else { report(self) }
    }

    /// Returns true if there is no room for an event. How many there were is reported behind those that wait.
    fn is_dropped(&self) -> bool {
        let Some(reports) = self.reports.as_ref().filter(|reports| reports.is_full()) else {
            return false;
        };
        if reports.dropped().fetch_add(1, Ordering::Relaxed) == 0 {
            self.report_later(|sink| {
                let dropped =
                    sink.reports.as_ref().map(|reports| reports.dropped().swap(0, Ordering::Relaxed));
                let count = dropped.unwrap_or_default();
                let details =
                    format!("{count} events were not reported: the observer or the log takes too long");
                sink.report(&Event::Problem {
                    key: None,
                    kind: ProblemKind::EventsDropped,
                    details: &details,
                });
            });
        }
        true
    }

    fn report_later(&self, report: impl FnOnce(&Self) + Send + 'static) {
        let sink = self.clone();
        let report: Report = Box::new(move || report(&sink));
        let refused = match &self.reports {
            Some(reports) => reports.later(report).err(),
            None => Some(report),
        };
        if let Some(report) = refused {
            report();
        }
    }

    fn report(&self, event: &Event<'_>) {
        // I10: a logger or an observer that panics must not keep a
        // lock from being released, nor each other from the event.
        if log::max_level() > log::LevelFilter::Off {
            contained(|| {
                let left_out = repeated(event)
                    .map_or(Some(0), |(key, kind)| self.repeats.is_due(key, kind, clock::uptime()));
                if let Some(left_out) = left_out {
                    log_event(event, &LeftOut(left_out));
                }
            });
        }
        if let Some(observer) = self.observer.as_ref().and_then(Contained::get) {
            contained(|| observer.event(event));
        }
    }
}

impl EventSink {
    /// Reports a problem, in words for people.
    pub(crate) fn problem(&self, key: Option<&Key>, kind: ProblemKind, details: impl fmt::Display) {
        self.notify(&Event::Problem { key, kind, details: &details.to_string() });
    }

    pub(crate) fn reply_lost(&self, key: &Key, command: &str, error: &TransportError) {
        let kind = ProblemKind::ReplyLost;
        self.problem(Some(key), kind, format_args!("the reply to {command} was lost: {error}"));
    }

    /// Reports that a value was overwritten or lost, if that is what the rules have noted.
    pub(crate) fn overwritten(&self, key: &Key, note: &Note) {
        let shown = |state: &State| LockState::of(state.clone());
        let details: &dyn fmt::Display = match note {
            Note::ValueOverwritten(winner) => &format!("overwrote another holder's value: {}", shown(winner)),
            Note::WasOverwritten(loser) => &format!(
                "a client that does not have the lock overwrote the holder's value: {}",
                shown(loser)
            ),
            Note::WentBack => {
                let details = "the server lost the last writes, as in a failover: the key held an earlier value of this holder, which still has the lock";
                return self.problem(Some(key), ProblemKind::ServerWentBack, details);
            }
            _ => return,
        };
        self.problem(Some(key), ProblemKind::ValueOverwritten, details);
    }

    pub(crate) fn late_grant(&self, key: &Key) {
        let details = "granted after its lease had passed, and not used; the server is slow or the expiration too short";
        self.problem(Some(key), ProblemKind::LateGrant, details);
    }

    pub(crate) fn no_notifications(&self, reason: &dyn fmt::Display) {
        let kind = ProblemKind::NotificationsUnavailable;
        self.problem(None, kind, format_args!("no release notifications: {reason}"));
    }
}

impl fmt::Debug for EventSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EventSink").field(&self.observer.is_some()).finish()
    }
}

const EVERY: Duration = Duration::from_secs(60);
/// How many warnings are remembered. Beyond that the oldest are forgotten, and written again.
const MOST: usize = 1024;

/// The warnings that were written last.
#[derive(Default)]
pub(super) struct Repeats(Mutex<HashMap<(Key, &'static str), Warned>>);

#[derive(Debug)]
struct Warned {
    at: Uptime,
    left_out: u32,
}

impl Repeats {
    /// Returns how many warnings of this kind were left out since the
    /// last that was written; `None` if this one is left out as well.
    pub(super) fn is_due(&self, key: &Key, kind: &'static str, now: Uptime) -> Option<u32> {
        let mut written = self.0.lock();
        if let Some(Warned { at, left_out }) = written.get_mut(&(key.clone(), kind)) {
            if now < at.after(EVERY) {
                *left_out += 1;
                return None;
            }
            *at = now;
            return Some(std::mem::take(left_out));
        }
        if written.len() >= MOST {
            written.retain(|_, written| now < written.at.after(EVERY));
            if written.len() >= MOST {
                written.clear();
            }
        }
        written.insert((key.clone(), kind), Warned { at: now, left_out: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_written_once_a_minute_for_each_key_and_kind() {
        let (repeats, keys) = (Repeats::default(), ["a", "b"].map(Key::from));
        let at = |seconds| Uptime::of(Duration::from_secs(seconds));
        for key in &keys {
            assert_eq!(repeats.is_due(key, "not extended", at(0)), Some(0));
        }
        assert_eq!(repeats.is_due(&keys[0], "not released", at(1)), Some(0));
        for seconds in [1, 30, 59] {
            assert_eq!(repeats.is_due(&keys[0], "not extended", at(seconds)), None);
        }
        assert_eq!(repeats.is_due(&keys[0], "not extended", at(60)), Some(3));
        assert_eq!(repeats.is_due(&keys[0], "not extended", at(61)), None);
        assert_eq!(repeats.is_due(&keys[1], "not extended", at(61)), Some(0));
    }

    #[test]
    fn a_few_are_remembered() {
        let repeats = Repeats::default();
        for n in 0..10 * MOST {
            assert_eq!(
                repeats.is_due(&Key::from(format!("k{n}")), "not extended", Uptime::default()),
                Some(0)
            );
        }
        assert!(repeats.0.lock().len() <= MOST);
    }
}

//! How threads wait for connections, and how these are opened or borrowed. A thread that needs one waits while another
//! opens it, and takes another one that becomes free first.

use std::sync::Arc;
use std::time::Duration;

use proto::values::{Key, Uptime};

use super::OneServer;
use super::sharing::{Carrier, Entry, Lane, WaitingJob};
use crate::net::connections::{Connection, Dialing};
use crate::net::errors::{Failure, Refusal, TransportError};
use crate::net::jobs::Jobs;
use crate::net::lanes::{Batching, Entered, LaneTerms, Lanes, Told};
use crate::net::limits::Limits;
use crate::system::clock;
use crate::system::thread;

/// How often a queued thread looks whether the server is still waited for, while there is no connection, or where
/// others use them as well.
const LOOK: Duration = Duration::from_millis(50);

/// How often it is said that a server refuses connections for now.
const SAID_EVERY: Duration = Duration::from_secs(1);

/// When that was said last.
#[derive(Default)]
pub(super) struct Said(Option<Uptime>);

impl Said {
    pub(super) fn waits(&mut self, key: &Key, refusal: &Refusal, limits: &Limits<'_>) {
        let now = clock::uptime();
        if self.0.is_none_or(|said| now.since(said) >= SAID_EVERY) {
            self.0 = Some(now);
            limits.stop.waits(key, refusal);
        }
    }
}

impl OneServer {
    /// How this thread may become a leader.
    fn terms(
        &self,
        batching: Batching,
        limits: &Limits<'_>,
        now: Uptime,
    ) -> LaneTerms<impl FnMut(&Carrier) -> bool, impl FnOnce() -> bool> {
        let usable =
            move |line: &Carrier| !line.connection.is_suspect_at(now) && line.connection.is_connected();
        let may_open = || {
            let now = clock::uptime();
            now < limits.connected_by && self.dialing.begin(now)
        };
        // One transaction at a time goes over a lane.
        let most = match batching {
            Batching::Group(_) if !self.opener.lends() => self.size,
            _ => self.patience.lanes(self.size, now),
        };
        LaneTerms { most, usable, may_open }
    }

    /// Makes this thread lead, or queues it.
    pub(super) fn enter(
        &self,
        entry: &Arc<Entry>,
        batching: Batching,
        limits: &Limits<'_>,
    ) -> Entered<Jobs, Carrier> {
        self.lanes.enter(entry, batching, self.terms(batching, limits, limits.decided_at.uptime))
    }

    /// Waits until this thread leads or its job, for this key, is done.
    /// `opens`: and has a connection opened; it is queued behind so many.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_lane(
        &self,
        key: &Key,
        entry: &Arc<Entry>,
        batching: Batching,
        limits: &Limits<'_>,
        (opens, ahead): (bool, usize),
    ) -> Result<Told<Jobs, Carrier>, Failure> {
        if opens {
            self.open_one();
        }
        let mut waiting = WaitingJob::of(&self.lanes, entry);
        let (mut queued, mut woken, mut ended) = (true, false, None);
        let mut yields = self.patience.yields(ahead);
        let mut said = Said::default();
        let park = || {
            if queued && let Some(failure) = self.dialing.given_up(limits, &self.opener) {
                if self.lanes.leave(entry) {
                    ended = Some(Err(failure));
                    return false;
                }
                queued = false;
            }
            if queued && let Some(refusal) = self.dialing.refused_for_now(limits, &self.opener) {
                said.waits(key, &refusal, limits);
            }
            if woken && queued {
                match self.lanes.enter_again(entry, self.terms(batching, limits, clock::uptime())) {
                    Entered::Leads { lane, .. } => {
                        ended = Some(Ok(Told::Lead(lane)));
                        return false;
                    }
                    Entered::Waits { opens: true, .. } => self.open_one(),
                    Entered::Waits { opens: false, .. } => {}
                }
            }
            woken = true;
            let until = if queued { limits.connected_by } else { limits.answered_by };
            let left = until.since(clock::uptime());
            if left.is_zero() {
                return queued;
            }
            // Where others use the connections as well, they wake no thread of this locker.
            let is_told = self.opener.is_connected() && !self.opener.lends();
            thread::park_timeout(if is_told { left } else { left.min(LOOK) });
            true
        };
        let told = entry.wait(|| yields.one(), park);
        drop(yields);
        waiting.ended = true;
        // One that gives up while its job is on the wire may have been told meanwhile.
        ended.unwrap_or_else(|| Ok(told.or_else(|| entry.give_up()).unwrap_or(Told::Done)))
    }

    /// Opens a connection on a thread of its own: those that wait may
    /// have less time, and be cancelled. The first of them leads then.
    fn open_one(&self) {
        let (lanes, dialing) = (Arc::clone(&self.lanes), Arc::clone(&self.dialing));
        let spare = self.spare.watcher();
        let mut connection = Connection::new(Arc::clone(&self.opener));
        if connection.borrow() {
            return opened(&lanes, &dialing, connection);
        }
        let open = move || match connection.connect() {
            Ok(()) => {
                opened(&lanes, &dialing, connection);
                spare.watch(&lanes);
            }
            Err(error) => failed(&lanes, &dialing, error),
        };
        if let Err(error) = thread::named("setnx-lock-connect").spawn(open) {
            let text = format!("no thread could be started to connect: {error}");
            let error = Failure::unreachable(TransportError::here(error.kind(), &text));
            failed(&self.lanes, &self.dialing, error);
        }
    }
}

fn opened(lanes: &Lanes<Jobs, Carrier>, dialing: &Dialing, connection: Connection) {
    let is_lent = connection.is_lent();
    dialing.succeeded();
    lanes.opened(Some(Lane::over(Carrier::over(connection))));
    if is_lent {
        // If no thread waits any more, it goes back.
        drop(lanes.take_idle());
    }
}

fn failed(lanes: &Lanes<Jobs, Carrier>, dialing: &Dialing, error: Failure) {
    dialing.failed(clock::uptime(), error);
    lanes.opened(None);
    lanes.wake_queued();
}

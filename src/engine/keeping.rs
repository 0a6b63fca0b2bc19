//! What the keeper does for locks that are held: extends their leases, looks whether they are still held, and notes that a lease has passed.
//! What is due for many locks at a time goes together.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::Engine;
use super::call::LateReports;
use super::holding::{Extended, owned};
use super::together::Run;
use crate::clock::{self, Now, Uptime};
use crate::hold::{Hold, Own};
use crate::keeper::MOST;
use crate::protocol::Request;
use crate::protocol::keeping::{self, Due, Progress};
use crate::protocol::owned::{self, Extension, Verification};
use crate::protocol::task::Task;

/// When a lock is looked at again that another thread was working on.
const BUSY: Duration = Duration::from_millis(20);

/// A lock that the keeper works on.
#[derive(Debug)]
pub(crate) struct Kept {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
}

/// What is under way for a lock.
struct Job<'a> {
    id: u64,
    hold: &'a Arc<Hold>,
    own: MutexGuard<'a, Own>,
    run: Run<'a, Done>,
    /// How long the new lease is; `None` if the key is only looked at.
    time: Option<Duration>,
}

/// What came of it.
struct Settled<'a> {
    id: u64,
    hold: &'a Arc<Hold>,
    own: MutexGuard<'a, Own>,
    report: Report,
    /// What writes the holder's name.
    name: Option<Request>,
}

enum Report {
    Extended(Extended),
    /// The replies that were lost.
    Looked(LateReports),
}

/// What came of a lock's task.
enum Done {
    Extended(Extension),
    Verified(Verification),
}

/// Works on what is due, for each locker with its own settings.
pub(super) fn work(mut due: Vec<(u64, Kept)>) {
    while let Some((_, Kept { engine, .. })) = due.last() {
        let engine = Arc::clone(engine);
        let (own, others) = due.into_iter().partition(|(_, kept)| Arc::ptr_eq(&kept.engine, &engine));
        due = others;
        engine.keep(&own);
    }
}

impl Engine {
    /// Has the keeper work on a lock that has just been acquired, if its options say so.
    pub(super) fn keep_by_options(self: &Arc<Self>, hold: &Arc<Hold>) {
        if hold.options.auto_extend.is_some() {
            self.keep_from_now_on(hold);
        }
    }

    /// Has the keeper work on a lock, if it does not do so yet.
    pub(super) fn keep_from_now_on(self: &Arc<Self>, hold: &Arc<Hold>) {
        let own = hold.own();
        if hold.kept_as.load(Ordering::Relaxed) == 0 && !own.over {
            let id = self.keeper.new_id();
            hold.kept_as.store(id, Ordering::Relaxed);
            self.schedule(id, hold, &own);
        }
        drop(own);
        hold.report();
    }

    /// Looks again when something is due for a lock. The hold reports a failure later, when nothing is locked.
    pub(super) fn reschedule(self: &Arc<Self>, hold: &Arc<Hold>, own: &Own) {
        match hold.kept_as.load(Ordering::Relaxed) {
            0 => {}
            id => self.schedule(id, hold, own),
        }
    }

    /// Has the keeper do no more for a lock.
    pub(super) fn forget(&self, hold: &Hold) {
        match hold.kept_as.load(Ordering::Relaxed) {
            0 => {}
            id => self.keeper.remove(id),
        }
    }

    fn schedule(self: &Arc<Self>, id: u64, hold: &Arc<Hold>, own: &Own) {
        match keeping::next(&hold.options, progress(hold, own, clock::now())) {
            Some((due, _)) if hold.is_held() => self.schedule_at(id, hold, due),
            _ => self.keeper.remove(id),
        }
    }

    fn schedule_at(self: &Arc<Self>, id: u64, hold: &Arc<Hold>, due: Uptime) {
        let kept = Kept { engine: Arc::clone(self), hold: Arc::clone(hold) };
        let added = self.keeper.add(id, due, keeping::slack(&hold.options), kept);
        hold.note_kept(added.map_err(|(error, _)| error));
    }

    /// Does what is due for these locks, together if that is possible.
    fn keep(self: &Arc<Self>, due: &[(u64, Kept)]) {
        let mut reachable = true;
        for due in due.chunks(MOST) {
            self.keep_these(due, &mut reachable);
        }
    }

    fn keep_these(self: &Arc<Self>, due: &[(u64, Kept)], reachable: &mut bool) {
        let mut jobs: Vec<Job<'_>> =
            due.iter().filter_map(|(id, kept)| self.begin(*id, &kept.hold)).collect();
        self.run_together(jobs.iter_mut().map(|job| &mut job.run).collect());
        let mut settled: Vec<Settled<'_>> = jobs.into_iter().map(|job| self.settle(job, reachable)).collect();
        let named = settled.iter_mut().filter_map(|settled| Some((settled.hold, settled.name.take()?)));
        let unnamed = if self.has_names() { self.write_names(named.collect()) } else { Vec::new() };
        let mut reports = Vec::new();
        for Settled { id, hold, own, report, .. } in settled {
            self.schedule(id, hold, &own);
            reports.push((hold, report));
        }
        // Now that nothing is locked.
        for (hold, report) in reports {
            match report {
                Report::Extended(extended) => self.report_extension(hold, &extended),
                Report::Looked(late_reports) => self.report_late(&hold.key, &late_reports),
            }
        }
        for (hold, error) in &unnamed {
            self.report_unnamed(hold, Some(error));
        }
        for (_, kept) in due {
            kept.hold.report();
        }
    }

    fn begin<'a>(self: &'a Arc<Self>, id: u64, hold: &'a Arc<Hold>) -> Option<Job<'a>> {
        let now = clock::now();
        let Some(own) = hold.try_own() else {
            self.schedule_at(id, hold, now.uptime.after(BUSY));
            return None;
        };
        if own.over || !hold.is_held() {
            return None;
        }
        let (due, due_task) = keeping::next(&hold.options, progress(hold, &own, now))?;
        if due > now.uptime.after(keeping::slack(&hold.options)) {
            self.schedule_at(id, hold, due);
            return None;
        }
        let (task, time) = match due_task {
            Due::Extend => {
                let Some(time) = keeping::lease(&hold.options, hold.acquired.uptime, now.uptime) else {
                    hold.lost(now);
                    return None;
                };
                let (own, new) = self.next_lease(hold, &own.lease, time, now);
                let extend = |io| async move { owned::extend(io, own, new, time).await.map(Done::Extended) };
                (Task::begin(now, extend), Some(time))
            }
            Due::Verify => {
                let own = owned(hold, &own.lease);
                let verify = |io| async move { owned::verify(io, own).await.map(Done::Verified) };
                (Task::begin(now, verify), None)
            }
            Due::Expire => {
                if hold.lost(now).is_none() {
                    self.schedule(id, hold, &own);
                }
                return None;
            }
        };
        let run = Run::new(&hold.key, task, self.call(hold, now));
        Some(Job { id, hold, own, run, time })
    }

    /// Does the rest of what is under way for a lock, by itself. If the server was not reachable for another one, nothing is sent.
    fn settle<'a>(&self, job: Job<'a>, reachable: &mut bool) -> Settled<'a> {
        let Job { id, hold, mut own, mut run, time } = job;
        let began = clock::now();
        if !*reachable {
            run.abandon(began);
        }
        let (outcome, mut call) = run.end();
        let (report, name) = match (outcome, time) {
            (Ok(Done::Verified(verification)), _) => {
                let late_reports = call.take_late_reports();
                // The loss is reported by the hold.
                let _ = Self::end_verification(hold, &mut own, Ok(verification), call);
                (Report::Looked(late_reports), None)
            }
            (Err(reason), None) => {
                let late_reports = call.take_late_reports();
                // A failure is tried again.
                let _ = Self::end_verification(hold, &mut own, Err(reason), call);
                (Report::Looked(late_reports), None)
            }
            (outcome, time) => {
                let outcome = outcome.map(|done| match done {
                    Done::Extended(extension) => extension,
                    Done::Verified(_) => unreachable!("the task extends"),
                });
                let extended = Self::end_extension(hold, &mut own, outcome, call);
                let name = match &extended.result {
                    Ok(_) => self.naming(&own.lease.value, time),
                    Err(_) => None,
                };
                let now = clock::now();
                if extended.result.is_err() && own.lease.has_passed(now) {
                    hold.lost(now);
                }
                (Report::Extended(extended), name)
            }
        };
        let took = clock::uptime().since(began.uptime);
        *reachable &= own.failed.is_none() || took < self.backend.command_timeout() / 2;
        Settled { id, hold, own, report, name }
    }
}

fn progress(hold: &Hold, own: &Own, now: Now) -> Progress {
    Progress {
        acquired: hold.acquired.uptime,
        began: own.began,
        // By the clock that allows less.
        end: own.lease.end.map(|end| now.uptime.after(end.remaining(now))),
        asked: own.asked,
        failed: own.failed,
    }
}

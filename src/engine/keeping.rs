//! What the keeper does for locks that are held: extends their leases, looks whether they are still held, and notes that a lease has passed.
//! What is due for many locks at a time goes together.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::Engine;
use super::call::{Call, LostReplies};
use super::holding::Extended;
use crate::backend::{Failure, Refusal};
use crate::clock::{self, Now, Uptime};
use crate::error::Error;
use crate::event::Event;
use crate::hold::{Hold, Own};
use crate::keeper::MOST;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::extend::{Extending, Extension};
use crate::protocol::keeping::{self, Progress, Task};
use crate::protocol::verify::{Verification, Verifying};
use crate::protocol::{Command, Reply, Request, Rules, Step};

/// When a lock is looked at again that another thread was working on.
const BUSY: Duration = Duration::from_millis(20);

/// A lock that the keeper works on.
#[derive(Debug)]
pub(crate) struct Kept {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
}

/// For how long no transaction on several keys is sent to a server that has refused one.
const REFUSED: Duration = Duration::from_secs(60);

/// What is under way for a lock.
struct Job<'a> {
    id: u64,
    hold: &'a Arc<Hold>,
    own: MutexGuard<'a, Own>,
    call: Call<'a>,
    power: Power,
    /// How long the lease is if it is extended.
    time: Duration,
}

/// What came of it.
struct Settled<'a> {
    id: u64,
    hold: &'a Arc<Hold>,
    own: MutexGuard<'a, Own>,
    report: Report,
    /// What writes the holder's name.
    name: Option<Request>,
    unnamed: Option<Error>,
}

enum Report {
    Extended(Extended),
    /// The replies that were lost.
    Looked(LostReplies),
}

enum Power {
    Extending(Box<Extending>, Step<Extension>),
    Verifying(Verifying, Step<Verification>),
}

impl Power {
    /// The command that is to be sent next, if there is one.
    fn request(&self) -> Option<&Request> {
        match self {
            Power::Extending(_, Step::Send(request)) | Power::Verifying(_, Step::Send(request)) => {
                Some(request)
            }
            _ => None,
        }
    }

    fn reply(&mut self, reply: &Reply, now: Now) {
        match self {
            Power::Extending(rules, step) => *step = rules.reply(reply, now),
            Power::Verifying(rules, step) => *step = rules.reply(reply, now),
        }
    }
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
        if hold.options.auto_extend.is_some() || hold.options.verify_every.is_some() {
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
    }

    /// Looks again when something is due for a lock.
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
        if let Err(error) = self.keeper.add(id, due, keeping::slack(&hold.options), kept) {
            let reason = &format!("cannot start a thread: {error}");
            self.observer.notify(&Event::KeeperUnavailable { key: &hold.key, reason });
        }
    }

    /// Does what is due for these locks, together if that is possible.
    fn keep(self: &Arc<Self>, due: &[(u64, Kept)]) {
        let together = self.pipelining && self.backend.pipelines();
        let mut reachable = true;
        for due in due.chunks(if together { MOST } else { 1 }) {
            self.keep_these(due, &mut reachable);
        }
    }

    fn keep_these(self: &Arc<Self>, due: &[(u64, Kept)], reachable: &mut bool) {
        let mut jobs: Vec<Job<'_>> =
            due.iter().filter_map(|(id, kept)| self.begin(*id, &kept.hold)).collect();
        // If nothing goes wrong that is all.
        if jobs.len() > 1 {
            self.watch_together(&mut jobs);
            self.send_together(&mut jobs);
            self.send_together(&mut jobs);
        }
        let mut settled: Vec<Settled<'_>> = jobs.into_iter().map(|job| self.settle(job, reachable)).collect();
        self.write_names(&mut settled);
        let mut reports = Vec::new();
        for Settled { id, hold, own, report, unnamed, .. } in settled {
            self.schedule(id, hold, &own);
            reports.push((hold, report, unnamed));
        }
        // Now that nothing is locked.
        for (hold, report, unnamed) in reports {
            match report {
                Report::Extended(extended) => self.report_extension(hold, &extended),
                Report::Looked(lost_replies) => self.report_lost(&hold.key, &lost_replies),
            }
            self.report_unnamed(hold, unnamed.as_ref());
        }
        for (_, kept) in due {
            kept.hold.act_on_loss();
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
        let (due, task) = keeping::next(&hold.options, progress(hold, &own, now))?;
        if due > now.uptime.after(keeping::slack(&hold.options)) {
            self.schedule_at(id, hold, due);
            return None;
        }
        let (power, time) = match task {
            Task::Extend => {
                let Some(time) = keeping::lease(&hold.options, hold.acquired.uptime, now.uptime) else {
                    hold.lost(now);
                    return None;
                };
                let (extending, step) = self.begin_extension(hold, &own.lease, time, now);
                (Power::Extending(Box::new(extending), step), time)
            }
            Task::Verify => {
                let (verifying, step) = Verifying::start(hold.protocol, &own.lease);
                (Power::Verifying(verifying, step), Duration::ZERO)
            }
            Task::Expire => {
                if hold.lost(now).is_none() {
                    self.schedule(id, hold, &own);
                }
                return None;
            }
        };
        let call = self.call(hold, now);
        Some(Job { id, hold, own, call, power, time })
    }

    /// Sends the next command of those locks for which it is one that stands alone, in one trip.
    fn send_together(&self, jobs: &mut [Job<'_>]) {
        let is_alone = |job: &&mut Job<'_>| {
            let command = job.power.request().map(|request| &request.command);
            matches!(command, Some(Command::Get | Command::GetSet(_)))
        };
        let mut jobs: Vec<&mut Job<'_>> = jobs.iter_mut().filter(is_alone).collect();
        if jobs.len() < 2 {
            return;
        }
        let now = clock::now();
        let requests: Vec<(Key, Request)> = jobs
            .iter()
            .filter_map(|job| Some((job.hold.key.clone(), job.power.request()?.clone())))
            .collect();
        let limits = jobs[0].call.limits_together(Protocol::Classic, now);
        let replies = self.backend.call_all(&requests, &limits);
        let now = clock::now();
        for ((job, (_, Request { command, .. })), reply) in jobs.iter_mut().zip(&requests).zip(replies) {
            let reply = job.call.reply(reply, command.name(), command.only_reads(), Protocol::Classic);
            job.power.reply(&reply, now);
        }
    }

    /// Watches the keys of those locks that are changed by transactions, and changes those that are ours by one transaction. It fails for all
    /// if any of them is written meanwhile, or if the server refuses: it may not take several keys, as in a cluster, or one of these. Then
    /// each is done by itself.
    fn watch_together(&self, jobs: &mut [Job<'_>]) {
        let is_watching = |job: &&mut Job<'_>| {
            job.power.request().is_some_and(|request| request.command == Command::WatchGet)
        };
        let mut jobs: Vec<&mut Job<'_>> = jobs.iter_mut().filter(is_watching).collect();
        let now = clock::now();
        if jobs.len() < 2 || self.refuses_many_until.load(Ordering::Relaxed) > micros(now.uptime) {
            return;
        }
        let keys: Vec<Key> = jobs.iter().map(|job| job.hold.key.clone()).collect();
        let limits = jobs[0].call.limits_together(Protocol::Watched, now);
        let (replies, watched) = match self.backend.watch_all(&keys, &limits) {
            Ok((replies, watched)) => (replies, Some(watched)),
            Err(Failure::Refused(refusal)) => return self.note_refused_many(&refusal),
            Err(failure) => (jobs.iter().map(|_| Err(failure.clone())).collect(), None),
        };
        let now = clock::now();
        for (job, reply) in jobs.iter_mut().zip(replies) {
            let reply = job.call.reply(reply, "WATCH", true, Protocol::Watched);
            job.power.reply(&reply, now);
        }
        let Some(watched) = watched else { return };
        let executes = |job: &Job<'_>| {
            let request =
                job.power.request().filter(|request| matches!(request.command, Command::Exec(_)))?;
            Some((job.hold.key.clone(), request.command.clone()))
        };
        let changes: Vec<(Key, Command)> = jobs.iter().filter_map(|job| executes(job)).collect();
        let mut replies = watched.exec_all(&changes, &limits).into_iter();
        let now = clock::now();
        for job in &mut jobs {
            if let Some(reply) = executes(job).and_then(|_| replies.next()) {
                let reply = match reply {
                    // Not carried out, for whichever of them.
                    Err(Failure::Refused(refusal)) if changes.len() > 1 => {
                        self.note_refused_many(&refusal);
                        Ok(Reply::Executed(None))
                    }
                    reply => reply,
                };
                let reply = job.call.reply(reply, "EXEC", false, Protocol::Watched);
                job.power.reply(&reply, now);
            }
        }
    }

    /// Has transactions on several keys left out for a while, unless the reason passes by itself.
    fn note_refused_many(&self, refusal: &Refusal) {
        if !refusal.may_pass() {
            let until = clock::uptime().after(REFUSED);
            self.refuses_many_until.store(micros(until), Ordering::Relaxed);
        }
    }

    /// Does the rest of what is under way for a lock, by itself. If the server was not reachable for another one, nothing is sent.
    fn settle<'a>(&self, job: Job<'a>, reachable: &mut bool) -> Settled<'a> {
        let Job { id, hold, mut own, mut call, mut power, time } = job;
        let began = clock::now();
        if !*reachable {
            while power.request().is_some() {
                power.reply(&Reply::Unsent, began);
            }
        } else if !call.has_failed() {
            call.begin_anew(began);
        }
        let (report, name) = match power {
            Power::Extending(mut rules, step) => {
                let outcome = call.run(&mut *rules, step, began);
                let extended = Self::end_extension(hold, &mut own, &rules, outcome, call);
                let name = match &extended.result {
                    Ok(_) => Self::naming(&hold.options, &own.lease.value, Some(time)),
                    Err(_) => None,
                };
                let now = clock::now();
                if extended.result.is_err() && own.lease.has_passed(now) {
                    hold.lost(now);
                }
                (Report::Extended(extended), name)
            }
            Power::Verifying(mut rules, step) => {
                let outcome = call.run(&mut rules, step, began);
                let lost_replies = call.take_lost_replies();
                // A failure is tried again.
                let _ = Self::end_verification(hold, &mut own, outcome, call);
                (Report::Looked(lost_replies), None)
            }
        };
        let took = clock::uptime().since(began.uptime);
        *reachable &= own.failed.is_none() || took < self.backend.command_timeout() / 2;
        Settled { id, hold, own, report, name, unnamed: None }
    }

    /// Writes the names of the holders, in one trip.
    fn write_names(&self, settled: &mut [Settled<'_>]) {
        let mut named: Vec<&mut Settled<'_>> =
            settled.iter_mut().filter(|settled| settled.name.is_some()).collect();
        if named.is_empty() || !self.has_names() {
            return;
        }
        let requests: Vec<(Key, Request)> = named
            .iter_mut()
            .filter_map(|settled| Some((settled.hold.key.clone(), settled.name.take()?)))
            .collect();
        let now = clock::now();
        let limits = self.call(named[0].hold, now).limits_together(Protocol::Classic, now);
        let written = self.backend.call_all(&requests, &limits);
        for ((settled, (key, request)), written) in named.iter_mut().zip(&requests).zip(written) {
            settled.unnamed = self.name_error(key, written, request);
        }
    }
}

fn micros(time: Uptime) -> u64 {
    u64::try_from(time.0.as_micros()).unwrap_or(u64::MAX)
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

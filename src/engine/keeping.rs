//! What the keeper does for locks that are held: extends their leases, looks whether they are still held, and notes that a lease has passed.
//! What is due for many locks at a time goes together.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::Engine;
use super::call::Call;
use crate::backend::Failure;
use crate::clock::{self, Now};
use crate::event::Event;
use crate::hold::{Hold, Own};
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
        match keeping::next(&hold.options, progress(hold, own)) {
            Some((due, _)) if hold.is_held() => self.schedule_at(id, hold, due),
            _ => self.keeper.remove(id),
        }
    }

    fn schedule_at(self: &Arc<Self>, id: u64, hold: &Arc<Hold>, due: clock::Uptime) {
        let kept = Kept { engine: Arc::clone(self), hold: Arc::clone(hold) };
        if let Err(error) = self.keeper.add(id, due, keeping::slack(&hold.options), kept) {
            let reason = &format!("cannot start a thread: {error}");
            self.observer.notify(&Event::KeeperUnavailable { key: &hold.key, reason });
        }
    }

    /// Does what is due for these locks.
    fn keep(self: &Arc<Self>, due: &[(u64, Kept)]) {
        let mut jobs: Vec<Job<'_>> =
            due.iter().filter_map(|(id, kept)| self.begin(*id, &kept.hold)).collect();
        // Two trips are what it takes if nothing goes wrong.
        if self.pipelining && self.backend.pipelines() && jobs.len() > 1 {
            for _ in 0..2 {
                self.send_together(&mut jobs);
            }
        }
        let mut names = Vec::new();
        for job in jobs {
            names.extend(self.finish(job));
        }
        self.write_names(&names);
        // Now that nothing is locked.
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
        let (due, task) = keeping::next(&hold.options, progress(hold, &own))?;
        if due > now.uptime.after(keeping::slack(&hold.options)) {
            self.schedule_at(id, hold, due);
            return None;
        }
        let (power, time) = match task {
            Task::Extend(time) => {
                let limit = hold.options.auto_extend.map(|at_most| hold.acquired.uptime.after(at_most));
                let time = limit.map_or(time, |limit| time.min(limit.since(now.uptime)));
                if time.is_zero() {
                    hold.lost(now);
                    return None;
                }
                let (extending, step) = self.begin_extension(hold, &own, time, now);
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
        let call = Call::new(self, &hold.key, hold.options.protocol, Some(now.uptime));
        Some(Job { id, hold, own, call, power, time })
    }

    /// Sends the next command of each lock, in one trip for the commands that stand alone, and one for transactions.
    fn send_together(&self, jobs: &mut [Job<'_>]) {
        let is_alone = |job: &&mut Job<'_>| {
            let command = job.power.request().map(|request| &request.command);
            matches!(command, Some(Command::Get | Command::GetSet(_)))
        };
        let mut alone: Vec<&mut Job<'_>> = jobs.iter_mut().filter(is_alone).collect();
        if alone.len() > 1 {
            self.send_alone(&mut alone);
        }
        let watches = |job: &&mut Job<'_>| {
            job.power.request().is_some_and(|request| request.command == Command::WatchGet)
        };
        let mut watching: Vec<&mut Job<'_>> = jobs.iter_mut().filter(watches).collect();
        if watching.len() > 1 && !self.refuses_many.load(Ordering::Relaxed) {
            self.send_transaction(&mut watching);
        }
    }

    fn send_alone(&self, jobs: &mut [&mut Job<'_>]) {
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

    /// Watches all keys, and changes those that are ours by one transaction. It fails for all if any of them is written meanwhile, or if the
    /// server refuses: it may not take several keys, as in a cluster, or one of these. Then each is done by itself.
    fn send_transaction(&self, jobs: &mut [&mut Job<'_>]) {
        let now = clock::now();
        let keys: Vec<Key> = jobs.iter().map(|job| job.hold.key.clone()).collect();
        let limits = jobs[0].call.limits_together(Protocol::Watched, now);
        let (replies, watched) = match self.backend.watch_all(&keys, &limits) {
            Ok((replies, watched)) => (replies, Some(watched)),
            Err(Failure::Refused(_)) => return self.refuses_many.store(true, Ordering::Relaxed),
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
        for job in jobs.iter_mut() {
            if let Some(reply) = executes(job).and_then(|_| replies.next()) {
                let reply = match reply {
                    Err(Failure::Refused(_)) if changes.len() > 1 => {
                        self.refuses_many.store(true, Ordering::Relaxed);
                        Ok(Reply::Executed(None))
                    }
                    reply => reply,
                };
                let reply = job.call.reply(reply, "EXEC", false, Protocol::Watched);
                job.power.reply(&reply, now);
            }
        }
    }

    /// Does the rest of what is under way for a lock, by itself, and schedules what is due next. Returns what writes the holder's name.
    fn finish(self: &Arc<Self>, job: Job<'_>) -> Option<(Key, Request)> {
        let Job { id, hold, mut own, mut call, power, time } = job;
        let now = clock::now();
        let mut name = None;
        match power {
            Power::Extending(mut rules, step) => {
                let outcome = call.run(&mut *rules, step, now);
                let extended = self.end_extension(hold, &mut own, &rules, outcome, call);
                if extended.is_ok() {
                    let request = Self::naming(&hold.options, &own.lease.value, Some(time));
                    name = request.map(|request| (hold.key.clone(), request));
                } else if own.lease.has_passed(clock::now()) {
                    hold.lost(clock::now());
                }
            }
            Power::Verifying(mut rules, step) => {
                let outcome = call.run(&mut rules, step, now);
                // A failure is tried again.
                let _ = Self::end_verification(hold, &mut own, outcome, call);
            }
        }
        self.schedule(id, hold, &own);
        name
    }

    fn write_names(&self, names: &[(Key, Request)]) {
        if names.is_empty() || !self.has_names() {
            return;
        }
        let now = clock::now();
        let call = Call::new(self, &names[0].0, Protocol::Classic, Some(now.uptime));
        let limits = call.limits_together(Protocol::Classic, now);
        // That a name was not written has been reported after the acquisition, or costs nothing more than that it is not shown.
        let _ = self.backend.call_all(names, &limits);
    }
}

fn progress(hold: &Hold, own: &Own) -> Progress {
    Progress {
        acquired: hold.acquired.uptime,
        began: own.began,
        end: own.lease.end.map(|end| end.uptime),
        asked: own.asked,
        failed: own.failed,
    }
}

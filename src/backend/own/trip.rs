//! A trip: what goes over a connection together for several threads, and how the replies get to each.
//!
//! | in this order | for whom |
//! |---|---|
//! | the changes, and EXEC; or DISCARD if there are none | whose key was found to hold what it should, in the trip before |
//! | what goes behind each change | the same |
//! | a command, and what goes behind it | each of the others |
//! | WATCH and GET for each, and MULTI | who changes a key if it holds what it should |
//!
//! So threads that change keys by transactions share two trips. MULTI goes with what is watched: a server that refuses it does so before any
//! change is on its way. If one of the keys was written meanwhile, none is changed, and each thread looks again by itself.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use std::{fmt, mem};

use redis::Value;

use super::Slot;
use crate::backend::codec;
use crate::backend::connections::{Connection, LockConnection as _};
use crate::backend::errors::{Failure, TransportError};
use crate::backend::pipelining::{JobOutcome, Outcome, QueuedCommand, Replies, lost_in_batch};
use crate::backend::resp::Packed;
use crate::clock::{Now, Uptime};
use crate::protocol::{Command, Reply};
use crate::version::Version;

/// What a thread has sent by a lane.
#[derive(Default)]
pub(super) struct Job {
    pub(super) command: Option<QueuedCommand>,
    /// What the key should hold; only of a change.
    own: Option<Vec<u8>>,
    stage: Stage,
    /// What the key holds.
    found: Option<Reply>,
    /// How it ended. `Unread`: it was not sent.
    pub(super) result: Option<Result<JobOutcome, Failure>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Queued,
    /// WATCH is sent.
    Looking,
    /// The key holds what it should, and the change goes in the next trip.
    Watching,
    /// The command is sent, with the one behind it or without.
    Sent { with_next: bool },
}

/// What came of a job: what the key held if it was looked at, and the outcome.
pub(super) type Ended = Result<(Option<Reply>, JobOutcome), Failure>;

pub(super) fn unread() -> JobOutcome {
    JobOutcome { own: Outcome::Unread, next: Outcome::Unread }
}

impl Job {
    pub(super) fn new(command: QueuedCommand) -> Self {
        Self { command: Some(command), ..Self::default() }
    }

    /// A change, if the key holds `own`.
    pub(super) fn change(command: QueuedCommand, own: &[u8]) -> Self {
        Self { own: Some(own.to_vec()), ..Self::new(command) }
    }

    /// Returns how it ended, also for a thread that waits no longer.
    pub(super) fn end(&mut self) -> Ended {
        let lost = || Outcome::Lost(lost_in_batch());
        match (self.result.take(), self.stage) {
            (Some(result), _) => Ok((self.found.take(), result?)),
            (None, Stage::Sent { with_next }) => {
                let next = if with_next { lost() } else { Outcome::Unread };
                Ok((self.found.clone(), JobOutcome { own: lost(), next }))
            }
            // Of a change, nothing but WATCH is sent.
            (None, _) => Err(Failure::Lost(lost_in_batch())),
        }
    }

    fn is_change_sent(&self) -> bool {
        self.own.is_some() && matches!(self.stage, Stage::Sent { .. })
    }
}

/// A connection, and the trip that is under way on it.
pub(super) struct Line {
    pub(super) connection: Connection,
    packed: Packed,
    pub(super) replies: Vec<Value>,
    /// When it was sent.
    pub(super) sent_at: Uptime,
    /// Why it cannot be received.
    pub(super) failed: Option<TransportError>,
    /// Whether a transaction is open, which the next trip ends.
    pub(super) is_open: bool,
    /// Whether this trip ends one.
    ends: bool,
}

/// In what state a trip leaves the connection.
#[derive(Default)]
pub(super) struct Left {
    /// It must not be used again (I8).
    pub(super) out_of_order: bool,
    /// The server said that it is no master.
    pub(super) read_only: bool,
}

impl Left {
    fn note(&mut self, outcome: &Outcome) {
        self.read_only |= outcome.is_read_only();
        self.out_of_order |= outcome.ends_connection() || outcome.is_read_only();
    }
}

impl Line {
    pub(super) fn over(connection: Connection) -> Self {
        Self {
            connection,
            packed: Packed::default(),
            replies: Vec::new(),
            sent_at: Uptime::default(),
            failed: None,
            is_open: false,
            ends: false,
        }
    }

    /// How many replies the trip has.
    pub(super) fn count(&self) -> usize {
        self.packed.count
    }

    /// Sends what the threads have that may be sent now.
    pub(super) fn send(&mut self, batch: &[Arc<Slot>], now: Now, limit: Duration) {
        let server = self.connection.server_version();
        self.packed.bytes.clear();
        self.packed.count = 0;
        self.replies.clear();
        (self.sent_at, self.failed, self.ends) = (now.uptime, None, mem::take(&mut self.is_open));
        if self.ends {
            self.end_transaction(batch, server, now);
        }
        let mut looks = false;
        for slot in batch {
            let Job { command, own, stage: stage @ Stage::Queued, .. } = &mut *slot.job() else { continue };
            let Some(ready) = command.as_ref().and_then(|command| command.job(server, now)) else { continue };
            if own.is_some() {
                *stage = Stage::Looking;
                looks = true;
                continue;
            }
            *stage = Stage::Sent { with_next: ready.next.is_some() };
            ready.commands().for_each(|encoded| self.packed.append(encoded.packed, encoded.replies));
        }
        if looks {
            for slot in batch {
                let Job { command: Some(command), stage: Stage::Looking, .. } = &*slot.job() else {
                    continue;
                };
                codec::watch(&mut self.packed, command.key().as_bytes());
            }
            self.packed.command(&[b"MULTI"]);
        }
        if self.packed.count > 0 {
            self.failed = self.connection.send(&self.packed.bytes, now.uptime.after(limit)).err();
        }
    }

    fn end_transaction(&mut self, batch: &[Arc<Slot>], server: Option<Version>, now: Now) {
        let before = self.packed.count;
        for slot in batch {
            let job = &mut *slot.job();
            let (Some(command), Stage::Watching) = (&job.command, job.stage) else { continue };
            if slot.is_gone() {
                // Its thread has said that nothing but WATCH was sent.
                job.result = Some(Err(Failure::Lost(lost_in_batch())));
                continue;
            }
            let change = command.sent_job(false).own;
            job.stage = Stage::Sent { with_next: command.next_now(server, now).is_some() };
            self.packed.append(change.packed, change.replies);
        }
        if self.packed.count == before {
            return self.packed.command(&[b"DISCARD"]);
        }
        self.packed.command(&[b"EXEC"]);
        for slot in batch {
            let job = slot.job();
            if let (Some(command), Stage::Sent { with_next: true }) = (&job.command, job.stage)
                && let Some(next) = command.sent_job(true).next
            {
                self.packed.append(next.packed, next.replies);
            }
        }
    }

    /// Reads the replies, of which `ended` says why some are missing, and puts them into the slots.
    pub(super) fn read(&mut self, batch: &[Arc<Slot>], ended: Option<TransportError>) -> Left {
        let mut replies = Replies::of(mem::take(&mut self.replies), ended);
        let mut left = Left::default();
        if self.ends {
            self.read_changes(batch, &mut replies, &mut left);
        }
        let mut looks = Vec::new();
        for slot in batch {
            let mut job = slot.job();
            let outcome = match (&job.command, job.stage) {
                _ if job.result.is_some() => continue,
                (_, Stage::Looking) => {
                    looks.push(job);
                    continue;
                }
                (Some(command), Stage::Sent { with_next }) => {
                    replies.job_outcome(command.sent_job(with_next))
                }
                _ => unread(),
            };
            left.note(&outcome.own);
            left.note(&outcome.next);
            // The server has read nothing of it.
            job.result = Some(Ok(if outcome.found_no_room().is_some() { unread() } else { outcome }));
        }
        if !looks.is_empty() {
            self.read_looks(looks, &mut replies, &mut left);
        }
        left
    }

    fn read_changes(&mut self, batch: &[Arc<Slot>], replies: &mut Replies, left: &mut Left) {
        let jobs = batch.iter().map(|slot| slot.job());
        let mut jobs: Vec<MutexGuard<'_, Job>> = jobs.filter(|job| job.is_change_sent()).collect();
        if jobs.is_empty() {
            left.out_of_order |= !matches!(replies.take(1).as_deref(), Ok([Value::Okay]));
            return;
        }
        let commands = |job: &MutexGuard<'_, Job>| job.command.as_ref().map(QueuedCommand::command).cloned();
        let commands: Vec<Command> = jobs.iter().filter_map(commands).collect();
        let read = match replies.take(jobs.len() + 1) {
            Ok(values) => codec::read_changes(&commands.iter().collect::<Vec<_>>(), values),
            Err(Outcome::Lost(error)) => Err(error),
            Err(_) => Err(lost_in_batch()),
        };
        let outcomes: Vec<Outcome> = match read {
            Ok(read) => read.into_iter().map(|reply| replies.judged(Ok(reply))).collect(),
            Err(error) => jobs.iter().map(|_| replies.judged(Err(error.clone()))).collect(),
        };
        let many = jobs.len() > 1;
        for (job, own) in jobs.iter_mut().zip(outcomes) {
            left.note(&own);
            let own = match own {
                Outcome::Refused(_) => {
                    // Up to 2.4 a server that is over its memory refuses EXEC itself, and the transaction stays open.
                    self.is_open = true;
                    // Which of several it was for shows when each is changed alone.
                    if many { Outcome::Reply(Reply::Executed(None)) } else { own }
                }
                own => own,
            };
            job.result = Some(Ok(JobOutcome { own, next: Outcome::Unread }));
        }
        for job in &mut jobs {
            let Job { command: Some(command), stage: Stage::Sent { with_next: true }, result, .. } =
                &mut **job
            else {
                continue;
            };
            if let (Some(next), Some(Ok(outcome))) = (command.sent_job(true).next, result) {
                outcome.next = replies.outcome(next);
                left.note(&outcome.next);
            }
        }
    }

    fn read_looks(&mut self, jobs: Vec<MutexGuard<'_, Job>>, replies: &mut Replies, left: &mut Left) {
        let found: Vec<_> = jobs.iter().map(|_| replies.take(2)).collect();
        let multi = replies.take(1);
        self.is_open = matches!(multi.as_deref(), Ok([Value::Okay]));
        // It may be watching.
        left.out_of_order |= !self.is_open;
        for (mut job, found) in jobs.into_iter().zip(found) {
            let outcome = match (found, &multi) {
                (Ok(mut found), Ok(multi)) => {
                    found.extend(multi.iter().cloned());
                    replies.judged(codec::read(&Command::WatchGet, found))
                }
                (Err(outcome), _) => outcome,
                (_, Err(Outcome::Lost(error))) => Outcome::Lost(error.clone()),
                _ => Outcome::Unread,
            };
            left.note(&outcome);
            job.result = match outcome {
                Outcome::Reply(reply) => {
                    let is_own = matches!(&reply, Reply::Bulk(found) if *found == job.own);
                    job.found = Some(reply);
                    if is_own {
                        job.stage = Stage::Watching;
                        continue;
                    }
                    Some(Ok(unread()))
                }
                Outcome::Refused(refusal) if refusal.closes_connection() => Some(Ok(unread())),
                Outcome::Refused(refusal) => Some(Err(Failure::Refused(refusal))),
                Outcome::Lost(error) => Some(Err(Failure::Lost(error))),
                Outcome::Unread => Some(Ok(unread())),
            };
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("stage", &self.stage).finish_non_exhaustive()
    }
}

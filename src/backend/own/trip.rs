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

use std::mem;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use redis::Value;

use super::Slot;
use crate::backend::codec;
use crate::backend::connections::{Connection, LockConnection as _};
use crate::backend::errors::TransportError;
use crate::backend::item::{self, Item, Left, Replies};
use crate::backend::limits::{Incident, Report};
use crate::backend::resp::{Form, Packed};
use crate::backend::{Answers, Failure, Next};
use crate::clock::{Now, Uptime};
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Change, Command, Reply, Request};
use crate::version::Version;

/// What a thread has sent by a lane. Its lists are used again.
#[derive(Debug, Default)]
pub(super) struct Job {
    own: Item,
    next: Item,
    /// WATCH and GET, before a change.
    look: Item,
    /// What the key should hold; only before a change.
    expected: Option<Vec<u8>>,
    /// Whether it holds that, so that the change goes in the next trip.
    watches: bool,
    pub(super) is_done: bool,
    abandoned: Option<Abandoned>,
}

/// What came of a job.
pub(super) struct Ended {
    /// What the key held; `None` if WATCH was not sent, or not read.
    pub(super) found: Option<Result<Reply, Failure>>,
    /// `None` if the command was not sent, or not read.
    pub(super) answers: Option<Answers>,
}

/// What a thread had sent that waits no longer.
#[derive(Debug)]
struct Abandoned {
    key: Key,
    command: Command,
    next: Option<Command>,
}

impl Job {
    pub(super) fn set(&mut self, key: &Key, request: &Request, next: Option<&Next>, needs: Protocol) {
        self.clear();
        self.own.set(key, request, needs);
        if let Some(Next { request, needs }) = next {
            self.next.set(key, request, *needs);
        }
    }

    /// Makes it a change, if the key holds `expected`.
    pub(super) fn set_change(
        &mut self,
        (key, expected): (&Key, &[u8]),
        change: &Change,
        next: Option<&Next>,
        needs: Protocol,
    ) {
        self.clear();
        self.look.begin(Command::WatchGet.name(), needs, None);
        codec::watch(&mut self.look.packed, key.as_bytes());
        self.expected = Some(expected.to_vec());
        self.own.set_change(key, change, needs);
        if let Some(Next { request, needs }) = next {
            self.next.set(key, request, *needs);
        }
    }

    fn clear(&mut self) {
        self.next.clear();
        self.look.clear();
        (self.expected, self.watches, self.is_done, self.abandoned) = (None, false, false, None);
    }

    /// Returns what came of it. `gone`: its thread waits no longer; then it is noted what it was, for a success that comes later.
    pub(super) fn end(&mut self, gone: bool, key: &Key, command: &Command, next: Option<&Next>) -> Ended {
        let found = self.look.outcome(&Command::WatchGet);
        let answers = self
            .own
            .outcome(command)
            .map(|own| Answers { own, next: next.and_then(|next| self.next.outcome(&next.request.command)) });
        if gone && !self.is_done {
            let (key, command) = (key.clone(), command.clone());
            let next = next.map(|next| next.request.command.clone());
            self.abandoned = Some(Abandoned { key, command, next });
        }
        Ended { found, answers }
    }

    /// Reports a command that changed the key after its thread had given up. That thread has reported the outcome as unknown, or found it
    /// out by reading the key (I6).
    pub(super) fn report_abandoned(&mut self, report: Report<'_>) {
        let Some(Abandoned { key, command, next }) = self.abandoned.take() else { return };
        let own = (&mut self.own, Some(&command));
        for (item, command) in [own, (&mut self.next, next.as_ref())] {
            if let Some(command) = command
                && let Some(Ok(reply)) = item.outcome(command)
                && has_changed(command, &reply)
            {
                report.incident(Incident::CarriedOutLate { key: &key, command: command.name() });
            }
        }
    }
}

fn has_changed(command: &Command, reply: &Reply) -> bool {
    match command {
        Command::SetNx(_) | Command::Del => *reply == Reply::Integer(1),
        Command::GetSet(_) => true,
        Command::Exec(Change::Set(_) | Change::Del) => *reply == Reply::Executed(Some(1)),
        _ => false,
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
    /// Whether it begins one.
    looks: bool,
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
            looks: false,
        }
    }

    /// How many replies the trip has.
    pub(super) fn count(&self) -> usize {
        self.packed.forms.len()
    }

    /// Sends what the threads have that may be sent now.
    pub(super) fn send(&mut self, batch: &[Arc<Slot>], now: Now, limit: Duration) {
        let server = self.connection.server_version();
        self.packed.clear();
        self.replies.clear();
        (self.sent_at, self.failed, self.looks) = (now.uptime, None, false);
        self.ends = mem::take(&mut self.is_open);
        if self.ends {
            self.end_transaction(batch, server, now);
        }
        for slot in batch {
            let job = &mut *slot.job();
            // Once its thread waits no longer, it has taken what is not sent as such.
            if job.watches || job.is_done || slot.is_gone() {
                continue;
            }
            if job.expected.is_some() {
                self.looks |= job.look.sends(server, now);
            } else if item::send_both(&mut job.own, &mut job.next, server, now) {
                self.packed.append(&job.own.packed);
                if job.next.is_sent() {
                    self.packed.append(&job.next.packed);
                }
            }
        }
        if self.looks {
            for slot in batch {
                let job = slot.job();
                if job.look.is_sent() && !job.watches && !job.is_done {
                    self.packed.append(&job.look.packed);
                }
            }
            self.packed.command(Form::Okay, &[b"MULTI"]);
        }
        if self.count() > 0 {
            self.failed = self.connection.send(&self.packed.bytes, now.uptime, limit).err();
        }
    }

    fn end_transaction(&mut self, batch: &[Arc<Slot>], server: Option<Version>, now: Now) {
        for slot in batch {
            let job = &mut *slot.job();
            // Both under one lock: its thread may give up in between.
            let sends = job.watches && !slot.is_gone();
            if sends && item::send_both(&mut job.own, &mut job.next, server, now) {
                self.packed.append(&job.own.packed);
            }
        }
        if self.count() == 0 {
            return self.packed.command(Form::Okay, &[b"DISCARD"]);
        }
        self.packed.command(Form::ListOrNil, &[b"EXEC"]);
        for slot in batch {
            let job = slot.job();
            if job.watches && job.own.is_sent() && job.next.is_sent() {
                self.packed.append(&job.next.packed);
            }
        }
    }

    /// Reads the replies, of which `ended` says why some are missing, and gives each thread its own.
    pub(super) fn read(&mut self, batch: &[Arc<Slot>], ended: Option<TransportError>) -> Left {
        let mut values = mem::take(&mut self.replies);
        let mut replies = Replies::of(&mut values, ended);
        if self.ends {
            self.is_open = read_changes(batch, &mut replies);
        }
        for slot in batch {
            let mut job = slot.job();
            if job.expected.is_none() {
                let Job { own, next, .. } = &mut *job;
                replies.give(own);
                replies.give(next);
                job.is_done = true;
            } else if !job.look.is_sent() {
                job.is_done = true;
            }
        }
        if self.looks {
            self.is_open = read_looks(batch, &mut replies);
        }
        let left = mem::take(&mut replies.left);
        drop(replies);
        self.replies = values;
        left
    }
}

/// Reads the end of a transaction. Returns whether it may be open still.
fn read_changes(batch: &[Arc<Slot>], replies: &mut Replies<'_>) -> bool {
    let jobs = batch.iter().map(|slot| slot.job());
    let mut jobs: Vec<MutexGuard<'_, Job>> = jobs.filter(|job| job.watches).collect();
    jobs.retain_mut(|job| {
        job.is_done = true;
        job.own.is_sent()
    });
    if jobs.is_empty() {
        let mut discard = Item::beside("DISCARD", Form::Okay);
        replies.give(&mut discard);
        replies.left.out_of_order |= discard.replies != [Value::Okay];
        return false;
    }
    let many = jobs.len() > 1;
    let mut changes: Vec<&mut Item> = jobs.iter_mut().map(|job| &mut job.own).collect();
    // Up to 2.4 a server that is over its memory refuses EXEC itself, and the transaction stays open.
    let refused = replies.give_changes(&mut changes);
    if refused && many {
        // Which of several it was for shows when each is changed alone.
        for change in changes {
            change.not_if_refused();
        }
    }
    for job in &mut jobs {
        replies.give(&mut job.next);
    }
    refused
}

/// Reads what each key holds that is watched now. Returns whether a transaction is open.
fn read_looks(batch: &[Arc<Slot>], replies: &mut Replies<'_>) -> bool {
    let jobs = batch.iter().map(|slot| slot.job());
    let mut jobs: Vec<MutexGuard<'_, Job>> =
        jobs.filter(|job| job.expected.is_some() && !job.is_done).collect();
    for job in &mut jobs {
        replies.give(&mut job.look);
    }
    let mut multi = Item::beside("MULTI", Form::Okay);
    replies.give(&mut multi);
    let is_open = multi.replies == [Value::Okay];
    // It may be watching.
    replies.left.out_of_order |= !is_open;
    for job in &mut jobs {
        let is_expected = matches!(job.look.replies.as_slice(), [Value::Okay, Value::BulkString(found)] if Some(found) == job.expected.as_ref());
        job.look.lose_as(&multi);
        job.look.replies.extend(multi.replies.iter().cloned());
        job.watches = is_open && is_expected;
        job.is_done = !job.watches;
    }
    is_open
}

//! The rules of acquiring several locks at once: all or none, by one MSETNX, or by one transaction, which also takes over those that have
//! expired. Where that does not succeed the locks are acquired one by one, by the rules of a single lock.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Params, may_take_over};
use super::lease::Lease;
use super::{Change, Command, Entry, GiveUp, Reply, Request};
use crate::clock::{Now, Uptime};
use crate::key::Key;
use crate::options::Protocol;
use crate::value::LockState;
use crate::version::Version;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Send(Request),
    /// Send WATCH and GET of each key, and MULTI.
    Watch,
    /// Send this change of each key, and EXEC.
    Replace(Command),
    /// All are held, by leases with one value; taken over from these.
    Held {
        lease: Lease,
        from: Vec<LockState>,
    },
    /// The lock of this key is held.
    Contended {
        index: usize,
        seen: LockState,
    },
    /// The locks were granted after their leases had passed, and are not used; then one by one.
    Late,
    /// Acquire one after the other. A command on all may still come.
    OneByOne(Option<Unresolved>),
    /// Sleep, then call [`AcquiringAll::look`].
    Pause(Duration),
    GiveUp(GiveUp),
}

/// A command that may have acquired all locks: its reply was lost. Its value in a key proves that this one was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unresolved {
    pub(crate) lease: Lease,
    /// What a transaction has taken over; empty for MSETNX.
    pub(crate) from: Vec<LockState>,
}

/// One attempt to acquire several locks at once.
///
/// | state | reply | next |
/// |---|---|---|
/// | start | | MSETNX → `Setting`; in Ttl WATCH, GET, MULTI → `Watching`, since MSETNX gives no time to live |
/// | `Setting` | 1 | held, if the lease has not passed (I3); else late |
/// | | 0 | Watched: WATCH, GET, MULTI → `Watching`; Classic, trying once: MGET → `Reading`; else one by one |
/// | | lost | expiring: MGET → `Checking`; else unknown (I6) |
/// | | refused, or not sent in time | one by one: some servers refuse several keys, and then each key has its own reason |
/// | `Watching` | each key absent, or a time in the past | SET of each, EXEC → `Replacing` |
/// | | the same, in Ttl | the same if all are absent; else one by one: the rules of one lock look at the time to live |
/// | | anything else | contended |
/// | | refused, lost | one by one |
/// | `Replacing` | carried out | held, if the lease has not passed (I3); else late |
/// | | not carried out, refused | one by one: another client was faster |
/// | | lost, or carried out in part, as servers before 2.6.5 do | MGET → `Checking` |
/// | `Reading` | each key absent, or a time in the past | one by one: Classic takes over one key at a time |
/// | | anything else | contended |
/// | `Checking` | each key holds our value | held, if the lease has not passed (I3); else late |
/// | | anything else, or refused | one by one, where our value counts as well: the command may come late |
/// | | lost | MGET again after a pause, until the server is unreachable for too long; then unknown |
/// | any other | not sent | give up |
#[derive(Debug)]
pub(crate) struct AcquiringAll {
    keys: Arc<[Key]>,
    params: Params,
    /// Whether contention ends the call.
    tries_once: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Setting(Lease),
    Watching,
    Replacing {
        lease: Lease,
        from: Vec<LockState>,
    },
    Reading,
    /// The locks may have been acquired.
    Checking {
        unresolved: Unresolved,
        /// Since when replies have been lost in a row.
        since: Uptime,
    },
}

impl AcquiringAll {
    /// Begins. `tries_once` says whether contention ends the call.
    pub(crate) fn start(keys: Arc<[Key]>, params: Params, tries_once: bool, now: Now) -> (Self, Next) {
        let lease = Lease::beginning(now, params.options.expiration, params.nonce);
        let before = lease.end;
        let command = Command::SetNxAll(Arc::clone(&keys), lease.value.clone());
        let mut attempt = Self { keys, params, tries_once, state: State::Setting(lease) };
        let next = match params.options.protocol {
            Protocol::Ttl => attempt.watch(),
            Protocol::Auto | Protocol::Classic | Protocol::Watched => Next::Send(Request { command, before }),
        };
        (attempt, next)
    }

    /// Decides what [`Protocol::Auto`] is, once there is a reply.
    pub(crate) fn decide_protocol(&mut self, server: Option<Version>) {
        self.params.options.protocol = self.params.options.protocol.on(server);
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.params.options.protocol
    }

    fn watch(&mut self) -> Next {
        self.state = State::Watching;
        Next::Watch
    }

    /// Goes on after a command.
    pub(crate) fn reply(&mut self, reply: &Reply, now: Now) -> Next {
        match (std::mem::replace(&mut self.state, State::Reading), reply) {
            (State::Setting(_), Reply::Integer(0)) => match self.params.options.protocol {
                _ if self.params.options.expiration.is_none() => self.wait(),
                Protocol::Watched | Protocol::Ttl => self.watch(),
                Protocol::Auto | Protocol::Classic => self.wait(),
            },
            (State::Setting(lease), Reply::Integer(_)) => Self::granted(lease, Vec::new(), now),
            (State::Setting(_), Reply::Lost) if self.params.options.expiration.is_none() => {
                Next::GiveUp(GiveUp::Unknown)
            }
            (State::Setting(lease), Reply::Lost) => self.check(Unresolved { lease, from: Vec::new() }, now),
            (State::Checking { unresolved, .. }, Reply::Bulks(found)) => {
                let Unresolved { lease, from } = unresolved;
                if found.iter().all(|found| found.as_ref() == Some(&lease.value)) {
                    return Self::granted(lease, from, now);
                }
                Next::OneByOne(Some(Unresolved { lease, from }))
            }
            (State::Checking { unresolved, .. }, Reply::Refused) => Next::OneByOne(Some(unresolved)),
            (State::Checking { unresolved, since }, Reply::Lost) => self.pause(unresolved, since, now),
            (State::Checking { .. }, _) => Next::GiveUp(GiveUp::Unknown),
            (State::Reading, Reply::Bulks(found)) => {
                match self.judge(found.iter().map(Option::as_deref), now) {
                    Ok(_) => Next::OneByOne(None),
                    Err(contended) => contended,
                }
            }
            (_, Reply::Unsent) => Next::GiveUp(GiveUp::Unsent),
            _ => Next::OneByOne(None),
        }
    }

    /// The reply was lost. Whether the command was carried out is found out by reading, on a new connection (I6).
    fn check(&mut self, unresolved: Unresolved, now: Now) -> Next {
        self.state = State::Checking { unresolved, since: now.uptime };
        self.look()
    }

    fn pause(&mut self, unresolved: Unresolved, since: Uptime, now: Now) -> Next {
        let is_over = self.params.deadline.is_some_and(|deadline| now.uptime >= deadline);
        if is_over || now.uptime.since(since) >= self.params.retry_for {
            return Next::GiveUp(GiveUp::Unknown);
        }
        self.state = State::Checking { unresolved, since };
        let rest = self.params.deadline.map_or(Duration::MAX, |deadline| deadline.since(now.uptime));
        Next::Pause(self.params.options.poll_interval.min(rest))
    }

    /// Goes on after a pause.
    pub(crate) fn look(&self) -> Next {
        Next::Send(Request::at_any_time(Command::GetAll(Arc::clone(&self.keys))))
    }

    #[cfg(test)]
    pub(super) fn is_replacing(&self) -> bool {
        matches!(self.state, State::Replacing { .. })
    }

    /// One is held, or has expired.
    fn wait(&mut self) -> Next {
        if !self.tries_once {
            return Next::OneByOne(None);
        }
        self.state = State::Reading;
        self.look()
    }

    /// Goes on after the keys were watched and read. Unless it is to replace them, the watch ends.
    pub(crate) fn watched(&mut self, replies: &[Reply], now: Now) -> Next {
        let found: Option<Vec<_>> = replies
            .iter()
            .map(|reply| match reply {
                Reply::Bulk(found) => Some(found.as_deref()),
                _ => None,
            })
            .collect();
        if let Some(Reply::Unsent) = replies.first() {
            return Next::GiveUp(GiveUp::Unsent);
        }
        let Some(found) = found else { return Next::OneByOne(None) };
        match self.judge(found.into_iter(), now) {
            Ok(from)
                if self.protocol() == Protocol::Ttl && from.iter().any(|from| *from != LockState::Absent) =>
            {
                Next::OneByOne(None)
            }
            Ok(from) => {
                self.params.nonce = self.params.nonce.next();
                let lease = Lease::beginning(now, self.params.options.expiration, self.params.nonce);
                let entry = Entry::of(&lease, self.params.options.protocol, self.params.options.expiration);
                self.state = State::Replacing { lease, from };
                // At any time: it changes what was watched, or nothing.
                Next::Replace(Command::Exec(Change::Set(entry)))
            }
            Err(contended) => contended,
        }
    }

    /// Goes on after the transaction.
    pub(crate) fn replaced(&mut self, replies: &[Reply], now: Now) -> Next {
        let State::Replacing { lease, from } = std::mem::replace(&mut self.state, State::Reading) else {
            unreachable!("the rules asked for the transaction")
        };
        let is_done = |reply: &Reply| matches!(reply, Reply::Executed(Some(_)));
        if replies.iter().all(is_done) {
            return Self::granted(lease, from, now);
        }
        if replies.iter().any(|reply| is_done(reply) || *reply == Reply::Lost) {
            return self.check(Unresolved { lease, from }, now);
        }
        Next::OneByOne(None)
    }

    /// Returns what each key holds if all locks may be acquired.
    fn judge<'a>(
        &self,
        found: impl Iterator<Item = Option<&'a [u8]>>,
        now: Now,
    ) -> Result<Vec<LockState>, Next> {
        let free = |(index, found): (usize, Option<&[u8]>)| match LockState::of_value(found) {
            LockState::Absent => Ok(LockState::Absent),
            seen if self.params.options.expiration.is_some()
                && may_take_over(&self.params.options, &seen, now.wall) =>
            {
                Ok(seen)
            }
            seen => Err(Next::Contended { index, seen }),
        };
        found.enumerate().map(free).collect()
    }

    /// A grant counts only while its lease lasts (I3).
    fn granted(lease: Lease, from: Vec<LockState>, now: Now) -> Next {
        if lease.has_passed(now) {
            return Next::Late;
        }
        Next::Held { lease, from }
    }
}

#[cfg(test)]
mod tests;

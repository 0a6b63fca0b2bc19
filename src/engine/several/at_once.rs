//! Asking for all locks at once, by the rules of [`AcquiringAll`].

use std::sync::Arc;
use std::time::Duration;

use super::in_doubt::InDoubt;
use super::{Several, WaitAll};
use crate::backend::{Answers, KeyRequest, StopCheck};
use crate::clock::{self, Now};
use crate::engine::call::Call;
use crate::engine::wait::{Granted, Wait};
use crate::error::{Contention, Error};
use crate::event::Event;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::acquire::Observation;
use crate::protocol::acquire_all::{AcquiringAll, Next};
use crate::protocol::lease::Lease;
use crate::protocol::{GiveUp, Reply, Request};
use crate::queue::{CancelToken, Sleep};
use crate::value::LockState;

/// How often a pause looks whether it is to end.
const STOP_CHECKED_EVERY: Duration = Duration::from_millis(50);

/// How the attempt to acquire all at once has ended.
pub(super) enum AtOnce {
    Granted(Vec<(Key, Granted)>),
    OneByOne(Option<InDoubt>),
}

impl WaitAll<'_> {
    /// Whether it makes sense to ask for all locks at once: no thread of this process has or waits for one, nor has a process just been
    /// notified of its release, and the server takes commands on several keys.
    pub(super) fn may_succeed_at_once(&self) -> bool {
        let Several { keys, options, .. } = self.wanted;
        let engine = self.engine;
        let left = |key: &Key| options.notifies && engine.notifications.head_start(key).is_some();
        let may_wait = options.timeout != Some(Duration::ZERO);
        let is_free = !may_wait || (engine.queue.is_idle(keys) && !keys.iter().any(left));
        is_free && !engine.refuses_many(self.began.uptime)
    }

    pub(super) fn at_once(&self) -> Result<AtOnce, Error> {
        let Several { keys, options, cancel_token, .. } = self.wanted;
        let engine = self.engine;
        let stop = || engine.queue.is_closed() || cancel_token.is_some_and(CancelToken::is_cancelled);
        let first = &keys[0];
        let call = Call::new(engine, first, options.protocol, self.deadline);
        let mut call = call.stopped_by(StopCheck(&stop), engine.retry_for(self.began.uptime));
        let once = options.timeout == Some(Duration::ZERO);
        let whole = self.wait(first, self.began, None);
        let (mut rules, mut next) = AcquiringAll::start(Arc::clone(keys), whole.params(), once, self.began);
        let mut now = self.began;
        loop {
            next = match next {
                Next::Send(request) => {
                    let reply = call.send_on_many(&request, now);
                    if matches!(reply, Reply::Integer(_) | Reply::Bulks(_)) {
                        rules.decide_protocol(engine.backend.server_version());
                    }
                    now = clock::now();
                    rules.reply(&reply, now)
                }
                Next::Watch => self.watch(&mut call, &mut rules, &mut now),
                Next::Replace(_) => unreachable!("it goes over the connection that watches"),
                Next::Held { lease, from } => {
                    return Ok(AtOnce::Granted(self.granted(&rules, &lease, &from, now)));
                }
                Next::Pause(time) => {
                    let until = now.uptime.after(time);
                    while !stop() && clock::uptime() < until {
                        // Nothing wakes a thread that is in no queue when the locker is shut down.
                        let slice = until.min(clock::uptime().after(STOP_CHECKED_EVERY));
                        whole.parking(Some(slice))(Sleep::Waiting);
                    }
                    if stop() {
                        return Err(self.all_unknown(call));
                    }
                    now = clock::now();
                    rules.look()
                }
                Next::Late => {
                    for key in keys.iter() {
                        engine.observer.late_grant(key);
                    }
                    return Ok(AtOnce::OneByOne(None));
                }
                Next::Contended { index, seen } if once => {
                    return Err(self.contended(&keys[index], seen, now));
                }
                Next::Contended { .. } => return Ok(AtOnce::OneByOne(None)),
                Next::OneByOne(None) => return Ok(AtOnce::OneByOne(None)),
                Next::OneByOne(Some(unresolved)) => {
                    let (protocol, unanswered) = (rules.protocol(), call.take_unanswered());
                    return Ok(AtOnce::OneByOne(Some(InDoubt { unresolved, protocol, unanswered })));
                }
                Next::GiveUp(GiveUp::Unknown) => return Err(self.all_unknown(call)),
                Next::GiveUp(reason) => {
                    // The end of the wait from outside is the reason.
                    self.wait(first, now, None).check()?;
                    return Err(call.error(reason, Wait::advice(options)));
                }
            };
        }
    }

    /// Watches and reads all keys, and replaces them by one transaction if the rules say so.
    fn watch(&self, call: &mut Call<'_>, rules: &mut AcquiringAll, now: &mut Now) -> Next {
        let (keys, engine) = (self.wanted.keys, self.engine);
        let limits = call.limits_on_many(Protocol::Watched, *now);
        let (replies, watched) = match engine.backend.watch_all(keys, &limits) {
            Ok((replies, watched)) => (replies, Some(watched)),
            Err(failure) => (vec![Err(failure)], None),
        };
        let replies: Vec<Reply> =
            replies.into_iter().map(|reply| call.reply_on_many(reply, "WATCH", true)).collect();
        *now = clock::now();
        let next = rules.watched(&replies, *now);
        let Some(watched) = watched else { return next };
        let Next::Replace(command) = next else {
            watched.unwatch(&limits);
            return next;
        };
        let change = |key: &Key| {
            let request = Request::at_any_time(command.clone());
            KeyRequest { key: key.clone(), request, next: None }
        };
        let changes: Vec<KeyRequest> = keys.iter().map(change).collect();
        let reply = |Answers { own, .. }| call.reply_on_many(own, "EXEC", false);
        let replies: Vec<Reply> = watched.exec_all(&changes, &limits).into_iter().map(reply).collect();
        *now = clock::now();
        rules.replaced(&replies, *now)
    }

    fn granted(
        &self,
        rules: &AcquiringAll,
        lease: &Lease,
        from: &[LockState],
        now: Now,
    ) -> Vec<(Key, Granted)> {
        let Several { keys, options, shared, .. } = self.wanted;
        let engine = self.engine;
        for (key, from) in keys.iter().zip(from).filter(|(_, from)| **from != LockState::Absent) {
            engine.observer.notify(&Event::TakenOver { key, from });
        }
        let granted = |key: &Key| {
            if options.notifies {
                engine.notifications.acquired(key);
            }
            let holder = engine.queue.hold(key, shared, &Observation::of(lease, now));
            let (lease, protocol) = (lease.clone(), rules.protocol());
            (key.clone(), Granted { lease, protocol, holder, at: now })
        };
        keys.iter().map(granted).collect()
    }

    fn contended(&self, key: &Key, seen: LockState, now: Now) -> Error {
        let options = self.wanted.options;
        let wait = self.wait(key, now, None);
        let details = Contention { attempts: 1, ..wait.contention(Some(seen), 0, now) };
        let timeout = Some(options.timeout.unwrap_or_default());
        Error::Contended { key: key.clone(), timeout, details: Box::new(details) }
    }
}

//! What a holder does with its locks: extends them, asks for them, takes fencing tokens. One lock is a slice of one.
//! Their commands go together, and what happens is reported when nothing of a hold is locked any more.

use std::sync::Arc;
use std::time::Duration;

use proto::fencing::{LAST_COUNT, LAST_EPOCH, Unusable};
use proto::hold::{self, Counted, Extension, Verification};
use proto::lease::{End, Lease};
use proto::ownership::Loss;
use proto::task::Task;
use proto::values::{Now, Protocol};
use proto::{GiveUp, Step};

use super::drive::Job;
use super::engine::Engine;
use super::outbox::Outbox;
use super::session::Session;
use crate::net::Refusal;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::report::state::LossReason;
use crate::run::hold::{Hold, HoldState, OnLoss};
use crate::system::clock;
use crate::system::sync::MutexGuard;

/// A hold, and what its commands need. Others wait until that is dropped.
pub(super) type Locked<'a> = (&'a Arc<Hold>, MutexGuard<'a, HoldState>);

impl Engine {
    /// Locks holds in the order of their keys, as each thread that works on several does.
    /// Waits for all of them from the beginning, so that the keeper goes before it once.
    /// But while a node of a cluster hangs, the keeper works on for the keys of others.
    pub(super) fn lock_all<'a>(&self, holds: &[&'a Arc<Hold>]) -> Vec<Locked<'a>> {
        let is_one_node = self.have_one_node(holds.iter().map(|hold| &***hold));
        let later = if is_one_node { holds.get(1..).unwrap_or_default() } else { &[] };
        for hold in later {
            hold.begin_waiting();
        }
        let locked = holds.iter().map(|hold| (*hold, hold.state())).collect();
        for hold in later {
            hold.end_waiting();
        }
        locked
    }

    /// Returns true if the keys of these holds are on one node.
    fn have_one_node<'a>(&self, holds: impl Iterator<Item = &'a Hold>) -> bool {
        let mut nodes = holds.map(|hold| self.backend.node_of(&hold.key));
        let first = nodes.next();
        nodes.all(|node| Some(node) == first)
    }

    /// Runs a task for each of these holds, unless `begin` begins none. `end` notes what came of it.
    pub(super) fn on_each<'h, T: 'static, R>(
        &self,
        locked: &mut [Locked<'h>],
        outbox: &Outbox,
        now: Now,
        begin: impl Fn(&Hold, &HoldState, Now) -> Option<(Task<T>, Step<T>)>,
        end: impl Fn(&Hold, &mut HoldState, Option<(Result<T, GiveUp>, Session<'_>)>) -> R,
    ) -> Vec<R> {
        let session = |(hold, _): &Locked<'h>| {
            let hold: &'h Arc<Hold> = hold;
            self.session(hold, now, outbox)
        };
        let mut sessions: Vec<Session<'_>> = locked.iter().map(session).collect();
        let mut jobs: Vec<Option<Job<'_, '_, Task<T>>>> = Vec::with_capacity(locked.len());
        for ((hold, state), session) in locked.iter().zip(&mut sessions) {
            let task = begin(hold, state, now);
            jobs.push(task.map(|task| Job::new(&hold.key, task, session)));
        }
        self.drive(&mut jobs, Option::as_mut, now);
        let outcomes: Vec<_> = jobs.into_iter().map(|job| Some(job?.outcome(outbox))).collect();
        let end = |((hold, state), (outcome, session)): (&mut Locked<'h>, (Option<_>, Session<'_>))| {
            end(hold, state, outcome.map(|outcome| (outcome, session)))
        };
        locked.iter_mut().zip(outcomes.into_iter().zip(sessions)).map(end).collect()
    }

    /// The commands of a holder.
    pub(super) fn session<'a>(&'a self, hold: &'a Hold, now: Now, outbox: &'a Outbox) -> Session<'a> {
        Session::new(self, &hold.key, hold.options.protocol, Some(now.uptime)).reporting_to(outbox)
    }

    /// Extends the leases of these holds, which expire, to ones of
    /// `asked` that begin now, or of the expiration of each.
    pub(crate) fn extend(
        self: &Arc<Self>,
        holds: &[&Arc<Hold>],
        asked: Option<Duration>,
    ) -> Vec<Result<(), Error>> {
        let outbox = Outbox::default();
        let mut locked = self.lock_all(holds);
        let extended = self.extend_locked(&mut locked, &outbox, clock::now(), |hold, _, now| {
            // A lock that goes on by a token may have to be held for longer than its expiration.
            let at_least = hold.acquired.uptime.after(hold.options.terms.hold_at_least).since(now.uptime);
            let lease = asked.or(hold.options.terms.expiration.map(|expiration| expiration.max(at_least)));
            // That a lease has passed is no loss that the server has shown.
            lease.filter(|_| hold.noticed_loss().is_none())
        });
        self.end_extensions(locked, &outbox, &extended);
        extended.into_iter().map(|extended| extended.map(drop)).collect()
    }

    /// Unlocks holds whose leases were extended, and reports that.
    pub(super) fn end_extensions(
        self: &Arc<Self>,
        locked: Vec<Locked<'_>>,
        outbox: &Outbox,
        extended: &[Result<bool, Error>],
    ) {
        let holds = self.unlocked(locked);
        outbox.flush(&self.observer);
        for (hold, extended) in holds.iter().zip(extended) {
            let key = &hold.key;
            match extended {
                Ok(certified) => self.observer.notify(&Event::Extended { key, certified: *certified }),
                // These are reported as a loss.
                Err(error) if error.is_lost() => {}
                Err(error) => self.observer.notify(&Event::ExtendFailed { key, error }),
            }
        }
        for hold in holds {
            hold.report();
        }
    }

    /// Unlocks holds, whose next work is at another time now.
    fn unlocked<'h>(self: &Arc<Self>, locked: Vec<Locked<'h>>) -> Vec<&'h Arc<Hold>> {
        let unlocked = |(hold, mut state): Locked<'h>| {
            self.reschedule(hold, &mut state);
            hold
        };
        locked.into_iter().map(unlocked).collect()
    }

    /// Extends leases to the `time` that begins with the new one, unless one is not to be extended: it is lost. Returns
    /// whether each extension was certified.
    pub(super) fn extend_locked(
        &self,
        locked: &mut [Locked<'_>],
        outbox: &Outbox,
        now: Now,
        time: impl Fn(&Hold, &HoldState, Now) -> Option<Duration>,
    ) -> Vec<Result<bool, Error>> {
        let begin = |hold: &Hold, state: &HoldState, now| {
            let time = time(hold, state, now)?;
            let (lease, new) = (state.lease.clone(), self.next_lease(hold, &state.lease, time, now));
            // A lease that is cut short as the lock is given up ends before the counter is forgotten.
            let token = state.token.filter(|_| hold.is_held());
            let counter = token.and(hold.options.terms.forget_tokens_after);
            Some(Task::begin(now, async move |io| hold::extend(io, &lease, new, counter).await))
        };
        let end = |hold: &Hold, state: &mut HoldState, ended: Option<(_, Session<'_>)>| match ended {
            Some((outcome, session)) => Self::end_extension(hold, state, outcome, session),
            None => Err(Self::loss_of(hold)),
        };
        self.on_each(locked, outbox, now, begin, end)
    }

    /// Returns the lease that replaces that of a hold if an extension
    /// succeeds. Until the outcome is known, the lease counts that ends first.
    pub(super) fn next_lease(&self, hold: &Hold, lease: &Lease, expiration: Duration, now: Now) -> Lease {
        let new = lease.next(expiration, self.identity.next_nonce(), now);
        let ends = lease.end.zip(new.end);
        hold.rely_until(ends.map(|(old, new)| old.min(new)));
        new
    }

    /// Notes what came of an extension. Returns whether it was certified.
    fn end_extension(
        hold: &Hold,
        state: &mut HoldState,
        outcome: Result<Extension, GiveUp>,
        session: Session<'_>,
    ) -> Result<bool, Error> {
        let now = clock::now();
        let reason = match outcome {
            Ok(Extension::Extended(lease)) => {
                state.lease = lease;
                (state.began, state.asked, state.failed) = (now.uptime, now.uptime, None);
                hold.rely_until(state.lease.end);
                // I3: the reply may have come after the new lease.
                let lost = hold.lost(now).map(|reason| Self::lost(hold, reason, now));
                return lost.map_or(Ok(state.lease.proven), Err);
            }
            Ok(Extension::Lost(reason)) => return Err(Self::lose(hold, reason)),
            Ok(Extension::Unknown { lease, proves }) => {
                state.lease.may_have_become(&lease, proves, now);
                GiveUp::Unknown
            }
            Err(reason) => reason,
        };
        state.failed = Some(now.uptime);
        hold.rely_until(state.lease.end);
        Err(session.error(reason, "the lease goes on until it ends; extend it again, or stop in time"))
    }

    /// Asks the server whether these locks are still held.
    pub(crate) fn verify(self: &Arc<Self>, holds: &[&Arc<Hold>]) -> Vec<Result<(), Error>> {
        let outbox = Outbox::default();
        let mut locked = self.lock_all(holds);
        let verified = self.verify_locked(&mut locked, &outbox);
        self.end_verifications(locked, &outbox);
        verified
    }

    pub(super) fn verify_locked(&self, locked: &mut [Locked<'_>], outbox: &Outbox) -> Vec<Result<(), Error>> {
        let begin = |hold: &Hold, state: &HoldState, now| {
            // A loss that was noticed is final: what the key holds since may be another client's.
            hold.noticed_loss().is_none().then(|| {
                let (lease, nonce) = (state.lease.clone(), self.identity.next_nonce());
                Task::begin(now, async move |io| hold::verify(io, &lease, nonce).await)
            })
        };
        let end = |hold: &Hold, state: &mut HoldState, ended: Option<(_, Session<'_>)>| {
            let Some((outcome, session)) = ended else { return Err(Self::loss_of(hold)) };
            let now = clock::now();
            match outcome {
                Ok(Verification::Held { .. }) => {}
                Ok(Verification::Overwritten(Ok(Extension::Extended(lease)))) => state.lease = lease,
                Ok(Verification::Lost(reason) | Verification::Overwritten(Ok(Extension::Lost(reason)))) => {
                    return Err(Self::lose(hold, reason));
                }
                Ok(Verification::Overwritten(again)) => {
                    if let Ok(Extension::Unknown { lease, proves }) = again {
                        state.lease.may_have_become(&lease, proves, now);
                        hold.rely_until(state.lease.end);
                    }
                    // It is held. The keeper looks again.
                    state.failed = Some(now.uptime);
                    return Ok(());
                }
                Err(reason) => {
                    state.failed = Some(now.uptime);
                    return Err(session.error(reason, "ask again"));
                }
            }
            (state.asked, state.failed) = (now.uptime, None);
            Ok(())
        };
        self.on_each(locked, outbox, clock::now(), begin, end)
    }

    /// Unlocks verified holds, and reports what has happened.
    pub(super) fn end_verifications(self: &Arc<Self>, locked: Vec<Locked<'_>>, outbox: &Outbox) {
        let holds = self.unlocked(locked);
        self.report_all(&holds, outbox);
    }

    /// Takes a fencing token for each of these holds that has none, and returns all.
    pub(crate) fn fencing_tokens(&self, holds: &[&Arc<Hold>]) -> Vec<Result<u64, Error>> {
        let outbox = Outbox::default();
        let mut locked = self.lock_all(holds);
        let begin = |hold: &Hold, state: &HoldState, now| {
            let takes =
                state.token.is_none() && hold.noticed_loss().is_none() && self.no_counter(hold).is_none();
            let (lease, forget_after) = (state.lease.clone(), hold.options.terms.forget_tokens_after);
            takes.then(|| Task::begin(now, async move |io| hold::count(io, &lease, forget_after).await))
        };
        let end = |hold: &Hold, state: &mut HoldState, ended: Option<(_, Session<'_>)>| match ended {
            Some((Ok(Counted::Token(token)), _)) => {
                state.token = Some(token);
                Ok(token)
            }
            Some((Ok(Counted::Unusable(why)), _)) => Err(no_token(hold, why)),
            Some((Ok(Counted::Lost(reason)), _)) => Err(Self::lose(hold, reason)),
            Some((Err(reason), session)) => Err(session.error(reason, "ask again")),
            None => match state.token {
                Some(token) => Ok(token),
                None if hold.noticed_loss().is_some() => Err(Self::loss_of(hold)),
                None => Err(Error::invalid(hold.key.clone(), self.no_counter(hold).unwrap_or_default())),
            },
        };
        let tokens = self.on_each(&mut locked, &outbox, clock::now(), begin, end);
        drop(locked);
        self.report_all(holds, &outbox);
        tokens
    }

    /// Returns why no counter of tokens can be kept for a hold, in words for the user.
    fn no_counter(&self, hold: &Hold) -> Option<&'static str> {
        let since = Protocol::Watched.min_version();
        // Whether the server keeps the time to live of a counter that is increased.
        let keeps = || {
            hold.protocol != Protocol::Classic
                || self.backend.server_version().is_some_and(|version| version >= since)
        };
        if !self.has_side_keys(&hold.key) {
            return Some(
                "it has no fencing tokens: it has a brace and no hash tag, so in a cluster its counter may be on another node; give a key without \
                 braces, or with a hash tag such as {job}:7",
            );
        }
        (hold.options.terms.forget_tokens_after.is_some() && !keeps()).then_some(
            "`forget_tokens_after` needs Redis 2.2, or a server whose version is known: before, INCR drops the counter's time to live; use \
             Watched, or leave the option out",
        )
    }

    pub(super) fn report_all(&self, holds: &[&Arc<Hold>], outbox: &Outbox) {
        outbox.flush(&self.observer);
        for hold in holds {
            hold.report();
        }
    }

    /// Calls `act` when the lock is lost, even if only the clocks notice it.
    pub(crate) fn on_loss(self: &Arc<Self>, hold: &Arc<Hold>, act: OnLoss) {
        hold.on_loss(act);
        hold.report();
        self.watch(hold);
    }

    /// Has the keeper look at a lock, since the program wants to know of a loss.
    pub(crate) fn watch(self: &Arc<Self>, hold: &Arc<Hold>) {
        if self.identity.is_this_process() && hold.end().is_some() {
            self.keep_from_now_on(hold);
        }
    }

    /// Returns the error of a hold whose loss has been noticed.
    pub(super) fn loss_of(hold: &Hold) -> Error {
        Self::lost(hold, hold.noticed_loss().unwrap_or(Loss::Expired), clock::now())
    }

    /// Notes that a lock is lost, and returns the error.
    pub(super) fn lose(hold: &Hold, reason: Loss) -> Error {
        let noticed = hold.lose(&reason);
        Self::lost(hold, noticed.unwrap_or(reason), clock::now())
    }

    /// Returns the error of a lock that is lost.
    pub(crate) fn lost(hold: &Hold, reason: Loss, now: Now) -> Error {
        let ended = hold.end().filter(|_| reason == Loss::Expired);
        let late = ended.map(|End { wall, uptime }| now.uptime.since(uptime).max(now.wall.since(wall)));
        Error::Lost { key: hold.key.clone(), reason: LossReason::of(reason), late, advice: None }
    }
}

fn no_token(hold: &Hold, why: Unusable) -> Error {
    let problem = match why {
        Unusable::Foreign(found) => format!(
            "its fencing counter is at {found}, which is no token; remove the counter, and raise it to the greatest token that the storage has seen: \
             setnx-lock fence --at-least N KEY"
        ),
        Unusable::Epoch(epoch) => format!(
            "the epoch of the server's configuration is {epoch}, and a fencing token has room for {LAST_EPOCH}; set the Sentinels or the cluster up \
             anew, so that epochs begin at 0, and see \"Fencing tokens\" in docs/limits.md"
        ),
        Unusable::UsedUp(epoch) => format!(
            "{LAST_COUNT} fencing tokens were taken in epoch {epoch} of the server's configuration, and there are no more; a failover, such as \
             SENTINEL FAILOVER or CLUSTER FAILOVER, begins the next epoch"
        ),
        Unusable::Changing => return Error::refused(hold.key.clone(), Refusal::of_changing_counter()),
    };
    Error::invalid(hold.key.clone(), problem)
}

//! A lock that goes to another process: a hold that ends with a token, and a call that goes on with the lock of one.

use std::slice;
use std::sync::Arc;

use proto::GiveUp;
use proto::hold::{self, Extension};
use proto::lease::Lease;
use proto::ownership::Loss;
use proto::task::Task;
use proto::unresolved::Unresolved;
use proto::values::{Key, Protocol, Token};

use super::acquire::Call;
use super::drive::Job;
use super::engine::Engine;
use super::held::Acquired;
use super::outbox::Outbox;
use super::session::Session;
use super::thread_holds::HoldKind;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::report::state::LossReason;
use crate::run::hold::{Hold, HoldState};
use crate::system::clock;

impl Engine {
    /// Has the server asked nothing more for a hold, unless it is lost, and returns its token. Asks once what the key
    /// holds if that is in doubt.
    pub(crate) fn token(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<Token, Error> {
        let outbox = Outbox::default();
        let mut locked = self.lock_all(&[hold]);
        let begin = |hold: &Hold, state: &HoldState, now| {
            let asks = hold.lost(now).is_none() && state.lease.is_unresolved();
            let (lease, nonce) = (state.lease.clone(), self.identity.next_nonce());
            asks.then(|| Task::begin(now, async move |io| hold::settle(io, &lease, nonce).await))
        };
        let end = |hold: &Hold, state: &mut HoldState, ended: Option<(_, Session<'_>)>| {
            match ended {
                None if hold.noticed_loss().is_some() => return Err(Self::loss_of(hold)),
                None => {}
                Some((Ok(Extension::Extended(lease)), _)) => state.lease = lease,
                Some((Ok(Extension::Lost(reason)), _)) => return Err(Self::lose(hold, reason)),
                Some((Ok(Extension::Unknown { lease, proves }), session)) => {
                    state.lease.may_have_become(&lease, proves, clock::now());
                    return Err(session.error(GiveUp::Unknown, "the lock is released instead"));
                }
                Some((Err(reason), session)) => {
                    return Err(session.error(reason, "the lock is released instead"));
                }
            }
            hold.give_up(clock::now());
            self.forget(state);
            let token = state.lease.token(&hold.key, &hold.options.terms, hold.acquired.wall);
            let (fencing_token, notifies) = (state.token, self.notifies(&hold.options, &hold.key));
            Ok(Token { fencing_token, notifies, ..token })
        };
        let token = self.on_each(&mut locked, &outbox, clock::now(), begin, end).pop();
        drop(locked);
        self.report_all(&[hold], &outbox);
        token.unwrap_or_else(|| unreachable!("each hold has its outcome"))
    }
}

impl Call<'_> {
    /// Goes on with the lock of a token, without waiting. Its options say what the token's did of the hold's time.
    pub(crate) fn resume(&self, token: &Token) -> Result<Acquired, Error> {
        let (engine, key) = (self.engine, &token.key);
        let _acquiring = engine.acquiring();
        let resumed = self.may_resume(key).and_then(|()| self.resumed(token));
        let waited = clock::uptime().since(self.began.uptime);
        let outcome = resumed.as_ref().map(|_| ());
        engine.observer.notify(&Event::AcquireFinished { key, waited, attempts: 1, outcome });
        let acquired = resumed?;
        engine.note_begun(slice::from_ref(&acquired), Some(HoldKind::Movable));
        if acquired.hold.protocol == Protocol::Classic {
            // Another process that has used the token at the same time may have overwritten the value.
            engine.look_soon(&acquired.hold);
        }
        Ok(acquired)
    }

    fn may_resume(&self, key: &Key) -> Result<(), Error> {
        self.engine.refuse_after_fork(key)?;
        self.refuse_unset_clock(key)?;
        self.engine.refuse_nested(key)?;
        self.check(key)
    }

    fn resumed(&self, token: &Token) -> Result<Acquired, Error> {
        let Self { engine, options, .. } = *self;
        let (outbox, key) = (Outbox::default(), &token.key);
        // Not as an extension: another process may have gone on with the lock on a server that has lost that.
        let session = Session::new(engine, key, options.protocol, Some(self.began.uptime)).acquiring();
        let mut session = session.reporting_to(&outbox);
        let advice = "the token may be used up: then the lock frees itself when its lease has passed";
        if let Err(failure) = self.probe(key) {
            let reason = session.refuse(failure);
            return Err(session.error(reason, advice));
        }
        let now = clock::now();
        let given = Lease::given(token, engine.protocol_of(options), now);
        let (tag, terms, acquired) = (engine.tag(), options.terms, token.acquired);
        let first = given.clone();
        let new = move |now| first.resumed(&terms, &tag, acquired, now);
        let counter = token.fencing_token.and(options.terms.forget_tokens_after);
        let task = Task::begin(now, async move |io| hold::resume(io, &given, new, counter).await);
        let mut job = Job::new(key, task, &mut session);
        job.run(now);
        let outcome = job.outcome(&outbox);
        outbox.flush(&engine.observer);
        let now = clock::now();
        let useless = Some("do not begin the work");
        let lost = |reason| {
            Err(Error::Lost { key: key.clone(), reason: LossReason::of(reason), late: None, advice: useless })
        };
        match outcome {
            // I3
            Ok(Extension::Extended(lease)) if lease.has_passed(now) => lost(Loss::Expired),
            Ok(Extension::Extended(lease)) => {
                let acquired = self.hold_lease(key, lease, now);
                acquired.hold.state().token = token.fencing_token;
                Ok(acquired)
            }
            Ok(Extension::Lost(reason)) => lost(reason),
            Ok(Extension::Unknown { lease, proves: true }) => {
                let mut unresolved = Unresolved::default();
                unresolved.add(lease, None, now);
                let is_owed = engine.owe_unresolved(key, options, unresolved);
                let released = "the token may be used up: then a background thread releases the lock, or it frees itself when its lease has passed";
                Err(session.error(GiveUp::Unknown, if is_owed { released } else { advice }))
            }
            Ok(Extension::Unknown { .. }) => Err(session.error(GiveUp::Unknown, advice)),
            Err(reason) => Err(session.error(reason, advice)),
        }
    }
}

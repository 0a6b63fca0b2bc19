//! A client of a scenario: its options, its state, and how its next step is written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::{COMMAND_TIMEOUT, ScriptResult, time};
use setnx_lock_proto::hold::{self, Counted, Extension, HandedOver, Release, Verification};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::ownership::Loss;
use setnx_lock_proto::task::{Rules, Task};
use setnx_lock_proto::values::{Key, Nonce, Now, Protocol, State, Tag, Terms, Token, Version};
use setnx_lock_proto::{Command, GiveUp, NewValue, Note, Observation, Reply, Step, Trip};
use setnx_lock_search::simulated::Leg;

pub(super) struct Client {
    pub(super) terms: Terms,
    pub(super) protocol: Protocol,
    /// `None` waits for ever.
    pub(super) timeout: Option<Duration>,
    pub(super) number: u64,
    /// How far its wall clock is ahead, in microseconds.
    pub(super) skew: i64,
    pub(super) attempt: Option<Task<Lease>>,
    /// What it saw last of the lock, and when.
    pub(super) observation: Option<Observation>,
    pub(super) lease: Option<Lease>,
    /// The release of the lease, if it has begun.
    pub(super) releasing: Option<Task<HandedOver>>,
    /// What it releases, and what another attempt to release it may be for.
    pub(super) ended: Option<Lease>,
    pub(super) again: Option<Lease>,
    /// What hands the lock over, and to whom.
    pub(super) handing_over: Option<(Task<HandedOver>, String)>,
    /// The extension of the lease, if it has begun.
    pub(super) extending: Option<Task<Extension>>,
    pub(super) verifying: Option<Task<Verification>>,
    pub(super) counting: Option<Task<Counted>>,
    /// How often a lease was extended, or handed over to it.
    pub(super) extensions: u64,
    /// Of the lock that it has handed over to another process.
    pub(super) token: Option<Token>,
    pub(super) settling: Option<Task<Extension>>,
    /// What it writes behind its values.
    pub(super) name: Option<Arc<str>>,
    /// What is on its way to the server.
    pub(super) sent: Option<Leg>,
    /// The values that the commands of its attempt have carried; each may be sent once (I2).
    pub(super) values: Vec<Vec<u8>>,
    /// The reply on its way.
    pub(super) reply: Option<Reply>,
    /// Lost requests.
    pub(super) lost: VecDeque<Leg>,
    pub(super) asleep: bool,
}

impl Client {
    pub(super) fn declared(n: u64, words: &[&str]) -> ScriptResult<Self> {
        let mut client = Client {
            terms: Terms::without_expiration(),
            protocol: Protocol::Classic,
            timeout: Some(Duration::from_secs(5)),
            number: n,
            skew: 0,
            attempt: None,
            observation: None,
            lease: None,
            releasing: None,
            ended: None,
            again: None,
            handing_over: None,
            extending: None,
            verifying: None,
            counting: None,
            extensions: 0,
            token: None,
            settling: None,
            name: None,
            sent: None,
            values: Vec::new(),
            reply: None,
            lost: VecDeque::new(),
            asleep: false,
        };
        let mut words = words.iter();
        while let Some(option) = words.next() {
            match *option {
                "unexpiring" => client.terms.expiration = None,
                "watched" => client.protocol = Protocol::Watched,
                "auto" => client.protocol = Protocol::Auto,
                "ttl" => client.protocol = Protocol::Ttl,
                "forever" => client.timeout = None,
                "every" => {
                    client.terms.poll_interval = time(words.next().ok_or("every what")?)?;
                }
                "named" => client.name = Some((*words.next().ok_or("named what")?).into()),
                "timeout" => client.timeout = Some(time(words.next().ok_or("timeout of what")?)?),
                expiration => client.terms.expiration = Some(time(expiration)?),
            }
        }
        Ok(client)
    }

    pub(super) fn protocol_on(&self, server: Option<Version>) -> Protocol {
        let protocol = self.protocol.on(server);
        if self.terms.expiration.is_none() && protocol == Protocol::Ttl {
            Protocol::Watched
        } else {
            protocol
        }
    }

    /// What marks its value with these digits.
    pub(super) fn tag(&self, digits: u64) -> Tag {
        Tag { nonce: Nonce::from_random(digits), name: self.name.clone() }
    }

    /// The lease that it holds.
    pub(super) fn own(&self) -> ScriptResult<Lease> {
        Ok(self.lease.clone().ok_or("it holds nothing")?)
    }

    pub(super) fn shown(&mut self, step: Step<Lease>) -> String {
        let mut shown: Vec<String> = Vec::new();
        if let Some(attempt) = &self.attempt {
            shown.extend(attempt.io().take_notes().into_iter().filter_map(|note| {
                Some(match note {
                    Note::RefusedForNow => return None,
                    Note::TakenOver(_) => "takes over".into(),
                    Note::ValueOverwritten(_) => "overwrites the winner".into(),
                    Note::WasOverwritten(_) => "was overwritten".into(),
                    Note::WentBack => "went back".into(),
                    Note::LateGrant => "granted too late".into(),
                    Note::NeverExpires(state) => format!("never expires: {state:?}"),
                })
            }));
        }
        shown.push(match step {
            Step::Send(trip) => self.sends(trip),
            Step::Sleep(pause) => {
                self.asleep = true;
                format!("sleeps {:?}", pause.time)
            }
            Step::Done(lease) => {
                self.lease = Some(lease);
                "holds".into()
            }
            Step::GiveUp(reason) => {
                self.attempt = None;
                format!("gives up: {reason:?}")
            }
        });
        shown.join(", ")
    }

    pub(super) fn sends(&mut self, trip: Trip) -> String {
        self.takes(Leg::first(trip))
    }

    /// The next step of a trip is on its way. Returns its name.
    pub(super) fn takes(&mut self, leg: Leg) -> String {
        if let Some(
            Command::SetNx(NewValue { value, .. })
            | Command::GetSet(value)
            | Command::Set(NewValue { value, .. }),
        ) = leg.command()
        {
            assert!(
                self.terms.expiration.is_none() || !self.values.contains(&value.to_vec()),
                "a value is sent twice"
            );
            self.values.push(value.to_vec());
        }
        let name = leg.name().to_owned();
        self.sent = Some(leg);
        name
    }

    pub(super) fn release(&mut self, own: Lease, now: Now) -> String {
        self.ended = Some(own.clone());
        let (ending, step) =
            Task::begin(now, async move |io| hold::end(io, &own, None, COMMAND_TIMEOUT).await);
        self.releasing = Some(ending);
        self.shown_release(step, now)
    }

    pub(super) fn shown_release(&mut self, step: Step<HandedOver>, now: Now) -> String {
        let outcome = match step.outcome() {
            Err(trip) => return self.sends(trip),
            Ok(outcome) => outcome.and_then(|handed| handed.release),
        };
        let notes = self.releasing.take().map(|ending| ending.take_notes()).unwrap_or_default();
        let notes = shown_notes(&notes);
        if let Err(reason) = outcome {
            self.gave_up(reason, None, now);
        }
        shown_release(&outcome) + notes
    }

    /// Keeps what another attempt to release the lock may be for.
    pub(super) fn gave_up(&mut self, reason: GiveUp, next: Option<&Lease>, now: Now) {
        self.again = self.ended.take().and_then(|own| own.again(reason, next, now));
    }

    pub(super) fn shown_extension(&mut self, step: Step<Extension>, now: Now) -> String {
        let outcome = match step.outcome() {
            Err(trip) => return self.sends(trip),
            Ok(outcome) => outcome,
        };
        let notes = shown_notes(&notes_of(self.extending.take()));
        let verb = if self.lease.is_none() { "resumed" } else { "extended" };
        self.shown_extended(outcome, now).replace("extended", verb) + notes
    }

    /// Has a token of a lease. It holds nothing more.
    pub(super) fn hands_out(&mut self, lease: &Lease, now: Now) -> String {
        self.lease = None;
        self.token = Some(lease.token(&Key::from("k"), &self.terms, now.wall));
        "has a token".into()
    }

    pub(super) fn shown_settled(&mut self, step: Step<Extension>, now: Now) -> String {
        let outcome = match step.outcome() {
            Err(trip) => return self.sends(trip),
            Ok(outcome) => outcome,
        };
        self.settling = None;
        match outcome {
            Ok(Extension::Extended(lease)) => self.hands_out(&lease, now),
            other => self.shown_extended(other, now),
        }
    }

    fn shown_extended(&mut self, outcome: Result<Extension, GiveUp>, now: Now) -> String {
        match outcome {
            Ok(Extension::Extended(lease)) => {
                let certified = lease.proven;
                self.lease = Some(lease);
                if certified { "extended, certified".into() } else { "extended".into() }
            }
            Ok(Extension::Lost(reason)) => {
                self.lease = None;
                shown_loss(&reason)
            }
            Ok(Extension::Unknown { lease: new, proves }) => {
                if let Some(lease) = &mut self.lease {
                    lease.may_have_become(&new, proves, now);
                }
                format!("gives up: {:?}", GiveUp::Unknown)
            }
            Err(reason) => format!("gives up: {reason:?}"),
        }
    }

    pub(super) fn shown_verification(&mut self, step: Step<Verification>, now: Now) -> String {
        let outcome = match step.outcome() {
            Err(trip) => return self.sends(trip),
            Ok(outcome) => outcome,
        };
        let notes = shown_notes(&notes_of(self.verifying.take()));
        let shown = match outcome {
            Ok(Verification::Held { certified: true }) => "held, certified".into(),
            Ok(Verification::Held { certified: false }) => "held".into(),
            Ok(Verification::Overwritten(again)) => format!("held, {}", self.shown_extended(again, now)),
            Ok(Verification::Lost(reason)) => shown_loss(&reason),
            Err(reason) => format!("gives up: {reason:?}"),
        };
        shown.replace("extended", "written again") + notes
    }

    pub(super) fn shown_token(&mut self, step: Step<Counted>) -> String {
        let outcome = match step.outcome() {
            Err(trip) => return self.sends(trip),
            Ok(outcome) => outcome,
        };
        self.counting = None;
        match outcome {
            Ok(Counted::Token(token)) => format!("token {token}"),
            Ok(Counted::Unusable(why)) => format!("no token: {why:?}"),
            Ok(Counted::Lost(reason)) => shown_loss(&reason),
            Err(reason) => format!("gives up: {reason:?}"),
        }
    }
}

pub(super) fn shown_release(outcome: &Result<Release, GiveUp>) -> String {
    match outcome {
        Ok(Release::Released { certified: false }) => "released".into(),
        Ok(Release::Released { certified: true }) => "released, certified".into(),
        Ok(Release::Lost(Loss::Expired)) => "released: Expired".into(),
        Ok(Release::Lost(_)) => "released: Lost".into(),
        Err(reason) => format!("gives up: {reason:?}"),
    }
}

fn notes_of<T>(task: Option<Task<T>>) -> Vec<Note> {
    task.map(|task| task.take_notes()).unwrap_or_default()
}

/// What the rules have noted on the way.
pub(super) fn shown_notes(notes: &[Note]) -> &'static str {
    match notes.first() {
        Some(Note::ValueOverwritten(_)) => ", overwrites it",
        Some(Note::WasOverwritten(_)) => ", was overwritten",
        Some(Note::WentBack) => ", the server went back",
        _ => "",
    }
}

fn shown_loss(reason: &Loss) -> String {
    match reason {
        Loss::Expired => "lost: expired".into(),
        Loss::ClockUnset => "lost: clock unset".into(),
        Loss::Gone => "lost: gone".into(),
        Loss::Taken(State::Until { .. }) => "lost: taken".into(),
        Loss::Taken(state) => format!("lost: {state:?}"),
    }
}

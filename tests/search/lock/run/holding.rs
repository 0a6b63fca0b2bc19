//! What a holder does with its lock in the random search.

use std::time::Duration;

use super::releasing::{Releasing, ending, release_of};
use super::{Client, Conditions, Doing, Gems, Run, START};
use setnx_lock_proto::hold::{self, Counted, Extension, HandedOver, Release, Verification};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::ownership::Loss;
use setnx_lock_proto::task::{Io, Rules, Task};
use setnx_lock_proto::values::{Now, Terms};
use setnx_lock_proto::{Cue, GiveUp, Replies, Step};

/// How long after its first value was made a holder looks whether it was overwritten.
const LOOKED_AFTER: Duration = Duration::from_millis(400);

/// A lock that a client holds.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) lease: Lease,
    /// When the server carried out the command that acquired it, counted by commands.
    pub(super) number: u64,
    /// The configuration whose master has granted or confirmed it last.
    pub(super) on: u64,
}

/// What a holder does with its lock, if it does something.
#[derive(Debug)]
pub(super) enum Power {
    Extending(Task<Extension>),
    /// It has no lock any more: it leaves the key to expire sooner.
    Leaving(Task<Extension>),
    Verifying(Task<Verification>),
    Counting(Task<Counted>),
    /// It has ended its hold: a lease of this length is written for
    /// another client, which sleeps. With the number of the hold.
    HandingOver(Task<HandedOver>, u64, Duration),
    /// It makes a token, of the hold with this number.
    HandingOut(Task<Extension>, u64),
    /// It has no lock yet: it uses this token.
    Resuming(Task<Extension>, usize),
}

impl Run {
    /// A holder does something with its lock, or nothing.
    pub(super) fn work(&mut self, n: usize, choice: u8, now: Now) {
        let Some(Held { lease, number, .. }) = self.clients[n].held.clone() else {
            unreachable!("it holds the lock")
        };
        let own = lease.clone();
        self.begins(n, &own);
        // Two of the clients mostly begin with a token.
        let choice = if n != 1 && choice >= 80 && !self.tokens.contains_key(&number) { 5 } else { choice };
        let expirations = self.conditions.expirations.map(Duration::from_millis);
        let next = expirations.into_iter().find(|time| self.next(n, *time).is_some());
        let choice = if self.conditions.outages && choice % 8 < 5 { 7 } else { choice };
        if self.conditions.tokens && matches!(choice % 8, 1 | 2 | 7) {
            return self.hands_out(n, own, number, now);
        }
        match choice % 8 {
            // It crashes, and starts again as another holder.
            0 | 1 => self.clients[n].held = None,
            2 if next.is_none() => self.clients[n].doing = Doing::Working,
            3 | 4 => {
                let expirations = self.conditions.expirations;
                let expiration = Duration::from_millis(expirations[usize::from(choice / 8) % 3]);
                let nonce = self.fresh_nonce();
                let new = own.next(expiration, nonce, now);
                self.clients[n].counts_until = lease.end.zip(new.end).map(|(old, new)| old.min(new));
                let counter = self.counter_of(number);
                let code = async move |io: &Io| hold::extend(io, &own, new, counter).await;
                let (task, step) = Task::begin(now, code);
                self.clients[n].power = Some(Power::Extending(task));
                self.act_on_extension(n, step);
            }
            // It has its token, and asks no more.
            5 if self.tokens.contains_key(&number) => self.clients[n].doing = Doing::Working,
            5 => {
                let kept = self.kept_for();
                let (task, step) = Task::begin(now, async move |io| hold::count(io, &own, kept).await);
                self.clients[n].power = Some(Power::Counting(task));
                self.act_on_token(n, step);
            }
            6 if choice >= 128 => self.looks(n, now),
            6 => {
                self.clients[n].held = None;
                let (nonce, rest) = (self.fresh_nonce(), Duration::from_millis(100));
                let new = own.next(rest, nonce, now);
                let (task, step) = Task::begin(now, async move |io| hold::extend(io, &own, new, None).await);
                self.clients[n].power = Some(Power::Leaving(task));
                self.act_on_extension(n, step);
            }
            _ => {
                self.clients[n].held = None;
                let Some(expiration) = next else { return self.release(n, own, now) };
                let terms = Terms { expiration: Some(expiration), ..self.terms(n) };
                let next = Lease::of(&terms, own.protocol, &self.fresh_tag(n), now);
                self.clients[n].ended = Some(own.clone());
                let (ending, step) = ending(own, Some(next), self.command_timeout(), now);
                self.clients[n].power = Some(Power::HandingOver(ending, number, expiration));
                self.act_on_hand_over(n, step);
            }
        }
    }

    /// A holder looks whether it still has the lock, and whether its value was overwritten.
    pub(super) fn looks(&mut self, n: usize, now: Now) {
        let Some(Held { lease, .. }) = self.clients[n].held.clone() else {
            unreachable!("it holds the lock")
        };
        let (own, nonce) = (lease, self.fresh_nonce());
        self.begins(n, &own);
        self.clients[n].looks_at = self.clients[n].looks_at.filter(|at| *at > self.time);
        let (task, step) = Task::begin(now, async move |io| hold::verify(io, &own, nonce).await);
        self.clients[n].power = Some(Power::Verifying(task));
        self.act_on_verification(n, step);
    }

    /// A holder is to look in a while: others may have seen that the lock could be acquired.
    pub(super) fn looks_soon(&mut self, n: usize) {
        let looks = matches!(self.conditions.gems, Gems::Classic { looks: true, .. }) && !self.is_gem(n);
        let since = self.clients[n].held.as_ref().map(|held| held.lease.since);
        let at = since.map(|since| START + since.after(LOOKED_AFTER).micros() + self.clients[n].suspended);
        // What was handed over later was our own then.
        self.clients[n].looks_at = at.filter(|at| looks && *at > self.time);
    }

    pub(super) fn begins(&mut self, n: usize, own: &Lease) {
        self.clients[n].ends = Some(own.clone());
        (self.clients[n].found_another, self.clients[n].found_own) = (false, false);
    }

    /// A holder is told that its lock is lost.
    pub(super) fn is_told(&mut self, n: usize, reason: &Loss) {
        if *reason == Loss::Expired {
            return;
        }
        if !self.clients[n].found_another {
            self.breaks("a holder was told that its lock is lost, and the key held its value all the time");
        }
        let Conditions { reliable, clears, suspends, late, .. } = self.conditions;
        let lasts = self.clients[n].ends.as_ref().is_some_and(|lease| !lease.has_passed(self.now(n)));
        if reliable && !clears && !suspends && late == 0 && lasts {
            self.breaks("a holder was told that its lock is lost, and its lease lasted");
        }
    }

    pub(super) fn release(&mut self, n: usize, own: Lease, now: Now) {
        self.begins(n, &own);
        self.clients[n].ended = Some(own.clone());
        let (ending, step) = ending(own, None, self.command_timeout(), now);
        self.clients[n].releasing = Some(Releasing::Own(ending));
        self.act_on_release(n, release_of(step));
    }

    /// How long a command may take whose caller still waits for it.
    fn command_timeout(&self) -> Duration {
        Duration::from_millis(self.conditions.delay)
    }

    pub(super) fn act_on_release(&mut self, n: usize, step: Step<Release>) {
        self.note(n, format_args!("{step:?}"));
        match step {
            Step::Send(trip) => self.clients[n].doing = self.sent(n, trip),
            Step::Done(Release::Lost(reason)) => {
                self.clients[n].releasing = None;
                if self.clients[n].debts.pays() {
                    return self.clients[n].debts.is_not_held();
                }
                self.is_told(n, &reason);
            }
            Step::GiveUp(reason) => {
                self.clients[n].releasing = None;
                if self.clients[n].debts.pays() {
                    let now = self.now(n);
                    return self.clients[n].debts.gave_up(reason, now);
                }
                self.gave_up(n, reason, None);
            }
            Step::Sleep(_) | Step::Done(_) => {
                self.clients[n].releasing = None;
                self.clients[n].debts.end();
            }
        }
    }

    /// A release has failed. It is tried again later, if it may be.
    fn gave_up(&mut self, n: usize, reason: GiveUp, next: Option<&Lease>) {
        let now = self.now(n);
        let own = self.clients[n].ended.take();
        self.clients[n].again = own.and_then(|own| own.again(reason, next, now));
    }

    /// Tries a release again.
    pub(super) fn try_again(&mut self, n: usize, own: Lease, now: Now) {
        self.again += 1;
        self.release(n, own, now);
    }

    /// Returns a client that a holder can hand its lock over to: one that sleeps and follows the same rules.
    fn next(&self, n: usize, expiration: Duration) -> Option<usize> {
        let Client { protocol, .. } = self.clients[n];
        let is_next = |client: &Client| {
            let is_asleep = matches!(client.doing, Doing::Asleep { in_doubt: false });
            is_asleep && client.protocol == protocol && client.expiration == expiration
        };
        (0..3).find(|other| *other != n && is_next(&self.clients[*other]))
    }

    fn act_on_hand_over(&mut self, n: usize, step: Step<HandedOver>) {
        self.note(n, format_args!("{step:?}"));
        let handed = match step.outcome() {
            Err(trip) => return self.clients[n].doing = self.sent(n, trip),
            Ok(handed) => handed,
        };
        let Some(Power::HandingOver(_, number, expiration)) = self.clients[n].power.take() else {
            unreachable!("it hands its lock over")
        };
        // In doubt it is tried again, rather than given to one that may have it.
        let (reason, next) = match &handed {
            Err(reason) => (Some(*reason), None),
            Ok(HandedOver { release: Err(reason), next, .. }) => (Some(*reason), next.as_ref()),
            Ok(_) => (None, None),
        };
        if let Some(reason) = reason {
            self.gave_up(n, reason, next);
            if self.clients[n].again.is_some() {
                return;
            }
        }
        let handed = handed.ok();
        if let Some(HandedOver { release: Ok(Release::Lost(reason)), .. }) = &handed {
            self.is_told(n, reason);
        }
        let Some(HandedOver { release, next: Some(lease), in_doubt, .. }) = handed else { return };
        self.handed_over += u64::from(!in_doubt);
        self.certify(n, number, release == Ok(Release::Released { certified: true }));
        let now = self.now(n);
        if self.clients[n].ends.as_ref().is_none_or(|lease| lease.has_passed(now)) {
            self.clients[n].granted = self.time;
        }
        let Some(other) = self.next(n, expiration) else {
            if in_doubt {
                return;
            }
            self.clients[n].wrote = vec![lease.value.to_vec()];
            return self.release(n, lease, now);
        };
        let replaced = self.clients[n].replaced.take();
        let is_anothers = |n: usize| {
            let held = self.clients[n].held.as_ref();
            replaced.is_some() && held.map(|held| &*held.lease.value) == replaced.as_deref()
        };
        if !in_doubt && lease.proven && self.present().any(is_anothers) {
            self.breaks("a client was told that it alone has the lock, and it had replaced another's value");
        }
        self.clients[other].handed_over = Some(self.clients[n].granted);
        // As if it had sent the command itself.
        self.clients[other].executed = self.clients[n].executed;
        self.clients[other].executed_on = self.clients[n].executed_on;
        let now = self.now(other);
        self.wake(other, Cue::HandedOver { lease, in_doubt }, now);
    }

    pub(super) fn reply_to_holder(&mut self, n: usize, replies: Replies, now: Now) {
        match &mut self.clients[n].power {
            Some(Power::Extending(task) | Power::Leaving(task)) => {
                let step = task.resume(replies, now);
                self.act_on_extension(n, step);
            }
            Some(Power::Verifying(task)) => {
                let step = task.resume(replies, now);
                self.act_on_verification(n, step);
            }
            Some(Power::Counting(task)) => {
                let step = task.resume(replies, now);
                self.act_on_token(n, step);
            }
            Some(Power::HandingOver(ending, ..)) => {
                let step = ending.resume(replies, now);
                self.act_on_hand_over(n, step);
            }
            Some(Power::HandingOut(task, _)) => {
                let step = task.resume(replies, now);
                self.act_on_settling(n, step);
            }
            Some(Power::Resuming(task, _)) => {
                let step = task.resume(replies, now);
                self.act_on_resuming(n, step);
            }
            None => unreachable!("it does something"),
        }
    }

    fn act_on_extension(&mut self, n: usize, step: Step<Extension>) {
        self.note(n, format_args!("{step:?}"));
        let outcome = match step.outcome() {
            Err(trip) => return self.clients[n].doing = self.sent(n, trip),
            Ok(outcome) => outcome,
        };
        let now = self.now(n);
        self.clients[n].counts_until = None;
        let Some(Power::Extending(_)) = self.clients[n].power.take() else { return };
        let Some(mut held) = self.clients[n].held.take() else { unreachable!("it held the lock") };
        match outcome {
            Ok(Extension::Extended(lease)) => {
                self.extensions += 1;
                self.certify(n, held.number, lease.proven);
                if held.lease.has_passed(now) {
                    self.clients[n].granted = self.time;
                }
                (held.lease, held.on) = (lease, self.clients[n].executed_on);
            }
            Ok(Extension::Lost(reason)) => return self.is_told(n, &reason),
            Ok(Extension::Unknown { lease, proves }) => held.lease.may_have_become(&lease, proves, now),
            Err(_) => {}
        }
        self.goes_on(n, held);
        self.looks_soon(n);
    }

    fn act_on_verification(&mut self, n: usize, step: Step<Verification>) {
        self.note(n, format_args!("{step:?}"));
        if let Step::Send(trip) = step {
            return self.clients[n].doing = self.sent(n, trip);
        }
        self.clients[n].power = None;
        let now = self.now(n);
        let Some(mut held) = self.clients[n].held.take() else { unreachable!("it held the lock") };
        match step {
            Step::Done(
                Verification::Lost(reason) | Verification::Overwritten(Ok(Extension::Lost(reason))),
            ) => {
                return self.is_told(n, &reason);
            }
            Step::Done(Verification::Held { certified }) => {
                held.on = self.clients[n].executed_on;
                self.certify(n, held.number, certified);
            }
            Step::Done(Verification::Overwritten(Ok(Extension::Extended(lease)))) => {
                (held.lease, held.on) = (lease, self.clients[n].executed_on);
            }
            Step::Done(Verification::Overwritten(Ok(Extension::Unknown { lease, proves }))) => {
                held.lease.may_have_become(&lease, proves, now);
            }
            _ => {}
        }
        self.goes_on(n, held);
    }

    /// A holder is told whether another client had the lock since
    /// it was acquired, until its last command was carried out.
    pub(super) fn certify(&mut self, n: usize, number: u64, certified: bool) {
        self.certified += u64::from(certified);
        let lasts = self.clients[n].ends.as_ref().is_some_and(|lease| !lease.has_passed(self.now(n)));
        // Where the server loses writes, own bytes prove nothing after the
        // lease, which a token may have outlasted, nor on an old master.
        let is_master = self.clients[n].executed_on == self.failovers.epoch;
        let proves = lasts && is_master && self.all_compare() && !self.conditions.tokens;
        if self.conditions.fails_over && !proves {
            self.clients[n].unproven = self.clients[n].executed;
            return;
        }
        let others = number.max(self.clients[n].unproven) + 1..=self.clients[n].executed;
        if certified && self.holders.range(others).next().is_some() {
            self.breaks("another client had the lock, and a holder was told that none had");
        }
    }

    pub(super) fn goes_on(&mut self, n: usize, held: Held) {
        self.clients[n].held = Some(held);
        self.clients[n].doing = Doing::Working;
    }
}

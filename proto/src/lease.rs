//! A lease: the time that a holder may rely on, and the value that shows it to other clients.

use alloc::vec::Vec;
use core::time::Duration;

use crate::values::{Key, Nonce, Now, Protocol, Tag, Terms, Token, UNEXPIRING, Uptime, ValueBytes, Wall};

/// The gem's extra second: in Classic and Watched the value names a time this much later than the end of the lease. It
/// is the guard against clocks that differ and against a DEL in flight.
pub const GUARD: Duration = Duration::from_secs(1);

/// How much later than the lease the server removes a key by itself, in Ttl.
pub(crate) const TTL_GUARD: Duration = Duration::from_millis(500);

/// How much later than the lease the time in the value is, in Ttl. Newer gems take over a time in the past with a plain
/// SET, several at a time; so that none reads one, the key is gone long before, even by a clock that is seconds ahead,
/// or if the server has carried the command out late.
pub(crate) const TTL_SHOWN_LATER: Duration = Duration::from_secs(10);

/// How long after its value was made a command may be sent that
/// gives the key a time to live. It uses up a part of the same time.
const TTL_SENT_WITHIN: Duration = Duration::from_secs(4);

/// How soon after our value was made a gem's time in the key is a loser's, whatever it names. A gem whose GETSET has
/// replaced our value was given a time in the future, and does not have the lock. Its own time is more than a second
/// ahead: so until then no other takes the lock over from it. The rest of that second is for clocks that differ, and
/// for a GETSET on its way.
pub(super) const LOSER_WITHIN: Duration = Duration::from_millis(700);

/// The bytes in the key, and until when the holder can rely on
/// them. The default stands for the lease of a hold that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// What the key holds.
    pub value: ValueBytes,
    /// After how long the server removes the key by itself; only in Ttl.
    pub ttl: Option<Duration>,
    /// `None` without an expiration.
    pub end: Option<End>,
    /// The protocol that it is written by, and by which it is released.
    pub protocol: Protocol,
    /// Why another client may have acquired the lock since: then only our own bytes are ours, not what may be a
    /// loser's.
    pub(super) tried: Option<Tried>,
    /// When others may last have seen that the lock can be acquired: when the first of its values was made. Extensions
    /// in time and hand-overs leave it.
    pub since: Uptime,
    /// True if it is proven that no other client has had the lock since
    /// it was acquired: each extension has replaced our own bytes.
    pub proven: bool,
    /// True if one of its values may be one of Ttl, which shows a later time.
    shows_later: bool,
    /// What extensions may have written whose outcome is unknown.
    unresolved: Vec<Written>,
    /// The allowance for clocks, in milliseconds: it ends this much earlier than the guard before the value's time.
    early: u32,
}

/// What is written into the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewValue {
    /// The bytes.
    pub value: ValueBytes,
    /// After how long the server removes the key by itself; only in Ttl.
    pub ttl: Option<Duration>,
}

/// A value that the key may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    value: ValueBytes,
    /// The end that it would have given the lease.
    end: End,
    /// True if a transaction wrote it: only over our own value.
    proves: bool,
}

/// What has come before of a lock that is released, or resumed. Another client may have acquired it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tried {
    /// An attempt to release it was not carried out, or the server is
    /// too old for the lease's protocol. It may have lost the key since.
    NotCarriedOut,
    /// An attempt to release it got no reply, and may have been carried out.
    InDoubt,
    /// Another hold may go on with the lock, by values that look like this one's: by a token, or by another command of
    /// the call whose reply to this one was lost. So only its own bytes are ours.
    OwnBytesOnly {
        /// An attempt to release it got no reply, and may have been carried out.
        in_doubt: bool,
    },
}

/// Whose bytes they are, for the holder of a lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    /// This holder's, and the last that were written before another client could have the lock.
    Proven,
    /// This holder's, by a GETSET whose reply was lost: it may have come after another client's value.
    Unproven,
    /// This holder's before, with this end. The server has lost what was written since.
    Before(End),
    Not,
}

/// The end of a time that can be relied on, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// By the wall clock.
    pub wall: Wall,
    /// By the monotonic clock.
    pub uptime: Uptime,
}

impl Lease {
    /// Makes the lease that begins now, by the protocol that it is
    /// written by. The command that acquires it is sent after.
    #[inline]
    pub fn beginning(now: Now, expiration: Option<Duration>, protocol: Protocol, nonce: Nonce) -> Self {
        // The value names no holder.
        let Some(expiration) = expiration else {
            return Self { value: UNEXPIRING.into(), protocol, since: now.uptime, ..Self::default() };
        };
        let end = Some(End::of(now, expiration));
        let (ttl, later) = match protocol {
            Protocol::Ttl => (Some(expiration.saturating_add(TTL_GUARD)), TTL_SHOWN_LATER),
            Protocol::Auto | Protocol::Classic | Protocol::Watched => (None, GUARD),
        };
        let value = ValueBytes::until(now.wall.after(expiration).after(later), nonce);
        let shows_later = ttl.is_some();
        Self { value, ttl, end, protocol, since: now.uptime, proven: true, shows_later, ..Self::default() }
    }

    /// Makes the lease of a lock with these options that begins now, by the protocol that they mean on this server.
    #[inline]
    pub fn of(terms: &Terms, protocol: Protocol, tag: &Tag, now: Now) -> Self {
        let lease =
            Self::beginning(now, terms.expiration, protocol, tag.nonce).ending_earlier(terms.allowance);
        match &tag.name {
            Some(name) if lease.end.is_some() => lease.named(name, now.wall),
            _ => lease,
        }
    }

    /// Returns the lease with the name of its holder, which has had the lock since then.
    #[cold]
    fn named(self, name: &str, since: Wall) -> Self {
        Self { value: self.value.named(name, since), ..self }
    }

    /// Makes the lease that an extension begins now. Setting the wall clock back never moves the time that others see.
    pub fn next(&self, expiration: Duration, nonce: Nonce, now: Now) -> Self {
        let as_it_was = self.end.map_or(now.wall, |end| end.wall_at(now.uptime));
        let now = Now { wall: now.wall.max(as_it_was), ..now };
        let nonce = nonce.of_hold(&self.value);
        let new = Self::beginning(now, Some(expiration), self.protocol, nonce).ending_earlier(self.early());
        let value = new.value.clone().named_as(&self.value);
        self.replaced_by(&Self { value, ..new }, now)
    }

    /// Returns a token of this lease, for a hold that began at `acquired`. The caller fills in the rest of the hold.
    pub fn token(&self, key: &Key, terms: &Terms, acquired: Wall) -> Token {
        Token {
            key: key.clone(),
            value: self.value.clone(),
            protocol: self.protocol,
            end: self.end.map_or(acquired, |end| end.wall),
            acquired,
            expiration: terms.expiration.unwrap_or_default(),
            hold_at_least: terms.hold_at_least,
            auto_extend: terms.auto_extend,
            fencing_token: None,
            forget_after: terms.forget_tokens_after,
            proven: self.proven,
            notifies: false,
        }
    }

    /// Returns the lease that a token stands for, on a server where the lock is changed by this protocol.
    pub fn given(token: &Token, protocol: Protocol, now: Now) -> Self {
        let end = End { wall: token.end, uptime: now.uptime.after(token.end.since(now.wall)) };
        let (value, proven) = (token.value.clone(), token.proven);
        Self {
            value,
            proven,
            end: Some(end),
            protocol,
            tried: Some(Tried::OwnBytesOnly { in_doubt: false }),
            ..Self::default()
        }
    }

    /// Makes the lease by which a process goes on now with this one, a token's. `acquired`: when the token's hold
    /// began. What others have seen of the key until now is the token's value.
    pub fn resumed(&self, terms: &Terms, tag: &Tag, acquired: Wall, now: Now) -> Self {
        let expiration = terms.expiration.map(|time| time.max(terms.hold_at_least));
        let new = Self::beginning(now, expiration, self.protocol, tag.nonce).ending_earlier(terms.allowance);
        match &tag.name {
            Some(name) => new.named(name, self.value.holder().map_or(acquired, |holder| holder.since)),
            None => Self { value: new.value.clone().named_as(&self.value), ..new },
        }
    }

    /// Returns the lease as one that only its own bytes show.
    pub(super) fn by_own_bytes_only(self) -> Self {
        Self { tried: Some(Tried::OwnBytesOnly { in_doubt: false }), ..self }
    }

    /// Returns true if the key may hold another value of ours.
    pub fn is_unresolved(&self) -> bool {
        !self.unresolved.is_empty()
    }

    /// Returns the lease with the value that the key was found to hold, which is one of ours.
    pub(super) fn settled(&self, found: &[u8], proven: bool) -> Self {
        Self { value: found.into(), unresolved: Vec::new(), proven, ..self.clone() }
    }

    /// What is written into the key.
    #[inline]
    pub fn new_value(&self) -> NewValue {
        NewValue { value: self.value.clone(), ttl: self.ttl }
    }

    /// Until when the command that writes it may be sent, if it acquires the lock.
    #[inline]
    pub(super) fn sent_before(&self) -> Option<End> {
        let within = TTL_GUARD + TTL_SENT_WITHIN + self.early();
        let early = self.ttl.map_or(Duration::ZERO, |ttl| ttl.saturating_sub(within));
        self.end.map(|end| end.earlier_by(early))
    }

    /// Returns the lease with an end that is earlier by an allowance for clocks; the value stays.
    #[inline]
    pub(super) fn ending_earlier(mut self, early: Duration) -> Self {
        self.early = u32::try_from(early.as_micros().div_ceil(1000)).unwrap_or(u32::MAX);
        self.end = self.end.map(|end| end.earlier_by(self.early()));
        self
    }

    /// The allowance for clocks.
    #[inline]
    pub(super) fn early(&self) -> Duration {
        Duration::from_millis(self.early.into())
    }

    /// Returns the lease as one by the protocol of a server that is too old for its own, if it is. The value stays.
    pub(super) fn on(self, older: Option<Protocol>) -> Self {
        match older {
            Some(protocol) => Self { protocol, ttl: None, ..self },
            None => self,
        }
    }

    /// Returns from when the keeper counts: the beginning of the lease, so that it still looks for a loser's value; or
    /// the grant, if that came too late for one.
    #[inline]
    pub fn first_asked(&self, granted: Uptime) -> Uptime {
        if granted < self.since.after(LOSER_WITHIN) { self.since } else { granted }
    }

    /// Until when a gem's time in the key is a loser's: it has replaced our value, unless the key was removed in
    /// between. `None` without an expiration: then it may be that of a gem that has stolen the lock.
    pub(super) fn overwritten_until(&self) -> Option<End> {
        let until = self.since.after(LOSER_WITHIN);
        // By both clocks: the monotonic one may stand still while the machine is suspended.
        self.end.map(|end| end.earlier_by(end.uptime.since(until)))
    }

    /// Returns the lease with another value for the same time, which replaces a loser's.
    pub(super) fn written_again(&self, nonce: Nonce, now: Now) -> Self {
        let left = self.end.map_or(Duration::ZERO, |end| end.remaining(now)) + self.early();
        let value = self.value.with_nonce(nonce.of_hold(&self.value));
        Self { value, ttl: self.ttl.map(|_| left + TTL_GUARD), ..self.clone() }
    }

    /// Returns whose the bytes are.
    pub(super) fn wrote(&self, found: &[u8]) -> Wrote {
        let unresolved = self.unresolved.iter().find(|written| written.value == *found);
        match unresolved {
            _ if self.value == *found => Wrote::Proven,
            Some(Written { proves: true, .. }) => Wrote::Proven,
            Some(Written { proves: false, .. }) => Wrote::Unproven,
            None if matches!(self.tried, Some(Tried::OwnBytesOnly { .. })) => Wrote::Not,
            None => self.value.time_of_same_hold(found).zip(self.end).map_or(Wrote::Not, |(shown, end)| {
                let later = if self.shows_later { TTL_SHOWN_LATER } else { GUARD };
                let wall = shown.before(later + self.early());
                // By the clock as it was: it may have been set since.
                Wrote::Before(End { wall, uptime: end.uptime.before(end.wall.since(wall)) })
            }),
        }
    }

    /// Notes that the key may hold the value of `extended` by now. Of the two leases the one that ends first counts. In
    /// the key the value `proves` that no other client has had the lock, if a transaction was to write it.
    pub fn may_have_become(&mut self, extended: &Lease, proves: bool, now: Now) {
        self.unresolved.retain(|written| !written.end.has_passed(now));
        if let Some(end) = extended.end {
            self.unresolved.push(Written { value: extended.value.clone(), end, proves });
            self.end = self.end.map(|own| own.min(end));
        }
    }

    /// Returns the lease that has replaced this one. A command that is late may still bring an earlier value back.
    pub(super) fn replaced_by(&self, extended: &Lease, now: Now) -> Lease {
        // What a transaction was to write can come no more.
        let mut unresolved = self.unresolved.clone();
        unresolved.retain(|written| {
            !written.proves && written.value != extended.value && !written.end.has_passed(now)
        });
        let since = if self.has_passed(now) { extended.since } else { self.since };
        let shows_later = self.shows_later || extended.shows_later;
        Lease { since, shows_later, unresolved, ..extended.clone() }
    }

    /// Returns the lease with an end that is no later than this.
    pub(super) fn ending_by(mut self, until: End) -> Self {
        self.end = self.end.map(|end| end.min(until));
        self
    }

    /// Returns true if the lease has ended by either clock; never without an expiration.
    #[inline]
    pub fn has_passed(&self, now: Now) -> bool {
        self.end.is_some_and(|end| end.has_passed(now))
    }
}

impl End {
    /// The end of a time that begins now.
    #[inline]
    pub fn of(now: Now, time: Duration) -> Self {
        End { wall: now.wall.after(time), uptime: now.uptime.after(time) }
    }

    /// Returns what the wall clock shows then if nobody sets it.
    fn wall_at(self, uptime: Uptime) -> Wall {
        self.wall.before(self.uptime.since(uptime)).after(uptime.since(self.uptime))
    }

    /// Returns the end of a time that is shorter.
    #[inline]
    pub(super) fn earlier_by(self, time: Duration) -> Self {
        End { wall: self.wall.before(time), uptime: self.uptime.before(time) }
    }

    /// Over when either clock says so (I7), and when the wall clock cannot be right.
    #[inline]
    pub fn has_passed(self, now: Now) -> bool {
        now.wall >= self.wall || now.uptime >= self.uptime || !now.is_plausible()
    }

    /// Returns the end of a time that is over as soon as one of the two is.
    #[inline]
    pub fn min(self, other: Self) -> Self {
        End { wall: self.wall.min(other.wall), uptime: self.uptime.min(other.uptime) }
    }

    /// How long it can still be relied on: by the clock that allows less.
    #[inline]
    pub fn remaining(self, now: Now) -> Duration {
        if !now.is_plausible() {
            return Duration::ZERO;
        }
        self.wall.since(now.wall).min(self.uptime.since(now.uptime))
    }
}

#[cfg(test)]
mod tests;

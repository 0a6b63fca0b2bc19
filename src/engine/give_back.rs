//! Giving a lock back: to the next thread of this process, where the options say so and one waits, else to everybody.

use super::Engine;
use super::call::Call;
use crate::clock::{self, Now, Uptime};
use crate::error::Error;
use crate::event::Event;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::GiveUp;
use crate::protocol::lease::Lease;
use crate::protocol::release::{Release, Releasing, Step};
use crate::protocol::renew::{self, Renewed, Renewing};
use crate::value::Content;
use crate::waiting::{Gift, Hold, News, Sighting, Wish};

/// A lock as it is given back.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) key: &'a Key,
    pub(crate) options: &'a LockOptions,
    pub(crate) lease: &'a Lease,
    /// How often in a row it has passed from thread to thread.
    pub(crate) passed: u32,
    pub(crate) hold: Hold,
}

/// How renewing ended.
enum Renewal {
    Renewed(Renewed),
    NotRenewed,
    Lost(Content),
}

impl Engine {
    /// Gives a lock back by the rules that it was got by, with a few commands and no sleep, and lets the next thread know.
    pub(crate) fn give_back(&self, lock: Held<'_>, began: Now) -> Result<Release, Error> {
        let Held { key, options, lease, passed, hold } = lock;
        let heir = if passed < options.hand_over { hold.heir() } else { None };
        let heir = heir.filter(|(_, wish)| wish.is_met_by(options.protocol, lease));
        let deadline = began.uptime;
        let Some((heir, wish)) = heir else {
            return self.release(key, options, lease, hold, began, deadline);
        };
        match self.renew(key, options.protocol, lease, &wish, began)? {
            // What was tried has taken time, and the lease may have passed meanwhile (I5).
            Renewal::NotRenewed => self.release(key, options, lease, hold, clock::now(), deadline),
            Renewal::Lost(winner) => {
                self.observer.tell(&Event::Overwrote { key, winner: &winner });
                Ok(Release::Lost)
            }
            Renewal::Renewed(Renewed { lease, found }) => {
                let sighting = Sighting::of(&lease, clock::now());
                let gift = Gift { lease, sighting, passed: passed + 1 };
                let outcome = match hold.give(heir, &gift) {
                    None => Release::HandedOver { certified: true },
                    // He has given up meanwhile.
                    Some(hold) => self.release(key, options, &gift.lease, hold, clock::now(), deadline)?,
                };
                Ok(found.confirms(outcome))
            }
        }
    }

    /// All that it sends is to be answered within the time of one command after the deadline.
    fn release(
        &self,
        key: &Key,
        options: &LockOptions,
        lease: &Lease,
        hold: Hold,
        now: Now,
        deadline: Uptime,
    ) -> Result<Release, Error> {
        let outcome = self.release_by_the_rules(key, options.protocol, lease, now, deadline);
        if !matches!(outcome, Ok(Release::Released { .. })) {
            hold.end(News::Changed, false);
            return outcome;
        }
        // Where this process waits for tokens as others do, its next thread is woken when it is its turn among them.
        let hears = options.wake_ups && self.wake_ups.hears(key);
        let by_token = hears && self.leave_token(key, deadline);
        hold.end(News::Freed, by_token);
        if options.wake_ups && !hears {
            self.leave_token(key, deadline);
        }
        outcome
    }

    fn release_by_the_rules(
        &self,
        key: &Key,
        protocol: Protocol,
        lease: &Lease,
        mut now: Now,
        deadline: Uptime,
    ) -> Result<Release, Error> {
        let mut call = Call::new(self, key, protocol);
        let (mut releasing, mut step) = Releasing::start(protocol, lease, now);
        loop {
            if !matches!(step, Step::Send(_)) {
                call.leave_the_burst();
            }
            let request = match step {
                Step::Send(request) => request,
                Step::Done(release) => return Ok(release),
                Step::GiveUp(reason) => return Err(not_released(call, reason, lease)),
            };
            let reply = call.send(&request, now, Some(deadline));
            now = clock::now();
            step = releasing.reply(&reply, now);
        }
    }

    /// Leaves a token for the next waiter in whichever process, within the time of one command since then. Returns whether there is one
    /// now.
    pub(super) fn leave_token(&self, key: &Key, since: Uptime) -> bool {
        let limits = self.limits(Protocol::Classic, clock::now(), Some(since));
        self.wake_ups.leave(key, &limits, &self.observer)
    }

    /// Puts a lease for the next holder into the place of this one's.
    fn renew(
        &self,
        key: &Key,
        protocol: Protocol,
        lease: &Lease,
        wish: &Wish,
        began: Now,
    ) -> Result<Renewal, Error> {
        let mut call = Call::new(self, key, protocol);
        let mut now = began;
        let nonce = self.identity.next_nonce();
        let (mut renewing, mut step) = Renewing::start(protocol, lease, wish.expiration(), nonce, now);
        loop {
            if !matches!(step, renew::Step::Send(_)) {
                call.leave_the_burst();
            }
            let request = match step {
                renew::Step::Send(request) => request,
                renew::Step::Renewed(renewed) => return Ok(Renewal::Renewed(renewed)),
                renew::Step::NotRenewed => return Ok(Renewal::NotRenewed),
                renew::Step::Lost { overwrote } => return Ok(Renewal::Lost(overwrote)),
                renew::Step::GiveUp(reason) => return Err(not_released(call, reason, lease)),
            };
            let reply = call.send(&request, now, Some(began.uptime));
            now = clock::now();
            step = renewing.reply(&reply, now);
        }
    }
}

fn not_released(call: Call<'_>, reason: GiveUp, lease: &Lease) -> Error {
    let advice = match lease.end {
        Some(_) => "if it was not released, it frees itself when its lease has passed",
        None => "it has no expiration, so look at the key, and clear it if it is still there",
    };
    call.error(reason, advice)
}

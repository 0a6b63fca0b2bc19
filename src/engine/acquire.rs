//! Getting a lock: waits for its turn, then does what the rules say, until there is a lease or an error.

use std::thread;
use std::time::Duration;

use super::call::Call;
use super::{Engine, Held};
use crate::clock::{self, Now, Uptime};
use crate::error::{Contention, Error};
use crate::event::Event;
use crate::key::Key;
use crate::options::LockOptions;
use crate::protocol::GiveUp;
use crate::protocol::acquire::{Acquiring, Action, Note, Terms};
use crate::protocol::lease::Lease;
use crate::server::Over;
use crate::value::Content;
use crate::waiting::{Canceller, Gift, Hold, News, Place, Sighting, Turn, Wish, Woken};

/// A lock that was got, and what it took.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) lease: Lease,
    pub(crate) hold: Hold,
    /// How often in a row it has passed from thread to thread.
    pub(crate) passed: u32,
    pub(crate) at: Now,
    pub(crate) tries: u32,
    pub(crate) waited: Duration,
}

/// One wait for one lock.
struct Wait<'a> {
    engine: &'a Engine,
    key: &'a Key,
    options: &'a LockOptions,
    canceller: Option<&'a Canceller>,
    began: Now,
    deadline: Option<Uptime>,
}

impl Engine {
    /// Waits and tries until there is a lease, or an error; contention until the deadline is an [`Error::Timeout`].
    pub(crate) fn acquire(
        &self,
        key: &Key,
        options: &LockOptions,
        canceller: Option<&Canceller>,
    ) -> Result<Acquired, Error> {
        self.refuse_after_a_fork(key)?;
        let _registered = canceller.map(Canceller::register);
        let began = clock::now();
        let deadline = options.timeout.map(|timeout| began.uptime.after(timeout));
        let wait = Wait { engine: self, key, options, canceller, began, deadline };
        wait.check()?;
        loop {
            let acquired = wait.once()?;
            let Acquired { lease, at, tries, waited, .. } = &acquired;
            // I3: a thread that slept through the lease it was given goes to the end of the line.
            if lease.has_passed(*at) {
                self.report(key, &mut vec![Note::LateGrant]);
                continue;
            }
            self.observer.tell(&Event::Acquired { key, tries: *tries, waited: *waited });
            return Ok(acquired);
        }
    }

    fn report(&self, key: &Key, notes: &mut Vec<Note>) {
        for note in notes.drain(..) {
            self.observer.tell(&match &note {
                Note::TookOver(from) => Event::TookOver { key, from },
                Note::Overwrote(winner) => Event::Overwrote { key, winner },
                Note::LateGrant => Event::LateGrant { key },
                Note::Stuck(content) => Event::Stuck { key, content },
            });
        }
    }
}

impl Wait<'_> {
    /// Stands in the line until it is our turn, then tries. One try waits for nobody, and stands in no line.
    fn once(&self) -> Result<Acquired, Error> {
        if self.options.timeout == Some(Duration::ZERO) {
            let (attempt, action) = Acquiring::start(self.terms(), self.began);
            return self.attempt(attempt, action, self.began, self.began.uptime, &mut None);
        }
        let mut place = Some(self.engine.lines.join(self.key, Wish::of(self.options)));
        let came = self.in_line(&mut place);
        // A token that came as we gave up is for another process, if nobody in this one is left.
        if self.options.wake_ups && place.and_then(Place::leave) == Some(News::Freed) {
            let now = clock::uptime();
            self.engine.leave_token(self.key, self.deadline.map_or(now, |deadline| deadline.min(now)));
        }
        came
    }

    fn in_line(&self, place: &mut Option<Place>) -> Result<Acquired, Error> {
        let Some(standing) = place else { unreachable!("it has just joined the line") };
        let turn = standing.turn(self.parking(self.deadline));
        let now = clock::now();
        match &turn {
            Turn::Given(..) => {}
            Turn::Over { .. } => self.check()?,
            Turn::Ours(_) if self.is_cancelled() => {
                self.pass_on(News::Changed);
                self.check()?;
            }
            Turn::Ours(_) => {}
        }
        let looked = match &turn {
            Turn::Ours(Some(sighting)) => sighting.at,
            _ => now.uptime,
        };
        let (attempt, action) = match turn {
            Turn::Ours(None) => match self.token_under_way() {
                None => Acquiring::start(self.terms(), now),
                Some(since) => Acquiring::waiting(self.terms(), since, now),
            },
            Turn::Ours(Some(sighting)) => Acquiring::behind(self.terms(), sighting, now),
            Turn::Given(gift, hold) => return self.accepted(gift, hold, 0),
            // Those before us have not got as far as seeing it. So we try ourselves, to know why.
            Turn::Over { seen: None, .. } => Acquiring::start(self.terms(), now),
            Turn::Over { seen: Some(Sighting { seen, .. }), ahead } => {
                return Err(self.timed_out(0, seen, ahead, now));
            }
        };
        self.attempt(attempt, action, now, looked, place)
    }

    /// Talks to the server, as the head of the line.
    fn attempt(
        &self,
        mut attempt: Acquiring,
        mut action: Action,
        mut now: Now,
        mut looked: Uptime,
        place: &mut Option<Place>,
    ) -> Result<Acquired, Error> {
        let over = || self.is_over();
        let call = Call::new(self.engine, self.key, self.options.protocol);
        let mut call = call.ended_by(Over(&over), self.engine.patience(self.began.uptime));
        loop {
            match action {
                Action::Send(_) => {}
                // Leaving takes a trip, and the lease runs; so this connection is given up (I3).
                Action::Held(_) => call.burst = None,
                Action::Sleep(_) | Action::GiveUp(_) => call.leave_the_burst(),
            }
            // An observer may want a connection for itself.
            self.engine.report(self.key, &mut attempt.notes);
            action = match action {
                Action::Send(request) => {
                    let reply = call.send(&request, now, self.deadline);
                    now = clock::now();
                    looked = now.uptime;
                    attempt.reply(reply, now)
                }
                Action::Sleep(time) => {
                    let Some(place) = place else {
                        unreachable!("at its deadline an attempt gives up rather than sleep")
                    };
                    if self.options.wake_ups {
                        self.engine.wake_ups.want(self.key, &self.engine.observer);
                    }
                    let sighting = Sighting { seen: attempt.seen.clone(), at: looked };
                    let woken = place.sleep(sighting, self.parking(Some(now.uptime.after(time))));
                    now = clock::now();
                    if self.is_over() && !matches!(woken, Woken::Given(..)) {
                        if let Woken::News(news) = woken {
                            self.pass_on(news);
                        }
                        if attempt.is_in_doubt() {
                            return Err(self.given_up(call, GiveUp::Unknown));
                        }
                        self.check()?;
                    }
                    match woken {
                        Woken::News(News::Freed) => attempt.freed(now),
                        Woken::Given(gift, hold) => return self.accepted(gift, hold, attempt.tries),
                        Woken::News(News::Changed) | Woken::Over => attempt.woken(now),
                    }
                }
                Action::Held(lease) => {
                    let sighting = Sighting::of(&lease, now);
                    let hold = match place.take() {
                        Some(place) => place.enter(sighting),
                        None => self.engine.lines.hold(self.key, sighting),
                    };
                    let waited = now.uptime.since(self.began.uptime);
                    return Ok(Acquired { lease, hold, passed: 0, at: now, tries: attempt.tries, waited });
                }
                Action::GiveUp(GiveUp::Timeout) => {
                    return Err(self.timed_out(attempt.tries, attempt.seen.take(), 0, now));
                }
                Action::GiveUp(reason) => {
                    // Unless something is in doubt, that the wait was ended is why.
                    if reason != GiveUp::Unknown {
                        self.check()?;
                    }
                    return Err(self.given_up(call, reason));
                }
            };
        }
    }

    fn given_up(&self, call: Call<'_>, reason: GiveUp) -> Error {
        // One that gave up at its own deadline has not been patient for others.
        if self.deadline.is_none() && matches!(reason, GiveUp::Unsent | GiveUp::Io) {
            self.engine.note_unreachable();
        }
        let advice = match self.options.expiration {
            Some(_) => "if it is ours, it frees itself when its lease has passed; try again then",
            None => {
                "it has no expiration, so nobody can tell whether it is ours; look at the key, and clear it if its holder is dead"
            }
        };
        call.error(reason, advice)
    }

    /// Gives back news that we do not act upon: leaving the line hands it to the next.
    fn pass_on(&self, news: News) {
        self.engine.lines.tell(self.key, news);
    }

    fn token_under_way(&self) -> Option<Uptime> {
        self.options.wake_ups.then(|| self.engine.wake_ups.left(self.key)).flatten()
    }

    /// A lock that another thread has passed on. One that comes after the wait was ended is given back at once.
    fn accepted(&self, gift: Gift, hold: Hold, tries: u32) -> Result<Acquired, Error> {
        let at = clock::now();
        let Gift { lease, passed, .. } = gift;
        if let Err(ended) = self.check() {
            let lock = Held { key: self.key, options: self.options, lease: &lease, passed, hold };
            if let Err(error) = self.engine.give_back(lock, at) {
                self.engine.observer.tell(&Event::ReleaseFailed { key: self.key, error: &error });
            }
            return Err(ended);
        }
        Ok(Acquired { lease, hold, passed, at, tries, waited: at.uptime.since(self.began.uptime) })
    }

    fn terms(&self) -> Terms {
        Terms {
            protocol: self.options.protocol,
            expiration: self.options.expiration,
            deadline: self.deadline,
            polling: self.options.polling,
            takeover: self.options.takeover,
            takeover_margin: self.options.takeover_margin,
            patience: self.engine.patience(self.began.uptime),
            nonce: self.engine.identity.next_nonce(),
        }
    }

    /// Puts the thread to sleep until then, or until somebody wakes it; says whether it may sleep on.
    fn parking(&self, until: Option<Uptime>) -> impl FnMut() -> bool {
        move || {
            let left = until.map(|until| until.since(clock::uptime()));
            if left == Some(Duration::ZERO) || self.is_cancelled() {
                return false;
            }
            match left {
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
            true
        }
    }

    fn is_over(&self) -> bool {
        self.is_cancelled() || self.engine.lines.is_closed()
    }

    fn is_cancelled(&self) -> bool {
        self.canceller.is_some_and(Canceller::is_cancelled)
    }

    /// Refuses to wait where waiting was ended from outside.
    fn check(&self) -> Result<(), Error> {
        let key = || self.key.clone();
        if self.engine.lines.is_closed() {
            return Err(Error::ShutDown { key: key() });
        }
        if self.is_cancelled() {
            let waited = clock::uptime().since(self.began.uptime);
            return Err(Error::Cancelled { key: key(), waited });
        }
        Ok(())
    }

    fn timed_out(&self, tries: u32, seen: Option<Content>, ahead: usize, now: Now) -> Error {
        let details = Contention {
            tries,
            waited: now.uptime.since(self.began.uptime),
            seen,
            expiring: self.options.expiration.is_some(),
            takeover_margin: self.options.takeover_margin,
            ahead,
            taken_by_this_thread: false,
        };
        let timeout = self.options.timeout.unwrap_or(Duration::MAX);
        Error::Timeout { key: self.key.clone(), timeout, details: Box::new(details) }
    }
}

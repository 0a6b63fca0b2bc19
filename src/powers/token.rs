//! A lock that goes to another process: a guard becomes a token, and a token a guard.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use proto::values::{Key, Token};

use crate::extend::{Leaving, date, in_words};
use crate::system::clock;
use crate::{Error, Lock, LockGuard, LockOptions, Locker};

use chrono::{DateTime, Utc};

/// A lock on its way to another process.
///
/// [`LockGuard::into_token`](crate::LockGuard::into_token) ends a guard and returns its token,
/// [`Lock::resume`](crate::Lock::resume) makes a guard of it in any process, once.
/// [`Locker::release_token`](crate::Locker::release_token) releases the lock instead.
///
/// Displayed, it is one word of letters, digits, `.`, `-` and `_`, which is parsed again. For a key of 100 bytes it has
/// at most 320 characters. Who has the token can end the lock or go on with it, so treat it like a password.
///
/// ```
/// # use setnx_lock::{Error, Lock, LockOptions, LockToken, Locker};
/// # use std::time::Duration;
/// # let server = setnx_lock_testing::TestServer::start();
/// # let locker = Locker::open(&server.url())?;
/// let lock = Lock::new(&locker, "upload:7", LockOptions::expiring_after(Duration::from_secs(30)))?;
/// let text = lock.lock()?.into_token()?.to_string();
///
/// // In another process:
/// let token: LockToken = text.parse()?;
/// lock.resume(&token)?.release()?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct LockToken(Token);

impl LockToken {
    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.0.key
    }

    /// Returns the end of the lease by the wall clock. Until then the lock is held, and the token can be used.
    ///
    /// `None` past the calendar's end.
    #[must_use]
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        date(self.0.end)
    }

    /// Returns how long its lease was, for one of the same length: the expiration of the holder's options.
    #[must_use]
    pub fn expiration(&self) -> Duration {
        self.0.expiration
    }

    /// Returns the fencing token of the hold, if it has taken one.
    #[must_use]
    pub fn fencing_token(&self) -> Option<u64> {
        self.0.fencing_token
    }
}

impl fmt::Display for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for LockToken {
    /// Leaves out what gives power over the lock.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockToken")
            .field("key", &self.0.key)
            .field("protocol", &self.0.protocol)
            .field("expires_at", &format_args!("{}", in_words(self.0.end)))
            .finish_non_exhaustive()
    }
}

impl FromStr for LockToken {
    type Err = Error;

    /// Reads a token, with white space around it or without.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for any other text, a token that was cut off
    /// or changed, and a token of another version of this library.
    fn from_str(text: &str) -> Result<Self, Error> {
        Token::read(text).map(Self).map_err(Error::invalid_locker)
    }
}

impl LockGuard {
    /// Ends the guard without releasing the lock, and returns a token
    /// by which another process goes on with it: see [`Lock::resume`].
    ///
    /// Waits for an unfinished command of this guard. Sends nothing, unless the reply to an extension was lost: then it
    /// reads the key, for at most one command timeout. The lease runs on, and nothing extends it until the lock is
    /// resumed: call [`extend`](Self::extend) before if the token may travel for long. If it is not used in time, the
    /// lock frees itself as that of a crashed holder.
    ///
    /// The [fencing token](Self::fencing_token), the holder's name, and what is left of
    /// [`hold_at_least`](LockOptions::hold_at_least) and
    /// [`auto_extend`](LockOptions::auto_extend) travel along. Loss signals and callbacks of this
    /// guard end. Until the token's lease ends, this process sees the lock as another's too.
    ///
    /// [The guide](crate::documentation::guide#hand-a-lock-over) has an example.
    ///
    /// # Errors
    ///
    /// There is no token then. The lock is released as by dropping the guard, unless it is lost.
    ///
    /// - [`Error::Lost`] if the lease has ended or a loss was noticed.
    /// - [`Error::Invalid`] without an expiration: the value in the key names no holder.
    /// - [`Error::Unavailable`] or [`Error::Refused`] if the reply
    ///   to an extension was lost, and the key could not be read.
    /// - [`Error::Forked`] in a forked child, which releases nothing.
    pub fn into_token(mut self) -> Result<LockToken, Error> {
        if self.options().terms.expiration.is_none() {
            let problem = "it has no expiration, so its value names no holder and it cannot be handed over; it is released";
            return Err(Error::invalid(self.key().clone(), problem));
        }
        let token = self.token()?;
        self.end_hold(Leaving::WithToken)?;
        Ok(LockToken(token))
    }
}

impl Lock {
    /// Goes on with a lock that was handed over by [`LockGuard::into_token`],
    /// in this or another process, and returns its guard.
    ///
    /// It replaces the value in the key by one of this holder, with a new lease of this lock's
    /// expiration. So **a token works once**: a second call fails, as does one after the lock was taken
    /// over. Does not wait: takes at most one command timeout. It takes as many round trips as a
    /// release; in Classic one more, and another with a fencing token whose counter is
    /// [forgotten](LockOptions::forget_tokens_after), for which it takes two where one command compares.
    ///
    /// This lock's options count from now on, except that `hold_at_least` and `auto_extend` go on from the first
    /// acquisition: the longer minimum, which the lease lasts for too, and the limit of the token if it has one. The
    /// new lease may pass that limit; nothing extends it then.
    ///
    /// In Classic the lock can be resumed only before the token's lease ends; in Watched and Ttl also later, while the
    /// key holds the token's value and the counter of its fencing token is not forgotten.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the token was used, the lock was cleared or taken over, or its lease has ended (in Watched
    ///   and Ttl, if the key is gone as well): do not begin the work.
    /// - [`Error::Invalid`] for a token of another key, and if this lock has no expiration.
    /// - [`Error::Unavailable`] or [`Error::Refused`]: nothing was changed; resume it again while the token's lease
    ///   lasts. That includes a server that [settles](crate::RefusalKind::Settling) after a restart or a failover.
    /// - [`Error::InDoubt`] if the reply was lost: the token may be used up. In Watched and Ttl a background thread then
    ///   releases the lock, and it may be resumed again. In Classic the lock frees itself after the new lease; do not
    ///   resume it again, since the lost command may still come.
    /// - [`Error::Nested`], [`Error::Cancelled`], [`Error::ShutDown`] and [`Error::Forked`] as for
    ///   [`lock`](Self::lock).
    pub fn resume(&self, token: &LockToken) -> Result<LockGuard, Error> {
        let LockToken(token) = token;
        let problem = if token.key != *self.key() {
            format!(
                "the token is that of lock {}; use a lock of that key, with the prefix of its locker",
                token.key
            )
        } else if self.options.terms.expiration.is_none() {
            "it has no expiration, so it cannot go on with a lock that has one".into()
        } else {
            // It waits for no holder, nor for the server.
            let options = self.options.resuming(token, clock::now().wall).timeout(Duration::ZERO);
            return self.locker().call(&options, self.cancel_token.as_ref()).go_on_with(token);
        };
        Err(Error::invalid(self.key().clone(), problem))
    }
}

impl Locker {
    /// Releases the lock of a token, whatever the locker's prefix, for a process that does not go on with it. Deletes
    /// no other holder's lock, except as a [release](LockGuard::release) may.
    ///
    /// It resumes the lock, as [`Lock::resume`] does, and releases it: within `hold_at_least` the key is left to
    /// expire, and waiting processes are notified if the holder would have done so. Takes at most two command timeouts,
    /// and the wait of a [release](LockGuard::release) for a free connection.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::resume`] and of [`LockGuard::release`]:
    ///
    /// - [`Error::Lost`] if the token was used, its lease has ended, or
    ///   the lock was cleared or taken over: there is nothing to release.
    /// - [`Error::Unavailable`], [`Error::Refused`] or [`Error::InDoubt`]: the lock frees
    ///   itself at the end of its lease, which may be a new one of the same length. Another
    ///   call may do it sooner; it returns [`Error::Lost`] if the token is used up.
    /// - [`Error::ShutDown`] if the locker was shut down, and [`Error::Forked`] in a forked child.
    pub fn release_token(&self, token: &LockToken) -> Result<(), Error> {
        let LockToken(token) = token;
        let options = LockOptions::expiring_after(token.expiration)
            .protocol(token.protocol)
            .notify_waiters(token.notifies && self.can_notify(&token.key));
        // Nothing is extended, and no work relies on its fencing token.
        let token = LockToken(Token { auto_extend: None, forget_after: None, ..token.clone() });
        let resumed = Lock::of_whole_key(self, token.key().clone(), options)?.resume(&token);
        resumed.and_then(LockGuard::release).map_err(|error| match error {
            Error::Lost { key, reason, late, .. } => {
                Error::Lost { key, reason, late, advice: Some("there is nothing to release") }
            }
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use proto::values::{Nonce, Protocol, Terms, Wall};

    use super::*;

    #[test]
    fn it_is_shown_without_what_gives_power_over_the_lock() {
        let (begin, second) = (Wall(1_795_157_374_492_303), Duration::from_secs(1));
        let now = proto::values::Now { wall: begin, uptime: proto::values::Uptime::default() };
        let nonce = Nonce::from_random(9_876_543_210);
        let lease = proto::lease::Lease::beginning(now, Some(second), Protocol::Ttl, nonce);
        let token = lease.token(&Key::from("k"), &Terms::expiring_after(second), begin);
        let shown = "LockToken { key: Key(\"k\"), protocol: Ttl, expires_at: 2026-11-20T06:49:35.492Z, .. }";
        assert_eq!(format!("{:?}", LockToken(token.clone())), shown);
        assert!(!format!("{token:?}").contains("987654"), "{token:?}");
    }
}

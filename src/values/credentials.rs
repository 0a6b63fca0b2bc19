//! Logins that may change while a program runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::clock::{self, Uptime};
use super::sync::Mutex;

/// A login: a password, and the user whose it is.
///
/// Its `Debug` shows no password.
///
/// ```
/// use setnx_lock::Credentials;
///
/// let credentials = Credentials::password("secret").user("locks");
/// assert!(!format!("{credentials:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
}

impl Credentials {
    /// Returns a login with this password, for the user that the address names, or for the default user.
    #[must_use]
    pub fn password(password: impl Into<String>) -> Self {
        Self { user: None, password: password.into() }
    }

    /// Sets the user (Redis 6 and newer).
    #[must_use]
    pub fn user(self, user: impl Into<String>) -> Self {
        Self { user: Some(user.into()), ..self }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Returns the login of the moment.
#[derive(Clone)]
pub(crate) struct CredentialSource {
    source: Arc<dyn Fn() -> Credentials + Send + Sync>,
    /// When the calls of it began that have not returned.
    asked: Arc<Mutex<Vec<Uptime>>>,
    /// True once a server has accepted one.
    was_right: Arc<AtomicBool>,
}

impl CredentialSource {
    pub(crate) fn new(source: impl Fn() -> Credentials + Send + Sync + 'static) -> Self {
        Self { source: Arc::new(source), asked: Arc::default(), was_right: Arc::default() }
    }

    /// Asks the program.
    pub(crate) fn now(&self) -> Credentials {
        let since = clock::uptime();
        self.asked.lock().push(since);
        let _asked = PendingLogin { asked: &self.asked, since };
        (self.source)()
    }

    /// Returns since when the program has been asked and has not answered.
    pub(crate) fn asked_since(&self) -> Option<Uptime> {
        self.asked.lock().iter().min().copied()
    }

    /// Notes that a server has accepted a login.
    pub(crate) fn is_right(&self) {
        self.was_right.store(true, Ordering::Relaxed);
    }

    /// Returns true if a server has accepted a login before: one that is wrong now is about to change here as well.
    pub(crate) fn was_right(&self) -> bool {
        self.was_right.load(Ordering::Relaxed)
    }
}

/// A call of the program, also one that panics.
struct PendingLogin<'a> {
    asked: &'a Mutex<Vec<Uptime>>,
    since: Uptime,
}

impl Drop for PendingLogin<'_> {
    fn drop(&mut self) {
        let mut asked = self.asked.lock();
        if let Some(at) = asked.iter().position(|since| *since == self.since) {
            asked.swap_remove(at);
        }
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialSource").finish_non_exhaustive()
    }
}

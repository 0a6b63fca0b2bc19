//! Logins that may change while a program runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    /// How many calls of it have not returned.
    asked: Arc<AtomicUsize>,
    /// True once a server has accepted one.
    was_right: Arc<AtomicBool>,
}

impl CredentialSource {
    pub(crate) fn new(source: impl Fn() -> Credentials + Send + Sync + 'static) -> Self {
        Self { source: Arc::new(source), asked: Arc::default(), was_right: Arc::default() }
    }

    /// Asks the program.
    pub(crate) fn now(&self) -> Credentials {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let _asked = PendingLogin(&self.asked);
        (self.source)()
    }

    /// Returns true while the program has not answered.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) > 0
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
struct PendingLogin<'a>(&'a AtomicUsize);

impl Drop for PendingLogin<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialSource").finish_non_exhaustive()
    }
}

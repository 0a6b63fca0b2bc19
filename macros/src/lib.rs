//! The attribute of the crate setnx-lock, [`macro@locked`]. Depend on that crate with its feature `macros`, and write
//! `#[setnx_lock::locked(…)]`: what the attribute expands to names it.

mod arguments;
mod duration;
mod expand;
mod function;
mod key;
mod options;
mod syntax;

use proc_macro::TokenStream;

/// Runs a function or a method while a lock is held: the lock is acquired before the body and released after it, also after `?`, an early
/// `return` or a panic.
///
/// ```no_run
/// use setnx_lock::{Locker, locked};
/// use std::sync::LazyLock;
///
/// static LOCKER: LazyLock<Locker> =
///     LazyLock::new(|| Locker::open("redis://127.0.0.1/").expect("a valid address"));
///
/// # struct Team { id: u64 }
/// #[derive(Debug)]
/// enum AppError {
///     Busy(setnx_lock::Error),
///     Lock(setnx_lock::Error),
/// }
///
/// impl From<setnx_lock::Error> for AppError {
///     fn from(error: setnx_lock::Error) -> Self {
///         Self::Lock(error)
///     }
/// }
///
/// // Waits up to 5 s, then fails with `AppError::Busy`.
/// #[locked(key = "team:{team.id}:trade", expiration = "15s", timeout = "5s", on_contention = AppError::Busy)]
/// fn trade(team: &Team) -> Result<(), AppError> {
///     Ok(())
/// }
///
/// // One attempt; `None` while another process does it.
/// #[locked(expiration = "10m", timeout = "0s", skip)]
/// fn close_day() -> Result<Option<u32>, AppError> {
///     Ok(Some(7))
/// }
///
/// # struct Warehouse { locker: Locker, name: String }
/// impl Warehouse {
///     // The body sees the guard of the lock by the name that is given.
///     #[locked(locker = self.locker, key = "warehouse:{self.name}", guard = held)]
///     fn count(&mut self) -> Result<u64, AppError> {
///         held.ensure_held()?; // before a step that must not happen twice
///         Ok(held.fencing_token()?)
///     }
/// }
/// ```
///
/// # Arguments
///
/// Durations are strings with units, as `"15s"`, `"500ms"` or `"2m 30s"`, which are read when the code is compiled, or expressions of type
/// `Duration`. Arguments that contradict each other do not compile.
///
/// | argument | what it does |
/// |---|---|
/// | `locker = EXPR` | which locker: a static, `self.locker`, or a call that returns a reference to one; `LOCKER` unless given |
/// | `key = "…"` | the key, in the syntax of `format!`; in braces stands any expression, with a format behind a colon perhaps: `"team:{team.id}"`, `"{self.name()}"`, `"{id:>05}"` |
/// | `key = EXPR` | the key as an expression that converts into a `Key` |
/// | `prefix = "…"`, `args(a, b)` | the key `prefix:a:b`; `prefix` alone is the key; `args` alone are appended to the default key |
/// | `expiration = "15s"` | how long the lease is; 30 s unless given, and work that may take longer needs its own |
/// | `held_until_released` | no lease: the lock is held until it is released, also after a crash |
/// | `options = EXPR` | the `LockOptions` that the other arguments refine, instead of the two above |
/// | `timeout = "5s"`, `wait_forever`, `max_attempts = 3` | how long the lock is waited for; 5 s unless given |
/// | `protocol = Auto` | one of `Classic`, `Watched`, `Ttl`, `Auto` |
/// | `poll_interval`, `polling`, `notify_waiters`, `time_slice`, `takeover_margin`, `stealing_as_the_gem_does` | how the lock is waited for and taken over |
/// | `hold_at_least`, `auto_extend`, `verify_every`, `fenced`, `reentrant`, `holder_name` | what the holder does |
/// | `on_contention = PATH` | makes the function's error of the lock's, if another holder has the lock: a function, a variant or a closure |
/// | `skip` | returns `None` instead |
/// | `keep` | does not release the lock: it is left to expire, also after an error or a panic |
/// | `guard = NAME` | gives the body the `&LockGuard` by this name |
///
/// An argument with the name of a method of `LockOptions` does what is said there.
///
/// # The default key
///
/// Without `key`, `prefix` and `args` the key is the path of the module and the name of the function: `my_crate::orders::close_day`. The
/// attribute does not see the type that a method belongs to, so **two methods of one name in one module share that key**: name the key of
/// a method. A function that is renamed or moved has another key than its older versions that still run. The key is made before the
/// lock is waited for, and before the body runs.
///
/// # Without the lock
///
/// | return type | another holder has the lock | the same with `skip` | another error |
/// |---|---|---|---|
/// | `Result<T, E>` | the error | does not compile | the error |
/// | `Result<Option<T>, E>` | the error | `Ok(None)` | the error |
/// | `Option<Result<T, E>>` | `Some` of the error | `None` | `Some` of the error |
/// | `Option<T>` | does not compile | `None` | `None`, and a warning in the log |
///
/// The error is the lock's, converted by `From<setnx_lock::Error>` into `E`; during contention (`Error::is_contention`) by
/// `on_contention` if it is given. The types are known by the names `Result` and `Option`. Another name is taken for a `Result`; inside
/// an `Option`, write `Result` out. A function that returns nothing does not compile.
///
/// # Nested calls
///
/// A call inside another one, or inside `Lock::with`, on the same key by the same thread and through the same locker fails with
/// `Error::Nested`. If both have `reentrant` it joins the enclosing call, which releases or keeps the lock: the inner one's `keep` has no
/// effect then. A failed release goes to the log and the observer, as after `Lock::with`.
///
/// # What it is not for
///
/// An `async fn` is refused: a lock blocks its thread while it is waited for, and belongs to the thread that acquired it. Put the attribute
/// on a blocking function, and call that in the pool of the runtime that is for blocking work. For a part of a function use `Lock::with`;
/// for a lock that moves to another thread, `Lock::lock`.
#[proc_macro_attribute]
pub fn locked(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(arguments.into(), &item.into()).into()
}

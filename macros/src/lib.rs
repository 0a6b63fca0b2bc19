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
/// `return` or a panic. If the lock was lost meanwhile, the function returns `Error::Lost`, unless the body failed itself.
///
/// ```no_run
/// use setnx_lock::{LockOptions, Locker, locked};
/// use std::sync::LazyLock;
/// use std::time::Duration;
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
/// // One attempt, and everything else by the options.
/// const ONCE: LockOptions =
///     LockOptions::expiring_after(Duration::from_secs(600)).timeout(Duration::ZERO).hold_at_least(Duration::from_secs(60));
///
/// #[locked(options = ONCE, on_contention = AppError::Busy)]
/// fn close_day() -> Result<u32, AppError> {
///     Ok(7)
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
/// | `expiration = "15s"` | how long the lease is; 30 s unless given, and work that may take longer needs its own |
/// | `timeout = "5s"` | how long the lock is waited for; 5 s unless given |
/// | `protocol = Auto` | one of `Classic`, `Watched`, `Ttl`, `Auto` |
/// | `auto_extend = "10m"` | how long the lease is extended in total while the body runs |
/// | `options = EXPR` | the `LockOptions`, for everything else; instead of `expiration`, and refined by the others |
/// | `on_contention = PATH` | converts a contention error into your error type: a function, a variant or a closure |
/// | `guard = NAME` | gives the body the `&LockGuard` by this name |
///
/// # The default key
///
/// Without `key` the key is the path of the module and the name of the function: `my_crate::orders::close_day`. The
/// attribute does not see the type that a method belongs to, so **two methods of one name in one module share that key**: name the key of
/// a method. A function that is renamed or moved has another key than its older versions that still run. The key is made before the
/// lock is waited for, and before the body runs.
///
/// # Errors
///
/// The function returns a `Result`, or an alias of one. An error of the lock is converted by `From<setnx_lock::Error>` into its error type;
/// during contention (`Error::is_contention`) by `on_contention` if that is given. A function with any other return type does not compile.
///
/// # Nested calls
///
/// A call inside another one, or inside `Lock::with`, on the same key by the same thread and through the same locker fails with
/// `Error::Nested`. If the options of both are `reentrant()` it joins the enclosing call, which releases the lock. A failed release goes to
/// the log and the observer, as after `Lock::with`.
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
